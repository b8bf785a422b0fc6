"""Compare paced runs with unpaced ones: python -m experiments.pacing [RUN…] [--figure STEM]

Without runs it simulates `unequal-fashion` and `paced-fashion`, the latter also without weights, each with three
seeds. With runs it simulates nothing and makes the same table of those. What an edge has spent is read from its own
ledger where a run has ledgers, as those of the testbed do, else from the run's statement. --figure draws ε of each edge
over the seconds of each run, from its events alone.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import statistics
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from common.datasets.catalogue import data_directory
from common.errors import ConfigurationError, MapaError
from common.records.reader import RunRecords, read_run
from experiments.harness import UnfinishedError, markdown_table, sweep
from mapa.dashboard.spending import epsilon, release_kind, shard_size
from mapa.figures import line, look, panels, save
from mapa.recording import record_simulation
from mapa.releases import statements_of
from mapa.run_result import read_result
from mapa.runs import find_run
from mapa.scenario_files import load_scenario
from mapa.simulation.simulator import World

CASES = (("unequal-fashion", ()), ("paced-fashion", ()), ("paced-fashion", ("algorithm.weights=none",)))
_HEADINGS = ("run", "seed", "releases of each edge", "z", "ε of each edge", "mean staleness", "accuracy, %")
_POINTS = 10  # of a curve: each is an accounting of its own


@dataclass(frozen=True, slots=True)
class Simulation:
    """One simulation: `mapa simulate SCENARIO --seed SEED --set WORD…`."""

    scenario: str
    words: tuple[str, ...]
    seed: int
    data_dir: Path
    runs: Path

    def __str__(self) -> str:
        return f"{self.scenario}, seed {self.seed}"


@dataclass(frozen=True, slots=True, kw_only=True)
class RunRow:
    """What the records of one run say; tuples have a value for each edge, by k."""

    run: str
    case: str  # runs that differ in nothing but the seed
    engine: str
    seed: int | None
    paced: bool
    budget: float | None  # ε
    releases: tuple[int, ...]
    z: tuple[float, ...]
    epsilon: tuple[float, ...]
    staleness: tuple[float, ...]
    accuracy: float  # of the last model


@dataclass(frozen=True, slots=True)
class EdgeSpending:
    device: str
    releases: list[int]
    seconds: list[float]  # since the first update
    epsilon: list[float]


def simulate_task(task: Simulation) -> Path:
    name, scenario = load_scenario(task.scenario, task.words, seed=task.seed)
    return Path(record_simulation(World.of(scenario, task.data_dir), name=name, runs=task.runs)["path"])


def simulated(tasks: Sequence[Simulation], jobs: int | None) -> list[Path]:
    """Simulate on this machine's cores; return the runs in the order of the tasks."""
    for task in tasks:  # refuse a wrong one before anything starts
        load_scenario(task.scenario, task.words, seed=task.seed)
    paths: dict[Simulation, Path] = {}
    for done in sweep(simulate_task, tasks, jobs=jobs):
        paths[done.task] = done.result()
        print(done.value, file=sys.stderr)
    return [paths[task] for task in tasks]


def row_of(path: Path) -> RunRow:
    run = read_result(path)
    if run.reason != "finished" or run.summary.get("final_accuracy") is None:
        raise UnfinishedError(f"{path}: {run.reason}, or without an accuracy: not to be compared")
    statements = statements_of(path, None)
    if len(statements) != 1:
        raise ConfigurationError(f"{path}: its ledgers know {len(statements)} data sets; one is comparable")
    [statement] = statements.values()
    totals = tuple(edge.total.epsilon for edge in statement.edges)
    if not all(map(math.isfinite, totals)):
        raise ConfigurationError(f"{path}: an edge's releases have no finite ε at δ = {statement.delta}")
    privacy, engine = run.scenario["privacy"], str(run.manifest["engine"])
    unweighted = run.scenario["algorithm"].get("weights") == "none"
    marks = ["no weights"] * unweighted + [engine] * (engine != "events")
    return RunRow(
        run=run.name,
        case=", ".join([str(run.manifest["name"]), *marks]),
        engine=engine,
        seed=run.manifest["seed"],
        paced=privacy.get("pace") == "own",
        budget=privacy.get("total_epsilon"),
        releases=tuple(edge.of.releases for edge in statement.edges),
        z=tuple(map(float, privacy["noise_multiplier"])),
        epsilon=totals,
        staleness=tuple(map(float, run.edges["staleness_mean"])),
        accuracy=float(run.summary["final_accuracy"]),
    )


def spread(epsilons: Sequence[float]) -> float:
    """Return how many times the least ε the largest is, over the edges that have released anything."""
    spent = [epsilon for epsilon in epsilons if epsilon > 0] or [1.0]
    return max(spent) / min(spent)


def cases_of(rows: Sequence[RunRow]) -> list[dict[str, Any]]:
    """Return the cases by their first runs; paced ones are compared with the first that is not, of the same engine."""
    groups: dict[str, list[RunRow]] = {}
    for row in rows:
        groups.setdefault(row.case, []).append(row)
    unpaced = {runs[0].engine: runs for runs in reversed(groups.values()) if not runs[0].paced}
    return [_case(own, unpaced.get(own[0].engine, []) if own[0].paced else []) for own in groups.values()]


def _case(own: Sequence[RunRow], other: Sequence[RunRow]) -> dict[str, Any]:
    mean = statistics.fmean(row.accuracy for row in own)
    mine, theirs = ({row.seed: row.accuracy for row in some} for some in (own, other))
    points: tuple[float, ...] = ()
    if other and None not in mine and mine.keys() == theirs.keys() and len(mine) == len(own) == len(other):
        points = tuple(100 * (mine[seed] - theirs[seed]) for seed in mine)
    elif other:
        points = (100 * (mean - statistics.fmean(row.accuracy for row in other)),)
    off = [abs(spent - row.budget) / row.budget for row in own if row.budget for spent in row.epsilon]
    return {
        "case": own[0].case,
        "runs": len(own),
        "accuracy": mean,
        "spread": max(spread(row.epsilon) for row in own),
        "off_budget": max(off, default=None),  # the farthest of an edge's ε from the budget, as a share of it
        "against": other[0].case if other else None,
        "points": points,  # accuracy − the other's: for each seed of both, or of the means
    }


def text_of(rows: Sequence[RunRow]) -> str:
    """Return the runs as a table in Markdown, and a line for each case."""
    lines = []
    for row in rows:
        z = row.z[:1] if len(set(row.z)) == 1 else row.z
        figures = (_list(row.releases, "d"), _list(z), _list(row.epsilon, ".3f"), _list(row.staleness, ".1f"))
        seed = "none" if row.seed is None else str(row.seed)
        lines.append([row.case, seed, *figures, f"{100 * row.accuracy:.2f}"])
    return "\n".join([markdown_table(_HEADINGS, lines), "", *map(_line, cases_of(rows))])


def _line(case: Mapping[str, Any]) -> str:
    text = f"{case['case']}: accuracy {100 * case['accuracy']:.2f} %, mean of {case['runs']};"
    text += f" largest ε of an edge / least: {case['spread']:.3f}"
    if case["off_budget"] is not None:
        text += f"; at most {100 * case['off_budget']:.2g} % from the budget"
    if points := case["points"]:
        each = f" ({_list(points, '+.2f')})" if len(points) > 1 else ""
        text += f"; {statistics.fmean(points):+.2f} points from {case['against']}{each}"
    return text


def _list(values: Iterable[float], form: str = ".2f") -> str:
    return ", ".join(format(value, form) for value in values)


def spending(run: Path, points: int = _POINTS) -> list[EdgeSpending]:
    """Return the spending of every edge that has released anything, by k."""
    times: dict[int, list[float]] = {}

    def take(record: Mapping[str, Any]) -> None:
        if record["event"] == "gradient_applied" and "time" in record:
            times.setdefault(record["edge"], []).append(record["time"])

    records = read_run(run, take)
    if not times:
        raise ConfigurationError(
            f"{run}: its records have no times of updates; delays.kind = 'cyclic' has none"
        )
    begin = min(seen[0] for seen in times.values())
    return [_of_edge(k, records, [time - begin for time in times[k]], points) for k in sorted(times)]


def _of_edge(k: int, records: RunRecords, seconds: Sequence[float], points: int) -> EdgeSpending:
    manifest, joined = records.manifest, records.joined[k]
    kind = release_kind(manifest["scenario"], shard_size(manifest, k), joined)
    if kind is None:
        raise ConfigurationError(f"edge {k}: its noise is of no law that is known here")
    delta = manifest["scenario"]["privacy"]["total_delta"]
    places = sorted({max(1, round(len(seconds) * n / points)) for n in range(1, points + 1)})
    spent = [figure for place in places if (figure := epsilon(kind, place, delta)) is not None]
    if len(spent) < len(places):
        raise ConfigurationError(f"edge {k}: its releases have no finite ε at δ = {delta}")
    device = str(joined.get("device", f"edge {k}"))
    return EdgeSpending(device, places, [seconds[place - 1] for place in places], spent)


def draw(runs: Mapping[str, Sequence[EdgeSpending]], stem: Path) -> list[Path]:
    with panels(1, len(runs), width=3.6, height=2.8) as (figure, axes):
        top = max(edge.epsilon[-1] for edges in runs.values() for edge in edges)
        for axis, (title, edges) in zip(axes[0], runs.items(), strict=True):
            for place, edge in enumerate(edges):
                label = f"{edge.device}: {edge.releases[-1]} releases, ε = {edge.epsilon[-1]:.2f}"
                line(axis, [0.0, *edge.seconds], [0.0, *edge.epsilon], look(label, place))
            axis.set(title=title, xlabel="seconds", ylabel="ε of the edge's records", ylim=(0, 1.35 * top))
            axis.legend(loc="upper left")
        return save(figure, stem)


def main(words: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m experiments.pacing", description=__doc__)
    parser.add_argument("runs", nargs="*", metavar="RUN", help="runs on record: names, or folders")
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3], help="of the simulations")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="in all simulations")
    parser.add_argument("--jobs", type=int, help="simulations at a time; default: one for each core")
    parser.add_argument("--data-dir", type=Path, help="folder of the data sets, instead of MAPA_DATA_DIR")
    parser.add_argument("--runs-dir", type=Path, default=Path("runs"))
    parser.add_argument("--figure", type=Path, metavar="STEM", help="draw ε over time: STEM.svg and .png")
    parser.add_argument("--json", action="store_true", help="print JSON, for scripts")
    given = parser.parse_args(words)
    data_dir = given.data_dir or data_directory(os.environ)
    tasks = [
        Simulation(name, (*own, *given.set), seed, data_dir, given.runs_dir)
        for name, own in CASES
        for seed in given.seeds
    ]
    try:
        paths = [find_run(name, given.runs_dir) for name in given.runs] or simulated(tasks, given.jobs)
        rows = [row_of(path) for path in paths]
        if given.figure:
            spent = {row.case: spending(path) for row, path in zip(rows, paths, strict=True)}
            print(*draw(spent, given.figure), sep="\n", file=sys.stderr)
    except MapaError as error:
        print(error, file=sys.stderr)
        return 2 if isinstance(error, ConfigurationError) else 1
    if given.json:
        document = {"runs": [asdict(row) for row in rows], "cases": cases_of(rows)}
        print(json.dumps(document, indent=2, ensure_ascii=False))
    else:
        print(text_of(rows))
    return 0


if __name__ == "__main__":
    sys.exit(main())

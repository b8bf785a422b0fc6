"""The reference table: each cell's run, its row, rows.csv to which others can add theirs, and table.md; resumable."""

from __future__ import annotations

import shlex
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path

from common.wire.v1 import HEADER_BYTES
from experiments.harness import (
    Harness,
    Job,
    OnProgress,
    Order,
    ResultCache,
    markdown_table,
    percent,
    read_values,
    require_end,
    result_key,
    write_values,
)
from experiments.reference import cells as table_cells
from experiments.reference.audited import Audited, audits_of, read_audited, section
from experiments.reference.cells import MAIN, Choice, Chosen, Group, TableCell
from mapa.releases import privacy_of
from mapa.simulation.simulator import World, check_world, simulate

FORMAT = 1  # raised whenever the same cell would give other numbers
TITLES = {"mnist": "MNIST", "fashion": "Fashion-MNIST", "cifar10": "CIFAR-10"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """What the table says of one run; the columns of its CSV."""

    data: str
    edges: int
    epsilon: float  # the budget of each edge
    links: str
    method: str
    seed: int
    accuracy: float  # of the last iterate
    stated_epsilon: float  # of the edge with most; against who sees sums, where releases are summed
    own_epsilon: float  # of the same, against all other edges together
    delta: float
    updates: int
    releases: int  # by all edges
    megabytes: float  # of models and gradients, both ways
    virtual_seconds: float
    seconds: float  # that the simulation took
    evaluated_on: str  # test or held-out
    digest: str  # of the scenario
    command: str
    by: str = "this project"


def key_of(cell: TableCell, choice: Choice) -> str:
    """Return the name of a row in the cache: the cell, its choice, the recipe and the method; sizes may share it."""
    values = {key: value for key, value in asdict(cell).items() if key != "size"}
    base = cell.base().digest  # of the recipe with all that the size changes in it
    return result_key(FORMAT, values, choice, base, repr(table_cells.methods()[cell.method]))


def run_cell(cell: TableCell, choice: Choice, data_dir: Path) -> list[Row]:
    """Simulate one cell; return its row."""
    began = time.perf_counter()
    rate, length = table_cells.units(cell, data_dir)
    scenario, words = cell.scenario(choice, rate=rate, length=length)
    world = World.of(scenario, data_dir)
    check_world(world)
    outcome = simulate(world)
    require_end(cell.name, outcome)
    resolved, releases = world.scenario, sum(outcome.releases)
    made = enumerate(outcome.releases)
    edges = [(k, f"edge-{k}", resolved.law(k), len(world.rows[k]), count) for k, count in made]
    changes = [part for word in words for part in ("--set", word)]
    stated = privacy_of(resolved, edges)
    row = Row(
        **{key: getattr(cell, key) for key in ("data", "edges", "epsilon", "links", "method", "seed")},
        accuracy=float(outcome.tally.evaluations[-1]["accuracy"]),
        stated_epsilon=float(stated.get("in_sums", stated)["epsilon"]),
        own_epsilon=float(stated["epsilon"]),
        delta=resolved.privacy.total_delta,
        updates=outcome.tally.updates,
        releases=releases,
        megabytes=2 * releases * (HEADER_BYTES + 4 * world.model.dimension) / 1e6,
        virtual_seconds=outcome.virtual_seconds or 0.0,
        seconds=time.perf_counter() - began,
        evaluated_on="held-out" if cell.held_out else "test",
        digest=scenario.digest,
        command=shlex.join(["mapa", "simulate", cell.recipe, "--seed", str(cell.seed), *changes]),
    )
    return [row]


def read_rows(path: Path) -> list[Row]:
    return read_values(path, Row, {"accuracy": 1.0, "delta": 1.0, "": sys.float_info.max})


def markdown(rows: Sequence[Row]) -> str:
    """Return a table for each data set, number of edges and kind of links: methods by budgets."""
    parts: list[str] = []
    by_place: dict[tuple[str, int, str], list[Row]] = {}
    for row in rows:
        by_place.setdefault((row.data, row.edges, row.links), []).append(row)
    for (data, edges, links), some in by_place.items():
        epsilons = sorted({row.epsilon for row in some})
        heads = [
            "method",
            *(f"ε = {epsilon:g}" for epsilon in epsilons),
            "stated ε",
            "updates",
            "MB",
        ]
        lines = []
        for method, by in dict.fromkeys((row.method, row.by) for row in some):
            own = [row for row in some if (row.method, row.by) == (method, by)]
            cells = [percent([row.accuracy for row in own if row.epsilon == eps]) for eps in epsilons]
            name = f"`{method}`" + ("" if by == "this project" else f" ({by})")
            main = [row for row in own if row.epsilon == MAIN] or own
            seconds, seeds = between([row.seconds for row in main], ".0f"), len({row.seed for row in own})
            lines.append([name, *cells, *costs(main), seconds, str(seeds)])
        table = markdown_table([*heads, "virtual s", "simulated in (s)", "seeds"], lines)
        parts.append(f"### {TITLES.get(data, data)}, K = {edges}, {links}\n\n{table}\n")
    return "\n".join(parts)


def between(values: Sequence[float], form: str = ".3f") -> str:
    """Return the least and the largest, once where they are the same."""
    if not values:
        return "–"
    low, high = format(min(values), form), format(max(values), form)
    return low if low == high else f"{low} … {high}"


def costs(rows: Sequence[Row]) -> list[str]:
    return [
        between([row.stated_epsilon for row in rows]),
        between([row.updates for row in rows], ".0f"),
        between([row.megabytes for row in rows], ".0f"),
        between([row.virtual_seconds for row in rows], ".1f"),
    ]


# -- from cells to files ------------------------------------------------------------------------------


CHOICES = Path(__file__).parent / "choices.toml"


@dataclass(frozen=True, slots=True, kw_only=True)
class ReferenceOrder(Order):
    tune: bool = False  # choose on held-out records first; otherwise as choices.toml says
    others: Sequence[Path] = ()  # rows of others for the same table
    audit: bool = False  # each release mechanism; otherwise what audited.csv has is shown


@dataclass(frozen=True, slots=True)
class ReferenceTable:
    rows: list[Row]
    files: list[Path]
    failures: dict[str, str]
    runs: int  # made now
    cached: int
    looks: int  # at held-out records, for the choices in force
    audited: list[Audited]  # now or before


def make_table(order: ReferenceOrder, on_progress: OnProgress | None = None) -> ReferenceTable:
    """Run what is missing; write rows.csv, table.md, choices.toml where choices were made, audited.csv where asked."""
    order.out.mkdir(parents=True, exist_ok=True)
    others = [row for path in order.others for row in read_rows(path)]
    cells = table_cells.all_cells(order.size, seeds=order.seeds, only=order.only)
    harness = Harness(order, ResultCache(order.out / "cache", Row), on_progress)
    own_choices = order.out / "choices.toml"
    if order.tune:
        chosen = {**table_cells.read_choices(own_choices), **_choose(cells, harness)}
        table_cells.write_choices(own_choices, chosen)
    else:
        chosen = {**table_cells.read_choices(CHOICES), **table_cells.read_choices(own_choices)}
    done = _run([(cell, table_cells.choice_for(cell, chosen)) for cell in cells], harness)
    rows = [*(row for row in done if row is not None), *others]
    kept = order.out / "audited.csv"
    if order.audit:
        choices = {**table_cells.read_choices(CHOICES), **chosen}
        write_values(kept, Audited, _audit(choices, harness, on_progress))
    audited = read_audited(kept) if kept.exists() else []
    paths = [order.out / "rows.csv", order.out / "table.md", *([kept] if audited else [])]
    write_values(paths[0], Row, rows)
    paths[1].write_text(markdown(rows) + section(audited), encoding="utf-8")
    needed = {trial.group for trial, _ in table_cells.asked_of(cells)}
    looks = sum(one.looks for group, one in chosen.items() if group in needed)
    return ReferenceTable(rows, paths, harness.failures, harness.runs, harness.cached, looks, audited)


def _run(cells: Sequence[tuple[TableCell, Choice]], harness: Harness[Row]) -> list[Row | None]:
    """Return a row for each cell, None where it failed."""
    asked = {key_of(cell, choice): (cell, choice) for cell, choice in cells}
    if harness.order.resume:
        harness.recall(asked)
    jobs = [
        Job(
            name=cell.name,
            labels={key: cell.name},
            work=partial(run_cell, cell, choice, harness.order.data_dir),
        )
        for key, (cell, choice) in asked.items()
        if key not in harness.results
    ]
    harness.run(jobs)
    return [harness.results.get(key) for key in asked]


def _choose(cells: Sequence[TableCell], harness: Harness[Row]) -> dict[Group, Chosen]:
    """Try every grid on held-out records, and go on beyond its end where the best value lies there."""
    trials = table_cells.asked_of(cells)
    trial_of = {cell.group: cell for cell, _ in trials}
    searches = {group: table_cells.Search.of(cell) for group, cell in trial_of.items()}
    while trials:
        for (cell, choice), row in zip(trials, _run(trials, harness), strict=True):
            if row is not None:
                searches[cell.group].learn(choice, row.accuracy)
        trials = [(trial_of[g], choice) for g, search in searches.items() for choice in search.further()]
    return {group: search.chosen for group, search in searches.items() if search.looks}


def _audit(
    chosen: Mapping[Group, Chosen], harness: Harness[Row], on_progress: OnProgress | None
) -> list[Audited]:
    """Return what the audit of each release mechanism of the size showed, in its order; never from a cache."""
    order = harness.order
    audits = {f"audit: {audit.mechanism}": audit for audit in audits_of(order.size, chosen, order.data_dir)}
    audited: Harness[Audited] = Harness(order, on_progress=on_progress)
    audited.run([Job(name=name, labels={name: name}, work=audit.run) for name, audit in audits.items()])
    harness.failures |= audited.failures
    return [audited.results[name] for name in audits if name in audited.results]

"""How a point is run: vectorised with others, by events, in rounds, on the testbed, or attacked."""

from __future__ import annotations

import io
import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from common.errors import MapaError
from common.messages import Fact
from common.randomness import streams_for
from common.records.events import Journal
from common.records.tally import Evaluation, finite_or_none
from common.scenario.scenario import Scenario, parse_welcome
from edge.assembly import shards_for
from experiments.reproduce.attacks import attack_cells
from experiments.reproduce.points import Point
from experiments.reproduce.results import Result
from experiments.reproduce.testbed_runs import run_live
from mapa.budget import calibrated
from mapa.simulation.simulator import Outcome, simulate
from mapa.simulation.synchronous import simulate_synchronously
from mapa.simulation.vectorised import simulate_many
from mapa.simulation.world import World

_BINS = 150  # of the gradient norms over the iterations


class UnfinishedError(MapaError):
    """A run ended before T: nothing to put into a figure."""


@dataclass(frozen=True, slots=True)
class Task:
    """Points that are run together in one process."""

    points: tuple[Point, ...]
    data_dir: Path
    runs: Path  # records of the testbed
    cost: float  # seconds, roughly


def run_task(task: Task) -> list[Result]:
    """Run the points; they share an engine, and for `block` their shape."""
    engine = task.points[0].engine
    began = time.perf_counter()
    together = engine == "block"
    results = _together(task) if together else [_alone(engine, point, task) for point in task.points]
    share = (time.perf_counter() - began) / len(results)
    return [replace(result, wall=share) for result in results]


def _together(task: Task) -> list[Result]:
    worlds = [world_for(point.scenario, task.data_dir) for point in task.points]
    outcomes = simulate_many(worlds, blocks=True)
    return [_of_outcome(point, outcome) for point, outcome in zip(task.points, outcomes, strict=True)]


def _alone(engine: str, point: Point, task: Task) -> Result:
    if engine in ("testbed", "containers"):
        return run_live(point, data_dir=task.data_dir, runs=task.runs)
    world = world_for(point.scenario, task.data_dir)
    if engine == "attack":
        cells = attack_cells(world, point.updates)
        return _result(point, [], cells=cells)
    if engine == "synchronous":
        rounds = simulate_synchronously(world)
        _require_an_end(point, rounds.outcome)
        after = len(_after_updates(rounds.evaluations))
        return _result(point, rounds.evaluations, seconds=rounds.seconds[len(rounds.seconds) - after :])
    journal = MemoryJournal()
    outcome = simulate(world, journal=journal)
    timed = len(journal.times) == len(_after_updates(outcome.tally.evaluations))
    return replace(
        _of_outcome(point, outcome),
        seconds=journal.times if timed else None,
        norms=journal.norms(world.scenario.workers) if world.scenario.records.diagnostics else None,
    )


def world_for(scenario: Scenario, data_dir: Path) -> World:
    """Return a scenario's world; data, features and test set are those of the last one where they can be."""
    pool = _pool(
        f"{scenario.data.set} {scenario.data.holdout}", scenario.model.model_dump_json(), data_dir, scenario
    )
    rows = shards_for(scenario, pool.dataset.train)
    sizes = [len(shard) for shard in rows]
    if scenario.private and scenario.privacy.total_epsilon is not None:
        z = _noise_multiplier(_account(scenario), min(sizes))
        privacy = scenario.privacy.model_copy(update={"noise_multiplier": [z]})
        scenario = scenario.model_copy(update={"privacy": privacy})
    return replace(
        pool,
        scenario=scenario,
        rows=rows,
        streams=streams_for(scenario.seed),
        # z covers an even share of T and one more, which the cyclic order never exceeds
        caps=[None] * len(sizes),
    )


def _account(scenario: Scenario) -> str:
    """Return what z depends on, and more, but no seed: the accountant takes seconds for each."""
    return json.dumps(scenario.for_edge(0), sort_keys=True)


@cache
def _noise_multiplier(text: str, size: int) -> float:
    return calibrated(parse_welcome(json.loads(text)), [size]).privacy.parameters(0)["noise_multiplier"]


_kept: dict[tuple[str, str, Path], World] = {}


def _pool(data: str, model: str, data_dir: Path, scenario: Scenario) -> World:
    key = (data, model, data_dir)
    if key not in _kept:
        _kept.clear()  # MNIST's features take 190 MB: one at a time
        free = scenario.model_copy(
            update={
                "privacy": scenario.privacy.model_copy(
                    update={"total_epsilon": None, "noise_multiplier": [1.0]}
                )
            }
        )
        _kept[key] = World.of(free, data_dir)
    return _kept[key]


class MemoryJournal(Journal):
    """Keeps times of evaluations and norms of gradients in memory, and nothing else."""

    def __init__(self) -> None:
        super().__init__(io.StringIO())
        self.times: list[float] = []
        self._norms: list[tuple[int, int, float]] = []  # k, n, ‖g‖

    def fact(self, fact: Fact, time: float | None = None) -> None:
        pass

    def write(self, event: str, fields: Mapping[str, object], time: float | None = None) -> None:
        if event == "evaluated" and time is not None and fields["t"]:
            self.times.append(time)
        elif event == "diagnostic":
            edge, n, norm = fields["edge"], fields["sequence"], fields["gradient_norm"]
            assert isinstance(edge, int)
            assert isinstance(n, int)
            assert isinstance(norm, float)
            self._norms.append((edge, n, norm))

    def norms(self, workers: int) -> dict[str, list[float]]:
        """Return mean and deciles of ‖g‖ before clipping, in bins of the update that applies it (cyclic)."""
        t = np.array([(n - 1) * workers + k + 1 for k, n, _ in self._norms])
        norm = np.array([value for _, _, value in self._norms])
        edges = np.linspace(1, t.max() + 1, min(_BINS, len(t)) + 1)
        bins = np.digitize(t, edges) - 1
        kept: dict[str, list[float]] = {"t": [], "mean": [], "low": [], "high": []}
        for i in np.unique(bins):
            inside = norm[bins == i]
            kept["t"].append(float(t[bins == i].mean()))
            kept["mean"].append(float(inside.mean()))
            kept["low"].append(float(np.quantile(inside, 0.1)))
            kept["high"].append(float(np.quantile(inside, 0.9)))
        return {name: [round(value, 5) for value in values] for name, values in kept.items()}


def _require_an_end(point: Point, outcome: Outcome) -> None:
    if outcome.reason not in ("finished", "diverged"):  # that a line diverges is a result too
        raise UnfinishedError(f"{point.line}: {outcome.reason} after {outcome.tally.updates} updates")


def _of_outcome(point: Point, outcome: Outcome) -> Result:
    _require_an_end(point, outcome)
    b = point.scenario.batch_size
    return replace(
        _result(point, outcome.tally.evaluations),
        staleness=dict(outcome.tally.staleness),
        clips=[(stage["t"], b * stage["sensitivity"] / 2) for stage in outcome.tally.stages],
    )


def _after_updates(evaluations: Sequence[Evaluation]) -> list[Evaluation]:
    """Leave out x₁, which no training has changed: the paper's windows and thresholds count updates."""
    return [evaluation for evaluation in evaluations if evaluation.updates]


def _result(
    point: Point,
    evaluations: Sequence[Evaluation],
    *,
    seconds: list[float] | None = None,
    cells: list[dict[str, Any]] | None = None,
) -> Result:
    evaluations = _after_updates(evaluations)
    losses = [finite_or_none(evaluation["loss"]) for evaluation in evaluations]
    return Result(
        key=point.key,
        digest=point.scenario.digest,
        engine=point.engine,
        t=[evaluation.updates for evaluation in evaluations],
        accuracy=[round(float(evaluation["accuracy"]), 6) for evaluation in evaluations],
        loss=[None if loss is None else round(float(loss), 6) for loss in losses],
        seconds=seconds,
        cells=cells,
    )

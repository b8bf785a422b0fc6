"""A simulation with its records: runs/<id>/ from the first event to the summary."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from common.rundir import RunDirectory, new_run_id
from common.tally import Tally
from experiments.simulator import Outcome, simulate
from experiments.vectorised import simulate_rounds
from experiments.world import World

ENGINES = ("events", "vectorised")


def record_simulation(
    world: World,
    *,
    name: str,
    runs: Path,
    engine: str = "events",
    progress: Callable[[Tally], None] | None = None,
) -> dict[str, Any]:
    """Simulate, write the run's directory, return its summary. An interrupted run has both all the same."""
    scenario = world.scenario
    with RunDirectory(runs / new_run_id(name)) as directory:
        directory.manifest(
            scenario,
            engine=engine,
            name=name,
            data={scenario.data.set: world.dataset.checksum},
            random_stream="secure" if scenario.seed is None else "philox (seed, k) at (purpose, n)",
        )
        journal = directory.journal if scenario.records.events else None
        began = time.perf_counter()
        if engine == "vectorised":
            outcome = simulate_rounds(world, journal=journal, progress=progress)
        else:
            outcome = simulate(world, journal=journal, progress=progress)
        seconds = time.perf_counter() - began
        summary = summarise(world, outcome, name=name, engine=engine, path=directory.path, seconds=seconds)
        directory.summary(summary)
        metadata = {"scenario_sha256": scenario.digest, "updates": str(outcome.tally.updates)}
        directory.model(outcome.x, world.model.layout, metadata)
    return summary


def summarise(
    world: World, outcome: Outcome, *, name: str, engine: str, path: Path, seconds: float
) -> dict[str, Any]:
    scenario = world.scenario
    summary: dict[str, Any] = {
        "run": path.name,
        "path": str(path),
        "name": name,
        "engine": engine,
        "algorithm": scenario.algorithm.name,
        "model": scenario.model.name,
        "data": scenario.data.set,
        "edges_configured": scenario.workers,
        "iterations": scenario.iterations,
        "batch_size": scenario.batch_size,
        "parameters": world.model.dimension,
        "seed": scenario.seed,
        "scenario_sha256": scenario.digest,
        "reason": outcome.reason,
        **outcome.tally.summary(),
        "releases": outcome.releases,
        "virtual_seconds": outcome.virtual_seconds,
        "seconds": seconds,
        "iterations_per_second": outcome.tally.updates / seconds if seconds > 0 else None,
        "diagnostics": scenario.records.diagnostics,
    }
    if scenario.records.diagnostics:
        summary["warning"] = (
            "diagnostics were on: the records hold gradient norms before noise, which are not private"
        )
    return summary

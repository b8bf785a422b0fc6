"""A synchronous twin with its records: the same runs/<id>/ as every other engine."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

from common.rundir import new_run_id
from experiments.recording import open_records, privacy_of, summarise, write_manifest
from experiments.simulator import Progress, check_world
from experiments.synchronous import check_synchronous, simulate_synchronously
from experiments.world import World

ENGINE = "synchronous"


def record_rounds(world: World, *, name: str, runs: Path, progress: Progress | None = None) -> dict[str, Any]:
    """Simulate in rounds, write the run's directory, return its summary."""
    scenario = world.scenario
    check_world(world)
    check_synchronous(world)
    with open_records(runs / new_run_id(name)) as directory:
        write_manifest(directory, scenario, world.dataset, name=name, engine=ENGINE)
        began = time.perf_counter()
        rounds = simulate_synchronously(
            world, directory.journal if scenario.records.events else None, progress
        )
        outcome = rounds.outcome
        summary = summarise(
            scenario,
            world.model,
            outcome.tally,
            name=name,
            engine=ENGINE,
            path=directory.path,
            reason=outcome.reason,
            seconds=time.perf_counter() - began,
        )
        summary |= {"releases": outcome.releases, "virtual_seconds": outcome.virtual_seconds}
        metadata = {"scenario_sha256": scenario.digest, "updates": str(outcome.tally.updates)}
        directory.model(outcome.x, world.model.layout, metadata)
        directory.summary(summary)  # at once: accounting takes seconds
        summary["privacy"] = privacy_of(
            scenario,
            [
                (k, f"edge-{k}", scenario.law(k), len(world.rows[k]), releases)
                for k, releases in enumerate(outcome.releases)
            ],
        )
        directory.summary(summary)
    return summary

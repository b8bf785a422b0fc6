"""What an edge's container holds while it trains: one program, and no more as time goes on."""

from __future__ import annotations

import statistics
from pathlib import Path
from typing import Any

import pytest

from tests.stack.compose_support import MARKS, compose

pytestmark = [*MARKS, pytest.mark.usefixtures("images")]
EDGES = 3


@pytest.mark.parametrize(
    "environment",
    [
        # the accountant that a budget needs must not stay
        {"SCENARIO": "quickstart", "TOTAL_EPSILON": "3", "ITERATIONS": "1000000"},
        # batches of ever other sizes must not leave the heap in holes
        {"SCENARIO": "cnn-mnist", "SET": "data.set=mnist-5k", "ITERATIONS": "1000000"},
    ],
    ids=["lr-with-a-budget", "cnn"],
)
def test_an_edge_is_one_program_and_does_not_grow(
    engine: Any, tmp_path: Path, record_property: Any, environment: dict[str, str]
) -> None:
    """How much it holds is a figure of `python -m experiments.bench memory`."""
    fleet = {"EDGES": str(EDGES), "EDGE_IMAGE": "mapa-edge-cnn", "EDGE_TARGET": "edge-cnn"}
    with compose(engine, tmp_path / "runs", **fleet, **environment) as project:
        project.up(EDGES)
        project.until_edges(EDGES)
        found = []
        for updates in (60, 180):
            project.until_updates(updates * EDGES)
            found.append([memory(container) for container in project.stack.containers("edge")])
        programs = [
            [line[-1] for line in container.top()["Processes"]]
            for container in project.stack.containers("edge")
        ]
    record_property(
        "edge_memory_mb", [[[round(value / 1e6, 1) for value in pair] for pair in row] for row in found]
    )
    assert len(programs) == EDGES
    assert not any("accountant" in command for commands in programs for command in commands)
    early, late = (statistics.median(own for own, _ in row) for row in found)
    assert late < 1.5 * early


def memory(container: Any) -> tuple[float, float]:
    """Return what the container's programs hold themselves, and what `docker stats` shows, in bytes."""
    figures = container.stats(stream=False)["memory_stats"]
    inner = figures["stats"]
    unused = inner.get("total_inactive_file", inner.get("inactive_file", 0))
    return float(inner.get("total_rss", inner.get("anon"))), float(figures["usage"] - unused)

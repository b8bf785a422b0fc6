"""How much memory an edge's container holds while it trains."""

from __future__ import annotations

import statistics
from pathlib import Path
from typing import Any

import pytest

from tests.stack.compose_support import MARKS, compose

pytestmark = [*MARKS, pytest.mark.usefixtures("images")]
EDGES = 3


@pytest.mark.parametrize(
    ("bar", "environment"),
    [
        # the accountant that a budget needs must not stay
        (60e6, {"SCENARIO": "quickstart", "TOTAL_EPSILON": "3", "ITERATIONS": "100000"}),
        # batches of ever other sizes must not leave the heap in holes
        (260e6, {"SCENARIO": "cnn-mnist", "SET": "data.set=mnist-5k", "ITERATIONS": "100000"}),
    ],
    ids=["lr-with-a-budget", "cnn"],
)
def test_an_edge_stays_below_its_bar(
    engine: Any, tmp_path: Path, record_property: Any, bar: float, environment: dict[str, str]
) -> None:
    fleet = {"EDGES": str(EDGES), "EDGE_IMAGE": "mapa-edge-cnn", "EDGE_TARGET": "edge-cnn"}
    with compose(engine, tmp_path / "runs", **fleet, **environment) as project:
        project.up(EDGES)
        project.until_edges(EDGES)
        project.until_updates(60 * EDGES)
        found = [memory(container) for container in project.stack.containers("edge")]
    record_property("edge_memory_mb", [[round(figure / 1e6, 1) for figure in pair] for pair in found])
    assert len(found) == EDGES
    assert max(own for own, _ in found) < bar
    # The first reader of a file is charged with its pages: not the worst, but what is usual.
    assert statistics.median(shown for _, shown in found) < bar


def memory(container: Any) -> tuple[float, float]:
    """Return what the container's programs hold themselves, and what `docker stats` shows, in bytes."""
    figures = container.stats(stream=False)["memory_stats"]
    inner = figures["stats"]
    unused = inner.get("total_inactive_file", inner.get("inactive_file", 0))
    return float(inner.get("total_rss", inner.get("anon"))), float(figures["usage"] - unused)

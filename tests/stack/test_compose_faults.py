"""Containers are killed, paused and cut off, and come back: nothing is lost, every update is applied once."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pytest

from experiments.faults import FaultKind
from tests.stack.compose_support import MARKS, Compose, assert_applied_exactly_once, compose

pytestmark = [*MARKS, pytest.mark.usefixtures("images")]
SLOW = "links=[{delay_ms = 25.0}]; testbed.resend_after=0.5; testbed.silent_after=4.0"
AWAY = 3.0  # seconds; long against resend_after


def hold(project: Compose, kind: FaultKind, whom: str, *, stops_all: bool) -> None:
    """Let a fault last for a while; afterwards the victim must be back in training."""
    with project.stack.fault(kind, whom):
        threading.Event().wait(1.5)  # what was under way has ended; the records are written
        before = project.records.updates
        threading.Event().wait(AWAY)
        meanwhile = project.records.updates - before
    assert (meanwhile == 0) == stops_all, f"{meanwhile} updates while {whom} was away"
    project.until_updates(project.records.updates + 100)


@pytest.mark.parametrize("kind", list(FaultKind), ids=lambda kind: kind.value)
def test_edges_broker_and_cloud_go_and_come_back(engine: Any, tmp_path: Path, kind: FaultKind) -> None:
    with compose(engine, tmp_path / "runs", EDGES="3", ITERATIONS="1500", SET=SLOW) as project:
        project.up(3)
        project.until_updates(60)
        joined = {event["edge"]: event["edge_id"] for event in project.records.named("edge_joined")}
        hold(project, kind, "edge-2", stops_all=False)
        hold(project, kind, "broker", stops_all=True)
        if kind is not FaultKind.KILL:
            hold(project, kind, "cloud", stops_all=True)
        assert project.records.updates < 1400, "too late to tell: the run was nearly over"
        before = project.records.updates
        summary = project.finish()
        per_edge = assert_applied_exactly_once(project.records, 1500)
        late = {e["edge"] for e in project.records.named("gradient_applied") if e["t"] > before}
        again = {event["edge"]: event["edge_id"] for event in project.records.named("edge_joined")}
    assert summary["reason"] == "finished"
    assert set(per_edge) == late == {0, 1, 2}
    assert again == joined, "an edge came back as somebody else"

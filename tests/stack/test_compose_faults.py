"""Containers are killed, paused and cut off, and come back: nothing is lost, every update is applied once."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pytest

from mapa.chaos.faults import CONTAINER_KINDS, FaultKind
from tests.stack.compose_support import MARKS, PATIENCE, Compose, assert_applied_exactly_once, compose

pytestmark = [*MARKS, pytest.mark.usefixtures("images")]
SLOW = "links=[{delay_ms = 25.0}]; testbed.resend_after=0.5; testbed.silent_after=4.0"
KINDS = [kind for kind in CONTAINER_KINDS if kind is not FaultKind.SCALE]
AWAY = 3.0  # seconds; long against resend_after


def hold(project: Compose, kind: FaultKind, whom: str, *, stops_all: bool) -> None:
    """Let a fault last until it shows; afterwards the victim must be back in training."""
    records = project.records

    def stands_still() -> bool:
        before = records.updates
        threading.Event().wait(AWAY)  # nothing happens meanwhile that could be awaited
        return records.updates == before

    project.stack.fault(kind, whom, True)
    if stops_all:
        project.stack.until(stands_still, PATIENCE, f"a standstill while {whom} is away")
    else:
        project.until_updates(records.updates + 50)
    project.stack.fault(kind, whom, False)
    project.until_updates(records.updates + 100)


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.value)
def test_edges_broker_and_cloud_go_and_come_back(engine: Any, tmp_path: Path, kind: FaultKind) -> None:
    with compose(engine, tmp_path / "runs", EDGES="3", ITERATIONS="1000000", SET=SLOW) as project:
        project.up(3)
        project.until_updates(60)
        joined = {event["edge"]: event["edge_id"] for event in project.records.named("edge_joined")}
        hold(project, kind, "edge-2", stops_all=False)
        if kind is not FaultKind.CRASH:
            hold(project, kind, "broker", stops_all=True)
        if kind is not FaultKind.KILL:  # a crashed cloud is back before anybody could tell
            hold(project, kind, "cloud", stops_all=kind is not FaultKind.CRASH)
        before = project.records.updates

        def all_train() -> bool:
            applied = project.records.named("gradient_applied")
            return {event["edge"] for event in applied if event["t"] > before} == {0, 1, 2}

        project.stack.until(all_train, PATIENCE, "all three edges in training again")
        summary = project.interrupt()
        per_edge = assert_applied_exactly_once(project.records, summary["updates"])
        again = {event["edge"]: event["edge_id"] for event in project.records.named("edge_joined")}
    assert set(per_edge) == {0, 1, 2}
    assert again == joined, "an edge came back as somebody else"

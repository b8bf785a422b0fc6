"""The live page as a service of Compose: watched from the host while containers train, and closed to everybody else."""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

import pytest

from tests.stack.compose_support import MARKS, PATIENCE, Compose, compose
from tests.stack.test_compose import SLOW

pytestmark = [*MARKS, pytest.mark.usefixtures("images")]


def asked(address: str, place: str, **headers: str) -> Any:
    request = urllib.request.Request(f"http://{address}{place}", headers=headers)
    with urllib.request.urlopen(request, timeout=PATIENCE) as answer:
        return json.loads(answer.read())


def head_of(address: str, project: Compose) -> dict[str, Any]:
    assert project.records.path is not None
    found: dict[str, Any] = asked(address, f"/api/runs/{project.records.path.name}")["head"]
    return found


def test_a_run_in_containers_is_watched_from_its_first_updates_to_its_end(
    engine: Any, tmp_path: Path
) -> None:
    endless = {"EDGES": "2", "ITERATIONS": "1000000", "DASHBOARD_PORT": "0"}  # the engine chooses a port
    with compose(engine, tmp_path / "runs", SET=SLOW, **endless) as project:
        project("--profile", "dashboard", "up", "--detach", "--no-build", "--scale", "edge=2")
        address = project("port", "dashboard", "8080").strip()
        assert address.startswith("127.0.0.1:")
        project.until_healthy("dashboard")
        page = project.stack.container("dashboard")
        project.until_updates(50)
        live = head_of(address, project)
        assert (live["state"], live["edges_seen"]) == ("live", 2)
        assert live["updates"] >= 50
        summary = project.interrupt()
        ended = head_of(address, project)
        assert (ended["state"], ended["reason"]) == ("ended", "interrupted")
        assert ended["updates"] == summary["updates"]
        with pytest.raises(urllib.error.HTTPError) as refused:
            asked(address, "/api/runs", Host="elsewhere.example")
        with refused.value as answer:
            assert answer.code == 421
        mine = set(page.attrs["NetworkSettings"]["Networks"])
        others = {
            name
            for container in project.stack.containers()
            if container.id != page.id
            for name in container.attrs["NetworkSettings"]["Networks"]
        }
        assert not mine & others
        (records,) = (one for one in page.attrs["Mounts"] if one["Destination"] == "/runs")
        assert not records["RW"]
        project("--profile", "dashboard", "down", "--volumes")
        assert not project.leftovers()

"""docker compose by its command line, and what a run must leave on record."""

from __future__ import annotations

import contextlib
import os
import secrets
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from common.records.reader import Record, read_events
from mapa.container_run import NUMBER, PROJECT, Stack
from mapa.runs import NewRun
from tests.program_support import ROOT, assert_each_once, run_program

# One worker for all: they share the machine's engine, and its cores with everybody else's tests.
MARKS = [pytest.mark.stack, pytest.mark.xdist_group("stack"), pytest.mark.timeout(1500)]
PATIENCE = 480.0  # seconds; reached only where something hangs


class Records(NewRun):
    """The events of the run, so far."""

    def named(self, event: str) -> list[Record]:
        """Return every event of this name."""
        lines = () if self.path is None else read_events(self.path)
        return [record for record in lines if record["event"] == event]

    @property
    def edges(self) -> set[int]:
        """The indices of the edges whose gradients were applied."""
        return {record["edge"] for record in self.named("gradient_applied")}


@dataclass
class Compose:
    """One project of Compose: a name, a file and an environment."""

    stack: Stack
    environment: dict[str, str]
    file: Path = ROOT / "docker-compose.yml"
    tail: Records | None = None
    said: list[str] = field(default_factory=list)

    def __call__(self, *words: str, check: bool = True) -> str:
        place = ("--project-name", self.stack.project, "--file", str(self.file))
        command = ["docker", "compose", *place, *words]
        clean = {key: value for key, value in os.environ.items() if not key.startswith("COMPOSE_")}
        done = run_program(*command, env={**clean, **self.environment})
        assert not check or done.returncode == 0, f"{' '.join(command)}: {done.stderr[-2000:]}"
        return done.stdout + done.stderr

    def up(self, edges: int) -> None:
        self("up", "--detach", "--no-build", "--scale", f"edge={edges}")

    def scale(self, edges: int) -> None:
        self("up", "--detach", "--no-build", "--no-recreate", "--no-deps", "--scale", f"edge={edges}", "edge")

    @property
    def records(self) -> Records:
        assert self.tail is not None
        return self.tail

    def until_updates(self, updates: int) -> None:
        self.stack.until(lambda: self.records.updates >= updates, PATIENCE, f"t = {updates}")

    def until_edges(self, edges: int) -> None:
        self.stack.until(lambda: len(self.records.edges) >= edges, PATIENCE, f"{edges} edges in training")

    def until_healthy(self, *names: str) -> None:
        def healthy() -> bool:
            containers = [self.stack.container(name) for name in names]
            return all(c.attrs["State"]["Health"]["Status"] == "healthy" for c in containers)

        self.stack.until(healthy, PATIENCE, f"healthy {', '.join(names)}")

    def finish(self, code: int = 0, reason: str = "finished") -> dict[str, Any]:
        """Wait for the end: the cloud must end with the code and every edge with 0."""
        assert self.stack.wait("cloud", PATIENCE) == code, self.stack.last_lines()
        for container in self.stack.containers("edge"):
            assert self.stack.wait(f"edge-{container.labels[NUMBER]}", PATIENCE) == 0, self.stack.last_lines()
        assert self.stack.container("broker").status == "running"
        summary = self.records.summary()
        assert summary is not None
        assert summary["reason"] == reason
        return summary

    def interrupt(self) -> dict[str, Any]:
        """Stop the cloud; it ends with 130 and every edge with 0, however far the run has come."""
        self("stop", "--timeout", str(int(PATIENCE)), "cloud")
        return self.finish(130, "interrupted")

    def leftovers(self) -> set[str]:
        """Return what the engine still holds of this project."""
        return names_on(self.stack.client, self.stack.project)


def names_on(engine: Any, prefix: str) -> set[str]:
    """Return the containers, networks and volumes of projects whose names begin so."""
    labelled = {"label": PROJECT}
    things = [*engine.containers.list(all=True, filters=labelled), *engine.networks.list(filters=labelled)]
    things += engine.volumes.list(filters=labelled)
    return {str(thing.name) for thing in things if thing.name.startswith(prefix)}


@contextlib.contextmanager
def compose(engine: Any, runs: Path, **environment: str) -> Iterator[Compose]:
    """Have a project of its own name, and nothing of it afterwards."""
    runs.mkdir(parents=True, exist_ok=True)
    values = {"RUNS_DIR": str(runs), "EDGE_IMAGE": "mapa-edge", "EDGE_TARGET": "edge", "PULL_POLICY": "never"}
    values["GATHER"] = "600"  # however long they take to start: nobody begins without them
    project = Compose(Stack(engine, f"mapa-test-{secrets.token_hex(4)}"), {**values, **environment})
    project.tail = Records(runs)
    try:
        yield project
    finally:
        project("--profile", "*", "down", "--volumes", "--timeout", "1", check=False)


def assert_applied_exactly_once(records: Records, updates: int) -> Counter[int]:
    """Check the record of every update; return how many each edge has."""
    return assert_each_once(records.named("gradient_applied"), updates)

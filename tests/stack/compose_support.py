"""docker compose by its command line, and what a run must leave on record."""

from __future__ import annotations

import contextlib
import os
import secrets
import subprocess
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from common.records.reader import Tail
from mapa.container_run import PROJECT, Stack

ROOT = Path(__file__).parents[2]
# One worker for all: they share the machine's engine, and its cores with everybody else's tests.
MARKS = [pytest.mark.stack, pytest.mark.xdist_group("stack"), pytest.mark.timeout(1500)]
PATIENCE = 480.0  # seconds; reached only where something hangs


@dataclass
class Compose:
    """One project of Compose: a name, a file and an environment."""

    stack: Stack
    environment: dict[str, str]
    file: Path = ROOT / "docker-compose.yml"
    tail: Tail | None = None
    said: list[str] = field(default_factory=list)

    def __call__(self, *words: str, check: bool = True) -> str:
        command = [
            "docker",
            "compose",
            "--project-name",
            self.stack.project,
            "--file",
            str(self.file),
            *words,
        ]
        clean = {key: value for key, value in os.environ.items() if not key.startswith("COMPOSE_")}
        done = subprocess.run(
            command,
            env={**clean, **self.environment},
            cwd=ROOT,
            capture_output=True,
            text=True,
            timeout=2 * PATIENCE,
        )
        assert not check or done.returncode == 0, f"{' '.join(command)}: {done.stderr[-2000:]}"
        return done.stdout + done.stderr

    def up(self, edges: int) -> None:
        self("up", "--detach", "--no-build", "--scale", f"edge={edges}")

    def scale(self, edges: int) -> None:
        self("up", "--detach", "--no-build", "--no-recreate", "--no-deps", "--scale", f"edge={edges}", "edge")

    @property
    def records(self) -> Tail:
        assert self.tail is not None
        return self.tail

    def until_updates(self, updates: int) -> None:
        self.stack.until(lambda: self.records.updates >= updates, PATIENCE, f"t = {updates}")

    def until_edges(self, edges: int) -> None:
        self.stack.until(lambda: len(self.records.edges) >= edges, PATIENCE, f"{edges} edges in training")

    def finish(self) -> dict[str, Any]:
        """Wait for the end; cloud and edges must end with 0, and the broker must not."""
        assert self.stack.wait("cloud", PATIENCE) == 0, self.stack.last_words()
        for container in self.stack.containers("edge"):
            name = f"edge-{container.labels['com.docker.compose.container-number']}"
            assert self.stack.wait(name, PATIENCE) == 0, self.stack.last_words()
        assert self.stack.container("broker").status == "running"
        summary = self.records.summary()
        assert summary is not None
        return summary

    def interrupt(self) -> dict[str, Any]:
        """Stop the cloud; it ends with 130 and every edge with 0, however far the run has come."""
        self("stop", "--timeout", str(int(PATIENCE)), "cloud")
        assert self.stack.wait("cloud", PATIENCE) == 130, self.stack.last_words()
        for container in self.stack.containers("edge"):
            name = f"edge-{container.labels['com.docker.compose.container-number']}"
            assert self.stack.wait(name, PATIENCE) == 0, self.stack.last_words()
        summary = self.records.summary()
        assert summary is not None
        assert summary["reason"] == "interrupted"
        return summary

    def leftovers(self) -> list[str]:
        """Return what the engine still holds of this project."""
        label = {"label": f"{PROJECT}={self.stack.project}"}
        client = self.stack.client
        left = [*client.containers.list(all=True, filters=label), *client.networks.list(filters=label)]
        return [str(thing.name) for thing in [*left, *client.volumes.list(filters=label)]]


@contextlib.contextmanager
def compose(engine: Any, runs: Path, **environment: str) -> Iterator[Compose]:
    """Have a project of its own name, and nothing of it afterwards."""
    runs.mkdir(parents=True, exist_ok=True)
    values = {"RUNS_DIR": str(runs), "EDGE_IMAGE": "mapa-edge", "EDGE_TARGET": "edge", "PULL_POLICY": "never"}
    values["GATHER"] = "600"  # however long they take to start: nobody begins without them
    project = Compose(Stack(engine, f"mapa-test-{secrets.token_hex(4)}"), {**values, **environment})
    project.tail = Tail(runs)
    try:
        yield project
    finally:
        project("--profile", "*", "down", "--volumes", "--timeout", "1", check=False)


def assert_applied_exactly_once(records: Tail, updates: int) -> Counter[int]:
    """Check the record of every update: t from 1 to T, no (edge, sequence) twice, none left out."""
    applied = records.named("gradient_applied")
    assert [event["t"] for event in applied] == list(range(1, updates + 1))
    for event in applied:
        assert event["staleness"] == event["t"] - event["version"] >= 0
    per_edge = Counter(event["edge"] for event in applied)
    for edge, count in per_edge.items():
        sequences = [event["sequence"] for event in applied if event["edge"] == edge]
        assert sequences == list(range(1, count + 1)), f"edge {edge}: a gradient was lost or applied twice"
    return per_edge

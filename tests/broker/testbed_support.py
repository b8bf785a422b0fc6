"""A cloud in this process and edges as real processes, for tests that break things."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from rich.console import Console

from common.datasets.catalogue import data_directory
from common.records.directory import RunDirectory
from common.scenario.scenario import parse_scenario
from common.transport.connection import BrokerAddress, Credentials
from common.wire.topics import run_id
from mapa.cloud_run import CloudRun, Setting, open_cloud
from mapa.processes import one_thread_each
from mapa.recording import record_cloud
from mapa.run_parts import OwnFiles
from mapa.run_view import view_for
from tests.broker.loop_support import LoopThread
from tests.program_support import PATIENCE, ROOT, assert_each_once


def scenario(**changes: Any) -> dict[str, Any]:
    """Return a small scenario with real data; tables are merged."""
    values: dict[str, Any] = {
        "edges": 3,
        "iterations": 300,
        "batch_size": 16,
        "data": {"set": "mnist-5k"},
        "model": {"name": "lr"},
        "algorithm": {"name": "mapa", "first_clip": 6.0},
        "privacy": {"noise_multiplier": 2.0},
        "evaluation": {"every": 0},
        "testbed": {"resend_after": 0.5},
    }
    for key, value in changes.items():
        values[key] = {**values.get(key, {}), **value} if isinstance(value, dict) else value
    return values


class Testbed:
    """One run. The cloud serves in a thread; `wait` awaits what its records show."""

    __test__ = False

    def __init__(self, cloud: CloudRun, broker: BrokerAddress, run: str, directory: Path) -> None:
        self.cloud, self.broker, self.run, self.directory = cloud, broker, run, directory
        self.changed = threading.Condition()
        self.edges: list[subprocess.Popen[bytes]] = []
        self._awaited: list[tuple[Callable[[], bool], Callable[[], None]]] = []
        service = cloud.service
        former = service.on_records

        def notify() -> None:
            former()
            for condition, action in [pair for pair in self._awaited if pair[0]()]:
                self._awaited.remove((condition, action))
                action()
            with self.changed:
                self.changed.notify_all()

        service.on_records = notify
        self.served = LoopThread(cloud.loop)

    @property
    def updates(self) -> int:
        return self.cloud.service.server.updates

    def edge(
        self, *arguments: str, state: str = "state", broker: BrokerAddress | None = None
    ) -> subprocess.Popen[bytes]:
        """Start an edge process."""
        command = [sys.executable, "-m", "mapa.cli", "edge", "--broker", str(broker or self.broker)]
        command += ["--run", self.run, "--state-dir", str(self.directory / state)]
        command += ["--data-dir", str(data_directory(os.environ)), *arguments]
        log = (self.directory / f"edge-{len(self.edges)}.log").open("wb")
        with log:
            child = subprocess.Popen(command, stdout=log, stderr=log, env=one_thread_each(), cwd=ROOT)
        self.edges.append(child)
        return child

    def wait(self, condition: Callable[[], bool]) -> None:
        until = time.monotonic() + PATIENCE
        with self.changed:
            while not condition():  # looked at by itself too: the last updates of a run are told to nobody
                assert time.monotonic() < until, f"in vain at t = {self.updates}: {self.logs()}"
                self.changed.wait(0.2)

    def at(self, condition: Callable[[], bool], action: Callable[[], None]) -> None:
        """Act as soon as the condition holds, before the cloud goes on: the run cannot end meanwhile."""
        self._awaited.append((condition, action))
        self.wait(lambda: not self._awaited)

    @contextlib.contextmanager
    def paused(self, condition: Callable[[], bool], *children: subprocess.Popen[bytes]) -> Iterator[None]:
        """Stop these edges as soon as the condition holds, and let them go on afterwards."""

        def stop() -> None:
            for child in children:
                child.send_signal(signal.SIGSTOP)

        self.at(condition, stop)
        try:
            yield
        finally:
            for child in children:
                child.send_signal(signal.SIGCONT)

    def finish(self) -> dict[str, Any]:
        """Wait for the end of the run and of every edge; return the summary."""
        self.served.join(PATIENCE)
        halted = self.cloud.service.halted
        assert halted is not None
        for child in self.edges:
            child.wait(PATIENCE)
        self.cloud.directory.events.flush()
        return record_cloud(self.cloud, name="test", reason=halted.reason, engine="network")

    def events(self, name: str) -> list[dict[str, Any]]:
        self.cloud.directory.events.flush()
        lines = (self.cloud.directory.path / "events.jsonl").read_text().splitlines()
        return [event for event in map(json.loads, lines) if event["event"] == name]

    def logs(self) -> str:
        return " | ".join(path.read_text()[-300:] for path in sorted(self.directory.glob("edge-*.log")))


@contextlib.contextmanager
def open_testbed(
    broker: BrokerAddress,
    directory: Path,
    values: dict[str, Any],
    *,
    run: str = "test",
    edges_at_least: int = 1,
    credentials: Credentials | None = None,
    own: OwnFiles | None = None,
) -> Iterator[Testbed]:
    directory.mkdir(parents=True, exist_ok=True)
    setting = Setting.of(parse_scenario(values), data_directory(os.environ), own)
    view = view_for(setting.scenario, Console(quiet=True))
    with (
        RunDirectory(directory / "records") as records,
        open_cloud(
            setting,
            run=run_id(run),
            broker=broker,
            credentials=credentials or Credentials(),
            directory=records,
            view=view,
            edges_at_least=edges_at_least,
        ) as cloud,
    ):
        bed = Testbed(cloud, broker, run, directory)
        try:
            yield bed
        finally:
            for child in bed.edges:
                if child.poll() is None:
                    child.kill()
                child.wait()
            cloud.loop.stop()
            bed.served.join(PATIENCE)


def assert_applied_exactly_once(bed: Testbed, updates: int) -> Counter[int]:
    """Check the record of every update; return how many each edge has."""
    return assert_each_once(bed.events("gradient_applied"), updates)

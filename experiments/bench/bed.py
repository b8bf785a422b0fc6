"""What a bench runs beside itself: lean edges, `mapa cloud` and `mapa edge` as programs, on a private Mosquitto."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from common.datasets.catalogue import data_directory
from common.errors import BrokerUnavailableError, MapaError
from experiments.bench.edges import EdgeTask
from mapa.brokers import Broker, private_mosquitto
from mapa.process_run import edge_counts
from mapa.processes import ends_with_parent, one_thread_each, without_options

_ROOT = Path(__file__).resolve().parents[2]  # of this project's packages
_RUN = "bench"
DIMENSION = 785  # N of LR on mnist-5k, which lean edges are for
_PATIENCE = 180.0  # seconds for the beginning, and for the end


@contextlib.contextmanager
def program(*words: str, tree: Path = _ROOT, **streams: Any) -> Iterator[subprocess.Popen[str]]:
    """Run a Python program of this project, or of another tree of it, with one BLAS thread; it ends with the block."""
    environment = without_options({**one_thread_each(), "PYTHONPATH": str(tree)})
    command = ends_with_parent([sys.executable, "-P", *words])
    with subprocess.Popen(command, env=environment, text=True, **streams) as process:
        try:
            yield process
        finally:
            process.kill()


@contextlib.contextmanager
def repeating(look: Callable[[], None], seconds: float) -> Iterator[None]:
    """Look at something at the beginning, after each so many seconds, and at the end."""
    stop = threading.Event()

    def work() -> None:
        while not stop.wait(seconds):
            look()

    look()
    thread = threading.Thread(target=work)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()
        look()


def cores() -> list[int]:
    """Return the processors that this process may use; one where the system cannot say."""
    return sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else [0]


@contextlib.contextmanager
def on_cores(some: Collection[int]) -> Iterator[None]:
    """Run this thread, and start processes, on these processors alone; where the system cannot say so, on all."""
    if not hasattr(os, "sched_setaffinity"):
        yield
        return
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, some)
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


@dataclass(slots=True)
class Fleet:
    """Programs of lean edges that take part in one run after the other."""

    children: Sequence[subprocess.Popen[str]]
    busy: Sequence[subprocess.Popen[str]] = ()

    def begin(self, task: EdgeTask, edges: int, *, trips: Path | None = None) -> None:
        """Have K edges join a run; they say hello when its cloud is there. `trips` is a folder."""
        counts = edge_counts(edges, len(self.children))
        self.busy = self.children[: len(counts)]
        for number, (child, count) in enumerate(zip(self.busy, counts, strict=True)):
            file = "" if trips is None else str(trips / f"trips-{number}.npy")
            share = replace(task, first=sum(counts[:number]), count=count, trips=file)
            assert child.stdin is not None
            child.stdin.write(json.dumps(asdict(share)) + "\n")
            child.stdin.flush()

    def end(self) -> list[dict[str, Any]]:
        """Wait until every edge has gone; return what each program counted."""
        counted = []
        for child in self.busy:
            assert child.stdout is not None
            counted.append(json.loads(child.stdout.readline() or '{"ended": false}'))
        if not all(one["ended"] for one in counted):
            raise BrokerUnavailableError(f"lean edges: no halt came, or a program ended: {counted}")
        return counted


@contextlib.contextmanager
def lean_fleet(processes: int) -> Iterator[Fleet]:
    with contextlib.ExitStack() as stack:
        pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
        words = ("-m", "experiments.bench.edges")
        yield Fleet([stack.enter_context(program(*words, **pipes)) for _ in range(processes)])


@dataclass(slots=True)
class CloudBed:
    """`mapa cloud` on a private Mosquitto, and the programs of its edges."""

    directory: Path
    broker: Broker
    cloud: subprocess.Popen[str]
    stack: contextlib.ExitStack
    children: list[subprocess.Popen[str]]

    @property
    def runs(self) -> Path:
        return self.directory / "runs"

    def edge(self, *options: str) -> subprocess.Popen[str]:
        """Start `mapa edge` as a program."""
        words = ["-m", "mapa.cli", "edge", "--broker", str(self.broker.address), "--run", _RUN]
        words += ["--state-dir", str(self.directory / f"state-{len(self.children)}"), *options]
        words += ["--data-dir", str(data_directory(os.environ))]
        log = self.stack.enter_context((self.directory / "edges.log").open("ab"))
        child = self.stack.enter_context(program(*words, stdout=log, stderr=log))
        self.children.append(child)
        return child

    def lean_edges(self, edges: int, rate: float, seconds: float, processes: int) -> Fleet:
        """Start lean edges that together send so many gradients a second, and wait for the first updates."""
        fleet = self.stack.enter_context(lean_fleet(processes))
        patience = seconds + 3 * _PATIENCE
        task = EdgeTask(
            broker=str(self.broker.address),
            run=_RUN,
            dimension=DIMENSION,
            pause=edges / rate,
            patience=patience,
        )
        fleet.begin(task, edges, trips=self.directory)
        self.children += fleet.children
        self.until(self._begun, "update")
        return fleet

    def _begun(self) -> bool:
        """Tell whether the log has grown beyond the hellos."""
        return any(path.stat().st_size > (1 << 20) for path in self.runs.glob("*/log/*.seg"))

    def check(self) -> None:
        """Raise MapaError where a process has ended."""
        for child in (self.cloud, *self.children):
            if child.poll() is not None:
                said = " ".join(path.read_text()[-800:] for path in sorted(self.directory.glob("*.log")))
                raise MapaError(f"bench: {child.args!r} ended with {child.returncode}: {said}")

    def until(self, ready: Callable[[], bool], what: str) -> None:
        until = time.monotonic() + _PATIENCE
        while not ready():
            self.check()
            if time.monotonic() > until:
                raise MapaError(f"bench: no {what} within {_PATIENCE:g} s")
            time.sleep(0.02)

    def end(self) -> dict[str, Any]:
        """Interrupt the run; return its summary."""
        self.cloud.send_signal(signal.SIGINT)
        return self.summary(130)

    def summary(self, code: int = 0) -> dict[str, Any]:
        """Wait for the run's end; return its summary."""
        out, _ = self.cloud.communicate(timeout=10 * _PATIENCE)
        if self.cloud.returncode != code:
            raise MapaError(f"bench: the cloud ended with {self.cloud.returncode}, not {code}")
        found: dict[str, Any] = json.loads(out)
        return found


@contextlib.contextmanager
def cloud_bed(scenario: str, edges: int, settings: Sequence[str] = ()) -> Iterator[CloudBed]:
    """Start `mapa cloud` for a scenario; its first models go out when all edges are there."""
    with contextlib.ExitStack() as stack:
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        broker = stack.enter_context(private_mosquitto(directory / "broker"))
        (directory / "runs").mkdir()
        log = stack.enter_context((directory / "cloud.log").open("wb"))
        words = ["-m", "mapa.cli", "cloud", scenario, "--run", _RUN, "--broker", str(broker.address)]
        words += ["--edges", str(edges), "--edges-at-least", str(edges), "--gather", "60", "--json"]
        words += ["--runs-dir", str(directory / "runs"), "--data-dir", str(data_directory(os.environ))]
        words += [word for setting in settings for word in ("--set", setting)]
        cloud = stack.enter_context(program(*words, stdout=subprocess.PIPE, stderr=log))
        yield CloudBed(directory, broker, cloud, stack, [])

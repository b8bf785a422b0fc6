"""What a bench runs beside itself: programs of this project or of another tree, `mapa cloud` on a private Mosquitto."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from common.datasets.catalogue import data_directory
from common.errors import BrokerUnavailableError, MapaError
from experiments.bench.edges import EdgeTask
from mapa.brokers import Broker, private_mosquitto
from mapa.process_run import edge_counts
from mapa.processes import ends_with_parent, one_thread_each, without_options
from mapa.runs import last_update

ROOT = Path(__file__).resolve().parents[2]  # of this project's packages
RUN = "bench"
DIMENSION = 785  # N of LR on mnist-5k, which lean edges are for
MEGA = 1e6
_PATIENCE = 180.0  # seconds for the beginning, and for the end


def python(*words: str, tree: Path = ROOT) -> dict[str, Any]:
    """Return the arguments of Popen for a Python program of this project, or of another tree, with one BLAS thread."""
    environment = without_options({**one_thread_each(), "PYTHONPATH": str(tree)})
    return {"args": ends_with_parent([sys.executable, "-P", *words]), "env": environment, "text": True}


@contextlib.contextmanager
def program(*words: str, tree: Path = ROOT, **streams: Any) -> Iterator[subprocess.Popen[str]]:
    """Run such a program; it ends with the block."""
    process = subprocess.Popen(**python(*words, tree=tree), **streams)
    try:
        yield process
    finally:
        process.kill()
        with contextlib.suppress(BrokenPipeError):  # what it was still to read
            process.__exit__(None, None, None)


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


def held_by(pid: int) -> tuple[float, float]:
    """Return anonymous and resident bytes of a process, as Linux counts them."""
    text = Path(f"/proc/{pid}/smaps_rollup").read_text(encoding="ascii")
    kilobytes = {key: int(value) for key, value in re.findall(r"^(\w+):\s+(\d+) kB$", text, re.MULTILINE)}
    return 1024.0 * kilobytes["Anonymous"], 1024.0 * kilobytes["Rss"]


def forget_peak(pid: int) -> None:
    with contextlib.suppress(OSError):
        Path(f"/proc/{pid}/clear_refs").write_text("5", encoding="ascii")


def peak(pid: int) -> float:
    """Return the most bytes that a process ever had resident; 0 where that cannot be read."""
    with contextlib.suppress(OSError):
        match = re.search(r"VmHWM:\s+(\d+) kB", Path(f"/proc/{pid}/status").read_text(encoding="ascii"))
        return 0.0 if match is None else 1024.0 * int(match[1])
    return 0.0


@dataclass(slots=True)
class CloudBed:
    """`mapa cloud` on a private Mosquitto, and the programs of its edges."""

    directory: Path
    broker: Broker
    cloud: subprocess.Popen[str]
    stack: contextlib.ExitStack
    tree: Path  # of `mapa cloud` and `mapa edge`
    children: list[subprocess.Popen[str]] = field(default_factory=list)
    lean: Sequence[subprocess.Popen[str]] = ()

    @property
    def runs(self) -> Path:
        return self.directory / "runs"

    @property
    def updates(self) -> int:
        """How many updates are on record."""
        return max((last_update(path) or 0 for path in self.runs.iterdir()), default=0)

    def edge(self, *options: str) -> subprocess.Popen[str]:
        """Start `mapa edge` as a program."""
        words = ["-m", "mapa.cli", "edge", "--broker", str(self.broker.address), "--run", RUN]
        words += ["--state-dir", str(self.directory / f"state-{len(self.children)}"), *options]
        words += ["--data-dir", str(data_directory(os.environ))]
        log = self.stack.enter_context((self.directory / "edges.log").open("ab"))
        child = self.stack.enter_context(program(*words, tree=self.tree, stdout=log, stderr=log))
        self.children.append(child)
        return child

    def lean_edges(self, edges: int, rate: float, seconds: float, processes: int) -> None:
        """Start lean edges that together send so many gradients a second, and wait for the first updates."""
        counts = edge_counts(edges, processes)
        for number, count in enumerate(counts):
            task = EdgeTask(
                broker=str(self.broker.address),
                run=RUN,
                dimension=DIMENSION,
                first=sum(counts[:number]),
                count=count,
                pause=edges / rate,
                patience=seconds + 3 * _PATIENCE,
                trips=str(self.directory / f"trips-{number}.npy"),
            )
            words = ("-m", "experiments.bench.edges", json.dumps(asdict(task)))
            self.children.append(self.stack.enter_context(program(*words, stdout=subprocess.PIPE)))
        self.lean = self.children[-len(counts) :]
        self.until(
            lambda: any(path.stat().st_size > (1 << 20) for path in self.runs.glob("*/log/*.seg")), "update"
        )

    def check(self) -> None:
        """Raise MapaError where a process has ended."""
        for child in (self.cloud, *self.children):
            if child.poll() is not None:
                said = " ".join(path.read_text()[-800:] for path in sorted(self.directory.glob("*.log")))
                words = " ".join(map(str, child.args[len(ends_with_parent([])) :]))  # type: ignore[index]
                raise MapaError(f"bench: {words} ended with {child.returncode}: {said}")

    def until(self, ready: Callable[[], bool], what: str) -> None:
        until = time.monotonic() + _PATIENCE
        while not ready():
            self.check()
            if time.monotonic() > until:
                raise MapaError(f"bench: no {what} within {_PATIENCE:g} s")
            time.sleep(0.02)

    def end(self) -> tuple[dict[str, Any], list[dict[str, Any]]]:
        """Interrupt the run; return its summary, and what each program of lean edges counted."""
        self.cloud.send_signal(signal.SIGINT)
        summary = self.summary(130)
        counted = [json.loads(child.communicate()[0] or '{"ended": false}') for child in self.lean]
        if not all(one["ended"] for one in counted):
            raise BrokerUnavailableError(f"lean edges: no halt came, or a program ended: {counted}")
        return summary, counted

    def summary(self, code: int = 0) -> dict[str, Any]:
        """Wait for the run's end; return its summary."""
        out, _ = self.cloud.communicate(timeout=10 * _PATIENCE)
        if self.cloud.returncode != code:
            raise MapaError(f"bench: the cloud ended with {self.cloud.returncode}, not {code}")
        summary: dict[str, Any] = json.loads(out)
        return summary


@contextlib.contextmanager
def cloud_bed(
    scenario: str, edges: int, settings: Sequence[str] = (), tree: Path = ROOT
) -> Iterator[CloudBed]:
    """Start `mapa cloud` for a scenario; its first models go out when all edges are there."""
    with contextlib.ExitStack() as stack:
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        broker = stack.enter_context(private_mosquitto(directory / "broker"))
        (directory / "runs").mkdir()
        log = stack.enter_context((directory / "cloud.log").open("wb"))
        words = ["-m", "mapa.cli", "cloud", scenario, "--run", RUN, "--broker", str(broker.address)]
        words += ["--edges", str(edges), "--edges-at-least", str(edges), "--gather", "60", "--json"]
        words += ["--runs-dir", str(directory / "runs"), "--data-dir", str(data_directory(os.environ))]
        words += [word for setting in settings for word in ("--set", setting)]
        cloud = stack.enter_context(program(*words, tree=tree, stdout=subprocess.PIPE, stderr=log))
        yield CloudBed(directory, broker, cloud, stack, tree)

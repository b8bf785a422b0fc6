"""A run under chaos as processes of this machine: a Mosquitto, a `mapa cloud`, a `mapa edge` for every edge."""

from __future__ import annotations

import contextlib
import resource
import shlex
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from common.own_code import allowing
from common.quantities import RunId
from common.transport.connection import BrokerAddress
from mapa.brokers import private_mosquitto
from mapa.chaos.faults import CLOUD
from mapa.chaos.trial import FAILED, Environment, Service, TrialPlan
from mapa.process_run import edge_arguments
from mapa.processes import await_children, last_lines, start_child

_KILLED = -int(signal.SIGKILL)
_TOLD_EARLY = (
    -int(signal.SIGTERM),
    -int(signal.SIGINT),
    130,
)  # of an edge that is told to go while it starts
_ROOM = 2000  # bytes that a log may still grow: less than a record, so that one is torn


class ProcessService(Service):
    """A cloud or an edge as one process after another."""

    def __init__(
        self,
        name: str,
        directory: Path,
        program: Callable[[], Sequence[str]],  # of its next process: module or file, and arguments
        may_end_with: Sequence[int] = (),
    ) -> None:
        super().__init__(name, directory, may_end_with)
        self._program = program
        self._child: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        self._allowed = set(self._expected)
        self.starts += 1
        slow_disk = [sys.executable, "-P", "-m", "mapa.chaos.slow_disk", str(self._slow_file)]
        with self.log.open("ab") as stream:
            self._child = start_child([*slow_disk, *self._program()], stdout=stream, stderr=stream)

    @property
    def running(self) -> bool:
        """Whether the process runs; one that has ended is noted, once."""
        code = None if self._child is None else self._child.poll()
        if code is not None:
            self._child = None
            self._note_end(code)
        return self._child is not None

    def come_back(self) -> bool:
        if not self.running:
            self.start()
        return True

    def kill(self) -> None:
        self.allow(_KILLED)
        self._kill()

    def _kill(self) -> None:
        if self._child is not None:
            self._child.kill()
            self._child.wait()
            _ = self.running

    def end(self, patience: float) -> None:
        if self._child is not None:
            await_children([self._child], patience)
        if self.running:
            self._allowed.discard(_KILLED)
            self._kill()

    def pause(self, on: bool) -> None:
        self._send(signal.SIGSTOP if on else signal.SIGCONT)

    def dismiss(self) -> None:
        self.pause(False)
        self.allow(*_TOLD_EARLY)
        self._send(signal.SIGTERM)

    def _send(self, number: signal.Signals) -> None:
        if self._child is not None:
            self._child.send_signal(number)

    def fill(self, on: bool) -> None:
        """Let no file of the process grow, or lift the limit.

        It fails in the midst of a write, as a full disk does, and needs no privileges.
        """
        if self._child is None:
            return
        pid = self._child.pid
        with contextlib.suppress(ProcessLookupError):
            _, hard = resource.prlimit(pid, resource.RLIMIT_FSIZE)
            if on:
                self.allow(FAILED)
            soft = _log_size(pid) + _ROOM if on else hard
            resource.prlimit(pid, resource.RLIMIT_FSIZE, (soft, hard))

    def last_lines(self, lines: int = 3) -> str:
        return last_lines(self.log, lines)


def _log_size(pid: int) -> int:
    """Return the size of the segment that a cloud writes to; 0 of an edge, whose ledger is written in place."""
    largest = 0
    for link in Path(f"/proc/{pid}/fd").iterdir():
        with contextlib.suppress(OSError):
            if link.readlink().suffix == ".seg":
                largest = max(largest, link.stat().st_size)
    return largest


@contextlib.contextmanager
def in_processes(plan: TrialPlan, run: RunId, directory: Path) -> Iterator[Environment]:
    """Start the broker of a run; everything that the run writes is in the directory."""
    runs = directory / "runs"

    def cloud(broker: BrokerAddress) -> list[str]:
        program = [*plan.program, "cloud", "--broker", str(broker)]
        program += ["--runs-dir", str(runs), "--data-dir", str(plan.data_dir)]
        if manifests := sorted(runs.glob("*/manifest.json")):
            own_code = shlex.split(allowing(plan.scenario.canonical()))
            return [*program, *own_code, "--resume", str(manifests[0].parent)]
        program += [plan.name, *([] if plan.edges is None else ["--edges", str(plan.edges)])]
        program += [word for change in plan.settings for word in ("--set", change)]
        return [*program, "--run", run, "--edges-at-least", str(plan.scenario.workers)]

    def edge(name: str, broker: BrokerAddress) -> list[str]:
        command = edge_arguments(plan.scenario, run, broker, directory / "state" / name, plan.data_dir, 1)
        return command[command.index("-m") + 1 :]

    def service(name: str, broker: BrokerAddress) -> ProcessService:
        if name == CLOUD:
            return ProcessService(name, directory, lambda: cloud(broker), plan.may_end_with)
        return ProcessService(name, directory, lambda: edge(name, broker))

    (directory / "slow").mkdir()
    limit = plan.setting.payload_bytes
    with private_mosquitto(directory / "broker", max_payload=limit) as broker:
        yield Environment(broker, "127.0.0.1", service, lambda: None)

"""A node of a run under chaos as processes: started, killed, paused, limited, and their ends noted."""

from __future__ import annotations

import contextlib
import os
import resource
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from common.errors import ConfigurationError
from common.records import slow_disk
from mapa.chaos.judge import Ended
from mapa.chaos.node import FAILED, SLOW
from mapa.environment import without_options
from mapa.process_run import one_thread_each
from mapa.processes import ends_with_parent

MAPA = (sys.executable, "-P", "-m", "mapa.cli")
_KILLED = -int(signal.SIGKILL)
_TOLD_EARLY = (
    -int(signal.SIGTERM),
    -int(signal.SIGINT),
    130,
)  # of an edge that is told to go while it starts
_ROOM = 2000  # bytes that a log may still grow: less than a record, so that one is torn


@dataclass(slots=True)
class Program:
    """One node: a process now, or one that is to come back."""

    name: str
    log: Path
    words: Callable[[], Sequence[str]]  # the command of its next process
    slow_file: Path  # says how slow its disk is
    ends: list[Ended] = field(default_factory=list)
    starts: int = 0
    _child: subprocess.Popen[bytes] | None = None
    _allowed: set[int] = field(default_factory=set)  # exit codes that a fault explains, of this process

    def start(self) -> None:
        """Start a process; what it says goes to the end of the log."""
        self._allowed = {0}
        self.starts += 1
        if self.starts == 1:
            self.slow(False)
        environment = {**without_options(one_thread_each()), slow_disk.VARIABLE: str(self.slow_file)}
        with self.log.open("ab") as stream:
            self._child = subprocess.Popen(
                ends_with_parent(self.words()),
                stdin=subprocess.DEVNULL,
                stdout=stream,
                stderr=stream,
                env=environment,
                start_new_session=True,
            )

    @property
    def running(self) -> bool:
        """Whether the process runs; one that has ended is noted, once."""
        if self._child is None:
            return False
        code = self._child.poll()
        if code is None:
            return True
        self._child = None
        self.ends.append(Ended(self.name, code, tuple(sorted(self._allowed)), self.last_words()))
        return False

    def come_back(self) -> bool:
        """Start the next process."""
        if not self.running:
            self.start()
        return True

    def allow(self, *codes: int) -> None:
        """Expect these exit codes of the present process."""
        self._allowed.update(codes)

    def kill(self) -> None:
        if self._child is not None:
            self.allow(_KILLED)
            self._child.kill()
            self._child.wait()
            _ = self.running

    def pause(self, on: bool) -> None:
        """SIGSTOP, or SIGCONT."""
        if self._child is not None:
            self._child.send_signal(signal.SIGSTOP if on else signal.SIGCONT)

    def dismiss(self) -> None:
        """Tell an edge to leave, also one that is paused."""
        self.pause(False)
        if self._child is not None:
            self.allow(*_TOLD_EARLY)
            self._child.send_signal(signal.SIGTERM)

    def slow(self, on: bool) -> None:
        """Let every write of log, checkpoints and ledger wait, or no more."""
        slow_disk.set_seconds(self.slow_file, SLOW if on else 0.0)

    def fill(self, on: bool) -> None:
        """Let no file of the process grow, or lift the limit.

        It fails in the midst of a write, as a full disk does, and needs no privileges.
        """
        if self._child is None:
            return
        if on:
            self.allow(FAILED)
        size = _largest(self._child.pid) + _ROOM if on else None
        with contextlib.suppress(ProcessLookupError):
            _, hard = resource.prlimit(self._child.pid, resource.RLIMIT_FSIZE)
            soft = hard if size is None else size
            resource.prlimit(self._child.pid, resource.RLIMIT_FSIZE, (soft, hard))

    def end(self, patience: float) -> None:
        """Wait for the end; kill whoever does not come to it, which is then not allowed."""
        until = time.monotonic() + patience
        while self.running and time.monotonic() < until:
            time.sleep(0.02)
        if self._child is not None:
            self._child.kill()
            self._child.wait()
            self._allowed.discard(_KILLED)
            _ = self.running

    def last_words(self, lines: int = 3) -> str:
        if not self.log.exists():
            return ""
        said = self.log.read_text(encoding="utf-8", errors="replace").strip().splitlines()
        return " / ".join(said[-lines:])[-600:]


def _largest(pid: int) -> int:
    """Return the size of the segment that a cloud writes to; 0 of an edge, whose ledger is written in place."""
    largest = 0
    for link in Path(f"/proc/{pid}/fd").iterdir():
        try:
            target = link.readlink()
            if target.suffix == ".seg":
                largest = max(largest, link.stat().st_size)
        except OSError:
            continue
    return largest


def check_platform() -> None:
    """Raise ConfigurationError where limits of another process cannot be set."""
    if not hasattr(resource, "prlimit") or not Path("/proc").is_dir() or os.name != "posix":
        raise ConfigurationError("mapa chaos: needs Linux (prlimit, /proc)")

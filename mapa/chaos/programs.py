"""The processes of a run under chaos: started, killed, paused, limited, and their ends noted."""

from __future__ import annotations

import contextlib
import os
import resource
import signal
import subprocess
import sys
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from common.errors import ConfigurationError
from mapa.chaos.judge import Ended
from mapa.children import ends_with_parent
from mapa.environment import without_options
from mapa.local_run import one_thread_each

MAPA = (sys.executable, "-P", "-m", "mapa.cli")
_KILLED = -int(signal.SIGKILL)


@dataclass(slots=True)
class Program:
    """One node: a process now, or one that is to come back."""

    name: str
    log: Path
    ends: list[Ended] = field(default_factory=list)
    starts: int = 0
    _child: subprocess.Popen[bytes] | None = None
    _allowed: set[int] = field(default_factory=set)  # exit codes that a fault explains, of this process

    def start(self, words: Sequence[str], allowed: Iterable[int]) -> None:
        """Start a process; what it says goes to the end of the log."""
        self._allowed = set(allowed)
        self.starts += 1
        with self.log.open("ab") as stream:
            self._child = subprocess.Popen(
                ends_with_parent(words),
                stdin=subprocess.DEVNULL,
                stdout=stream,
                stderr=stream,
                env=without_options(one_thread_each()),
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

    @property
    def pid(self) -> int:
        if self._child is None:
            raise ConfigurationError(f"{self.name}: is not running")
        return self._child.pid

    @property
    def last_code(self) -> int | None:
        return self.ends[-1].code if self.ends else None

    def allow(self, *codes: int) -> None:
        """Expect these exit codes of the present process."""
        self._allowed.update(codes)

    def kill(self) -> None:
        if self._child is not None:
            self.allow(_KILLED)
            self._child.kill()
            self._child.wait()
            _ = self.running

    def signal(self, number: signal.Signals) -> None:
        if self._child is not None:
            self._child.send_signal(number)

    def limit_files(self, size: int | None) -> None:
        """Let no file of the process grow beyond so many bytes; None: lift the limit.

        It fails in the midst of a write, as a full disk does, and needs no privileges.
        """
        if self._child is None:
            return
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


def check_platform() -> None:
    """Raise ConfigurationError where limits of another process cannot be set."""
    if not hasattr(resource, "prlimit") or not Path("/proc").is_dir() or os.name != "posix":
        raise ConfigurationError("mapa chaos: needs Linux (prlimit, /proc)")

"""Cloud, edges and broker of a run under chaos as containers. Signals are sent to the programs inside."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable
from pathlib import Path

from common.errors import BrokerUnavailableError
from common.records import slow_disk
from common.transport.connection import BrokerAddress
from mapa.brokers import greets
from mapa.chaos.engine_events import EngineEvents
from mapa.chaos.judge import Ended
from mapa.chaos.node import FAILED, SLOW
from mapa.container_run import ContainerRunError, Stack

_KILLED = 128 + int(signal.SIGKILL)
_TOLD_EARLY = (128 + int(signal.SIGTERM), 130)  # of an edge that is told to go while it starts
_PATIENCE = 60.0  # seconds for the engine to do what it was told
_HEARD = 5.0  # seconds until its word of an end has come


class ContainerNode:
    """A cloud or an edge. After a kill, or a full disk, its restart policy has it back, not we."""

    def __init__(
        self,
        name: str,
        stack: Stack,
        events: EngineEvents,
        run: Callable[[], None],
        fill: Callable[[bool], None],
        directory: Path,
    ) -> None:
        self.name, self.log, self.starts = name, directory / f"{name}.log", 0
        self.ends: list[Ended] = []
        self._stack, self._events, self._run, self._fill = stack, events, run, fill
        self._slow_file = directory / "slow" / name
        self._allowed: set[int] = {0}
        self._running = self._full = self._left = False
        slow_disk.set_seconds(self._slow_file, 0.0)
        events.tell(f"{stack.project}-{service_of(name)}-{number_of(name)}", self._on_event)

    def _on_event(self, code: int | None) -> None:
        if code is None:
            self.starts += 1
            self._allowed = {0, FAILED} if self._full else {0}
        else:
            self.ends.append(Ended(self.name, code, tuple(sorted(self._allowed)), self.last_words()))
        self._running = code is None  # last: whoever finds it ended finds how

    @property
    def running(self) -> bool:
        return self._running

    def start(self) -> None:
        """Run the container."""
        self._run()
        self._until(lambda: self._running, "start")

    def come_back(self) -> bool:
        """Start a container that was told to go; any other comes back by itself."""
        if self._left:
            self._left = False
            self._stack.container(self.name).start()
            self._until(lambda: self._running, "start again")
        return self._running

    def allow(self, *codes: int) -> None:
        """Expect these exit codes of the present process."""
        self._allowed.update(codes)

    def kill(self) -> None:
        """SIGKILL of the program inside its container, as the kernel would."""
        if not self._running:
            return
        self.allow(_KILLED)
        before = len(self.ends)
        self._signal(signal.SIGKILL, self._stack.signal_inside)
        self._until(lambda: len(self.ends) > before, "end")

    def pause(self, on: bool) -> None:
        """SIGSTOP, or SIGCONT, of the program inside its container."""
        self._signal(signal.SIGSTOP if on else signal.SIGCONT, self._stack.signal_inside)

    def dismiss(self) -> None:
        """Tell an edge to leave, also one that is paused; no policy starts it again."""
        self.pause(False)
        self.allow(*_TOLD_EARLY)
        self._left = True
        self._signal(signal.SIGTERM, self._stack.send)

    def fill(self, on: bool) -> None:
        """Fill its disk, or empty it."""
        self._full = on
        if on:
            self.allow(FAILED)
        self._fill(on)

    def slow(self, on: bool) -> None:
        """Let every write of log, checkpoints and ledger wait, or no more."""
        slow_disk.set_seconds(self._slow_file, SLOW if on else 0.0)

    def end(self, patience: float) -> None:
        """Wait for the end, also of what a policy is about to start again; whoever does not end is killed."""
        if not self._events.until(lambda: not self._running and self._settled, patience):
            self._allowed = {0}
            self._signal(signal.SIGKILL, self._stack.send)
            self._until(lambda: not self._running, "end")

    @property
    def _settled(self) -> bool:
        """Whether no policy starts it again."""
        return not self.ends or self._left or self.ends[-1].code == 0

    def last_words(self, lines: int = 3) -> str:
        said = self._stack.container(self.name).logs(tail=lines).decode(errors="replace")
        return " / ".join(said.strip().splitlines())[-600:]

    def _signal(self, number: signal.Signals, send: Callable[[str, signal.Signals], None]) -> None:
        """Send a signal; whoever has ended meanwhile needs none."""
        before = len(self.ends)
        try:
            send(self.name, number)
        except ContainerRunError:
            if not self._events.until(lambda: not self._running or len(self.ends) > before, _HEARD):
                raise

    def _until(self, condition: Callable[[], bool], what: str) -> None:
        if not self._events.until(condition, _PATIENCE):
            raise ContainerRunError(f"{self.name}: did not {what} in {_PATIENCE:g} s")


class ContainerBroker:
    """The Mosquitto of a run; its port on this machine stays."""

    def __init__(self, stack: Stack, address: BrokerAddress) -> None:
        self._stack, self.address = stack, address

    def kill(self) -> None:
        container = self._stack.container("broker")
        container.kill("SIGKILL")
        container.wait()

    def stop(self) -> None:
        self._stack.container("broker").stop(timeout=10)

    def start(self) -> None:
        self._stack.container("broker").start()
        until = time.monotonic() + _PATIENCE
        while not greets(self.address):
            if time.monotonic() > until:
                raise BrokerUnavailableError(f"broker on {self.address} did not start again")
            time.sleep(0.02)

    def pause(self, on: bool) -> None:
        container = self._stack.container("broker")
        container.pause() if on else container.unpause()


def service_of(name: str) -> str:
    return name.partition("-")[0]


def number_of(name: str) -> int:
    return int(name.partition("-")[2] or 1)

"""What chaos does to a cloud, an edge and a broker, whether they are processes or containers."""

from __future__ import annotations

from pathlib import Path
from typing import Protocol, Self

from common.transport.connection import BrokerAddress
from mapa.chaos.judge import Ended

FAILED = 1  # exit code of a program that cannot write
SLOW = 0.05  # seconds that every write takes on a slow disk


class Node(Protocol):
    """A cloud or an edge: a process now, or one that is to come back."""

    name: str
    log: Path  # what all of its processes said
    ends: list[Ended]
    starts: int

    @property
    def running(self) -> bool: ...

    def start(self) -> None:
        """Start the first process."""

    def come_back(self) -> bool:
        """Have a next process on the old files; False: not yet."""

    def allow(self, *codes: int) -> None:
        """Expect these exit codes of the present process."""

    def kill(self) -> None:
        """SIGKILL, and wait for the end."""

    def pause(self, on: bool) -> None:
        """SIGSTOP, or SIGCONT."""

    def fill(self, on: bool) -> None:
        """Let its disk take no more, or have room again."""

    def slow(self, on: bool) -> None:
        """Slow its writes down, or no more."""

    def dismiss(self) -> None:
        """Tell an edge to leave."""

    def end(self, patience: float) -> None:
        """Wait for the end; kill whoever does not come to it, which is then not allowed."""

    def last_words(self, lines: int = 3) -> str: ...


class ChaosBroker(Protocol):
    """The broker of a run. What it retained is lost with its process."""

    @property
    def address(self) -> BrokerAddress: ...

    def kill(self) -> None:
        """SIGKILL."""

    def stop(self) -> None:
        """SIGTERM."""

    def start(self) -> None:
        """Start it on its port, and wait until it takes clients."""

    def pause(self, on: bool) -> None:
        """Freeze it, or let it go on."""


class Bed(Protocol):
    """Where a run happens: its broker, its nodes and their disks."""

    @property
    def broker(self) -> ChaosBroker: ...

    @property
    def host(self) -> str:
        """An address of this machine that the nodes reach."""

    def __enter__(self) -> Self: ...

    def __exit__(self, *_: object) -> None: ...

    def node(self, name: str, broker: BrokerAddress) -> Node:
        """Return a node that reaches the broker at this address; it is not started."""

    def collect(self) -> None:
        """Bring what is not in the directory yet there: runs/, state/NAME/, NAME.log."""

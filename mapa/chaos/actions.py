"""Faults done to processes, the broker and the relays: begun, and ended."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from common.transport.hostile import Disorder, HostileLoop, HostileRelay
from mapa.brokers import Broker
from mapa.chaos.programs import Program
from mapa.chaos.schedule import BROKER, CLOUD, Fault, Kind

_ROOM = 2000  # bytes that a log may still grow: less than a record, so that one is torn
_TOLD_EARLY = (
    -int(signal.SIGTERM),
    -int(signal.SIGINT),
    130,
)  # of an edge that is told to go while it starts
_FAILED = 1  # exit code of a program that cannot write


@dataclass(slots=True)
class Actions:
    """What can be done to a run. `revive` starts a node's next process on its old files."""

    broker: Broker
    programs: Mapping[str, Program]  # cloud, edge-1, edge-2, …
    relays: Mapping[str, HostileRelay]
    loop: HostileLoop
    revive: Callable[[str], None]
    longest: float  # seconds that a disordered message comes late, at most
    spared: str  # topic whose messages keep their order: a cloud tests the broker's size limit by it
    away: set[str] = field(default_factory=set)  # edges that a scale has sent away

    def begin(self, fault: Fault) -> str | None:
        """Begin a fault; return why not where its target is not there."""
        name = fault.target
        if name in self.programs and not self.programs[name].running:
            return f"{name} is not running"
        if name in self.away:
            return f"{name} is leaving"
        match fault.kind:
            case Kind.KILL if name == BROKER:
                self.broker.stop(signal.SIGKILL)
            case Kind.KILL:
                self.programs[name].kill()
            case Kind.RESTART:
                self.broker.stop()
            case Kind.PAUSE if name == BROKER:
                os.kill(self.broker.pid, signal.SIGSTOP)
            case Kind.PAUSE:
                self.programs[name].signal(signal.SIGSTOP)
            case Kind.PARTITION:
                self.loop.partition(self.relays[name], True)
            case Kind.CUT:
                self.loop.cut(self.relays[name], True)
            case Kind.DISORDER:
                how = Disorder(str(fault), longest=self.longest, spared=self.spared)
                self.loop.disorder(self.relays[name], how)
            case Kind.FILL:
                self.programs[name].allow(_FAILED)
                self.programs[name].limit_files(_largest(self.programs[name]) + _ROOM)
            case Kind.SCALE:
                self._scale_down(fault.edges)
        return None

    def end(self, fault: Fault) -> bool:
        """End a fault: what was killed, or ended by it, comes back. False: not yet, an edge is still leaving."""
        name = fault.target
        match fault.kind:
            case Kind.KILL | Kind.RESTART if name == BROKER:
                self.broker.start()
            case Kind.KILL:
                self.revive(name)
            case Kind.PAUSE if name == BROKER:
                os.kill(self.broker.pid, signal.SIGCONT)
            case Kind.PAUSE:
                self.programs[name].signal(signal.SIGCONT)
            case Kind.PARTITION:
                self.loop.partition(self.relays[name], False)
            case Kind.CUT:
                self.loop.cut(self.relays[name], False)
            case Kind.DISORDER:
                self.loop.disorder(self.relays[name], None)
            case Kind.FILL:
                self.programs[name].limit_files(None)
                if not self.programs[name].running and self.programs[name].last_code == _FAILED:
                    self.revive(name)
            case Kind.SCALE:
                if any(self.programs[name].running for name in self.away):
                    return False
                for gone in sorted(self.away):
                    self.revive(gone)
                self.away.clear()
        return True

    def _scale_down(self, edges: int) -> None:
        """Tell the last edges to go; they leave properly."""
        names = [name for name in self.programs if name != CLOUD]
        for name in names[edges:]:
            program = self.programs[name]
            if program.running:
                program.allow(*_TOLD_EARLY)
                program.signal(signal.SIGCONT)
                program.signal(signal.SIGTERM)
                self.away.add(name)


def _largest(program: Program) -> int:
    """Return the size of the segment that a cloud writes to; 0 of an edge, whose ledger is written in place."""
    largest = 0
    for link in Path(f"/proc/{program.pid}/fd").iterdir():
        try:
            target = link.readlink()
            if target.suffix == ".seg":
                largest = max(largest, link.stat().st_size)
        except OSError:
            continue
    return largest

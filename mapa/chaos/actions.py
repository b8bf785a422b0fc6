"""Faults done to nodes, the broker and the relays: begun, and ended."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from common.transport.hostile_relay import Disorder, HostileLoop, HostileRelay
from mapa.chaos.node import FAILED, ChaosBroker, Node
from mapa.chaos.schedule import BROKER, CLOUD, Fault, Kind


@dataclass(slots=True)
class Actions:
    """What can be done to a run. `revive` has a node's next process on its old files; False: not yet."""

    broker: ChaosBroker
    nodes: Mapping[str, Node]  # cloud, edge-1, edge-2, …
    relays: Mapping[str, HostileRelay]
    loop: HostileLoop
    revive: Callable[[str], bool]
    longest: float  # seconds that a disordered message comes late, at most
    spared: str  # topic whose messages keep their order: a cloud tests the broker's size limit by it
    away: set[str] = field(default_factory=set)  # edges that a scale has sent away

    def begin(self, fault: Fault) -> str | None:
        """Begin a fault; return why not where its target is not there."""
        name = fault.target
        if name in self.nodes and not self.nodes[name].running:
            return f"{name} is not running"
        if name in self.away:
            return f"{name} is leaving"
        match fault.kind:
            case Kind.KILL:
                (self.broker if name == BROKER else self.nodes[name]).kill()
            case Kind.RESTART:
                self.broker.stop()
            case Kind.PAUSE:
                (self.broker if name == BROKER else self.nodes[name]).pause(True)
            case Kind.PARTITION:
                self.loop.partition(self.relays[name], True)
            case Kind.CUT:
                self.loop.cut(self.relays[name], True)
            case Kind.DISORDER:
                how = Disorder(str(fault), longest=self.longest, spared=self.spared)
                self.loop.disorder(self.relays[name], how)
            case Kind.FILL:
                self.nodes[name].fill(True)
            case Kind.SLOW:
                self.nodes[name].slow(True)
            case Kind.SCALE:
                self._scale_down(fault.edges)
        return None

    def end(self, fault: Fault) -> bool:
        """End a fault: what was killed, or ended by it, comes back. False: not yet; it is asked again."""
        name = fault.target
        match fault.kind:
            case Kind.KILL | Kind.RESTART if name == BROKER:
                self.broker.start()
            case Kind.KILL:
                return self.revive(name)
            case Kind.PAUSE:
                (self.broker if name == BROKER else self.nodes[name]).pause(False)
            case Kind.PARTITION:
                self.loop.partition(self.relays[name], False)
            case Kind.CUT:
                self.loop.cut(self.relays[name], False)
            case Kind.DISORDER:
                self.loop.disorder(self.relays[name], None)
            case Kind.FILL:
                self.nodes[name].fill(False)
                if not self.nodes[name].running and self.nodes[name].ends[-1].code == FAILED:
                    return self.revive(name)
            case Kind.SLOW:
                self.nodes[name].slow(False)
            case Kind.SCALE:
                if any(self.nodes[name].running for name in self.away):
                    return False
                self.away = {gone for gone in sorted(self.away) if not self.revive(gone)}
                return not self.away
        return True

    def _scale_down(self, edges: int) -> None:
        """Tell the last edges to go; they leave properly."""
        names = [name for name in self.nodes if name != CLOUD]
        for name in names[edges:]:
            if self.nodes[name].running:
                self.nodes[name].dismiss()
                self.away.add(name)

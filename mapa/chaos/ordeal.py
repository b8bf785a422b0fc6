"""One run under its faults, from the start to the verdict: processes or containers alike."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from common.errors import MapaError
from common.quantities import RunId
from common.transport.hostile_relay import HostileLoop
from common.wire.topics import probe_topic
from common.wire.v1 import packet_limit
from mapa.chaos.actions import Actions
from mapa.chaos.evidence import gather
from mapa.chaos.judge import Evidence, verdict
from mapa.chaos.node import Bed, Node
from mapa.chaos.plan import Plan
from mapa.chaos.process_bed import ProcessBed
from mapa.chaos.schedule import CLOUD, Fault
from mapa.chaos.watch import Watch

_LOOK_EVERY = 0.01  # seconds
_STALL = 240.0  # seconds without an update and without a fault: it hangs
_GOODBYE = 120.0  # seconds for edges to end after the run
_LATEST = 0.95  # share of T: a broker that is lost later may take the halt with it, and nobody says it again
_OVER = ("the run has ended", "the run had ended")  # what an edge says that heard of the end


@dataclass(frozen=True, slots=True)
class Outcome:
    """How a run came through."""

    directory: Path
    evidence: Evidence | None  # None: it never began
    wrong: tuple[str, ...]
    seconds: float
    skipped: tuple[str, ...] = ()  # faults that found nobody, and why
    resumed: int = 0
    again: int = 0  # models that were sent more than once


@dataclass(slots=True)
class Ordeal:
    """The supervisor of one run."""

    plan: Plan
    run: RunId
    faults: Sequence[Fault]
    directory: Path
    say: Callable[[str], None]
    bed: Callable[[Plan, RunId, Path], Bed] = ProcessBed
    _nodes: dict[str, Node] = field(default_factory=dict)
    _active: dict[tuple[str, bool], tuple[Fault, float]] = field(
        default_factory=dict
    )  # place → fault, its end
    _skipped: list[str] = field(default_factory=list)
    _wrong: list[str] = field(default_factory=list)
    _closing: bool = False

    def undergo(self) -> Outcome:
        """Run to the end, and judge it."""
        began = time.monotonic()
        self.directory.mkdir(parents=True)
        packets = packet_limit(self.plan.setting.model.dimension)
        with (
            self.bed(self.plan, self.run, self.directory) as bed,
            HostileLoop() as loop,
            Watch(bed.broker.address, self.run, packets) as watch,
        ):
            names = [CLOUD, *(f"edge-{k}" for k in range(1, self.plan.scenario.workers + 1))]
            relays = {name: loop.open(bed.broker.address, bed.host) for name in names}
            self._nodes = {name: bed.node(name, relay.address) for name, relay in relays.items()}
            longest = 2 * self.plan.scenario.testbed.resend_after
            spared = probe_topic(self.run)
            actions = Actions(bed.broker, self._nodes, relays, loop, self._revive, longest, spared)
            try:
                for node in self._nodes.values():
                    node.start()
                self._play(actions, watch)
                self._close(actions)
            except MapaError as error:
                self._wrong.append(str(error))
            finally:
                for node in self._nodes.values():
                    node.kill()
                bed.collect()
        return self._judged(watch, time.monotonic() - began)

    def _revive(self, name: str) -> bool:
        """Have a node back; at the end of a run whoever is away stays away."""
        return self._closing or self._nodes[name].come_back()

    @property
    def _path(self) -> Path | None:
        """The run's directory, once it can be resumed."""
        found = sorted((self.directory / "runs").glob("*/manifest.json"))
        return found[0].parent if found else None

    def _state(self, name: str) -> Path:
        return self.directory / "state" / name

    # -- the faults -----------------------------------------------------------------------------------

    def _play(self, actions: Actions, watch: Watch) -> None:
        """Begin every fault at its t and end it in its time, until the cloud has ended by itself."""
        waiting = list(self.faults)
        newest, moved = 0, time.monotonic()
        while True:
            now = time.monotonic()
            for place, (fault, end) in list(self._active.items()):
                if now >= end and actions.end(fault):
                    del self._active[place]
            if self._over(actions):
                break
            for fault in [one for one in waiting if one.at <= watch.newest]:
                if fault.place in self._active:
                    continue  # it has one already: afterwards
                waiting.remove(fault)
                if watch.newest > _LATEST * self.plan.scenario.iterations:
                    self._skipped.append(f"{fault}: t = {watch.newest}, the run is about to end")
                    continue
                if (why := actions.begin(fault)) is not None:
                    self._skipped.append(f"{fault}: {why}")
                    continue
                self.say(f"  t = {watch.newest}: {fault}")
                self._active[fault.place] = (fault, time.monotonic() + fault.seconds)
            if watch.newest > newest or any(now < end for _, end in self._active.values()):
                newest, moved = watch.newest, now
            if now > moved + _STALL:
                self._wrong.append(f"no update for {_STALL:g} s at t = {newest}: {self._words()}")
                break
            time.sleep(_LOOK_EVERY)
        self._skipped += [f"{fault}: the run had ended" for fault in waiting]

    def _over(self, actions: Actions) -> bool:
        """Whether the cloud has ended by itself, or a process that no fault explains."""
        for name, node in self._nodes.items():
            if node.running or (name, False) in self._active or name in actions.away or not node.ends:
                continue
            code, allowed = node.ends[-1].code, node.ends[-1].allowed
            if name == CLOUD and code == 0:
                return True
            if code == 0 and any(words in node.ends[-1].words for words in _OVER):
                continue  # it heard of the end before the cloud had gone
            if code == 1 and code in allowed:
                self._revive(name)  # a full disk that was noticed late
                continue
            self._wrong.append(f"{name} ended with {code} during the run: {node.ends[-1].words}")
            return True
        return False

    def _close(self, actions: Actions) -> None:
        """End every fault, and let those who run hear how it ended; who was killed or sent away stays away."""
        self._closing = True
        until = time.monotonic() + _GOODBYE
        for fault, _ in list(self._active.values()):
            while not actions.end(fault) and time.monotonic() < until:
                time.sleep(_LOOK_EVERY)
        self._active.clear()
        for node in self._nodes.values():
            if self._wrong:
                node.kill()  # it is decided
            else:
                node.end(_GOODBYE)

    # -- the end --------------------------------------------------------------------------------------

    def _judged(self, watch: Watch, seconds: float) -> Outcome:
        path = self._path
        if path is None:
            wrong = (*self._wrong, f"no run began: {self._words()}")
            return Outcome(self.directory, None, wrong, seconds, tuple(self._skipped))
        ended = [end for node in self._nodes.values() for end in node.ends]
        evidence = gather(
            path,
            iterations=self.plan.scenario.iterations,
            states=[self._state(name) for name in self._nodes if name != CLOUD],
            watch=watch,
            ended=ended,
            logs=[node.log for node in self._nodes.values()],
            allowed=[],
        )
        wrong = (*self._wrong, *verdict(evidence))
        starts = self._nodes[CLOUD].starts
        return Outcome(
            self.directory, evidence, wrong, seconds, tuple(self._skipped), starts - 1, watch.again
        )

    def _words(self) -> str:
        return " | ".join(f"{name}: {one.last_words(1)}" for name, one in self._nodes.items())

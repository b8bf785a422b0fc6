"""One run under its faults: a broker, a cloud, edges, from the start to the verdict."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from common.errors import BrokerUnavailableError
from common.quantities import RunId
from common.transport.connection import parse_address
from common.transport.hostile import HostileLoop
from common.wire.topics import probe_topic
from common.wire.v1 import packet_limit
from mapa.brokers import MosquittoOptions, private_mosquitto
from mapa.chaos.actions import Actions
from mapa.chaos.evidence import gather
from mapa.chaos.judge import Evidence, verdict
from mapa.chaos.plan import Plan
from mapa.chaos.programs import Program
from mapa.chaos.schedule import CLOUD, Fault
from mapa.chaos.watch import Watch
from mapa.local_run import edge_arguments

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
    _programs: dict[str, Program] = field(default_factory=dict)
    _addresses: dict[str, str] = field(default_factory=dict)
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
        limit = MosquittoOptions(max_payload=self.plan.setting.payload_bytes)
        packets = packet_limit(self.plan.setting.model.dimension)
        with (
            private_mosquitto(self.directory / "broker", limit) as broker,
            HostileLoop() as loop,
            Watch(broker.address, self.run, packets) as watch,
        ):
            names = [CLOUD, *(f"edge-{k}" for k in range(1, self.plan.scenario.workers + 1))]
            relays = {name: loop.open(broker.address) for name in names}
            self._addresses = {name: str(relay.address) for name, relay in relays.items()}
            self._programs = {name: Program(name, self.directory / f"{name}.log") for name in names}
            longest = 2 * self.plan.scenario.testbed.resend_after
            spared = probe_topic(self.run)
            actions = Actions(broker, self._programs, relays, loop, self._start, longest, spared)
            try:
                for name in names:
                    self._start(name)
                self._play(actions, watch)
                self._close(actions)
            except BrokerUnavailableError as error:
                self._wrong.append(str(error))
            finally:
                for program in self._programs.values():
                    program.kill()
        return self._judged(watch, time.monotonic() - began)

    def _start(self, name: str) -> None:
        if self._closing:
            return
        scenario, broker = self.plan.scenario, self._addresses[name]
        if name == CLOUD:
            words = [*self.plan.program, "cloud", "--broker", broker]
            words += ["--runs-dir", str(self.directory / "runs"), "--data-dir", str(self.plan.data_dir)]
            if (path := self._path) is not None:
                words += ["--resume", str(path)]
            else:
                words += [*self.plan.words, "--run", self.run]
                words += ["--edges-at-least", str(scenario.workers)]
        else:
            address, state = parse_address(broker), self._state(name)
            words = edge_arguments(scenario, self.run, address, state, self.plan.data_dir, 1)
            words += [] if scenario.seed is None else ["--allow-seed"]
        self._programs[name].start(words, allowed=[0])

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
        for name, program in self._programs.items():
            if program.running or (name, False) in self._active or name in actions.away or not program.ends:
                continue
            code, allowed = program.last_code, program.ends[-1].allowed
            if name == CLOUD and code == 0:
                return True
            if code == 0 and any(words in program.ends[-1].words for words in _OVER):
                continue  # it heard of the end before the cloud had gone
            if code == 1 and code in allowed:
                self._start(name)  # a full disk that was noticed late
                continue
            self._wrong.append(f"{name} ended with {code} during the run: {program.ends[-1].words}")
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
        for program in self._programs.values():
            if self._wrong:
                program.kill()  # it is decided
            else:
                program.end(_GOODBYE)

    # -- the end --------------------------------------------------------------------------------------

    def _judged(self, watch: Watch, seconds: float) -> Outcome:
        path = self._path
        if path is None:
            wrong = (*self._wrong, f"no run began: {self._words()}")
            return Outcome(self.directory, None, wrong, seconds, tuple(self._skipped))
        ended = [end for program in self._programs.values() for end in program.ends]
        evidence = gather(
            path,
            iterations=self.plan.scenario.iterations,
            states=[self._state(name) for name in self._programs if name != CLOUD],
            watch=watch,
            ended=ended,
            logs=[program.log for program in self._programs.values()],
            allowed=[],
        )
        wrong = (*self._wrong, *verdict(evidence))
        starts = self._programs[CLOUD].starts
        return Outcome(
            self.directory, evidence, wrong, seconds, tuple(self._skipped), starts - 1, watch.again
        )

    def _words(self) -> str:
        return " | ".join(f"{name}: {one.last_words(1)}" for name, one in self._programs.items())

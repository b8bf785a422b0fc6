"""One run under its faults, from the start to the verdict: services as processes or as containers alike."""

from __future__ import annotations

import math
import os
import resource
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Protocol

from common.datasets.source import LOCAL
from common.errors import ConfigurationError, MapaError
from common.quantities import RunId
from common.records.layout import keeps_gradients
from common.scenario.scenario import Scenario
from common.transport.connection import BrokerAddress
from common.transport.relay import Disorder, HostileRelay, RelayLoop
from common.wire.topics import probe_topic
from common.wire.v1 import packet_limit
from mapa.brokers import find_mosquitto
from mapa.chaos.faults import BROKER, CLOUD, Bounds, Fault, FaultKind, Injector
from mapa.chaos.verdict import Ended, Evidence, ModelWatch, gather, verdict
from mapa.cloud_run import Setting
from mapa.run_parts import NEEDS_FILES, check_no_helpers
from mapa.scenario_files import load_scenario

FAILED = 1  # exit code of a program that cannot write
_LOOK_EVERY = 0.01  # seconds
_STALL = 240.0  # seconds without an update and without a fault: it hangs
_GOODBYE = 120.0  # seconds for edges to end after the run
_LATEST = 0.95  # share of T: a broker that is lost later may take the halt with it, which is not sent again
_OVER = ("the run has ended", "the run had ended")  # what an edge prints that heard of the end


@dataclass(frozen=True, slots=True)
class TrialPlan:
    """A scenario and how its cloud is started, for every run."""

    name: str  # of the scenario, or its file
    settings: Sequence[str]  # KEY=VALUE
    edges: int | None  # instead of the scenario's
    setting: Setting
    data_dir: Path
    program: Sequence[str]  # of the cloud: a module or a file, and first arguments; tests have a broken one
    may_end_with: Sequence[int]  # exit codes of that program beside 0; it is then started again

    @property
    def scenario(self) -> Scenario:
        return self.setting.scenario

    @property
    def services(self) -> list[str]:
        return [CLOUD, *(f"edge-{k}" for k in range(1, self.scenario.workers + 1))]

    @property
    def bounds(self) -> Bounds:
        scenario = self.scenario
        return Bounds(scenario.iterations, scenario.workers, scenario.testbed.silent_after)


def plan_of(
    name: str,
    changes: Sequence[str],
    edges: int | None,
    iterations: int | None,
    data_dir: Path,
    program: Sequence[str] = ("mapa.cli",),
    *,
    may_end_with: Sequence[int] = (),
    containers: bool = False,
) -> TrialPlan:
    """Return what is run; raise ConfigurationError if it cannot be run, or not be judged."""
    if not hasattr(resource, "prlimit") or not Path("/proc").is_dir() or os.name != "posix":
        raise ConfigurationError("mapa chaos: needs Linux (prlimit, /proc)")
    settings = [*changes, *([] if iterations is None else [f"iterations={iterations}"])]
    _, scenario = load_scenario(name, settings, edges=edges)
    check_no_helpers(scenario, "chaos")
    if not containers and find_mosquitto() is None:
        raise ConfigurationError("mapa chaos: no mosquitto found on PATH (Debian: apt install mosquitto)")
    if scenario.data.set == LOCAL:
        raise ConfigurationError(NEEDS_FILES)
    setting = Setting.of(scenario, data_dir)
    scenario = setting.scenario
    if not scenario.records.events:
        raise ConfigurationError("records.events = false: chaos judges a run by its events")
    if not keeps_gradients(scenario.records.keep_gradients, scenario.iterations, setting.model.dimension):
        raise ConfigurationError(
            "records.keep_gradients: must be true, since chaos replays the log; or choose fewer iterations"
        )
    return TrialPlan(name, settings, edges, setting, data_dir, program, may_end_with)


# -- what a trial acts on -----------------------------------------------------------------------------------


class Service(Protocol):
    """A cloud or an edge: a process that runs, or one that is to come back on its old files."""

    name: str
    log: Path  # the output of all of its processes
    ends: list[Ended]
    starts: int
    _expected: set[int]  # exit codes of any of its processes
    _allowed: set[int]  # of the present one: a fault may explain more
    _slow_file: Path

    def __init__(self, name: str, directory: Path, may_end_with: Sequence[int] = ()) -> None:
        self.name, self.log, self.ends, self.starts = name, directory / f"{name}.log", [], 0
        self._expected = {0, *may_end_with}
        self._allowed = set(self._expected)
        self._slow_file = directory / "slow" / name

    def allow(self, *codes: int) -> None:
        self._allowed.update(codes)

    def _note_end(self, code: int) -> None:
        self.ends.append(Ended(self.name, code, tuple(sorted(self._allowed)), self.last_lines()))

    def slow(self, on: bool) -> None:
        """Slow its writes down, or no more: see slow_disk.py."""
        if on:
            self._slow_file.touch()
        else:
            self._slow_file.unlink(missing_ok=True)

    @property
    def running(self) -> bool: ...
    def start(self) -> None: ...  # the first process
    def come_back(self) -> bool: ...  # as the next process; False: not yet
    def kill(self) -> None: ...  # SIGKILL, and wait for the end
    def pause(self, on: bool) -> None: ...  # SIGSTOP, or SIGCONT
    def fill(self, on: bool) -> None: ...  # make its disk full, or give it room again
    def dismiss(self) -> None: ...  # tell an edge to leave, also one that is paused
    def end(self, patience: float) -> None: ...  # wait; a process that must be killed is not allowed to
    def last_lines(self, lines: int = 3) -> str: ...  # of its log


class TrialBroker(Protocol):
    """The broker of a run. What it retained is lost with its process."""

    @property
    def address(self) -> BrokerAddress: ...
    def kill(self) -> None: ...  # SIGKILL
    def stop(self) -> None: ...  # SIGTERM
    def start(self) -> None: ...  # on its port; wait until it takes clients
    def pause(self, on: bool) -> None: ...  # freeze it, or let it go on


@dataclass(frozen=True, slots=True)
class Environment:
    """Where a run happens: its broker, its services and their disks."""

    broker: TrialBroker
    host: str  # an address of this machine that the services reach
    service: Callable[[str, BrokerAddress], Service]  # by its name; not started
    collect: Callable[[], None]  # bring runs/, state/NAME/ and NAME.log into the directory


MakeEnvironment = Callable[[TrialPlan, RunId, Path], AbstractContextManager[Environment]]


# -- the trial ----------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class TrialOutcome:
    directory: Path
    evidence: Evidence | None  # None: it never began
    wrong: Sequence[str]
    seconds: float
    skipped: Sequence[str]  # faults that were not applied, and why
    resumed: int = 0
    again: int = 0  # models that were sent more than once


class ChaosTrial:
    """The supervisor of one run."""

    _broker: TrialBroker
    _loop: RelayLoop
    _relays: dict[str, HostileRelay]
    _watch: ModelWatch

    def __init__(
        self,
        plan: TrialPlan,
        run: RunId,
        faults: Sequence[Fault],
        directory: Path,
        say: Callable[[str], None],
        environment: MakeEnvironment,
    ) -> None:
        self._plan, self._run, self._directory, self._say = plan, run, directory, say
        self._environment = environment
        self._injector = Injector(faults, self._begin, partial(self._switch, on=False))
        self._services: dict[str, Service] = {}
        self._leaving: set[str] = set()  # edges that a scale has sent away
        self._skipped: list[str] = []
        self._wrong: list[str] = []
        self._closing = False

    def outcome(self) -> TrialOutcome:
        """Run to the end, and judge it."""
        began = time.monotonic()
        self._directory.mkdir(parents=True)
        packets = packet_limit(self._plan.setting.model.dimension)
        with (
            self._environment(self._plan, self._run, self._directory) as environment,
            RelayLoop() as self._loop,
            ModelWatch(environment.broker.address, self._run, packets) as self._watch,
        ):
            self._broker = environment.broker
            self._relays = {
                name: self._loop.open_hostile(self._broker.address, environment.host)
                for name in self._plan.services
            }
            self._services = {
                name: environment.service(name, relay.address) for name, relay in self._relays.items()
            }
            try:
                for service in self._services.values():
                    service.start()
                self._play()
                self._close()
            except MapaError as error:
                self._wrong.append(str(error))
            finally:
                for service in self._services.values():
                    service.kill()
                environment.collect()
        return self._judged(time.monotonic() - began)

    def _play(self) -> None:
        """Begin every fault at its t and end it in its time, until the cloud has ended by itself."""
        newest, moved = 0, time.monotonic()
        while True:
            now = time.monotonic()
            self._injector.end_due(now)
            if self._over():
                break
            self._injector.begin_due(self._watch.newest, now)
            if self._watch.newest > newest or self._injector.lasts(now):
                newest, moved = self._watch.newest, now
            if now > moved + _STALL:
                self._wrong.append(f"no update for {_STALL:g} s at t = {newest}: {self._last_lines()}")
                break
            time.sleep(_LOOK_EVERY)
        self._skipped += [f"{fault}: the run had ended" for fault in self._injector.waiting]

    def _over(self) -> bool:
        """Return whether the cloud has ended by itself, or a process that no fault explains."""
        for name, service in self._services.items():
            if service.running or self._injector.holds(name) or name in self._leaving or not service.ends:
                continue
            end = service.ends[-1]
            if name == CLOUD and end.code == 0:
                return True
            if end.code == 0 and any(text in end.last_lines for text in _OVER):
                continue  # it heard of the end before the cloud had gone
            if end.code != 0 and end.code in end.allowed:
                self._bring_back(name)  # a full disk that was noticed late
                continue
            self._wrong.append(f"{name} ended with {end.code} during the run: {end.last_lines}")
            return True
        return False

    def _close(self) -> None:
        """End every fault, and let the running services hear how it ended; those that are away stay away."""
        self._closing = True
        until = time.monotonic() + _GOODBYE
        self._injector.end_due(math.inf)
        while not self._injector.idle and time.monotonic() < until:
            time.sleep(_LOOK_EVERY)
            self._injector.end_due(math.inf)
        for service in self._services.values():
            if self._wrong:
                service.kill()  # it is decided
            else:
                service.end(_GOODBYE)

    # -- faults -----------------------------------------------------------------------------------------

    def _begin(self, fault: Fault) -> bool:
        name, newest = fault.target, self._watch.newest
        refusal = None
        if newest > _LATEST * self._plan.scenario.iterations:
            refusal = f"t = {newest}, the run is about to end"
        elif name in self._services and not self._services[name].running:
            refusal = f"{name} is not running"
        elif name in self._leaving:
            refusal = f"{name} is leaving"
        if refusal is not None:
            self._skipped.append(f"{fault}: {refusal}")
            return False
        self._switch(fault, True)
        self._say(f"  t = {newest}: {fault}")
        return True

    def _switch(self, fault: Fault, on: bool) -> bool:
        """Begin or end a fault: at its end what it killed or ended comes back. Return False if it has not yet."""
        name = fault.target
        match fault.kind:
            case FaultKind.KILL if on:
                self._struck(name).kill()
            case FaultKind.RESTART if on:
                self._broker.stop()
            case FaultKind.KILL | FaultKind.RESTART:
                return self._bring_back(name)
            case FaultKind.SCALE if on:
                for edge in self._plan.services[1 + fault.edges :]:
                    if self._services[edge].running:
                        self._services[edge].dismiss()
                        self._leaving.add(edge)
            case FaultKind.SCALE:
                if any(self._services[edge].running for edge in self._leaving):
                    return False
                self._leaving = {edge for edge in sorted(self._leaving) if not self._bring_back(edge)}
                return not self._leaving
            case FaultKind.PAUSE:
                self._struck(name).pause(on)
            case FaultKind.PARTITION:
                self._loop.do(self._relays[name].partition(on))
            case FaultKind.CUT:
                self._loop.do(self._relays[name].cut(on))
            case FaultKind.DISORDER:
                # a cloud tests the broker's size limit by the order of messages on its probe topic
                longest, spared = 2 * self._plan.scenario.testbed.resend_after, probe_topic(self._run)
                disorder = Disorder(str(fault), longest=longest, spared=spared)
                self._relays[name].disorder = disorder if on else None
            case FaultKind.FILL:
                service = self._services[name]
                service.fill(on)
                if not on and not service.running:
                    return service.ends[-1].code != FAILED or self._bring_back(name)
            case FaultKind.SLOW:
                self._services[name].slow(on)
        return True

    def _struck(self, name: str) -> TrialBroker | Service:
        return self._broker if name == BROKER else self._services[name]

    def _bring_back(self, name: str) -> bool:
        """Have a service back; at the end of a run one that is away stays away, but for the broker."""
        if name == BROKER:
            self._broker.start()
            return True
        return self._closing or self._services[name].come_back()

    # -- the end ----------------------------------------------------------------------------------------

    def _judged(self, seconds: float) -> TrialOutcome:
        outcome = TrialOutcome(self._directory, None, self._wrong, seconds, self._skipped)
        manifests = sorted((self._directory / "runs").glob("*/manifest.json"))
        if not manifests:
            return replace(outcome, wrong=[*self._wrong, f"no run began: {self._last_lines()}"])
        states = [self._directory / "state" / name for name in self._services if name != CLOUD]
        ended = [end for service in self._services.values() for end in service.ends]
        logs = [service.log for service in self._services.values()]
        iterations = self._plan.scenario.iterations
        evidence = gather(manifests[0].parent, iterations, states, self._watch, ended, logs)
        return replace(
            outcome,
            evidence=evidence,
            wrong=[*self._wrong, *verdict(evidence)],
            resumed=self._services[CLOUD].starts - 1,
            again=self._watch.again,
        )

    def _last_lines(self) -> str:
        return " | ".join(f"{name}: {service.last_lines(1)}" for name, service in self._services.items())

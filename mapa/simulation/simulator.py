"""CloudServer and K EdgeWorkers with simulated delays and no network, one event at a time."""

from __future__ import annotations

import math
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np

from cloud.assembly import algorithm_for, begun, check_own_edges, server_for
from cloud.recovery_log import History
from cloud.snapshot import server_state
from common.errors import ConfigurationError
from common.messages import (
    AWAY,
    EdgeGone,
    EdgeJoined,
    Effect,
    EvaluationDue,
    Event,
    GradientApplied,
    GradientArrived,
    GradientRefused,
    Halt,
    Hello,
    Leave,
    Refuse,
    SendModel,
    StageOpened,
    Welcome,
)
from common.quantities import Vector
from common.records.events import Journal
from common.records.recorder import Recorder
from common.records.tally import Tally
from common.wire.codec import encode_gradient, encode_hello
from edge.worker import EdgeWorker
from mapa.simulation.delays import arrivals_for
from mapa.simulation.world import World

Progress = Callable[[Tally], None]  # called with every gradient or stretch of them: it minds the clock itself


@dataclass(slots=True)
class Outcome:
    """What a simulation leaves behind."""

    tally: Tally
    x: Vector  # x_{T+1}
    releases: list[int]  # gradients made by edge k, those in flight at the halt included
    reason: str  # of the halt
    virtual_seconds: float | None = None


def simulate(
    world: World,
    journal: Journal | None = None,
    progress: Progress | None = None,
    *,
    logged: Path | None = None,
) -> Outcome:
    """Run the scenario to T, or until the model diverges.

    SIGINT or SIGTERM halts it as `interrupted` and what was done stays valid. `logged` is the run's directory where
    the gradient log is to be written, as a cloud writes it.
    """
    run = _Simulation(world, journal)
    limit = world.scenario.time_limit or math.inf
    with interrupt_between_events() as interrupted, quiet_overflow(), run.history(logged):
        run.begin(progress)
        while (due := run.arrivals.next()) is not None and run.halt is None and not interrupted():
            when, arrived = due
            if when is not None:
                if when > limit:
                    run.stop("time-limit")
                    break
                run.now = when
            run.receive(arrived)
            if progress is not None:
                progress(run.records.tally)
        if run.halt is None and interrupted():
            run.stop("interrupted")
        return run.outcome()


class _Request:
    """A signal that asks for the end; it is answered where nothing is half done."""

    def __init__(self) -> None:
        self.made = False

    def __call__(self, *_: object) -> None:
        if self.made:
            raise KeyboardInterrupt  # twice: whoever asks does not want to wait
        self.made = True


@contextmanager
def interrupt_between_events() -> Iterator[Callable[[], bool]]:
    """Turn SIGINT and SIGTERM into a question asked between two events.

    An exception in the midst of one would leave x ahead of the records, or a record half written.
    Within another of its kind it hands on the outer one's answer: who writes the records begins earlier
    and ends later than the engine.
    """
    if threading.current_thread() is not threading.main_thread():  # only the main thread gets signals
        yield lambda: False
        return
    outer = signal.getsignal(signal.SIGINT)
    if isinstance(outer, _Request):
        yield lambda: outer.made
        return
    request = _Request()
    before = {number: signal.signal(number, request) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield lambda: request.made
    finally:
        for number, former in before.items():
            signal.signal(number, former)


def quiet_overflow() -> np.errstate:
    """A run that diverges says so in its reason; numpy need not say it once more."""
    return np.errstate(over="ignore", invalid="ignore")


def check_world(world: World) -> None:
    """Refuse what no simulation could begin with, before anything is written."""
    s = world.scenario
    arrivals_for(s.delays, world.streams, s.work.releases(), s.profiles)
    if s.time_limit is not None and s.delays.kind == "cyclic":
        raise ConfigurationError(
            f"time_limit = {s.time_limit:g}: means nothing with delays.kind = 'cyclic', which has no time"
        )
    check_own_edges(world.scenario, world.model)
    begun(world.scenario, world.model)


def refuse_loudly(effect: Effect) -> None:
    """In a simulation nobody can mend a refused hello but the scenario's author."""
    if isinstance(effect, Refuse):
        raise ConfigurationError(f"{effect.edge_id} is refused ({effect.reason}): {effect.detail}")


class _Simulation:
    """The shell around the two cores."""

    def __init__(self, world: World, journal: Journal | None) -> None:
        self.world = world
        self.records = Recorder(journal)
        self.workers = world.workers()
        if world.scenario.records.diagnostics and journal is not None:
            for worker in self.workers:
                worker.diagnose = partial(self.records.diagnosed, worker.index)
        self.by_id = {worker.edge_id: worker for worker in self.workers}
        self.server = server_for(world.scenario, world.model, world.streams, edges_at_least=len(self.workers))
        s = world.scenario
        self.arrivals = arrivals_for(s.delays, world.streams, s.work.releases(), s.profiles)
        self.timed = world.scenario.delays.kind != "cyclic"
        self.log: History | None = None
        self.stays = [f"{0:016x}"] * len(self.workers)  # the nonce of each edge's present stay
        self.returns = 0
        self.now = 0.0
        self.halt: Halt | None = None

    @property
    def clock(self) -> float | None:
        return self.now if self.timed else None

    @contextmanager
    def history(self, logged: Path | None) -> Iterator[None]:
        """Write the log, and x₁ as the first checkpoint, while the run lasts."""
        if logged is None:
            yield
            return
        server, made = self.server, type(algorithm_for(self.world.scenario))
        log = History(logged, incarnation=server.incarnation, dimension=server.model.size, keep=True)
        log.state = lambda: {"server": server_state(server, made)}
        log.begin()
        self.log = log
        try:
            yield
        finally:
            log.close()

    def begin(self, progress: Progress | None) -> None:
        for worker in self.workers:
            self.receive(Hello(edge_id=worker.edge_id, nonce=self.stays[worker.index]))
            if progress is not None:
                progress(self.records.tally)

    def receive(self, event: Event) -> None:
        """Let the cloud take an event, behind its record where there is a log."""
        judged = self.server.judge(event)
        if self.log is not None:
            payload = b""
            if isinstance(event, GradientArrived):
                payload = encode_gradient(event)
            elif isinstance(event, Hello):
                payload = encode_hello(event)
            self.log.event(self.server, judged, payload, self.now)
        for effect in self.server.commit(judged):
            self.perform(effect)

    def perform(self, effect: Effect) -> None:
        match effect:
            case SendModel():
                self.serve(effect)
            case GradientApplied() | StageOpened() | EdgeJoined() | EdgeGone() | GradientRefused():
                self.records.fact(effect, self.clock)
            case EvaluationDue():
                self.evaluate(effect.model, effect.updates, effect.stage)
            case Halt():
                self.halt = effect
            case Refuse():
                refuse_loudly(effect)
            case Welcome():
                pass

    def serve(self, sent: SendModel) -> None:
        """Let the edge make its next gradient, or leave where its budget is spent."""
        worker = self.by_id[sent.edge_id]
        cap = self.world.caps[worker.index]
        if cap is None or worker.sequence < cap:
            back = self.arrivals.away(worker.index, self.now, worker.sequence + 1)
            if back is None:
                self.arrivals.send(worker.index, self.now, worker.receive(sent))
            else:
                self.absent(worker, back)
            return
        self.receive(Leave(sent.edge_id, "budget", self.stays[worker.index]))

    def absent(self, worker: EdgeWorker, back: float) -> None:
        """Let the edge leave for a while, and come back as another process would."""
        self.arrivals.come(self.now, Leave(worker.edge_id, AWAY, self.stays[worker.index]))
        self.returns += 1
        self.stays[worker.index] = stay = f"{self.returns:016x}"
        self.arrivals.come(back, Hello(edge_id=worker.edge_id, last_sequence=worker.sequence, nonce=stay))

    def stop(self, reason: str) -> None:
        if self.log is not None:
            self.log.halt(self.server, reason, self.now)
        for effect in self.server.halt(reason):
            self.perform(effect)

    def evaluate(self, x: Vector, updates: int, stage: int) -> None:
        if self.world.evaluator is not None:
            self.records.evaluated(self.world.evaluator.evaluate(x, updates, stage), self.clock)

    def outcome(self) -> Outcome:
        server, records = self.server, self.records
        if not records.is_evaluated(server.updates):
            self.evaluate(server.result, server.updates, server.stage)
        reason = self.halt.reason if self.halt is not None else "no-gradients"
        records.halted(server.updates, reason)
        return Outcome(
            tally=records.tally,
            x=server.result,
            releases=[worker.sequence for worker in self.workers],
            reason=reason,
            virtual_seconds=self.clock,
        )

"""A scenario as a simulation has it, and its event-driven engine: CloudServer and K EdgeWorkers without a network."""

from __future__ import annotations

import math
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, closing, contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from cloud.assembly import begun, check_own_edges, server_for
from cloud.evaluation import Evaluator
from cloud.recovery_log import History
from cloud.snapshot import server_state
from cloud.sums import waiting_in
from common import messages
from common.datasets.catalogue import load_dataset
from common.datasets.dataset import Dataset
from common.errors import ConfigurationError
from common.mechanism.guarantee import Norm
from common.messages import AWAY, Effect, Event, Hello, Leave, SendModel
from common.models.features import cores, features_of
from common.models.gradients import Powers
from common.models.model import Features, Targets
from common.noise.law import NoiseLaw
from common.quantities import EdgeId, Vector, is_finite
from common.randomness import CounterStreams, Purpose, streams_for
from common.records.recorder import Journal, Recorder
from common.records.tally import Tally
from common.scenario.scenario import Scenario
from common.wire.codec import decode_gradient, decode_model, encode, encode_gradient, encode_model
from common.wire.codings.registry import EVERY, PLAIN, compress, expand
from edge.worker import EdgeWorker, Shard, known_powers_of, worker_for
from mapa.budget import Say, release_caps
from mapa.run_parts import OwnFiles, RunParts, assemble
from mapa.simulation.delays import arrivals_for


@dataclass(frozen=True, slots=True)
class World(RunParts):
    """Everything of a run that does not change while it runs."""

    features: Features  # of the whole training set, in the model's own form
    targets: Targets
    evaluator: Evaluator | None  # None: no test data
    streams: CounterStreams
    caps: list[int | None]  # gradients that edge k's budget permits; None: no budget

    @classmethod
    def of(
        cls, scenario: Scenario, data_dir: Path, own: OwnFiles | None = None, *, say: Say | None = None
    ) -> World:
        return cls._of(assemble(scenario, partial(load_dataset, data_dir=data_dir), own, data_dir, say), say)

    @classmethod
    def on(cls, scenario: Scenario, dataset: Dataset) -> World:
        return cls._of(assemble(scenario, lambda _: dataset))

    @classmethod
    def _of(cls, parts: RunParts, say: Say | None = None) -> World:
        train, model = parts.dataset.train, parts.model
        return cls(
            parts.scenario,
            parts.dataset,
            model,
            parts.rows,
            features=features_of(model, train, parts.cache, threads=cores(), say=say),
            targets=model.targets(train.labels),
            evaluator=parts.new_evaluator(),
            streams=streams_for(parts.scenario.seed),
            caps=release_caps(parts.scenario, parts.shard_sizes),
        )

    def workers(self) -> list[EdgeWorker]:
        """Return the K edges at their beginning; those that noise alike differ in their names and shards alone."""
        alike: dict[NoiseLaw | None, EdgeWorker] = {}
        powers: dict[Norm | None, Powers | None] = {}  # of the pool that all shards are cut from
        workers = []
        for k, law in enumerate(self.scenario.laws()):
            norm = None if law is None else law.norm
            if norm not in powers:
                powers[norm] = known_powers_of(self.model, law, self.features)
            own: dict[str, Any] = {
                "edge_id": EdgeId(f"edge-{k}"),
                "index": k,
                "shard": Shard(self.features, self.targets, self.rows[k], powers[norm]),
            }
            if law not in alike:
                alike[law] = worker_for(self.scenario, self.model, law, streams=self.streams, **own)
            workers.append(replace(alike[law], **own))
        return workers

    def evaluate(
        self, records: Recorder, x: Vector, updates: int, stage: int, now: float | None = None
    ) -> None:
        if self.evaluator is not None:
            records.evaluated(self.evaluator.evaluate(x, updates, stage), now)

    def ended(
        self,
        records: Recorder,
        x: Vector,
        updates: int,
        stage: int,
        reason: str,
        releases: list[int],
        now: float | None = None,
    ) -> Outcome:
        """Evaluate the last model unless that is done, record the end, and return what came out."""
        if not records.is_evaluated(updates):
            self.evaluate(records, x, updates, stage, now)
        records.halted(updates, reason)
        return Outcome(records.tally, x, releases, reason, now, records.seconds)


Progress = Callable[[Tally], None]  # called with every gradient or stretch of them: it minds the clock itself


@dataclass(slots=True)
class Outcome:
    """What a simulation leaves behind."""

    tally: Tally
    x: Vector  # x_{T+1}
    releases: list[int]  # gradients made by edge k, those in flight at the halt included
    reason: str  # of the halt
    virtual_seconds: float | None = None
    seconds: list[float] = field(default_factory=list)  # of each evaluation, where there is a time


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
            raise KeyboardInterrupt  # twice: do not wait
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
    if s.secure is not None and s.records.keep_gradients:
        raise ConfigurationError(
            "records.keep_gradients = true: a simulation with [secure] has no masked releases that a log could keep"
        )
    check_own_edges(world.scenario, world.model)
    begun(world.scenario, world.model)


def refuse_loudly(effect: Effect) -> None:
    """Raise ConfigurationError for a refused hello: in a simulation only the scenario can be wrong."""
    if isinstance(effect, messages.Refuse):
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
        self.codes = s.every_coding != {PLAIN}
        self.coded: dict[tuple[EdgeId, int], bytes] = {}  # gradients under way, as the log will have them
        self.stays = [f"{0:016x}"] * len(self.workers)  # the nonce of each edge's present stay
        self.returns = 0
        self.now = 0.0
        self.halt: messages.Halt | None = None
        self.most_waiting = math.inf if s.secure is None else s.secure.waiting
        self.held: list[EdgeId] = []  # edges that are sent no model until a release of theirs is in a sum

    @property
    def clock(self) -> float | None:
        return self.now if self.timed else None

    def history(self, logged: Path | None) -> AbstractContextManager[object]:
        """Write the log, and x₁ as the first checkpoint, while the run lasts."""
        if logged is None:
            return nullcontext()
        server, made = self.server, self.world.scenario.described.made
        self.log = History(logged, incarnation=server.incarnation, dimension=server.model.size, keep=True)
        self.log.begin(lambda: {"server": server_state(server, made)})
        return closing(self.log)

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
            if isinstance(event, messages.GradientArrived):
                payload = self.coded.pop((event.edge_id, event.sequence), b"") or encode_gradient(event)
            elif isinstance(event, Hello):
                payload = encode(event)
            self.log.event(self.server, judged, payload, self.now)
        for effect in self.server.commit(judged):
            if type(effect) is messages.GradientApplied:  # of every update
                self.records.fact(effect, self.clock)
            else:
                self.perform(effect)
        while self.held:
            edge_id = next((one for one in self.held if not self.is_held(one)), None)
            if edge_id is None:
                return
            self.held.remove(edge_id)
            self.perform(self.server.send(self.server.edges[edge_id]))

    def is_held(self, edge_id: EdgeId) -> bool:
        """Return whether as many releases of an edge wait for a sum as may wait."""
        return waiting_in(self.server.schedule, self.by_id[edge_id].index) >= self.most_waiting

    def perform(self, effect: Effect) -> None:
        match effect:
            case SendModel():
                self.serve(effect)
            case messages.EvaluationDue():
                self.world.evaluate(self.records, effect.model, effect.updates, effect.stage, self.clock)
            case messages.Halt():
                self.halt = effect
            case messages.Refuse():
                refuse_loudly(effect)
            case messages.Welcome():
                pass
            case _:
                self.records.fact(effect, self.clock)

    def serve(self, sent: SendModel) -> None:
        """Let the edge make its next gradient, or leave where its budget is spent."""
        if self.most_waiting < math.inf and self.is_held(sent.edge_id):
            self.held.append(sent.edge_id)
            return
        worker = self.by_id[sent.edge_id]
        cap = self.world.caps[worker.index]
        if cap is None or worker.sequence < cap:
            back = self.arrivals.away(worker.index, self.now, worker.sequence + 1)
            if back is None:
                made = self.carried(worker, sent) if self.codes else worker.receive(sent)
                self.arrivals.send(worker.index, self.now, made)
            else:
                self.absent(worker, back)
            return
        self.receive(Leave(sent.edge_id, "budget", self.stays[worker.index]))

    def carried(self, worker: EdgeWorker, sent: SendModel) -> messages.GradientArrived:
        """Return the gradient as the cloud gets it, made on the model as the edge gets it."""
        edge_id, size, streams = worker.edge_id, sent.model.size, self.world.streams
        codings = self.world.scenario.codings(worker.index)
        rng = streams.at(0, Purpose.MODEL_CODING, sent.version)
        payload = compress(encode_model(sent), codings.models, rng)
        made = worker.receive(decode_model(edge_id, expand(payload, EVERY, size), size))
        if not is_finite(made.gradient):  # the run diverges, and the cloud says so
            return made
        rng = streams.at(worker.index, Purpose.GRADIENT_CODING, made.sequence)
        payload = compress(encode_gradient(made), codings.gradients, rng)
        if self.log is not None:
            self.coded[edge_id, made.sequence] = payload
        return decode_gradient(edge_id, expand(payload, EVERY, size), size)

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

    def outcome(self) -> Outcome:
        server, reason = self.server, "no-gradients" if self.halt is None else self.halt.reason
        releases = [worker.sequence for worker in self.workers]
        return self.world.ended(
            self.records, server.result, server.updates, server.stage, reason, releases, self.clock
        )

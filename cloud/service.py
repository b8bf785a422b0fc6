"""The cloud's shell: bytes to events, effects to bytes; records and evaluation off the hot path."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable
from dataclasses import InitVar, dataclass, field, replace
from functools import partial
from typing import assert_never

from cloud.evaluation import Evaluations, Evaluator
from cloud.peers import Allowance, Peers, Restarts
from cloud.presence import CloudPresence
from cloud.recovery_log import History
from cloud.resend_queue import ResendQueue
from cloud.server import CloudServer, Judged, JudgedGradient
from common.errors import RemoteProtocolError
from common.messages import (
    EdgeGone,
    EdgeJoined,
    Effect,
    EvaluationDue,
    GradientApplied,
    GradientRefused,
    Halt,
    Hello,
    Leave,
    Refuse,
    SendModel,
    StageOpened,
    Welcome,
)
from common.quantities import EdgeId, RunId
from common.records.recorder import Recorder
from common.records.tally import Evaluation, Tally
from common.scenario.scenario import Scenario
from common.telemetry.family import Buckets
from common.transport.channel import UNREAD, Channel, Loop, RetainedMessageError
from common.wire.codec import (
    decode_gradient,
    decode_hello,
    decode_leave,
    encode_model,
    encode_refuse,
    encode_welcome,
    new_nonce,
)
from common.wire.topics import EdgeTopic, edge_topic, every_edge, parse_edge_topic
from common.wire.v1 import HEADER_BYTES

_RECORD_EVERY = 0.25  # seconds between two batches of records
_WARNINGS = 50  # lines for the operator about messages, of which any client may send any number
_RETURN = 10  # times silent_after that an edge may be away from a run whose budgets are spent
_SLOWEST = 10  # times `gather` that edges may take to come one after the other
_SUSPECT = {  # reasons of a refused gradient that its operator should know of
    "norm": "its norm is larger than an honest edge's can be",
    "sensitivity": "the model version that it names was sent with another ΔS",
}


@dataclass(slots=True)
class Traffic:
    """Counts of messages that only metrics and summaries show."""

    dropped: Counter[str] = field(default_factory=Counter)  # messages that break the protocol, by kind
    refused_hellos: Counter[str] = field(default_factory=Counter)  # by reason
    lost_connections: int = 0
    replies: Buckets | None = None  # seconds from a message to the model that answers it; None: not measured


class Warnings:
    """Lines for the operator, as many as a person reads; any client can cause any number of them."""

    def __init__(self, say: Callable[[str], None]) -> None:
        self._say, self._count = say, 0

    def __call__(self, text: str) -> None:
        self._count += 1
        if self._count <= _WARNINGS:
            self._say(text)
        if self._count == _WARNINGS:
            self._say("further messages of this kind are not shown")


@dataclass(slots=True)
class CloudService:
    """One run's cloud on a channel. Everything but evaluation happens in the loop's thread."""

    run: RunId
    scenario: Scenario
    server: CloudServer
    evaluator: InitVar[Evaluator | None]  # None: there are no test data
    channel: Channel
    loop: Loop
    records: Recorder = field(default_factory=lambda: Recorder(goes_on=True))
    on_records: Callable[[], None] = lambda: None  # called after each batch of records, for a view
    say: Callable[[str], None] = print  # a line for the operator
    history: History | None = None  # None: no log and no checkpoints, so the run cannot be resumed
    gather: float | None = None  # seconds without a new hello after which the training begins; None: never
    nonce: InitVar[str | None] = None  # of this process
    traffic: Traffic = field(default_factory=Traffic)
    peers: Peers = field(default_factory=Peers)
    restarts: Restarts = field(default_factory=Restarts)
    revived: bool = False  # it goes on with a run that another process began
    first_update: float | None = None
    last_update: float | None = None
    _held: list[tuple[list[Effect], float]] = field(default_factory=list)  # until the log is on disk
    _told: int = 0  # edges that the operator was last told to be here
    _idle: float = 0.0  # seconds without an edge that could train
    presence: CloudPresence = field(init=False)
    evaluations: Evaluations = field(init=False)
    allowance: Allowance = field(init=False)
    models: ResendQueue[SendModel] = field(init=False)  # that the channel has not taken
    _warn: Warnings = field(init=False)

    def __post_init__(self, evaluator: Evaluator | None, nonce: str | None) -> None:
        self._warn = Warnings(lambda text: self.say(text))
        self.presence = CloudPresence(
            self.run,
            nonce or new_nonce(),
            self.server.incarnation,
            self.loop,
            self.channel,
            self._warn,
            self.dropped,
        )
        self.allowance = Allowance(self.scenario.testbed.resend_after)
        self.evaluations = Evaluations(evaluator, self.loop, self._evaluated, lambda text: self.say(text))
        self.models = ResendQueue(self.loop, self._publish_model, lambda: self.channel.connected)

    # -- life -----------------------------------------------------------------------------------------

    def start(self) -> None:
        """Subscribe and announce.

        Where the service goes on with a run, `resume_service` has come before.
        """
        if not self.revived:
            self.records.began = self.loop.now()
        subscribe = self.channel.subscribe
        subscribe(every_edge(self.run, EdgeTopic.GRADIENT), self.on_gradient)
        subscribe(every_edge(self.run, EdgeTopic.HELLO), self.on_hello, qos=1)
        subscribe(every_edge(self.run, EdgeTopic.LEAVE), self.on_leave, qos=1)
        subscribe(every_edge(self.run, EdgeTopic.WILL), self.on_leave, qos=1)
        self.presence.begin()
        self.loop.call_later(_RECORD_EVERY, self._record_often)
        self.loop.call_later(self.scenario.testbed.silent_after / 2, self._look_for_silence)

    def go_on(self) -> None:
        """Take up what a revived run waits for: those who gather, or the records of an end that came before."""
        if self.gather is not None and self.server.schedule is None and self.server.edges:
            here = len(self.server.edges)
            self.loop.call_later(self.gather, partial(self._begin_unless_more_came, here))
        if self.server.halted is not None and self.halted is None:
            self._on_halt(self.server.halted)

    def halt(self, reason: str) -> None:
        """End the run for a local reason (time limit, interrupt, budgets spent), in the loop's thread."""
        now = self.loop.now()
        if self.history is not None:
            self.history.halt(self.server, reason, now - self.records.began)
        self.answer(self.server.halt(reason), now)

    @property
    def halted(self) -> Halt | None:
        return self.presence.halt

    @property
    def tally(self) -> Tally:
        return self.records.tally

    @property
    def dropped(self) -> Counter[str]:
        """Messages that break the protocol, came late or too often, by kind."""
        return self.traffic.dropped

    def on_lost(self, reason: str) -> None:
        """Count a lost connection, which the channel makes again by itself."""
        self.traffic.lost_connections += 1
        self.say(f"{reason}; reconnecting")

    def on_violation(self, topic: str, error: RemoteProtocolError) -> None:
        """Count messages that never reached the methods below."""
        if isinstance(error, RetainedMessageError):
            self.dropped["retained"] += 1
        elif topic == UNREAD:
            self.dropped["packet"] += 1
            self.presence.restore()  # its topic is unknown: it may have replaced either

    # -- messages -------------------------------------------------------------------------------------

    def on_gradient(self, topic: str, payload: bytes) -> None:
        try:
            edge_id = parse_edge_topic(topic).edge_id
            arrived = decode_gradient(edge_id, payload, self.server.model.size)
        except RemoteProtocolError:
            self.dropped["gradient"] += 1
            raise
        judged, now, history = self.server.judge_gradient(arrived), self.loop.now(), self.history
        if not judged.is_new and not self._may_be_answered(edge_id, now):
            return
        if history is None:
            self.take_gradient(judged, now)
        else:
            history.event(self.server, judged, payload, now - self.records.began)
            self.take_gradient(judged, now)
            history.at("replied")

    def _may_be_answered(self, edge_id: EdgeId, now: float) -> bool:
        """Return whether an edge may be answered now; asked before the log, since what is dropped counts as lost."""
        granted = self.allowance.grant(edge_id, now)
        if not granted:
            self.dropped["too-often"] += 1
            if (peer := self.peers.get(edge_id)) is not None:
                peer.seen = now
        return granted

    def take_gradient(self, judged: JudgedGradient, now: float) -> None:
        """Commit a gradient that came from the network or from the log, and answer it."""
        peer = self.peers.get(judged.arrived.edge_id)
        if peer is not None:
            peer.seen = now
            if peer.sent:
                peer.turnarounds += 1
                peer.turnaround_sum += now - peer.sent
                peer.sent = 0.0
        self.answer(self.server.commit(judged), now)

    def on_hello(self, topic: str, payload: bytes) -> None:
        try:
            edge_id = parse_edge_topic(topic).edge_id
            hello = decode_hello(edge_id, payload)
        except RemoteProtocolError:
            self.dropped["hello"] += 1
            raise
        now = self.loop.now()
        if not self._may_be_answered(edge_id, now):
            return
        judged = self.server.judge(hello)
        if self.history is not None:
            self.history.event(self.server, judged, payload, now - self.records.began)
        self.take_hello(hello, judged, now)

    def take_hello(self, hello: Hello, judged: Judged, now: float) -> None:
        """Commit a hello that came from the network or from the log, and answer it."""
        edge_id, before = hello.edge_id, len(self.server.edges)
        effects = self.server.commit(judged)
        if not effects or hello.incarnation != self.server.incarnation:
            self.dropped["late-hello"] += 1  # late, repeated, or for another incarnation of the run
        self.answer(effects, now)
        if any(isinstance(effect, Welcome) for effect in effects):  # as the log has it: a replay counts alike
            self.restarts.welcomed(edge_id, hello.nonce, hello.last_sequence)
        here = len(self.server.edges)
        if self.gather is not None and self.server.schedule is None and here > before:
            # a machine that takes long to start one edge takes as long to start the next
            slowness = min(now - self.records.began, _SLOWEST * self.gather)
            self.loop.call_later(max(self.gather, slowness), partial(self._begin_unless_more_came, here))

    def _begin_unless_more_came(self, edges: int) -> None:
        server, now = self.server, self.loop.now()
        if len(server.edges) == edges and server.schedule is None and server.halted is None:
            if self.history is not None:
                self.history.begins(server, now - self.records.began)
            self.answer(server.begin_with_those_here(), now)

    def on_leave(self, topic: str, payload: bytes) -> None:
        try:
            address = parse_edge_topic(topic)
            leave = decode_leave(address.edge_id, payload)
        except RemoteProtocolError:
            self.dropped["leave"] += 1
            raise
        if address.leaf is EdgeTopic.WILL:  # whatever the will says: the broker speaks, not the edge
            leave = Leave(address.edge_id, "lost", leave.nonce)
        self._leave(leave)

    def _leave(self, leave: Leave) -> None:
        now = self.loop.now()
        if leave.on_purpose:
            self.peers.leaves(leave.edge_id, leave.nonce)
        judged = self.server.judge(leave)
        if self.history is not None:
            self.history.event(self.server, judged, b"", now - self.records.began)
        self.answer(self.server.commit(judged), now)

    # -- effects --------------------------------------------------------------------------------------

    def answer(self, effects: list[Effect], now: float) -> None:
        """Perform the effects of an event of time `now`; with durability = "power" after the log is on disk.

        Then all that one turn of the loop brings waits for one sync.
        """
        history = self.history
        if history is not None:
            history.at("applied")
            if history.power:
                if not self._held:
                    self.loop.post(self.release)
                self._held.append((effects, now))
                return
        for effect in effects:
            self._perform(effect, now)

    def release(self) -> None:
        """Perform what waited for the log, which is on disk from now on."""
        if self._held and self.history is not None:
            self.history.sync()
        held, self._held = self._held, []
        for effects, now in held:
            for effect in effects:
                self._perform(effect, now)

    def _perform(self, effect: Effect, now: float) -> None:
        match effect:
            case SendModel():
                peer = self.peers.get(effect.edge_id)
                if peer is not None:
                    peer.sent = now
                    self._send_model(peer.model_topic, effect)
                    if self.traffic.replies is not None:
                        self.traffic.replies.observe(self.loop.now() - now)
            case GradientApplied():
                self.last_update = now
                if self.first_update is None:
                    self.first_update = now
                self.records.facts.append((now, effect))
            case StageOpened() | EdgeJoined() | EdgeGone() | GradientRefused():
                self.records.facts.append((now, effect))
                if isinstance(effect, GradientRefused) and effect.reason in _SUSPECT:
                    self._warn(
                        f"{effect.edge_id}: gradient {effect.sequence} refused: {_SUSPECT[effect.reason]}"
                    )
            case EvaluationDue():
                self.evaluations.evaluate_in_time(effect)
            case Welcome():
                self._welcome(effect, now)
            case Refuse():
                self._refuse(effect)
            case Halt():
                self._on_halt(effect)
            case _:
                assert_never(effect)

    def _send_model(self, topic: str, effect: SendModel) -> None:
        if self._publish_model(topic, effect):
            if self.models.waiting:
                self.models.forget(topic)  # an older one
            return
        if not self.models.waiting:
            size = HEADER_BYTES + effect.model.nbytes
            self._warn(
                f"{effect.edge_id}: model of {size} bytes not sent (connection lost or queue full); retrying"
            )
        self.models.add(topic, effect)

    def _publish_model(self, topic: str, effect: SendModel) -> bool:
        return self.channel.publish(topic, encode_model(effect))

    def _welcome(self, welcome: Welcome, now: float) -> None:
        edge_id = welcome.edge_id
        model_topic = edge_topic(self.run, edge_id, EdgeTopic.MODEL)
        former = self.peers.welcomed(edge_id, welcome.nonce, now, model_topic)
        if former is not None and now - former.seen < self.scenario.testbed.silent_after:
            self._warn(f"{edge_id}: duplicate process for this edge id")
        scenario, seed = self.scenario.for_edge(welcome.index), self.scenario.seed
        payload = encode_welcome(replace(welcome, scenario=scenario, seed=seed))
        self.channel.publish(edge_topic(self.run, edge_id, EdgeTopic.WELCOME), payload, qos=1)

    def _refuse(self, refuse: Refuse) -> None:
        topic = edge_topic(self.run, refuse.edge_id, EdgeTopic.WELCOME)
        if refuse.nonce is not None:
            self.traffic.refused_hellos[refuse.reason] += 1
        # without acknowledgement: an edge that hears nothing asks again, and a flood must not fill the halt's queue
        self.channel.publish(topic, encode_refuse(refuse))
        if refuse.nonce is not None and refuse.reason not in ("halted", "incarnation"):
            self._warn(f"{refuse.edge_id}: refused, {refuse.reason}: {refuse.detail}")

    def _on_halt(self, halt: Halt) -> None:
        if self.halted is not None:
            return  # the halt is retained, and a hello is refused
        self.presence.tell_halt(halt)
        self.models.waiting.clear()
        self._stop_when_evaluated()

    # -- off the hot path -----------------------------------------------------------------------------

    def _evaluated(self, evaluation: Evaluation) -> None:
        self.records.evaluated(evaluation, self.loop.now())
        if self.halted is not None:
            self._stop_when_evaluated()

    def _stop_when_evaluated(self) -> None:
        """After the halt: evaluate x_{T+1} unless that is done, then end the loop."""
        evaluations, server, halt = self.evaluations, self.server, self.halted
        if evaluations.dues:
            return
        if evaluations.evaluator is not None and not self.records.is_evaluated(server.updates):
            evaluations.evaluate(EvaluationDue(server.updates, server.stage, server.result.copy()))
            return
        if halt is not None:
            last = self.tally.evaluations[-1] if evaluations.evaluator is not None else None
            if halt.reason == "finished" and last is not None and not math.isfinite(last["loss"]):
                halt = replace(halt, reason="diverged")  # x is finite, and useless
                self.presence.tell_halt(halt)
            self.records.halted(halt.updates, halt.reason, self.loop.now())
        self.presence.leave()
        evaluations.shutdown(wait=False)
        self.loop.stop()

    def _record_often(self) -> None:
        """Write the facts collected so far, which the hot path only keeps, and see whether the time is over."""
        self.records.write()
        self.on_records()
        self._tell_who_is_here()
        if self.history is not None:
            self.release()
            self.history.checkpoint_if_due()
        limit, first = self.scenario.time_limit, self.first_update
        if limit is not None and first is not None and self.loop.now() - first >= limit:
            self.halt("time-limit")
        if self.halted is None:
            self.loop.call_later(_RECORD_EVERY, self._record_often)

    def _tell_who_is_here(self) -> None:
        """Return how many of the edges that the first update waits for can train, where that has changed."""
        ready, awaited = self.server.ready, self.server.terms.edges_at_least
        if ready != self._told and self.server.schedule is None and self.halted is None:
            self._told = ready
            self.say(
                f"{ready} of {awaited} edges are here and can train; the first update waits for the others"
            )

    def _look_for_silence(self) -> None:
        """Report edges that have been silent for too long."""
        silent_after = self.scenario.testbed.silent_after
        for edge_id in self.peers.silent_since(self.loop.now() - silent_after):
            self._leave(Leave(edge_id, "silent", self.peers[edge_id].nonce))
        self._mind_budgets(silent_after / 2)
        if self.halted is None:
            self.loop.call_later(silent_after / 2, self._look_for_silence)

    def _mind_budgets(self, passed: float) -> None:
        """End a run whose budgets are spent once no edge comes that could continue it.

        New edges, while shards are free, get silent_after for it; edges that are away ten times as long, and the
        longest absence of their emulated devices.
        """
        spent = self.server.spent()
        self._idle = self._idle + passed if spent and self.channel.connected else 0.0
        patience = self.scenario.testbed.silent_after
        if spent == "away":
            patience = _RETURN * patience + self.scenario.longest_absence
        if spent and self._idle > patience:
            self.halt(self.server.spent_reason)

"""The cloud's shell: bytes to events, effects to bytes; records and evaluation off the hot path."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable
from dataclasses import InitVar, dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from cloud import quick_way
from cloud.admission import BANS
from cloud.evaluation import Evaluations, Evaluator
from cloud.presence import CloudPresence, ResendQueue
from cloud.recovery_log import History
from cloud.server import CloudServer, Judged
from common import messages
from common.errors import ForgedMessageError, RemoteProtocolError, TooOftenError
from common.messages import (
    Effect,
    GradientApplied,
    GradientArrived,
    GradientRefused,
    Leave,
    SendModel,
    Welcome,
)
from common.quantities import EdgeId, NoisyGradient, RunId
from common.randomness import CounterStreams, Purpose
from common.records.recorder import Recorder
from common.records.tally import Evaluation, Tally
from common.scenario.scenario import Scenario
from common.telemetry.family import Buckets
from common.transport.channel import UNREAD, Channel, Loop, RetainedMessageError
from common.wire import codec
from common.wire.codings.registry import Marked, compress, expand, marked
from common.wire.topics import (
    EdgeTopic,
    edge_topic,
    every_edge,
    halt_topic,
    parse_edge_topic,
    presence_topic,
)
from common.wire.v1 import HEADER_BYTES

if TYPE_CHECKING:
    from cloud.summing import Summing

_RECORD_EVERY = 0.25  # seconds between two batches of records
_WARNINGS = 50  # lines for the operator about messages, of which any client may send any number
_RETURN = 10  # times silent_after that an edge may be away from a run whose budgets are spent
_STARVED = 2  # times silent_after that fewer edges than a sum has may be there
_NOTHING = NoisyGradient(np.zeros(0, np.float32))  # what the server sees of a masked release
_SLOWEST = 10  # times `gather` that edges may take to come one after the other
_AT_ONCE = 16  # answers to one edge in a row
_OFTEN = 4  # times the rate at which an honest edge asks again: the rate of answers in the long run
_REMEMBERED = 4096  # edge ids that have asked lately
_SUSPECT = {  # reasons of a refused gradient that its operator should know of
    "norm": "its norm is larger than an honest edge's can be",
    "sensitivity": "the model version that it names was sent with another ΔS",
}


@dataclass(slots=True)
class Allowance:
    """Limits answers to messages that bring the training no further: hellos, and repeated gradients.

    Each is answered by a whole model, so one edge that repeats itself could keep the cloud busy. What is dropped
    counts as lost on the way: an honest edge asks again after `resend_after`, and is answered then.
    """

    resend_after: float  # seconds after which an honest edge asks again, at the earliest
    _until: dict[EdgeId, float] = field(default_factory=dict)  # when an edge will have all its answers back

    def grant(self, edge_id: EdgeId, now: float) -> bool:
        """Return whether an edge may be answered now, and charge it."""
        step = self.resend_after / _OFTEN
        until = max(self._until.get(edge_id, now), now)
        if until + step > now + _AT_ONCE * step:
            return False
        if len(self._until) >= _REMEMBERED:
            self._until = {known: end for known, end in self._until.items() if end > now}
        if len(self._until) < _REMEMBERED or edge_id in self._until:
            self._until[edge_id] = until + step
        return True


@dataclass(slots=True)
class Peer:
    """The process that speaks for one edge id."""

    nonce: str  # of its process
    seen: float  # when it last said anything
    model_topic: str
    sent: float = 0.0  # when a model was last sent to it
    turnarounds: int = 0
    turnaround_sum: float = 0.0  # seconds from a model's sending to the gradient's arrival
    left: bool = False  # it has said that it goes: another process of this id is no duplicate
    asked: str | None = None  # the coding that it asks for

    def heard(self, now: float) -> None:
        self.seen = now
        if self.sent:
            self.turnarounds += 1
            self.turnaround_sum += now - self.sent
            self.sent = 0.0


class Peers(dict[EdgeId, Peer]):
    """One peer for each edge that was welcomed, so never more than the run has shards.

    A refused hello makes none and replaces none: a client that poses as an edge must not make the cloud deaf to that
    edge's own leave.
    """

    def welcomed(self, edge_id: EdgeId, nonce: str, now: float, model_topic: str) -> None:
        """Note a welcomed hello; a process that left hands its round trips on to the next."""
        known = self.get(edge_id)
        if known is not None and known.nonce == nonce:
            known.seen = now
            return
        self[edge_id] = peer = Peer(nonce, now, model_topic)
        if known is not None and known.left:
            peer.turnarounds, peer.turnaround_sum = known.turnarounds, known.turnaround_sum

    def heard(self, edge_id: EdgeId, now: float) -> None:
        """Note a gradient, and the round trip that it ends."""
        if (peer := self.get(edge_id)) is not None:
            peer.heard(now)

    def leaves(self, edge_id: EdgeId, nonce: str) -> None:
        """Note that a process leaves on purpose."""
        known = self.get(edge_id)
        if known is not None and known.nonce == nonce:
            known.left = True


@dataclass(slots=True)
class Traffic:
    """Counts of messages that only metrics and summaries show."""

    dropped: Counter[str] = field(default_factory=Counter)  # messages that break the protocol, by kind
    refused_hellos: Counter[str] = field(default_factory=Counter)  # by reason
    lost_connections: int = 0
    replies: Buckets | None = None  # seconds from a message to the model that answers it; None: not measured


@dataclass(slots=True)
class CloudService:
    """One run's cloud on a channel. Everything but evaluation happens in the loop's thread.

    A message is judged, logged and committed; each effect is then noted, which a resumed cloud repeats from the log,
    and sent, which it does not.
    """

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
    quick: bool = True  # ordinary gradients take the quick way
    sums: bool = False  # releases come masked, and helpers open their sums
    authentic: bool = False  # each message that arrives is proven to be of the edge that its topic names
    traffic: Traffic = field(default_factory=Traffic)
    peers: Peers = field(default_factory=Peers)
    first_update: float | None = None
    last_update: float | None = None
    presence: CloudPresence = field(init=False)
    evaluations: Evaluations = field(init=False)
    models: ResendQueue[SendModel] = field(init=False)  # that the channel has not taken
    summing: Summing | None = field(init=False)  # None: every release comes by itself
    _allowance: Allowance = field(init=False)
    _codings: Marked = field(init=False)  # that the run's messages may have; none: all are sent as they are
    _dither: CounterStreams = field(init=False)  # rounds models: a version is always the same bytes
    _held: list[tuple[list[Effect], float]] = field(default_factory=list)  # until the log is on disk
    _warned: int = 0
    _told: int = 0  # edges that the operator was last told to be here
    _idle: float = 0.0  # seconds without an edge that could train
    _starved: float = 0.0  # seconds with fewer edges than a sum has

    def __post_init__(self, evaluator: Evaluator | None, nonce: str | None) -> None:
        own, incarnation = nonce or codec.new_nonce(), self.server.incarnation
        self.presence = CloudPresence(
            self.run, own, incarnation, self.loop, self.channel, self._warn, self.dropped
        )
        self.summing = None
        if self.sums:
            from cloud.summing import Summing  # cryptography: a plain run does without

            parts = (
                self.run,
                self.scenario,
                self.server,
                self.channel,
                self.loop,
                self.on_hello,
                self._on_room,
            )
            self.summing = Summing(*parts, say=self.say)
        self._allowance = Allowance(self.scenario.testbed.resend_after)
        self._codings = marked(self.scenario.every_coding)
        seed = self.scenario.seed
        self._dither = CounterStreams.seeded(incarnation if seed is None else seed)
        self.evaluations = Evaluations(evaluator, self.loop, self._evaluated, self.say)
        self.models = ResendQueue(self.loop, self._publish_model, lambda: self.channel.connected)

    # -- life -----------------------------------------------------------------------------------------

    def start(self) -> None:
        """Subscribe and announce; the log, if there is one, has begun or was resumed."""
        if self.history is None:
            self.records.began = self.loop.now()
        for leaf, callback, qos in (
            (EdgeTopic.GRADIENT, self.on_gradient, 0),
            (EdgeTopic.HELLO, self.on_hello, 1),
            (EdgeTopic.LEAVE, self.on_leave, 1),
            (EdgeTopic.WILL, self.on_leave, 1),
        ):
            self.channel.subscribe(every_edge(self.run, leaf), callback, qos=qos)
        self.presence.begin()
        if self.summing is not None:
            self.summing.start()
        self.loop.call_later(_RECORD_EVERY, self._record_often)
        self.loop.call_later(self.scenario.testbed.silent_after / 2, self._look_for_silence)

    def go_on(self) -> None:
        """Continue a resumed run: wait for edges that gather, or tell of an end that came before."""
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
    def waits_for_disk(self) -> bool:
        """Whether answers wait until the log is on disk."""
        return self.history is not None and self.history.power

    @property
    def halted(self) -> messages.Halt | None:
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
        elif isinstance(error, TooOftenError):
            self.dropped["too-often"] += 1
        elif isinstance(error, ForgedMessageError):
            self.dropped["forged"] += 1
            self._warn(f"dropped a message on {topic}: {error}")
            if topic in (presence_topic(self.run), halt_topic(self.run)):
                self.presence.restore()  # it may be retained in the place of ours
        elif topic == UNREAD:
            self.dropped["packet"] += 1
            self.presence.restore()  # its topic is unknown: it may have replaced either

    def _warn(self, text: str) -> None:
        """Tell the operator of a message; any client can cause any number of them."""
        self._warned += 1
        if self._warned <= _WARNINGS:
            self.say(text)
        if self._warned == _WARNINGS:
            self.say("further messages of this kind are not shown")

    # -- messages -------------------------------------------------------------------------------------

    def on_gradient(self, topic: str, payload: bytes) -> None:
        if self.summing is not None:
            if (
                self.summing.sums is not None
            ):  # before there are terms no edge of this incarnation has released
                self._on_masked(self.summing, topic, payload)
            return
        try:
            edge_id = parse_edge_topic(topic).edge_id
            size, plain = self.server.model.size, payload
            if self._codings:
                plain = expand(payload, self._codings, size)
            elif self.quick and quick_way.take(self, edge_id, payload):
                return
            arrived = codec.decode_gradient(edge_id, plain, size)
        except RemoteProtocolError as error:
            self.dropped["gradient"] += 1
            self._ban(topic, "banned-malformed", str(error))
            raise
        judged, now = self.server.judge_gradient(arrived), self.loop.now()
        if judged.refusal == "sequence" and self._ban(
            topic, "banned-sequence", f"sequence {arrived.sequence}"
        ):
            judged = self.server.judge_gradient(arrived)
        if (judged.is_new and judged.refusal is None) or self._may_be_answered(edge_id, now):
            self.peers.heard(edge_id, now)
            self.answer(self._take(judged, payload, now), now)

    def _on_masked(self, summing: Summing, topic: str, payload: bytes) -> None:
        """Count a masked release and answer it as any other; x moves once its set is opened."""
        try:
            edge_id = parse_edge_topic(topic).edge_id
            masked = summing.parse(edge_id, payload)
        except RemoteProtocolError as error:
            self.dropped["gradient"] += 1
            self._ban(topic, "banned-malformed", str(error))
            raise
        counted = GradientArrived(*masked[:4], _NOTHING, masked.incarnation, 0.0)
        judged, now = self.server.judge_gradient(counted), self.loop.now()
        if judged.refusal == "sequence" and self._ban(
            topic, "banned-sequence", f"sequence {masked.sequence}"
        ):
            judged = self.server.judge_gradient(counted)
        taken = judged.is_new and judged.refusal is None
        if taken and (reason := summing.refusal(edge_id)) is not None:
            refuse = messages.Refuse(edge_id, reason, "", incarnation=self.server.incarnation)
            self.answer([refuse], now)
        elif taken or self._may_be_answered(edge_id, now):
            self.peers.heard(edge_id, now)
            effects = self._take(judged, payload, now)
            if summing.holds(edge_id, taken=taken):
                effects = [one for one in effects if not isinstance(one, SendModel)]
            self.answer(effects, now)
            if taken:
                summing.take(masked)

    def _on_room(self, edge_id: EdgeId) -> None:
        """Send the model to an edge that has waited for one of its releases to be opened."""
        account = self.server.edges.get(edge_id)
        if account is not None and account.present and self.server.halted is None:
            self.answer([self.server.send(account)], self.loop.now())

    def on_hello(self, topic: str, payload: bytes) -> None:
        try:
            edge_id = parse_edge_topic(topic).edge_id
            hello = codec.decode_hello(edge_id, payload)
            if self.summing is not None:
                waits = self.summing.heard(topic, payload, hello)
                if waits is None:
                    return
                hello = waits
        except RemoteProtocolError:
            self.dropped["hello"] += 1
            raise
        now = self.loop.now()
        if not self._may_be_answered(edge_id, now):
            return
        before = len(self.server.edges)
        judged = self.server.judge(hello)
        effects = self._take(judged, payload, now)
        if self.summing is not None and judged.changes:
            self.summing.admitted(hello)
        if not effects or hello.incarnation != self.server.incarnation:
            self.dropped["late-hello"] += 1  # late, repeated, or for another incarnation of the run
        self.answer(effects, now)
        here = len(self.server.edges)
        if self.gather is not None and self.server.schedule is None and here > before:
            # a machine that takes long to start one edge takes as long to start the next
            slowness = min(now - self.records.began, _SLOWEST * self.gather)
            self.loop.call_later(max(self.gather, slowness), partial(self._begin_unless_more_came, here))

    def on_leave(self, topic: str, payload: bytes) -> None:
        try:
            address = parse_edge_topic(topic)
            leave = codec.decode_leave(address.edge_id, payload)
            if leave.reason in BANS:
                raise RemoteProtocolError(f"leave: {leave.reason!r} is the cloud's to say")
        except RemoteProtocolError as error:
            self.dropped["leave"] += 1
            if not topic.endswith(EdgeTopic.WILL.value):  # which a broker sends when it likes
                self._ban(topic, "banned-malformed", str(error))
            raise
        if address.leaf is EdgeTopic.WILL:  # whatever the will says: the broker speaks, not the edge
            leave = Leave(address.edge_id, "lost", leave.nonce)
        self._leave(leave)

    def _leave(self, leave: Leave) -> None:
        now = self.loop.now()
        if leave.on_purpose:
            self.peers.leaves(leave.edge_id, leave.nonce)
        self.answer(self._take(self.server.judge(leave), b"", now), now)

    def _ban(self, topic: str, reason: str, what: str) -> bool:
        """Ban an edge for the run where a message is proven to be its own; return whether it was."""
        if not self.authentic:
            return False
        edge_id = parse_edge_topic(topic).edge_id
        account = self.server.edges.get(edge_id)
        if account is None or account.left:
            return False
        self._warn(f"{edge_id}: banned for the rest of the run: {BANS[reason]} ({what})")
        self._leave(Leave(edge_id, reason, account.nonce))
        return True

    def _may_be_answered(self, edge_id: EdgeId, now: float) -> bool:
        """Return whether an edge may be answered now; asked before the log, since what is dropped counts as lost."""
        granted = self._allowance.grant(edge_id, now)
        if not granted:
            self.dropped["too-often"] += 1
            if (peer := self.peers.get(edge_id)) is not None:
                peer.seen = now
        return granted

    def _take(self, judged: Judged, payload: bytes, now: float) -> list[Effect]:
        """Log an event unless it changes nothing, then commit it."""
        if self.history is not None:
            self.history.event(self.server, judged, payload, now - self.records.began)
        return self.server.commit(judged)

    def _begin_unless_more_came(self, edges: int) -> None:
        server, now = self.server, self.loop.now()
        if len(server.edges) == edges and server.schedule is None and server.halted is None:
            if self.history is not None:
                self.history.begins(server, now - self.records.began)
            self.answer(server.begin_with_those_here(), now)

    # -- effects --------------------------------------------------------------------------------------

    def answer(self, effects: list[Effect], now: float) -> None:
        """Perform the effects of an event of time `now`; with durability = "power" after the log is on disk.

        Then all that one turn of the loop brings waits for one sync.
        """
        if self.waits_for_disk:
            if not self._held:
                self.loop.post(self.release)
            self._held.append((effects, now))
            return
        self._perform(effects, now)

    def release(self) -> None:
        """Perform what waited for the log, which is on disk from now on."""
        if self._held and self.history is not None:
            self.history.sync()
        held, self._held = self._held, []
        for effects, now in held:
            self._perform(effects, now)

    def _perform(self, effects: list[Effect], now: float) -> None:
        for effect in effects:
            if type(effect) is SendModel:
                if (peer := self.peers.get(effect.edge_id)) is not None:
                    self.send_model(peer, effect, now)
                continue
            if type(effect) is not GradientApplied:  # nothing of it is sent
                self._send(effect, now)
            self.note(effect, now)

    def note(self, effect: Effect, now: float) -> None:
        """Count and record an effect of an event of time `now`; nothing is sent."""
        match effect:
            case GradientApplied():
                self.records.facts.append((now, effect))
                self.last_update = now
                if self.first_update is None:
                    self.first_update = now
            case SendModel():
                if (peer := self.peers.get(effect.edge_id)) is not None:
                    peer.sent = now
            case messages.EvaluationDue():
                self.evaluations.evaluate_in_time(effect)
            case Welcome():
                topic = edge_topic(self.run, effect.edge_id, EdgeTopic.MODEL)
                self.peers.welcomed(effect.edge_id, effect.nonce, now, topic)
                self.peers[effect.edge_id].asked = effect.coding
            case messages.Refuse() | messages.Halt():
                pass
            case _:
                self.records.facts.append((now, effect))

    def _send(self, effect: Effect, now: float) -> None:
        """Send what an effect other than a model says, to its edge or to all, and warn the operator where it is due."""
        match effect:
            case Welcome():
                self._welcome(effect, now)
            case messages.Refuse():
                self._refuse(effect)
            case messages.Halt():
                self._on_halt(effect)
            case GradientRefused() if effect.reason in _SUSPECT:
                why = _SUSPECT[effect.reason]
                self._warn(f"{effect.edge_id}: gradient {effect.sequence} refused: {why}")

    def send_model(self, peer: Peer, effect: SendModel, now: float) -> None:
        """Send a model that answers an event of time `now`.

        Where some wait for room or a connection it waits behind them, or fast edges would starve the others.
        """
        peer.sent, topic = now, peer.model_topic
        if not self.models.waiting and self._publish_model(topic, effect):
            if self.traffic.replies is not None:
                self.traffic.replies.observe(self.loop.now() - now)
            return
        if not self.models.waiting:
            size = HEADER_BYTES + effect.model.nbytes
            self._warn(
                f"{effect.edge_id}: model of {size} bytes not sent (connection lost or queue full); retrying"
            )
        self.models.add(topic, effect)

    def _publish_model(self, topic: str, effect: SendModel) -> bool:
        if self._codings:
            return self.channel.publish(topic, self._coded(effect))
        return self.channel.publish(topic, *codec.model_parts(effect))

    def _coded(self, effect: SendModel) -> bytes:
        peer, index = self.peers[effect.edge_id], self.server.edges[effect.edge_id].index
        rng = self._dither.at(0, Purpose.MODEL_CODING, effect.version)
        return compress(codec.encode_model(effect), self.scenario.codings(index, peer.asked).models, rng)

    def _welcome(self, welcome: Welcome, now: float) -> None:
        edge_id, former = welcome.edge_id, self.peers.get(welcome.edge_id)
        replaces = former is not None and not former.left and former.nonce != welcome.nonce
        if former is not None and replaces and now - former.seen < self.scenario.testbed.silent_after:
            self._warn(f"{edge_id}: duplicate process for this edge id")
        scenario, seed = self.scenario.for_edge(welcome.index, welcome.coding), self.scenario.seed
        terms = None if self.summing is None else self.summing.terms
        payload = codec.encode(replace(welcome, scenario=scenario, seed=seed, terms=terms))
        self.channel.publish(edge_topic(self.run, edge_id, EdgeTopic.WELCOME), payload, qos=1)

    def _refuse(self, refuse: messages.Refuse) -> None:
        topic = edge_topic(self.run, refuse.edge_id, EdgeTopic.WELCOME)
        # without acknowledgement: an edge that hears nothing asks again, and a flood must not fill the halt's queue
        self.channel.publish(topic, codec.encode(refuse))
        if refuse.nonce is not None:  # it answers a hello
            self.traffic.refused_hellos[refuse.reason] += 1
            if refuse.reason not in ("halted", "incarnation"):
                self._warn(f"{refuse.edge_id}: refused, {refuse.reason}: {refuse.detail}")

    def _on_halt(self, halt: messages.Halt) -> None:
        if self.halted is None:  # else the halt is retained, and a hello is refused
            self.presence.tell_halt(halt)
            if self.summing is not None:
                self.summing.finish()
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
        if evaluations.dues or halt is None:
            return
        if evaluations.evaluator is not None:
            if not self.records.is_evaluated(server.updates):
                evaluations.evaluate(
                    messages.EvaluationDue(server.updates, server.stage, server.result.copy())
                )
                return
            if halt.reason == "finished" and not math.isfinite(self.tally.evaluations[-1]["loss"]):
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
        """Say how many of the edges that the first update waits for can train, where that has changed."""
        ready, awaited = self.server.ready, self.server.terms.edges_at_least
        if ready != self._told and self.server.schedule is None and self.halted is None:
            self._told = ready
            self.say(
                f"{ready} of {awaited} edges are here and can train; the first update waits for the others"
            )

    def _look_for_silence(self) -> None:
        """Report edges that have been silent for too long, and end a run that waits for none.

        Where budgets are spent, new edges get silent_after while shards are free; edges that are away ten times as
        long, and the longest absence of their emulated devices.
        """
        patience = self.scenario.testbed.silent_after
        passed, latest = patience / 2, self.loop.now() - patience
        for edge_id, peer in list(self.peers.items()):
            if peer.seen <= latest:
                self._leave(Leave(edge_id, "silent", peer.nonce))
        starved = self.summing is not None and self.summing.is_starved()
        self._starved = self._starved + passed if starved and self.channel.connected else 0.0
        if self._starved > _STARVED * self.scenario.testbed.silent_after:
            self.halt("too-few-edges")
        spent = self.server.spent()
        self._idle = self._idle + passed if spent and self.channel.connected else 0.0
        if spent == "away":
            patience = _RETURN * patience + self.scenario.longest_absence
        if spent and self._idle > patience:
            self.halt(self.server.spent_reason)
        if self.halted is None:
            self.loop.call_later(passed, self._look_for_silence)

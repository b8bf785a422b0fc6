"""The cloud's shell: bytes to events, effects to bytes; records and evaluation off the hot path."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable
from dataclasses import InitVar, dataclass, field, replace
from functools import partial
from typing import assert_never

from cloud.evaluation import Evaluations, Evaluator
from cloud.history import History
from cloud.peers import Allowance, Contacts, Lives
from cloud.presence import Notices
from cloud.resend_queue import Owed
from cloud.server import CloudServer
from common.errors import RemoteProtocolError
from common.messages import (
    EdgeGone,
    EdgeJoined,
    Effect,
    EvaluationDue,
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
from common.quantities import EdgeId, RunId
from common.records.recorder import Recorder
from common.records.tally import Evaluation, Tally
from common.scenario.scenario import Scenario
from common.telemetry.family import Buckets
from common.transport.channel import Channel, Loop
from common.wire.codec import (
    Admission,
    decode_gradient,
    decode_hello,
    decode_leave,
    encode_model,
    encode_refuse,
    encode_welcome,
    new_nonce,
)
from common.wire.topics import (
    EdgeTopic,
    edge_topic,
    every_edge,
    parse_edge_topic,
)

_RECORD_EVERY = 0.25  # seconds between two batches of records
_COMPLAINTS = 50  # messages that get a line for the operator: anybody can send any number
# times silent_after that an edge which is only away may take to come back to a run without budgets
_RETURN = 10
_SLOWEST = 10  # times `gather` that edges may take to come one after the other
_SUSPECT = {  # reasons of a refused gradient that its operator should know of
    "norm": "its norm is larger than an honest edge's can be",
    "sensitivity": "the model version that it names was sent with another ΔS",
}


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
    on_records: Callable[[], None] = lambda: None  # after each batch of records: a view may look
    say: Callable[[str], None] = print  # a line for the operator
    history: History | None = None  # None: nobody can go on where this process ends
    gather: float | None = None  # seconds without a new hello after which the training begins; None: never
    dropped: Counter[str] = field(default_factory=Counter)  # hostile messages by leaf
    refused_hellos: Counter[str] = field(default_factory=Counter)  # by reason
    lost_connections: int = 0
    replies: Buckets | None = None  # seconds from a message to the model that answers it; None: nobody asks
    contacts: Contacts = field(default_factory=Contacts)
    lives: Lives = field(default_factory=Lives)
    nonce: str = field(default_factory=new_nonce)
    replaying: bool = False  # it takes events of the log
    revived: bool = False  # it goes on with a run that another process began
    first_update: float | None = None
    last_update: float | None = None
    _held: list[tuple[list[Effect], float, Hello | None]] = field(
        default_factory=list
    )  # what must not be performed before the log is on disk
    _complaints: int = 0
    _told: int = 0  # edges that the operator was last told to be here
    _idle: float = 0.0  # seconds that nobody has been here who could train
    notices: Notices = field(init=False)
    evaluations: Evaluations = field(init=False)
    allowance: Allowance = field(init=False)
    models: Owed[SendModel] = field(init=False)  # on their way; what the channel has not taken

    def __post_init__(self, evaluator: Evaluator | None) -> None:
        self.notices = Notices(
            self.run,
            self.nonce,
            self.server,
            self.loop,
            lambda: self.channel,
            self._complain,
            self.dropped,
        )
        self.allowance = Allowance(self.scenario.testbed.resend_after)
        self.evaluations = Evaluations(evaluator, self.loop, self._evaluated, lambda text: self.say(text))
        self.models = Owed(self.loop, self._publish_model, lambda: self.channel.connected)

    # -- life -----------------------------------------------------------------------------------------

    def start(self) -> None:
        """Subscribe and announce.

        Where the service goes on with a run, `revive` has come before.
        """
        if not self.revived:
            self.records.began = self.loop.now()
        subscribe = self.channel.subscribe
        subscribe(every_edge(self.run, EdgeTopic.GRADIENT), self.on_gradient)
        subscribe(every_edge(self.run, EdgeTopic.HELLO), self.on_hello, qos=1)
        subscribe(every_edge(self.run, EdgeTopic.LEAVE), self.on_leave, qos=1)
        subscribe(every_edge(self.run, EdgeTopic.WILL), self.on_leave, qos=1)
        self.notices.begin()
        self.loop.call_later(_RECORD_EVERY, self._record_often)
        self.loop.call_later(self.scenario.testbed.silent_after / 2, self._look_for_silence)

    def go_on(self) -> None:
        """Take up what a revived run waits for: those who gather, or the records of an end that came before."""
        if self.gather is not None and self.server.schedule is None and self.server.edges:
            here = len(self.server.edges)
            self.loop.call_later(self.gather, partial(self._begin_unless_more_came, here))
        if self.server.halted is not None and self.halted is None:
            self._on_halt(self.server.halted)

    def interrupt(self, reason: str = "interrupted") -> None:
        """End the run early, from the loop's thread."""
        self.halt(reason)

    def halt(self, reason: str) -> None:
        """End the training for a reason that no message brings about."""
        now = self.loop.now()
        if self.history is not None:
            self.history.halt(self.server, reason, now - self.records.began)
        self.answer(self.server.halt(reason), now)

    @property
    def halted(self) -> Halt | None:
        return self.notices.halt

    @property
    def tally(self) -> Tally:
        return self.records.tally

    # -- messages -------------------------------------------------------------------------------------

    def on_gradient(self, topic: str, payload: bytes) -> None:
        try:
            edge_id = parse_edge_topic(topic).edge_id
            arrived = decode_gradient(edge_id, payload, self.server.model.size)
        except RemoteProtocolError:
            self.dropped["gradient"] += 1
            raise
        now, history = self.loop.now(), self.history
        if not self.server.is_new(arrived) and not self._may_be_answered(edge_id, now):
            return
        if history is None:
            self.take_gradient(arrived, now)
        else:
            history.gradient(self.server, arrived, payload, now - self.records.began)
            self.take_gradient(arrived, now)
            history.at("replied")

    def _may_be_answered(self, edge_id: EdgeId, now: float) -> bool:
        """Tell whether an edge has not asked too often; before the log: what is dropped here has never come."""
        granted = self.allowance.grant(edge_id, now)
        if not granted:
            self.dropped["too-often"] += 1
            if (contact := self.contacts.get(edge_id)) is not None:
                contact.seen = now  # it is there
        return granted

    def take_gradient(self, arrived: GradientArrived, now: float) -> None:
        """Apply a gradient, whoever brings it: the network, or the log."""
        contact = self.contacts.get(arrived.edge_id)
        if contact is not None:
            contact.seen = now
            if contact.sent:
                contact.turnarounds += 1
                contact.turnaround_sum += now - contact.sent
                contact.sent = 0.0
        self.answer(self.server.receive(arrived), now)

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
        if self.history is not None:
            self.history.hello(self.server, hello, payload, now - self.records.began)
        self.take_hello(hello, now)

    def take_hello(self, hello: Hello, now: float) -> None:
        """Answer a hello, whoever brings it: the network, or the log."""
        edge_id, before = hello.edge_id, len(self.server.edges)
        effects = self.server.receive(hello)
        if not effects or hello.incarnation != self.server.incarnation:
            self.dropped["late-hello"] += 1  # it came before, or a newer one did, or it is of an earlier life
        self.answer(effects, now, hello)
        if any(isinstance(effect, Welcome) for effect in effects):  # as the log has it: a replay counts alike
            self.lives.welcomed(edge_id, hello.nonce, hello.last_sequence)
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
            self.contacts.leaves(leave.edge_id, leave.nonce)
        if self.history is not None:
            self.history.leave(self.server, leave, now - self.records.began)
        self.answer(self.server.receive(leave), now)

    # -- effects --------------------------------------------------------------------------------------

    def answer(self, effects: list[Effect], now: float, hello: Hello | None = None) -> None:
        """Perform the effects of what was taken at `now`; `hello` is the one that they answer, if they answer one.

        Where the log must be on disk first, all that one turn of the loop brings waits for it together.
        """
        history = self.history
        if history is not None:
            history.at("applied")
            if history.power:
                if not self._held:
                    self.loop.post(self.release)
                self._held.append((effects, now, hello))
                return
        for effect in effects:
            self._perform(effect, now, hello)

    def release(self) -> None:
        """Perform what waited for the log, which is on disk from now on."""
        if self._held and self.history is not None:
            self.history.sync()
        held, self._held = self._held, []
        for effects, now, hello in held:
            for effect in effects:
                self._perform(effect, now, hello)

    def _perform(self, effect: Effect, now: float, hello: Hello | None) -> None:
        match effect:
            case SendModel():
                contact = self.contacts.get(effect.edge_id)
                if contact is not None:
                    contact.sent = now
                    self.models.send(contact.model_topic, effect)
                    if self.replies is not None:
                        self.replies.observe(self.loop.now() - now)
            case GradientApplied():
                self.last_update = now
                if self.first_update is None:
                    self.first_update = now
                self.records.facts.append((now, effect))
            case StageOpened() | EdgeJoined() | EdgeGone() | GradientRefused():
                self.records.facts.append((now, effect))
                if isinstance(effect, GradientRefused) and effect.reason in _SUSPECT:
                    self._complain(
                        f"{effect.edge_id}: gradient {effect.sequence} refused: {_SUSPECT[effect.reason]}"
                    )
            case EvaluationDue():
                self.evaluations.evaluate_in_time(effect)
            case Welcome():
                assert hello is not None  # nothing else is welcomed
                self._welcome(effect, hello, now)
            case Refuse():
                self._refuse(effect)
            case Halt():
                self._on_halt(effect)
            case _:
                assert_never(effect)

    def _publish_model(self, topic: str, effect: SendModel) -> bool:
        payload = encode_model(effect)
        if self.channel.publish(topic, payload):
            return True
        if not self.models.waiting:
            self._complain(
                f"{effect.edge_id}: model of {len(payload)} bytes not sent (connection lost or queue full); retrying"
            )
        return False

    def _welcome(self, welcome: Welcome, hello: Hello, now: float) -> None:
        edge_id = welcome.edge_id
        model_topic = edge_topic(self.run, edge_id, EdgeTopic.MODEL)
        former = self.contacts.welcomed(edge_id, hello.nonce, now, model_topic)
        if former is not None and now - former.seen < self.scenario.testbed.silent_after:
            self._complain(f"{edge_id}: duplicate process for this edge id")
        admission = Admission(
            welcome=welcome,
            edges=self.server.terms.edges,
            scenario=self.scenario.for_edge(welcome.index),
            seed=self.scenario.seed,
            nonce=hello.nonce,
            number=hello.number,
            incarnation=self.server.incarnation,
        )
        self.channel.publish(
            edge_topic(self.run, edge_id, EdgeTopic.WELCOME), encode_welcome(admission), qos=1
        )

    def _refuse(self, refuse: Refuse) -> None:
        topic = edge_topic(self.run, refuse.edge_id, EdgeTopic.WELCOME)
        if refuse.nonce is not None:
            self.refused_hellos[refuse.reason] += 1
        # without acknowledgement: whoever hears nothing asks again, and a flood must not fill the halt's queue
        self.channel.publish(topic, encode_refuse(refuse))
        if refuse.nonce is not None and refuse.reason not in ("halted", "incarnation"):
            self._complain(f"{refuse.edge_id}: refused, {refuse.reason}: {refuse.detail}")

    def _complain(self, text: str) -> None:
        self._complaints += 1
        if self._complaints <= _COMPLAINTS:
            self.say(text)
        if self._complaints == _COMPLAINTS:
            self.say("further messages of this kind are not shown")

    def _on_halt(self, halt: Halt) -> None:
        if self.replaying:
            return  # `go_on` ends a run that had ended
        if self.halted is not None:
            return  # it is retained; and whoever asks by a hello is told by a refuse
        self.notices.tell_halt(halt)
        self.models.waiting.clear()  # no edge waits for a model any more
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
                self.notices.tell_halt(halt)
            self.records.halted(halt.updates, halt.reason, self.loop.now())
        self.notices.leave()
        evaluations.shutdown(wait=False)
        self.loop.stop()

    def record(self) -> None:
        """Write the facts collected so far; the hot path only keeps them."""
        self.records.write()

    def _record_often(self) -> None:
        self.record()
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
        """Report edges that have been silent for too long; no one waits for them."""
        silent_after = self.scenario.testbed.silent_after
        for edge_id in self.contacts.silent_since(self.loop.now() - silent_after):
            self._leave(Leave(edge_id, "silent", self.contacts[edge_id].nonce))
        self._mind_budgets(silent_after / 2)
        if self.halted is None:
            self.loop.call_later(silent_after / 2, self._look_for_silence)

    def _mind_budgets(self, passed: float) -> None:
        """End a run whose budgets are spent once no edge comes that could continue it.

        New edges, while shards are free, get silent_after for it; edges that are only away, ten times as long, and
        as long as their devices may be away by the scenario's word.
        """
        spent = self.server.spent()
        self._idle = self._idle + passed if spent and self.channel.connected else 0.0
        patience = self.scenario.testbed.silent_after
        if spent == "away":
            patience = _RETURN * patience + self.scenario.longest_absence
        if spent and self._idle > patience:
            self.halt(self.server.spent_reason)

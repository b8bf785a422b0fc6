"""The cloud's shell: bytes to events, effects to bytes; records and evaluation off the hot path."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from concurrent.futures import Executor, ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import assert_never

import numpy as np

from cloud.evaluation import Evaluator
from cloud.server import CloudServer
from common.channel import Channel, Loop
from common.errors import LocalProtocolError, RemoteProtocolError
from common.journal import Journal
from common.messages import (
    EdgeGone,
    EdgeJoined,
    Effect,
    EvaluationDue,
    Fact,
    GradientApplied,
    GradientRefused,
    Halt,
    Leave,
    Refuse,
    SendModel,
    StageOpened,
    Welcome,
)
from common.quantities import EdgeId, RunId
from common.scenario import Scenario
from common.tally import Evaluation, Tally, finite_or_none
from common.wire.codec import (
    Admission,
    Presence,
    Refusal,
    decode_gradient,
    decode_hello,
    decode_leave,
    encode_halt,
    encode_model,
    encode_presence,
    encode_refuse,
    encode_welcome,
    new_nonce,
)
from common.wire.topics import EdgeTopic, edge_topic, every_edge, halt_topic, parse_edge_topic, presence_topic

_RECORD_EVERY = 0.25  # seconds between two batches of records


@dataclass(slots=True)
class Contact:
    """What the wire knows of one edge, beside what the server knows of it."""

    nonce: str  # of its process
    seen: float  # when it last said anything
    model_topic: str
    sent: float = 0.0  # when a model was last sent to it
    turnarounds: int = 0
    turnaround_sum: float = 0.0  # seconds from a model's sending to the gradient's arrival


@dataclass(slots=True)
class CloudService:
    """One run's cloud on a channel. Everything but evaluation happens in the loop's thread."""

    run: RunId
    scenario: Scenario
    server: CloudServer
    evaluator: Evaluator
    channel: Channel
    loop: Loop
    journal: Journal | None = None
    on_records: Callable[[], None] = lambda: None  # after each batch of records: a view may look
    on_idle: Callable[[str], None] = print  # something worth a line for the operator
    gather: float | None = None  # seconds without a new hello after which the training begins; None: never
    evaluations: Executor = field(
        default_factory=lambda: ThreadPoolExecutor(1, thread_name_prefix="mapa-evaluation")
    )
    tally: Tally = field(default_factory=Tally)
    dropped: Counter[str] = field(default_factory=Counter)  # hostile messages by leaf
    contacts: dict[EdgeId, Contact] = field(default_factory=dict)
    nonce: str = field(default_factory=new_nonce)
    began: float = 0.0
    first_update: float | None = None
    last_update: float | None = None
    _facts: list[tuple[float, Fact]] = field(default_factory=list)
    _evaluating: int = 0
    _halt: Halt | None = None

    # -- life -----------------------------------------------------------------------------------------

    def start(self) -> None:
        """Subscribe and announce; a halt left by an earlier run of this name is taken back."""
        self.began = self.loop.now()
        subscribe = self.channel.subscribe
        subscribe(every_edge(self.run, EdgeTopic.GRADIENT), self.on_gradient)
        subscribe(every_edge(self.run, EdgeTopic.HELLO), self.on_hello, qos=1)
        subscribe(every_edge(self.run, EdgeTopic.LEAVE), self.on_leave, qos=1)
        subscribe(every_edge(self.run, EdgeTopic.WILL), self.on_leave, qos=1)
        self.channel.publish(halt_topic(self.run), b"", qos=1, retain=True)
        self.announce()
        self.loop.call_later(_RECORD_EVERY, self._record_often)
        self.loop.call_later(self.scenario.testbed.silent_after / 2, self._look_for_silence)

    def announce(self) -> None:
        """Say that the cloud is there; again after every reconnect, since its last will said otherwise."""
        presence = encode_presence(Presence(online=True, nonce=self.nonce))
        self.channel.publish(presence_topic(self.run), presence, qos=1, retain=True)

    def interrupt(self) -> None:
        """End the run early, from the loop's thread."""
        self._perform_all(self.server.halt("interrupted"))

    @property
    def halted(self) -> Halt | None:
        return self._halt

    # -- messages -------------------------------------------------------------------------------------

    def on_gradient(self, topic: str, payload: bytes) -> None:
        try:
            edge_id = parse_edge_topic(topic).edge_id
            arrived = decode_gradient(edge_id, payload, self.server.model.size)
        except RemoteProtocolError:
            self.dropped["gradient"] += 1
            raise
        contact = self.contacts.get(edge_id)
        if contact is not None:
            contact.seen = now = self.loop.now()
            if contact.sent:
                contact.turnarounds += 1
                contact.turnaround_sum += now - contact.sent
                contact.sent = 0.0
        for effect in self.server.receive(arrived):
            self._perform(effect)

    def on_hello(self, topic: str, payload: bytes) -> None:
        try:
            edge_id = parse_edge_topic(topic).edge_id
            greeting = decode_hello(edge_id, payload)
        except RemoteProtocolError:
            self.dropped["hello"] += 1
            raise
        model_topic = edge_topic(self.run, edge_id, EdgeTopic.MODEL)
        known = self.contacts.get(edge_id)
        if known is not None and known.nonce != greeting.nonce and self._fresh(known):
            self.on_idle(f"{edge_id}: a second process says hello under this id")
        if known is None or known.nonce != greeting.nonce:
            self.contacts[edge_id] = Contact(greeting.nonce, self.loop.now(), model_topic)
        else:
            known.seen = self.loop.now()
        self._perform_all(self.server.receive(greeting.hello))
        if self.gather is not None and self.server.schedule is None:
            here = len(self.server.edges)
            self.loop.call_later(self.gather, lambda: self._begin_unless_more_came(here))

    def _begin_unless_more_came(self, edges: int) -> None:
        if len(self.server.edges) == edges:
            self._perform_all(self.server.begin_with_those_here())

    def on_leave(self, topic: str, payload: bytes) -> None:
        try:
            address = parse_edge_topic(topic)
            farewell = decode_leave(address.edge_id, payload)
        except RemoteProtocolError:
            self.dropped["leave"] += 1
            raise
        contact = self.contacts.get(address.edge_id)
        if contact is None or contact.nonce != farewell.nonce:
            return  # the will of a connection that its edge has long replaced
        leave = farewell.leave
        if address.leaf is EdgeTopic.WILL:
            leave = Leave(address.edge_id, "lost")  # whatever the will says: the broker speaks, not the edge
        self._perform_all(self.server.receive(leave))

    # -- effects --------------------------------------------------------------------------------------

    def _perform_all(self, effects: list[Effect]) -> None:
        for effect in effects:
            self._perform(effect)

    def _perform(self, effect: Effect) -> None:
        match effect:
            case SendModel():
                contact = self.contacts.get(effect.edge_id)
                if contact is not None:
                    contact.sent = self.loop.now()
                    self._send(contact.model_topic, effect)
            case GradientApplied():
                self.last_update = now = self.loop.now()
                if self.first_update is None:
                    self.first_update = now
                self._facts.append((now, effect))
            case StageOpened() | EdgeJoined() | EdgeGone() | GradientRefused():
                self._facts.append((self.loop.now(), effect))
            case EvaluationDue():
                self._evaluate(effect)
            case Welcome():
                self._welcome(effect)
            case Refuse():
                self._refuse(effect)
            case Halt():
                self._on_halt(effect)
            case _:
                assert_never(effect)

    def _send(self, topic: str, effect: SendModel) -> None:
        try:
            payload = encode_model(effect)
        except LocalProtocolError:
            if np.isfinite(effect.model).all():
                raise
            self._perform_all(self.server.halt("diverged"))  # no edge would take such a model
        else:
            self.channel.publish(topic, payload)

    def _welcome(self, welcome: Welcome) -> None:
        contact = self.contacts[welcome.edge_id]
        admission = Admission(
            welcome=welcome,
            edges=self.server.terms.edges,
            scenario=self.scenario.for_edge(welcome.index),
            seed=self.scenario.seed,
            nonce=contact.nonce,
        )
        topic = edge_topic(self.run, welcome.edge_id, EdgeTopic.WELCOME)
        self.channel.publish(topic, encode_welcome(admission), qos=1)

    def _refuse(self, refuse: Refuse) -> None:
        contact = self.contacts.get(refuse.edge_id)
        of_gradient = refuse.reason in ("stranger", "full")
        refusal = Refusal(refuse, None if of_gradient or contact is None else contact.nonce)
        topic = edge_topic(self.run, refuse.edge_id, EdgeTopic.WELCOME)
        self.channel.publish(topic, encode_refuse(refusal), qos=1)
        if not of_gradient:
            self.on_idle(f"{refuse.edge_id}: refused, {refuse.reason}: {refuse.detail}")

    def _on_halt(self, halt: Halt) -> None:
        if self._halt is not None:
            return  # it is retained: who asks again has it already
        self._halt = halt
        self.channel.publish(halt_topic(self.run), encode_halt(halt), qos=1, retain=True)
        self._stop_when_evaluated()

    # -- off the hot path -----------------------------------------------------------------------------

    def _evaluate(self, due: EvaluationDue) -> None:
        """Evaluate in another thread; the result comes back through the loop."""
        self._evaluating += 1

        def work() -> None:
            evaluation = self.evaluator.evaluate(due.model, due.updates, due.stage)
            self.loop.post(lambda: self._evaluated(evaluation))

        self.evaluations.submit(work)

    def _evaluated(self, evaluation: Evaluation) -> None:
        self._evaluating -= 1
        self.record()
        self.tally.evaluated(evaluation)
        if self.journal is not None:
            fields = {
                "t": evaluation.updates,
                "stage": evaluation.stage,
                "loss": finite_or_none(evaluation.loss),
                "accuracy": evaluation.accuracy,
            }
            self.journal.write("evaluated", fields, self.loop.now() - self.began)
        if self._halt is not None:
            self._stop_when_evaluated()

    def _stop_when_evaluated(self) -> None:
        """After the halt: evaluate x_{T+1} unless that is done, then end the loop."""
        if self._evaluating:
            return
        last = self.tally.evaluations[-1].updates if self.tally.evaluations else -1
        if last != self.server.updates:
            schedule = self.server.schedule
            stage = 1 if schedule is None else schedule.stage
            self._evaluate(EvaluationDue(self.server.updates, stage, self.server.model.copy()))
            return
        self.record()
        if self.journal is not None and self._halt is not None:
            fields = {"t": self._halt.updates, "reason": self._halt.reason}
            self.journal.write("halted", fields, self.loop.now() - self.began)
        self.channel.publish(
            presence_topic(self.run), encode_presence(Presence(False, self.nonce)), qos=1, retain=True
        )
        self.evaluations.shutdown(wait=False)
        self.loop.stop()

    def record(self) -> None:
        """Write the facts that have gathered; the hot path only keeps them."""
        facts, self._facts = self._facts, []
        for now, fact in facts:
            self.tally.observe(fact)
            if self.journal is not None:
                self.journal.fact(fact, now - self.began)

    def _record_often(self) -> None:
        self.record()
        self.on_records()
        if self._halt is None:
            self.loop.call_later(_RECORD_EVERY, self._record_often)

    def _fresh(self, contact: Contact) -> bool:
        return self.loop.now() - contact.seen < self.scenario.testbed.silent_after

    def _look_for_silence(self) -> None:
        """Report edges that have said nothing for too long; nobody waits for them."""
        for edge_id, contact in self.contacts.items():
            if not self._fresh(contact):
                self._perform_all(self.server.receive(Leave(edge_id, "silent")))
        if self._halt is None:
            self.loop.call_later(self.scenario.testbed.silent_after / 2, self._look_for_silence)

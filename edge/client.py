"""One edge's shell: a channel, a ledger and a worker around the pure session."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TypeVar, assert_never

import numpy as np

from common.datasets.dataset import Dataset
from common.errors import MapaError, RemoteProtocolError
from common.messages import Hello, Leave, Refuse, SendModel
from common.quantities import EdgeId, RunId
from common.transport.channel import Channel, Loop
from common.transport.connection import SIZE_HINT
from common.transport.link import LinkProfile
from common.wire.codec import (
    Admission,
    decode_answer,
    decode_halt,
    decode_model,
    decode_presence,
    encode_gradient,
    encode_hello,
    encode_leave,
    incarnation_of,
    new_nonce,
)
from common.wire.topics import EdgeTopic, edge_topic, halt_topic, presence_topic
from common.wire.v1 import WELCOME_LIMIT, packet_limit
from edge.ledger import BudgetExhausted, Ledger, OtherShardError
from edge.patience import Patience
from edge.policy import OperatorPolicy
from edge.preparation import Preparation, difference, prepare
from edge.session import (
    EXIT_FAILED,
    EXIT_REFUSED,
    BudgetSpent,
    Connected,
    DropOutbox,
    EdgeSession,
    GradientDebited,
    MakeGradient,
    NewIdentity,
    OtherShardWanted,
    Phase,
    Prepare,
    PushOutbox,
    SayHello,
    SayLeave,
    SessionEvent,
    Stop,
    Unanswered,
)

_T = TypeVar("_T")
_CLOSING = 0.01  # seconds between two looks at a channel that closes


@dataclass(slots=True)
class EdgeClient:
    """One edge id in one run. Everything happens in the loop's thread.

    `connect` makes the channel, directly or through a link; it is called again when the welcome names one.
    """

    run: RunId
    policy: OperatorPolicy
    ledger: Ledger
    load: Callable[[str], Dataset]
    loop: Loop
    connect: Callable[[EdgeClient, LinkProfile | None], Channel]
    say: Callable[[str], None]
    on_stop: Callable[[int], None]
    renewable: bool = True  # False: the id is the name of a user at the broker, and no other may be taken
    nonce: str = field(default_factory=new_nonce)
    session: EdgeSession = field(init=False)
    preparation: Preparation | None = None
    channel: Channel | None = None
    dropped: Counter[str] = field(default_factory=Counter)
    pushed: int = 0
    resent: int = 0
    exit_code: int | None = None
    patience: Patience = field(init=False)
    _link: LinkProfile | None = None  # the one that the channel goes through
    _outbox: bytes | None = None  # the bytes of the last debit
    _looked_at: int = -1  # the last sequence when `well` was last asked
    _early: bytes | None = None  # a model that came before the welcome
    _admission: Admission | None = None  # the welcome that the preparation follows
    _wanted: int | None = None  # the shard that the ledger holds of the run's cut

    def __post_init__(self) -> None:
        self.patience = Patience(self.loop, self._unanswered)
        pending = self.ledger.pending(self.run)
        self.session = EdgeSession(self.ledger.last_sequence(self.run))
        if pending:
            self.session.pending, payload = pending[-1]
            self.session.pending_incarnation = incarnation_of(payload)

    @property
    def edge_id(self) -> EdgeId:
        return self.ledger.edge_id

    # -- life -----------------------------------------------------------------------------------------

    def start(self) -> None:
        """Connect and subscribe; `on_connected` of the channel says hello."""
        channel = self.channel = self.connect(self, self._link)
        self._mind_size()
        channel.subscribe(self._topic(EdgeTopic.MODEL), self.on_model)
        channel.subscribe(self._topic(EdgeTopic.WELCOME), self.on_answer, qos=1)
        # before the halt: a retained one is then judged by who is there
        channel.subscribe(presence_topic(self.run), self.on_presence, qos=1, retained=True)
        channel.subscribe(halt_topic(self.run), self.on_halt, qos=1, retained=True)

    def on_connected(self) -> None:
        self._tell(Connected())

    def on_lost(self, reason: str) -> None:
        if self.session.phase is not Phase.DONE:
            self.say(f"{self.edge_id}: {reason}; connecting again")

    def well(self) -> bool:
        """Tell whether this edge has made a gradient since it was last asked, or waits on purpose.

        For a model that the cloud has not begun to send, or for a cloud that says it is away; or it is done.
        """
        before, self._looked_at = self._looked_at, self.session.last_sequence
        if self.session.phase is Phase.DONE:
            return True
        if self.channel is None or not self.channel.connected:
            return False
        waiting = self.session.phase is not Phase.PUSHING or self._online is False
        return waiting or self._looked_at != before

    def leave(self, reason: str) -> None:
        """Go on purpose."""
        if self.session.phase is not Phase.DONE:
            self.session.phase = Phase.DONE
            self._say_leave(reason)
            self._stop(0, f"left: {reason}")

    def give_up(self, code: int, text: str) -> None:
        """End for a reason of our own; the cloud is told where it can be reached, lest it wait."""
        self.session.phase = Phase.DONE
        if self.channel is not None and self.channel.connected:
            self._say_leave("failed")
        self._stop(code, text)

    # -- messages -------------------------------------------------------------------------------------

    def on_model(self, topic: str, payload: bytes) -> None:  # noqa: ARG002 - the topic is ours alone
        if self.session.phase is Phase.GREETING or self.preparation is None:
            self._early = payload  # QoS 0 may overtake the welcome's QoS 1
            return
        sent = self._decoded("model", lambda: self._read_model(payload))
        if sent.incarnation == self.session.incarnation:
            self._tell(sent)
        else:
            self.dropped["late"] += 1  # of another life of the run

    def on_answer(self, topic: str, payload: bytes) -> None:
        answer = self._decoded("welcome", lambda: self._read_answer(payload))
        if isinstance(answer, Refuse):
            if answer.nonce in (None, self.nonce):
                self._tell(answer)
        elif answer.nonce == self.nonce and answer.number > self.session.answered:
            self._tell(answer)
            early, self._early = self._early, None
            if early is not None:
                self.on_model(topic, early)

    def on_halt(self, topic: str, payload: bytes) -> None:  # noqa: ARG002
        if (
            payload
        ):  # an empty one says that the broker keeps none; one that was heard the cloud is asked about
            self._tell(self._decoded("halt", lambda: decode_halt(payload)))

    def on_presence(self, topic: str, payload: bytes) -> None:  # noqa: ARG002
        presence = self._decoded("presence", lambda: decode_presence(payload))
        before = self._online
        self._tell(presence)
        if before not in (None, presence.online) and self.session.phase is not Phase.DONE:
            back = "is back" if presence.online else "is away; waiting for it"
            self.say(f"{self.edge_id}: the cloud {back}")

    @property
    def _online(self) -> bool | None:
        """Whether the cloud is there; None: nothing was heard of it."""
        return None if self.session.cloud is None else self.session.cloud.online

    def _decoded(self, kind: str, decode: Callable[[], _T]) -> _T:
        try:
            return decode()
        except RemoteProtocolError:
            self.dropped[kind] += 1
            raise

    def _read_model(self, payload: bytes) -> SendModel:
        assert self.preparation is not None
        worker = self.preparation.worker
        sent = decode_model(self.edge_id, payload, worker.model.dimension)
        worker.check(sent)
        self._check_sequence("model: acknowledged", sent.acknowledged)
        return sent

    def _read_answer(self, payload: bytes) -> Admission | Refuse:
        answer = decode_answer(self.edge_id, payload)
        if isinstance(answer, Admission) and answer.nonce == self.nonce:
            if answer.number > self.session.hellos:
                raise RemoteProtocolError(f"welcome: number = {answer.number}: no such hello was said")
            self._check_sequence("welcome: last_sequence", answer.welcome.last_sequence)
        return answer

    def _check_sequence(self, key: str, sequence: int) -> None:
        """Believe in no gradient that was never debited: a cloud that has seen more answers `ledger-lost`."""
        debited = self.session.last_sequence
        if sequence > debited:
            raise RemoteProtocolError(f"{key} = {sequence}: must be at most {debited}, the last one debited")

    def _topic(self, leaf: EdgeTopic) -> str:
        return edge_topic(self.run, self.edge_id, leaf)

    # -- effects --------------------------------------------------------------------------------------

    def _tell(self, event: SessionEvent) -> None:
        """Give the session an event and perform what it says."""
        effects = self.session.receive(event)
        if effects and not isinstance(event, Unanswered):
            self.patience.tries = 0
        for effect in effects:
            match effect:
                case SayHello():
                    self._say_hello(effect)
                case Prepare():
                    self._prepare(effect.admission)
                case MakeGradient():
                    self._make(effect.sequence, effect.sent)
                case PushOutbox():
                    if self.session.phase is Phase.PUSHING:  # a welcome that was not followed calls it off
                        self._push(effect.sequence)
                case DropOutbox():
                    if self.session.phase is not Phase.DONE:
                        self._outbox = None
                        self.ledger.acknowledge(self.run, effect.sequence)
                case SayLeave():
                    self._say_leave(effect.reason)
                case NewIdentity():
                    self._new_identity(effect.detail)
                case Stop():
                    self._stop(effect.code, effect.text)
                case _:
                    assert_never(effect)
        if self.session.phase is Phase.DONE:
            self.patience.end()
        elif effects or not self.patience.waiting:  # what counts for nothing does not put off the next try
            self.patience.expect()

    def _unanswered(self) -> None:
        if self.patience.tries == 2 and self._online is not True:
            self.say(f"{self.edge_id}: no answer from the cloud of run {self.run!r}; waiting for it")
        elif self.patience.tries == 2 and self.session.phase is Phase.PUSHING and self._outbox is not None:
            self.say(
                f"{self.edge_id}: no answer to a gradient of {len(self._outbox)} bytes, sent twice: the cloud is busy,"
                f" or the broker may refuse messages of that size; {SIZE_HINT}"
            )
        self._tell(Unanswered())

    def _publish(self, leaf: EdgeTopic, payload: bytes, *, qos: int) -> None:
        if self.channel is not None:
            self.channel.publish(self._topic(leaf), payload, qos=qos)

    def _say_hello(self, effect: SayHello) -> None:
        if self.channel is None or not self.channel.connected:
            return  # it would wait in a queue with all that follow; the next connection begins with one
        hello = Hello(
            edge_id=self.edge_id,
            noise=self.policy.law,
            parameters=self.policy.parameters,
            last_sequence=effect.last_sequence,
            index=self._index(),
            nonce=self.nonce,
            number=effect.number,
            incarnation=effect.incarnation,
        )
        self._publish(EdgeTopic.HELLO, encode_hello(hello), qos=1)

    def _say_leave(self, reason: str) -> None:
        leave = Leave(self.edge_id, reason, self.nonce)
        self._publish(EdgeTopic.LEAVE, encode_leave(leave), qos=1)

    def _index(self) -> int | None:
        """Return the shard to ask for: the one whose records this edge's account is of."""
        if self._wanted is not None:
            return self._wanted
        account = self.ledger.account(self.run)
        if account is None:
            spent = [standing.account for standing in self.ledger.standings() if standing.charges]
            account = spent[-1] if spent else None
        return None if account is None else account.shard.index

    def _prepare(self, admission: Admission) -> None:
        """Take what the first welcome deals; the later ones must deal the same."""
        if self.preparation is not None:
            self._compare(admission)
            return
        try:
            self.preparation = prepare(admission, self.run, self.policy, self.ledger, self.load)
        except OtherShardError as error:
            if self._wanted is not None:
                self._turn_down(str(error))
                return
            self._wanted = error.held  # only a welcome tells which data it is about: now it can be asked for
            self._tell(OtherShardWanted())
            return
        except (MapaError, MemoryError) as error:  # one edge of a fleet turns it down, the others go on
            self._turn_down(str(error) or "not enough memory for what the welcome asks for")
            return
        self._admission = admission
        self.patience.first = self.preparation.scenario.testbed.resend_after
        self._mind_size()
        if self.preparation.link is not None:
            self._link = self.preparation.link
            self.session.phase = Phase.GREETING  # nothing counts until the link is in place
            self.loop.post(self._reroute)

    def _mind_size(self) -> None:
        """Read no packet that is larger than the run's models and welcomes, once it is known how large they are."""
        if self.preparation is not None and self.channel is not None:
            self.channel.allow(packet_limit(self.preparation.worker.model.dimension, WELCOME_LIMIT))

    def _compare(self, admission: Admission) -> None:
        """Go on under the first welcome's terms, or not at all: a cloud started anew may have dealt our shard again."""
        assert self._admission is not None
        other = difference(self._admission, admission)
        if other:
            self._turn_down(f"the cloud now welcomes with {other}; an edge keeps the terms it began with")

    def _turn_down(self, text: str) -> None:
        """End since a welcome cannot be followed; the cloud need not wait for us."""
        self.session.phase = Phase.DONE
        self._say_leave("refused")
        self._stop(EXIT_REFUSED, text)

    def _reroute(self) -> None:
        """Connect anew, through the link that the scenario gives this edge.

        The old connection ends first: the broker would take a second one for its successor and send its will.
        """
        if self.session.phase is Phase.DONE:
            return
        channel = self.channel
        if channel is not None and not channel.closed:
            channel.close()
            self.loop.call_later(_CLOSING, self._reroute)
        else:
            self.start()

    def _make(self, sequence: int, sent: SendModel) -> None:
        """Make a gradient, debit it, and only then let it leave."""
        if self.preparation is None:
            return
        worker = self.preparation.worker
        if self.session.last_sequence:
            self.ledger.acknowledge(self.run, self.session.last_sequence)
        if self.ledger.standing(self.run).exhausted:
            self._tell(BudgetSpent())
            return
        worker.sequence = sequence - 1
        try:
            gradient = worker.receive(sent)
        except MemoryError as error:
            self.give_up(EXIT_FAILED, f"not enough memory for a gradient: {error}")
            return
        if not np.isfinite(gradient.gradient).all():  # without clipping only: a run that diverges
            self.give_up(EXIT_FAILED, "the gradient is not finite: the run diverges")
            return
        payload = encode_gradient(gradient)
        try:
            self.ledger.debit(self.run, sequence, payload)
        except BudgetExhausted:
            self._tell(BudgetSpent())
            return
        self._outbox = payload
        self._tell(GradientDebited(sequence))

    def _push(self, sequence: int) -> None:
        if self._outbox is None:
            self._outbox = dict(self.ledger.pending(self.run)).get(sequence)
        if self._outbox is not None:
            self.pushed += 1
            self.resent += self.patience.tries > 0
            self._publish(EdgeTopic.GRADIENT, self._outbox, qos=0)

    def _new_identity(self, detail: str) -> None:
        """Go on as a newcomer: the old id has debts that this ledger does not know.

        Not with a copy that knows some of them, whose shard the newcomer would leave without charging the rest.
        """
        old = self.edge_id
        if not self.renewable or self.ledger.account(self.run) is not None:
            self.session.phase = Phase.DONE
            self._stop(
                EXIT_REFUSED, f"its ledger is lost or an older copy ({detail}); restore the newest one"
            )
            return
        new = self.ledger.renew_identity()
        self.say(f"{old}: its ledger was lost ({detail}); goes on as {new}, on a shard that nobody has used")
        former = self.session
        self.session = EdgeSession(cloud=former.cloud, online=former.online, heard=former.heard)
        self.preparation = self._outbox = None
        self._admission = self._wanted = self._early = None
        self.loop.post(self._reroute)

    def _stop(self, code: int, text: str) -> None:
        self.patience.end()
        self.exit_code = code
        self.say(f"{self.edge_id}: {text}")
        if self.channel is not None:
            self.channel.close()
        self.ledger.close()
        self.on_stop(code)

"""How long an edge waits for an answer before it asks again."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar, assert_never

from common.datasets.dataset import Dataset
from common.datasets.source import Source
from common.errors import LedgerUnavailableError, RemoteProtocolError
from common.messages import AWAY, Leave, ModelReceived, Refuse
from common.quantities import EdgeId, RunId, is_finite
from common.transport.channel import Channel, Loop, Timer
from common.transport.connection import SIZE_HINT
from common.transport.link import LinkProfile
from common.wire.codec import (
    Admission,
    Presence,
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
from edge.account import Standing
from edge.device import Rota, Slowness
from edge.joining import Joining, Preparation
from edge.ledger import BudgetExhausted, Ledger
from edge.own_data import OwnData
from edge.policy import OperatorPolicy
from edge.session import (
    EXIT_DONE,
    EXIT_FAILED,
    BudgetSpent,
    Connected,
    Disconnected,
    DropOutbox,
    EdgeSession,
    FromCloud,
    GivenUp,
    GradientDebited,
    IdentityRenewed,
    LeaveWanted,
    MakeGradient,
    Phase,
    Prepare,
    PushOutbox,
    RenewIdentity,
    Reroute,
    SayHello,
    SayLeave,
    SessionEffect,
    SessionEvent,
    Stop,
    TakeTime,
    TimeTaken,
    Unanswered,
)
from edge.worker import EdgeWorker

_LONGEST_WAIT = 60.0  # seconds between two tries, at most
_MOST_DOUBLINGS = 1000  # 2¹⁰²⁴ is no float


@dataclass(slots=True)
class Patience:
    """A timer that waits twice as long each time that no answer comes.

    Every answer moves the time, not the timer: thousands of answers a second leave one timer, not thousands.
    """

    loop: Loop
    unanswered: Callable[[], None]
    first: float = 5.0  # seconds until the first try again
    tries: int = 0  # since the last answer
    _due: float = 0.0  # when an answer is overdue
    _timer: Timer | None = None

    def expect(self) -> None:
        """Wait for an answer from now on."""
        wait = min(self.first * 2 ** min(self.tries, _MOST_DOUBLINGS), _LONGEST_WAIT)
        self._due = self.loop.now() + wait
        if self._timer is not None and self._timer.due > self._due:
            self.end()
        if self._timer is None:
            self._timer = self.loop.call_later(wait, self._expire)

    @property
    def waiting(self) -> bool:
        """Whether an answer is waited for."""
        return self._timer is not None

    def end(self) -> None:
        """Wait for nothing any more."""
        if self._timer is not None:
            self._timer.cancel()
        self._timer = None

    def _expire(self) -> None:
        left = self._due - self.loop.now()
        if left > 0:
            self._timer = self.loop.call_later(left, self._expire)
            return
        self._timer = None
        self.tries += 1
        self.unanswered()


_CLOSING = 0.01  # seconds between two looks at a channel that closes


@dataclass(slots=True)
class Line:
    """The channel, and the next one where a link or another edge id calls for it.

    `connect` makes a channel that subscribes and connects by itself, directly or through a link.
    """

    loop: Loop
    connect: Callable[[LinkProfile | None], Channel]
    link: LinkProfile | None = None  # the one that the channel goes through
    channel: Channel | None = None
    ended: bool = False

    @property
    def connected(self) -> bool:
        return self.channel is not None and self.channel.connected

    def open(self) -> None:
        self.channel = self.connect(self.link)

    def reroute(self) -> None:
        """Connect anew, soon: the channel may be in the middle of a delivery.

        The old connection ends first: the broker would take a second one for its successor and send its will.
        """
        self.loop.post(self._reroute)

    def publish(self, topic: str, payload: bytes, *, qos: int) -> None:
        if self.channel is not None:
            self.channel.publish(topic, payload, qos=qos)

    def allow(self, max_packet: int) -> None:
        if self.channel is not None:
            self.channel.allow(max_packet)

    def hasten(self) -> None:
        if self.channel is not None:
            self.channel.hasten()

    def end(self, timeout: float) -> None:
        """Close for good within these seconds: whatever was under way, no further channel is made."""
        self.ended = True
        if self.channel is not None:
            self.channel.close(timeout)

    def _reroute(self) -> None:
        if self.ended:
            return
        if self.channel is not None and not self.channel.closed:
            self.channel.close()
            self.loop.call_later(_CLOSING, self._reroute)
        else:
            self.open()


@dataclass(slots=True)
class Outbox:
    """The last gradient's bytes, until the cloud acknowledges them; the ledger keeps them too."""

    run: RunId
    ledger: Ledger
    _kept: tuple[int, bytes] | None = None  # sequence and bytes of the last debit

    def session(self) -> EdgeSession:
        """Begin the conversation where the ledger left off."""
        last = self.ledger.last_sequence(self.run)
        pending = self.ledger.pending(self.run)
        if not pending:
            return EdgeSession(last)
        sequence, payload = pending[-1]
        return EdgeSession(last, sequence, incarnation_of(payload))

    def make(
        self, worker: EdgeWorker, sequence: int, received: ModelReceived
    ) -> GradientDebited | BudgetSpent | GivenUp:
        """Make the gradient of this sequence and debit it; the model acknowledges all before it."""
        if sequence > 1:
            self.ledger.acknowledge(self.run, sequence - 1)
        worker.sequence = sequence - 1
        try:
            made = worker.receive(received)
        except MemoryError as error:
            return GivenUp(EXIT_FAILED, f"not enough memory for a gradient: {error}")
        # The codec refuses such a vector, too, from whomever it comes, as a bug that ends the process. Here it is the
        # run that diverges, and this edge alone ends.
        if not is_finite(made.gradient):
            return GivenUp(EXIT_FAILED, "the gradient is not finite: the run diverges")
        payload = encode_gradient(made)
        try:
            self.ledger.debit(self.run, sequence, payload)
        except BudgetExhausted:  # asked here alone: what was made for nothing is thrown away, once in a run
            account = self.ledger.account(self.run)
            cap = None if account is None else account.most_releases
            return BudgetSpent(cap if cap is not None and sequence > cap else None)
        except LedgerUnavailableError as error:  # a full disk: what is not debited does not leave
            return GivenUp(EXIT_FAILED, str(error))
        self._kept = (sequence, payload)
        return GradientDebited(sequence)

    def payload(self, sequence: int) -> bytes | None:
        """Return the bytes of this sequence; None where they are no longer kept."""
        if self._kept is None or self._kept[0] != sequence:
            payload = dict(self.ledger.pending(self.run)).get(sequence)
            self._kept = None if payload is None else (sequence, payload)
        return None if self._kept is None else self._kept[1]

    def drop(self, sequence: int) -> None:
        """Never send the bytes up to this sequence again; the debit stays."""
        self._kept = None
        self.ledger.acknowledge(self.run, sequence)

    def forget(self) -> None:
        """Keep nothing of the id before; the ledger has let go of it."""
        self._kept = None


_T = TypeVar("_T")


@dataclass(slots=True)
class Inbox:
    """The four topics that an edge reads. What breaks the protocol is counted and raised: the channel goes on."""

    run: RunId
    nonce: str
    joining: Joining
    session: EdgeSession
    tell: Callable[[FromCloud], None]
    say: Callable[[str], None]
    dropped: Counter[str] = field(default_factory=Counter)
    _early: bytes | None = None  # a model that came before the welcome

    def subscribe(self, channel: Channel) -> None:
        edge_id = self.joining.edge_id
        channel.subscribe(edge_topic(self.run, edge_id, EdgeTopic.MODEL), self.on_model)
        channel.subscribe(edge_topic(self.run, edge_id, EdgeTopic.WELCOME), self.on_answer, qos=1)
        # before the halt: a retained one is then judged by who is there
        channel.subscribe(presence_topic(self.run), self.on_presence, qos=1, retained=True)
        channel.subscribe(halt_topic(self.run), self.on_halt, qos=1, retained=True)

    def on_model(self, topic: str, payload: bytes) -> None:  # noqa: ARG002 - the topic is ours alone
        preparation = self.joining.preparation
        if preparation is None or not self.session.welcomed:
            self._early = payload  # QoS 0 may overtake the welcome's QoS 1
            return
        self.tell(self._read("model", lambda: self._model(payload, preparation.worker)))

    def on_answer(self, topic: str, payload: bytes) -> None:
        answer = self._read("welcome", lambda: self._answer(payload))
        if answer is None:
            return
        self.tell(answer)
        if self._early is not None and self.session.welcomed:
            early, self._early = self._early, None
            self.on_model(topic, early)

    def on_halt(self, topic: str, payload: bytes) -> None:  # noqa: ARG002
        if (
            payload
        ):  # an empty one says that the broker keeps none; the cloud is asked about one that was heard
            self.tell(self._read("halt", lambda: decode_halt(payload)))

    def on_presence(self, topic: str, payload: bytes) -> None:  # noqa: ARG002
        presence = self._read("presence", lambda: decode_presence(payload))
        before = self.session.cloud.presence
        self.tell(presence)
        if before is None or before.online == presence.online or self.session.phase is Phase.DONE:
            return
        back = "is back" if presence.online else "is offline; waiting for it"
        self.say(f"{self.joining.edge_id}: the cloud {back}")

    def forget(self) -> None:
        """Read nothing more for the id before."""
        self._early = None

    def _read(self, kind: str, decode: Callable[[], _T]) -> _T:
        try:
            return decode()
        except RemoteProtocolError:
            self.dropped[kind] += 1
            raise

    def _model(self, payload: bytes, worker: EdgeWorker) -> ModelReceived:
        received = decode_model(self.joining.edge_id, payload, worker.model.dimension)
        # `clip` asks again, for whoever calls it: no release without it. Here, so that such a model is dropped before
        # it counts as an answer.
        worker.check(received)
        self._check_sequence("model: acknowledged", received.acknowledged)
        return received

    def _answer(self, payload: bytes) -> Admission | Refuse | None:
        """Return the answer; None: it is for another process of this id. A refuse of a gradient names no process."""
        answer = decode_answer(self.joining.edge_id, payload)
        if isinstance(answer, Refuse):
            return answer if answer.nonce in (None, self.nonce) else None
        if answer.nonce != self.nonce:
            return None
        if answer.number > self.session.hellos:
            raise RemoteProtocolError(f"welcome: number = {answer.number}: no such hello was sent")
        self._check_sequence("welcome: last_sequence", answer.welcome.last_sequence)
        return answer

    def _check_sequence(self, key: str, sequence: int) -> None:
        """Believe in no gradient that was never debited: a cloud that has seen more answers `ledger-lost`."""
        debited = self.session.last_sequence
        if sequence > debited:
            raise RemoteProtocolError(f"{key} = {sequence}: must be at most {debited}, the last one debited")


FAREWELL = 60.0  # seconds that an edge waits for its broker to say leave; the cloud has as many for its halt
TOLD_TO_END = 8.0  # when its operator ends it: an engine kills a container after ten


@dataclass(slots=True)
class EdgeClient:
    """One edge id in one run. Everything happens in the loop's thread.

    `connect` makes the channel, directly or through a link; it is called again when the welcome names one.
    """

    run: RunId
    policy: OperatorPolicy
    ledger: Ledger
    load: Callable[[Source], Dataset]
    loop: Loop
    connect: Callable[[EdgeClient, LinkProfile | None], Channel]
    say: Callable[[str], None]
    on_stop: Callable[[int], None]
    note: Callable[[str], None] = lambda _text: None  # what an operator may ask not to hear
    data_dir: Path | None = None  # where a model may find weights
    renewable: bool = True  # False: the id is the name of a user at the broker, and no other may be taken
    state_dir: Path = Path("state")  # where the operator finds this ledger
    own: OwnData | None = None  # records that this edge brings itself
    nonce: str = field(default_factory=new_nonce)
    pushed: int = 0
    resent: int = 0
    lost_connections: int = 0
    exit_code: int | None = None
    session: EdgeSession = field(init=False)
    patience: Patience = field(init=False)
    inbox: Inbox = field(init=False)
    _joining: Joining = field(init=False)
    _outbox: Outbox = field(init=False)
    _line: Line = field(init=False)
    _rota: Rota = field(init=False)
    _slowness: Slowness = field(init=False)
    _events: deque[SessionEvent] = field(default_factory=deque)  # what the session is still to be told
    _telling: bool = False
    _looked_at: int = -1  # the last sequence when `healthy` was last asked
    _farewell: float = 5.0  # seconds for what is still owed at the end
    _leave: bytes | None = None  # that the broker was away for
    _introduced: bool = False  # its device was named
    _joined: bool = False  # the operator was told what this edge takes part with
    _size_fits: bool = False  # a gradient was answered: the broker takes messages of that size

    def __post_init__(self) -> None:
        self.patience = Patience(self.loop, self._unanswered)
        self._joining = Joining(
            self.run,
            self.policy,
            self.ledger,
            self.load,
            self.own,
            renewable=self.renewable,
            data_dir=self.data_dir,
            state_dir=self.state_dir,
        )
        self._outbox = Outbox(self.run, self.ledger)
        self._line = Line(self.loop, self._open)
        self._rota = Rota(self.loop, self._tell)
        self._slowness = Slowness(self.loop)
        self.session = self._outbox.session()
        self.inbox = Inbox(self.run, self.nonce, self._joining, self.session, self._tell, self.say)

    @property
    def edge_id(self) -> EdgeId:
        return self.ledger.edge_id

    @property
    def preparation(self) -> Preparation | None:
        return self._joining.preparation

    @property
    def dropped(self) -> Counter[str]:
        """Messages that broke the protocol, by kind."""
        return self.inbox.dropped

    @property
    def standing(self) -> Standing | None:
        """What this run has spent; None: no account was opened."""
        return None if self.ledger.account(self.run) is None else self.ledger.standing(self.run)

    @property
    def delta(self) -> float | None:
        """The δ that this run is accounted at; None: not known yet."""
        standing, preparation = self.standing, self.preparation
        if standing is not None and standing.account.budget is not None:
            return standing.account.budget.delta
        return None if preparation is None else preparation.scenario.privacy.total_delta

    @property
    def spending(self) -> str:
        """What this run has spent, and of what budget, in words."""
        standing = self.standing
        if standing is None:
            return "no account"
        budget, cap, most = standing.account.budget, standing.cap, standing.account.most_releases
        made = f"{standing.releases:,}{'' if most is None else f' of {most:,}'} releases made"
        if budget is None or cap is None:
            return f"{made}, no budget (--total-epsilon sets one)"
        return (
            f"{made}, budget ε = {budget.epsilon:g} at δ = {budget.delta:g}: {standing.charges:,} of {cap:,} charges"
            " spent"
        )

    @property
    def progress(self) -> str:
        """What this edge waits for, or what it has spent, in words."""
        if not self._line.connected:
            return "waiting for a connection to the broker"
        if self._online is None:
            return f"waiting for the cloud of run {self.run!r}: none has been there yet; is the name right?"
        if not self._online:
            return f"waiting for the cloud of run {self.run!r} to come back"
        if self.preparation is None:
            return f"waiting for the welcome of run {self.run!r}"
        if self.session.phase is Phase.AWAY:
            return f"away for a while; {self.spending}"
        if self.session.phase in (Phase.GREETING, Phase.WAITING):
            return f"waiting for a model; {self.spending}"
        return self.spending

    @property
    def channel(self) -> Channel | None:
        return self._line.channel

    # -- life -----------------------------------------------------------------------------------------

    def start(self) -> None:
        """Connect and subscribe; `on_connected` of the channel says hello."""
        self._line.open()

    def _open(self, link: LinkProfile | None) -> Channel:
        channel = self.connect(self, link)
        self.inbox.subscribe(channel)
        if self.preparation is not None:
            channel.allow(_largest_packet(self.preparation))
        return channel

    def on_connected(self) -> None:
        self._tell(Connected())

    def on_lost(self, reason: str) -> None:
        self.lost_connections += 1
        self._tell(Disconnected())
        if self.session.phase is not Phase.DONE:
            self.say(f"{self.edge_id}: {reason}; reconnecting")

    def leave(self, reason: str, code: int = EXIT_DONE) -> None:
        """Go on purpose."""
        self._tell(LeaveWanted(reason, code))

    def give_up(self, code: int, text: str) -> None:
        """End since no connection can be had; so nobody can be told."""
        self._tell(GivenUp(code, text, unreachable=True))

    def hurry(self) -> None:
        """Wait no longer for a broker that is away, where only the leave is left to say."""
        if self.exit_code is not None:
            self._leave = None
            self._line.end(0.0)

    def healthy(self) -> bool:
        """Tell whether this edge has made a gradient since it was last asked, or waits on purpose.

        For a model that the cloud has not begun to send, or for a cloud that says it is away; or it is done.
        """
        before, self._looked_at = self._looked_at, self.session.last_sequence
        if self.session.phase in (Phase.DONE, Phase.AWAY):
            return True
        if not self._line.connected:
            return False
        waiting = self.session.phase is not Phase.PUSHING or self._online is False
        return waiting or self._looked_at != before

    @property
    def _online(self) -> bool | None:
        """Whether the cloud is there; None: nothing was heard of it."""
        presence = self.session.cloud.presence
        return None if presence is None else presence.online

    def _unanswered(self) -> None:
        pending = self.session.pending
        if self.patience.tries == 2 and self._online is False:
            self.say(f"{self.edge_id}: no answer from the cloud of run {self.run!r}; waiting for it")
        elif self.patience.tries == 2 and self.session.phase is Phase.PUSHING and pending is not None:
            size = len(self._outbox.payload(pending) or b"")
            reasons = "the connection is cut, or the cloud is busy"
            if not self._size_fits:
                reasons += f", or the broker may refuse messages of that size; then {SIZE_HINT}"
            self.say(f"{self.edge_id}: no answer to a gradient of {size} bytes, sent twice: {reasons}")
        self._tell(Unanswered())

    # -- effects --------------------------------------------------------------------------------------

    def _tell(self, event: SessionEvent) -> None:
        """Give the session an event and perform what it says; what that leads to is told after it, in order."""
        self._events.append(event)
        if self._telling:
            return
        self._telling = True
        try:
            while self._events:
                self._tell_one(self._events.popleft())
        finally:
            self._telling = False

    def _tell_one(self, event: SessionEvent) -> None:
        if self._leave is not None and isinstance(event, Presence) and event.online:
            self._deliver_leave()
            self._line.end(self._farewell)
        effects = self.session.receive(event)
        if effects and not isinstance(event, Unanswered):
            self.patience.tries = 0
        for effect in effects:
            self._perform(effect)
        if self.session.phase in (Phase.DONE, Phase.AWAY):
            self.patience.end()
        elif effects or not self.patience.waiting:  # what counts for nothing does not put off the next try
            self.patience.expect()

    def _perform(self, effect: SessionEffect) -> None:
        match effect:
            case SayHello():
                hello = encode_hello(self._joining.hello(effect, self.nonce))
                self._line.publish(self._topic(EdgeTopic.HELLO), hello, qos=1)
            case Prepare():
                self._prepare(effect)
            case Reroute():
                if effect.returned:
                    self.nonce = self.inbox.nonce = new_nonce()
                    self.inbox.forget()
                    self.say(f"{self.edge_id}: back")
                self._line.reroute()
            case TakeTime():
                self._take_time(effect)
            case MakeGradient():
                assert self.preparation is not None  # the session makes none before Prepared
                self._size_fits = self._size_fits or effect.received.acknowledged > 0
                worker = self.preparation.worker
                self._tell(self._outbox.make(worker, effect.sequence, effect.received))
            case PushOutbox():
                self._push(effect.sequence)
            case DropOutbox():
                self._outbox.drop(effect.sequence)
            case RenewIdentity():
                self._renew(effect.last_sequence)
            case SayLeave():
                self._say_leave(effect.reason)
            case Stop():
                self._stop(effect.code, effect.text)
            case _:
                assert_never(effect)

    def _topic(self, leaf: EdgeTopic) -> str:
        return edge_topic(self.run, self.edge_id, leaf)

    def _prepare(self, effect: Prepare) -> None:
        outcome = self._joining.follow(effect.admission)
        if self.preparation is not None:
            self.patience.first = self.preparation.scenario.testbed.resend_after
            self._line.link = self.preparation.link
            self._line.allow(_largest_packet(self.preparation))
        self._announce()
        self._tell(outcome)
        device = None if self.preparation is None else self.preparation.device
        if device is not None and self._rota.attendance is None and not self._introduced:
            self._introduced = True
            self.say(f"{self.edge_id}: {device}")
            self._rota.start(device.attendance())

    def _announce(self) -> None:
        """Tell the operator, once, what this edge takes part with, and plainly where that is not protected."""
        if self._joined or self.preparation is None:
            return
        self._joined = True
        records = len(self.preparation.worker.shard)
        self.note(f"{self.edge_id}: joined run {self.run!r}: {records:,} records, {self.spending}")
        if self.preparation.exposure:
            self.say(f"{self.edge_id}: NOT PROTECTED: {self.preparation.exposure}")

    def _take_time(self, effect: TakeTime) -> None:
        assert self.preparation is not None  # the session waits for nothing before Prepared
        assert self.preparation.device is not None  # Prepared says slow only of one
        wait = self.preparation.device.wait(effect.sequence)
        self._slowness.wait(wait, lambda: self._tell(TimeTaken(effect.number)))

    def _push(self, sequence: int) -> None:
        payload = self._outbox.payload(sequence)
        if payload is not None:
            self.pushed += 1
            self.resent += self.patience.tries > 0
            self._line.publish(self._topic(EdgeTopic.GRADIENT), payload, qos=0)

    def _renew(self, known: int) -> None:
        old = self.edge_id
        outcome = self._joining.renew(known)
        if isinstance(outcome, IdentityRenewed):
            self.say(
                f"{old}: its ledger was lost (the cloud knows of {known} releases in this run, the ledger of none);"
                f" continuing as {self.edge_id} on an unused shard"
            )
            self._joined = False
            self._outbox.forget()
            self.inbox.forget()
        self._tell(outcome)

    def _say_leave(self, reason: str) -> None:
        """Say it; where the broker is away, once it is back and the cloud with it, within the time that this end has.

        A broker keeps no message for a cloud that has not come back yet.
        """
        if reason == AWAY:
            self.say(f"{self.edge_id}: away for a while")
            leave = encode_leave(Leave(self.edge_id, reason, self.nonce))
            self._line.publish(self._topic(EdgeTopic.LEAVE), leave, qos=1)
            return
        self._farewell = TOLD_TO_END if reason == "shutdown" else FAREWELL
        self._leave = encode_leave(Leave(self.edge_id, reason, self.nonce))
        if self._line.connected:
            self._deliver_leave()
        else:
            self.say(f"{self.edge_id}: the broker is away; waiting up to {self._farewell:g} s to say leave")
            self._line.hasten()

    def _deliver_leave(self) -> None:
        if self._leave is not None:
            self._line.publish(self._topic(EdgeTopic.LEAVE), self._leave, qos=1)
            self._leave = None

    def _stop(self, code: int, text: str) -> None:
        self.patience.end()
        self._rota.end()
        self._slowness.end()
        self.exit_code = code
        self.say(f"{self.edge_id}: {text}")
        if self._leave is None:
            self._line.end(self._farewell)
        else:
            self.loop.call_later(self._farewell, lambda: self._line.end(0.0))
        self.ledger.close()
        self.on_stop(code)


def _largest_packet(preparation: Preparation) -> int:
    """Return how many bytes the run's models and welcomes have at most: nothing larger is read."""
    return packet_limit(preparation.worker.model.dimension, WELCOME_LIMIT)

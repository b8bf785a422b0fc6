"""One edge's shell: read what the cloud sends, tell the pure session, perform what the session answers."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar, assert_never

from common.errors import LedgerUnavailableError, LocalProtocolError, RemoteProtocolError
from common.messages import AWAY, Leave, ModelReceived, Presence, Refuse, Welcome
from common.quantities import EdgeId, RunId, is_finite
from common.randomness import Purpose
from common.transport.channel import Channel, Loop, Timer
from common.transport.connection import SIZE_HINT
from common.transport.link import LinkProfile
from common.wire import codec
from common.wire.codings.registry import PLAIN, compress, expand
from common.wire.topics import EdgeTopic, edge_topic, halt_topic, presence_topic
from edge import session as protocol
from edge.device import DeviceTimers
from edge.joining import Followed, Membership, Preparation
from edge.ledger import BudgetExhausted, Ledger, Standing
from edge.worker import EdgeWorker

if TYPE_CHECKING:
    from edge.masking import Masking

FAREWELL = 60.0  # seconds that an edge waits for its broker to say leave; the cloud has as many for its halt
TOLD_TO_END = 8.0  # when its operator ends it: an engine kills a container after ten
_LONGEST_WAIT = 60.0  # seconds between two tries, at most
_MOST_DOUBLINGS = 1000  # 2¹⁰²⁴ is no float
_CLOSING = 0.01  # seconds between two looks at a channel that closes
_T = TypeVar("_T")
# Does work, and gives its result to a call in the loop's thread.
Background = Callable[[Callable[[], _T], Callable[[_T], None]], None]


def at_once(work: Callable[[], _T], then: Callable[[_T], None]) -> None:
    then(work())


@dataclass(slots=True)
class RetryTimer:
    """Resend timer with exponential backoff.

    Every answer moves the time, not the timer: thousands of answers a second leave one timer, not thousands.
    """

    loop: Loop
    unanswered: Callable[[], None]
    first: float = 5.0  # seconds until the first retry
    tries: int = 0  # since the last answer
    _due: float = 0.0  # when an answer is overdue
    _timer: Timer | None = None

    def expect(self) -> None:
        """Wait for an answer from now on."""
        doublings = min(self.tries, _MOST_DOUBLINGS)
        wait = min(self.first * 2**doublings if doublings else self.first, _LONGEST_WAIT)
        self._due = self.loop.now() + wait
        if self._timer is not None and self._timer.due > self._due:
            self.end()
        if self._timer is None:
            self._timer = self.loop.call_later(wait, self._expire)

    @property
    def waiting(self) -> bool:
        return self._timer is not None

    def end(self) -> None:
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


@dataclass(slots=True)
class EdgeConnection:
    """The channel to the broker, replaced where a link or a new edge id requires it; and the leave at its end."""

    loop: Loop
    connect: Callable[[LinkProfile | None], Channel]  # makes a channel that subscribes and connects by itself
    link: LinkProfile | None = None  # the one that the channel goes through
    channel: Channel | None = None
    topics: Mapping[EdgeTopic, str] = field(default_factory=dict)  # of the edge id that the channel is for
    ended: bool = False
    unsent_leave: bytes | None = None  # that the broker was away for
    grace: float = 5.0  # seconds for what is still to be delivered at the end

    @property
    def connected(self) -> bool:
        return self.channel is not None and self.channel.connected

    def open(self) -> None:
        self.channel = self.connect(self.link)

    def publish(self, leaf: EdgeTopic, payload: bytes, *, qos: int) -> None:
        if self.channel is not None:
            self.channel.publish(self.topics[leaf], payload, qos=qos)

    def publish_leave(self, leave: bytes, grace: float) -> bool:
        """Publish a leave, or keep it for a broker that is away; tell whether it was published."""
        self.unsent_leave, self.grace = leave, grace
        if self.connected:
            self.deliver_leave()
            return True
        if self.channel is not None:
            self.channel.hasten()
        return False

    def deliver_leave(self) -> None:
        if self.unsent_leave is not None:
            self.publish(EdgeTopic.LEAVE, self.unsent_leave, qos=1)
            self.unsent_leave = None

    def finish(self) -> None:
        """Close for good: at once, or when the time for the leave has passed."""
        if self.unsent_leave is None:
            self.end(self.grace)
        else:
            self.loop.call_later(self.grace, partial(self.end, 0.0))

    def end(self, timeout: float) -> None:
        """Close for good within these seconds: whatever was under way, no further channel is made."""
        self.ended = True
        if self.channel is not None:
            self.channel.close(timeout)

    def replace(self) -> None:
        """Replace the channel by another, outside of a delivery.

        The old connection ends first: the broker would take a second one for its successor and send its will.
        """
        if self.ended:
            return
        if self.channel is not None and not self.channel.closed:
            self.channel.close()
            self.loop.call_later(_CLOSING, self.replace)
        else:
            self.open()


@dataclass(slots=True)
class EdgeClient:
    """One edge id in one run. Everything happens in the loop's thread.

    `connect` makes the channel, directly or through a link; it is called again when the welcome names one.
    """

    membership: Membership
    loop: Loop
    connect: Callable[[EdgeClient, LinkProfile | None], Channel]
    say: Callable[[str], None]
    on_stop: Callable[[int], None]
    note: Callable[[str], None] = lambda _text: None  # progress, which an operator may silence
    background: Background[Followed] = at_once  # for what may take minutes
    nonce: str = field(default_factory=codec.new_nonce)
    dropped: Counter[str] = field(default_factory=Counter)  # messages that broke the protocol, by kind
    resent: int = 0
    lost_connections: int = 0
    exit_code: int | None = None
    session: protocol.EdgeSession = field(init=False)
    retry: RetryTimer = field(init=False)
    connection: EdgeConnection = field(init=False)
    _device: DeviceTimers = field(init=False)
    _events: deque[protocol.SessionEvent] = field(default_factory=deque)  # still to be told
    _telling: bool = False
    _early_model: bytes | None = None  # it came before the welcome
    _announced: Preparation | None = None  # the operator was told of it
    _following: bool = False  # a welcome, in the background: the ledger is in use there
    _size_fits: bool = False  # a gradient was answered: the broker takes messages of that size
    _last_seen: int = -1  # sequence when `healthy` was last asked

    def __post_init__(self) -> None:
        self.retry = RetryTimer(self.loop, self._unanswered)
        self.connection = EdgeConnection(self.loop, self._open)
        self._device = DeviceTimers(self.loop, self._tell)
        last, pending = self.ledger.last_sequence(self.run), self.ledger.pending(self.run)
        self.session = protocol.EdgeSession(last)  # continues where the ledger left off
        if pending:
            self.session.pending, payload = pending[-1]
            self.session.pending_incarnation = codec.incarnation_of(payload)

    @property
    def run(self) -> RunId:
        return self.membership.run

    @property
    def ledger(self) -> Ledger:
        return self.membership.ledger

    @property
    def edge_id(self) -> EdgeId:
        return self.membership.ledger.edge_id

    @property
    def preparation(self) -> Preparation | None:
        return self.membership.preparation

    @property
    def standing(self) -> Standing | None:
        """What this run has spent; None: no account was opened."""
        return None if self.ledger.account(self.run) is None else self.ledger.standing(self.run)

    @property
    def progress(self) -> str:
        """What this edge waits for, or what it has spent, in words."""
        if not self.connection.connected:
            return "waiting for a connection to the broker"
        if self._cloud_online is None:
            return f"waiting for the cloud of run {self.run!r}: none has been there yet; is the name right?"
        if not self._cloud_online:
            return f"waiting for the cloud of run {self.run!r} to come back"
        if self._following:
            return "preparing: reads its records, and computes what its budget permits"
        if self.preparation is None:
            return f"waiting for the welcome of run {self.run!r}"
        if self.session.phase is protocol.Phase.AWAY:
            return f"away for a while; {spending_text(self.standing)}"
        if self.session.phase in (protocol.Phase.GREETING, protocol.Phase.WAITING):
            return f"waiting for a model; {spending_text(self.standing)}"
        return spending_text(self.standing)

    @property
    def _cloud_online(self) -> bool | None:
        """Whether the cloud is there; None: nothing was heard of it."""
        presence = self.session.cloud.presence
        return None if presence is None else presence.online

    # -- connection, operator and clock ---------------------------------------------------------------

    def start(self) -> None:
        """Connect and subscribe; `on_connected` of the channel says hello."""
        self.connection.open()

    def _open(self, link: LinkProfile | None) -> Channel:
        run = self.run
        topics = {leaf: edge_topic(run, self.edge_id, leaf) for leaf in EdgeTopic}
        self.connection.topics = topics
        channel = self.connect(self, link)
        channel.subscribe(topics[EdgeTopic.MODEL], self.on_model)
        channel.subscribe(topics[EdgeTopic.WELCOME], self.on_answer, qos=1)
        # before the halt: a retained one is then judged by who is there
        channel.subscribe(presence_topic(run), self.on_presence, qos=1, retained=True)
        channel.subscribe(halt_topic(run), self.on_halt, qos=1, retained=True)
        if self.preparation is not None:
            channel.allow(self.preparation.largest_packet)
        return channel

    def on_connected(self) -> None:
        self._tell(protocol.Signal.CONNECTED)

    def on_lost(self, reason: str) -> None:
        self.lost_connections += 1
        self._tell(protocol.Signal.DISCONNECTED)
        if self.session.phase is not protocol.Phase.DONE:
            self.say(f"{self.edge_id}: {reason}; reconnecting")

    def leave(self, reason: str, code: int = protocol.EXIT_DONE) -> None:
        """End on purpose, and tell the cloud."""
        self._tell(protocol.Ending(code, f"left: {reason}", reason))

    def give_up(self, code: int, text: str) -> None:
        """End without a connection, so without telling the cloud."""
        self._tell(protocol.Ending(code, text))

    def hurry(self) -> None:
        """protocol.Stop waiting for a broker that is away, if only the leave is left to say."""
        if self.exit_code is not None:
            self.connection.unsent_leave = None
            self.connection.end(0.0)

    def healthy(self) -> bool:
        """Tell whether this edge has made a gradient since it was last asked, or waits on purpose.

        For a model that the cloud has not begun to send, or for a cloud that says it is away; or it is done.
        """
        before, self._last_seen = self._last_seen, self.session.last_sequence
        if self.session.phase in (protocol.Phase.DONE, protocol.Phase.AWAY):
            return True
        if not self.connection.connected:
            return False
        waiting = self.session.phase is not protocol.Phase.PUSHING or self._cloud_online is False
        return waiting or self._last_seen != before

    def _unanswered(self) -> None:
        pending = self.session.pending
        if self.retry.tries == 2 and self._cloud_online is False:
            self.say(f"{self.edge_id}: no answer from the cloud of run {self.run!r}; waiting for it")
        elif self.retry.tries == 2 and self.session.phase is protocol.Phase.PUSHING and pending is not None:
            size = len(self._payload(pending) or b"")
            reasons = "the connection is cut, or the cloud is busy"
            if not self._size_fits:
                reasons += f", or the broker may refuse messages of that size; then {SIZE_HINT}"
            self.say(f"{self.edge_id}: no answer to a gradient of {size} bytes, sent twice: {reasons}")
        self._tell(protocol.Signal.UNANSWERED)

    # -- messages from the cloud: what breaks the protocol is counted and raised, and the channel goes on

    def on_model(self, _topic: str, payload: bytes) -> None:
        preparation, session = self.membership.preparation, self.session
        if preparation is None or session.phase not in protocol.WELCOMED:
            self._early_model = payload  # QoS 0 may overtake the welcome's QoS 1
            return
        self._tell(self._read("model", read_model, payload, preparation, session.last_sequence))

    def on_answer(self, _topic: str, payload: bytes) -> None:
        answer = self._read("welcome", read_answer, payload, self.edge_id, self.nonce, self.session)
        if answer is None:
            return
        self._tell(answer)
        self._read_early_model()

    def _read_early_model(self) -> None:
        if self._early_model is not None and self.session.phase in protocol.WELCOMED:
            early, self._early_model = self._early_model, None
            with suppress(RemoteProtocolError):  # it is counted, and whoever calls is not at fault
                self.on_model("", early)

    def on_halt(self, _topic: str, payload: bytes) -> None:
        if (
            payload
        ):  # an empty one says that the broker keeps none; the cloud is asked about one that was heard
            self._tell(self._read("halt", codec.decode_halt, payload))

    def on_presence(self, _topic: str, payload: bytes) -> None:
        presence = self._read("presence", codec.decode_presence, payload)
        before = self._cloud_online
        self._tell(presence)
        if before in (None, presence.online) or self.session.phase is protocol.Phase.DONE:
            return
        back = "is back" if presence.online else "is offline; waiting for it"
        self.say(f"{self.edge_id}: the cloud {back}")

    def _read(self, kind: str, decode: Callable[..., _T], *given: Any) -> _T:
        try:
            return decode(*given)
        except RemoteProtocolError:
            self.dropped[kind] += 1
            raise

    # -- the session's effects ------------------------------------------------------------------------

    def _tell(self, event: protocol.SessionEvent) -> None:
        """Give the session an event and perform what it answers; events that this causes follow in order."""
        self._events.append(event)
        if self._telling:
            return
        self._telling, acted = True, False
        try:
            while self._events:
                event = self._events.popleft()
                if self.connection.unsent_leave is not None and isinstance(event, Presence) and event.online:
                    self.connection.deliver_leave()
                    self.connection.end(self.connection.grace)
                effects = self.session.receive(event)
                if effects and event is not protocol.Signal.UNANSWERED:
                    self.retry.tries = 0
                for effect in effects:
                    self._perform(effect)
                acted = acted or bool(effects)
        finally:
            self._telling = False
        if self.session.phase in (protocol.Phase.DONE, protocol.Phase.AWAY):
            self.retry.end()
        elif acted or not self.retry.waiting:  # an event without effect does not put off the next retry
            self.retry.expect()

    def _perform(self, effect: protocol.SessionEffect) -> None:
        match effect:
            case protocol.MakeGradient(sequence=sequence, received=received):
                membership, preparation = self.membership, self.membership.preparation
                assert preparation is not None  # the session makes none before Prepared
                self._size_fits = self._size_fits or received.acknowledged > 0
                shell = (membership.ledger, membership.run)
                how = preparation.coding, preparation.masking
                make_gradient(preparation.worker, *shell, sequence, received, self._tell, *how)
            case protocol.PushOutbox(sequence=sequence):
                payload = self._payload(sequence)
                if payload is not None:
                    self.resent += self.retry.tries > 0
                    self.connection.publish(EdgeTopic.GRADIENT, payload, qos=0)
            case protocol.SayHello():
                hello = codec.encode(self.membership.hello(effect, self.nonce))
                self.connection.publish(EdgeTopic.HELLO, hello, qos=1)
            case protocol.Prepare():
                self._prepare(effect.admission)
            case protocol.Reroute(returned=returned):
                if returned:
                    self.nonce, self._early_model = codec.new_nonce(), None
                    self.say(f"{self.edge_id}: back")
                self.loop.post(self.connection.replace)
            case protocol.TakeTime(sequence=sequence, number=number):
                assert self.preparation is not None  # the session waits for nothing before Prepared
                assert self.preparation.device is not None  # Prepared says slow only of one
                wait = self.preparation.device.wait(sequence)
                self._device.wait(wait, partial(self._tell, protocol.TimeTaken(number)))
            case protocol.DropOutbox(sequence=sequence):
                self.ledger.acknowledge(self.run, sequence)
            case protocol.RenewIdentity(last_sequence=known):
                self._renew(known)
            case protocol.SayLeave(reason=reason):
                self._say_leave(reason)
            case protocol.Stop():
                self._stop(effect.code, effect.text)
            case _:
                assert_never(effect)

    def _payload(self, sequence: int) -> bytes | None:
        """Return the bytes of this sequence; None if they are no longer kept."""
        return self.ledger.kept(self.run, sequence)

    def _prepare(self, admission: Welcome) -> None:
        self._following = True
        self.background(partial(self.membership.follow, admission), self._followed)

    def _followed(self, outcome: Followed) -> None:
        self._following = False
        if self.session.phase is protocol.Phase.DONE:
            self.ledger.close()
            return
        preparation = self.preparation
        if preparation is None or preparation is self._announced:
            self._tell(outcome)
        else:
            self._announce(preparation)
            self._tell(outcome)
            if preparation.device is not None:
                self.say(f"{self.edge_id}: {preparation.device}")
                self._device.start(preparation.device.attendance())
        self._read_early_model()

    def _announce(self, preparation: Preparation) -> None:
        self._announced = preparation
        self.retry.first = preparation.scenario.testbed.resend_after
        self.connection.link = preparation.link
        if self.connection.channel is not None:
            self.connection.channel.allow(preparation.largest_packet)
        records = f"{len(preparation.worker.shard):,} records"
        self.note(f"{self.edge_id}: joined run {self.run!r}: {records}, {spending_text(self.standing)}")
        if preparation.exposure:
            self.say(f"{self.edge_id}: NOT PROTECTED: {preparation.exposure}")

    def _renew(self, known: int) -> None:
        old = self.edge_id
        outcome = self.membership.renew(known)
        if outcome is protocol.Signal.IDENTITY_RENEWED:
            self.say(
                f"{old}: its ledger was lost (the cloud knows of {known} releases in this run, the ledger of none);"
                f" continuing as {self.edge_id} on an unused shard"
            )
            self._early_model = None
        self._tell(outcome)

    def _say_leave(self, reason: str) -> None:
        """Say leave; if the broker is away, once it is back and the cloud with it, within the time that this end has.

        A broker keeps no message for a cloud that has not come back yet.
        """
        leave = codec.encode(Leave(self.edge_id, reason, self.nonce))
        if reason == AWAY:
            self.say(f"{self.edge_id}: away for a while")
            self.connection.publish(EdgeTopic.LEAVE, leave, qos=1)
            return
        grace = TOLD_TO_END if reason == "shutdown" else FAREWELL
        if not self.connection.publish_leave(leave, grace):
            self.say(f"{self.edge_id}: the broker is away; waiting up to {grace:g} s to say leave")

    def _stop(self, code: int, text: str) -> None:
        self.retry.end()
        self._device.end()
        self.exit_code = code
        self.say(f"{self.edge_id}: {text}")
        self.connection.finish()
        self.release()
        self.on_stop(code)

    def release(self) -> None:
        """Close the ledger, unless it is in use in the background."""
        if not self._following:
            self.ledger.close()


def make_gradient(
    worker: EdgeWorker,
    ledger: Ledger,
    run: RunId,
    sequence: int,
    received: ModelReceived,
    tell: Callable[[protocol.GradientDebited | protocol.Ending], None],
    coding: str = PLAIN,
    masking: Masking | None = None,
) -> None:
    """Make the gradient of this sequence and debit it; tell once that is durable: only then may its bytes leave."""

    def debited(failure: LedgerUnavailableError | None) -> None:
        if failure is None:
            tell(protocol.GradientDebited(sequence))
        else:  # a full disk: what is not debited does not leave
            tell(protocol.Ending(protocol.EXIT_FAILED, str(failure), "failed"))

    worker.sequence = sequence - 1
    try:
        if masking is not None:
            payload: bytes | None = masking.masked(sequence, received, worker.integers(received))
        else:
            payload = _encoded(worker, received, coding)
    except MemoryError as error:
        tell(protocol.Ending(protocol.EXIT_FAILED, f"not enough memory for a gradient: {error}", "failed"))
        return
    if payload is None:
        text = "the gradient is not finite: the run diverges"
        tell(protocol.Ending(protocol.EXIT_FAILED, text, "failed"))
        return
    if sequence > 1:
        ledger.acknowledge(run, sequence - 1)  # the model acknowledges all before it
    try:
        ledger.debit(run, sequence, payload, debited)
    except BudgetExhausted:  # only the debit asks for the budget: one gradient a run is made for nothing
        account = ledger.account(run)
        cap = None if account is None else account.most_releases
        spent = "the privacy budget is spent: it permits no further release on the terms of this run"
        if cap is not None and sequence > cap:
            spent = f"all R_k = {cap} releases are made"
        tell(protocol.Ending(protocol.EXIT_DONE, spent, "budget"))
    except LedgerUnavailableError as error:
        debited(error)


def _encoded(worker: EdgeWorker, received: ModelReceived, coding: str) -> bytes | None:
    """Return the next gradient as it is sent; None: it is not finite."""
    made = worker.receive(received)
    try:
        payload = codec.encode_gradient(made)
    except LocalProtocolError:
        if is_finite(made.gradient):
            raise
        return None
    if coding == PLAIN:
        return payload
    return compress(payload, coding, worker.streams.at(worker.index, Purpose.GRADIENT_CODING, made.sequence))


def read_model(payload: bytes, preparation: Preparation, debited: int) -> ModelReceived:
    """Return the model; raise RemoteProtocolError if it breaks the protocol, or no release could be private by it."""
    worker, dimension = preparation.worker, preparation.worker.model.dimension
    plain = expand(payload, preparation.of_models, dimension) if preparation.of_models else payload
    received = codec.decode_model(worker.edge_id, plain, dimension)
    # Clipping checks ΔS again, since no release may be made without; here, such a model is dropped before it counts
    # as an answer.
    worker.check(received)
    _check_sequence("model: acknowledged", received.acknowledged, debited)
    return received


def read_answer(
    payload: bytes, edge_id: EdgeId, nonce: str, now: protocol.EdgeSession
) -> Welcome | Refuse | None:
    """Return the answer; None: it is for another process of this id. A refuse of a gradient names no process."""
    answer = codec.decode_answer(edge_id, payload)
    if isinstance(answer, Refuse):
        return answer if answer.nonce in (None, nonce) else None
    if answer.nonce != nonce:
        return None
    if answer.number > now.hellos:
        raise RemoteProtocolError(f"welcome: number = {answer.number}: no such hello was sent")
    _check_sequence("welcome: last_sequence", answer.last_sequence, now.last_sequence)
    return answer


def _check_sequence(key: str, sequence: int, debited: int) -> None:
    """Believe in no gradient that was never debited: a cloud that has seen more answers `ledger-lost`."""
    if sequence > debited:
        raise RemoteProtocolError(f"{key} = {sequence}: must be at most {debited}, the last one debited")


def spending_text(standing: Standing | None) -> str:
    """Say what a run has spent, and of what budget."""
    if standing is None:
        return "no account"
    account, cap, most = standing.account, standing.cap, standing.account.most_releases
    budget = account.budget or account.sum_budget
    made = f"{standing.releases:,}{'' if most is None else f' of {most:,}'} releases made"
    if budget is None or cap is None:
        return f"{made}, no budget (--total-epsilon sets one)"
    spent = f"{standing.charges:,} of {cap:,} charges spent"
    whose = "budget of sums" if budget.in_sums else "budget"
    return f"{made}, {whose} ε = {budget.epsilon:g} at δ = {budget.delta:g}: {spent}"

"""One edge's shell: it tells the pure session what happens and performs what the session says."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import assert_never

from common.datasets.dataset import Dataset
from common.datasets.source import Source
from common.messages import AWAY, Leave, Presence
from common.quantities import EdgeId, RunId
from common.transport.channel import Channel, Loop
from common.transport.connection import SIZE_HINT
from common.transport.link import LinkProfile
from common.wire.codec import encode_hello, encode_leave, new_nonce
from common.wire.topics import EdgeTopic, edge_topic
from common.wire.v1 import WELCOME_LIMIT, packet_limit
from edge.account import Standing
from edge.conversation import (
    EXIT_DONE,
    Connected,
    Disconnected,
    DropOutbox,
    GivenUp,
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
from edge.device import Rota, Slowness
from edge.inbox import Inbox
from edge.joining import Joining
from edge.ledger import Ledger
from edge.line import Line
from edge.outbox import Outbox
from edge.own_data import OwnData
from edge.patience import Patience
from edge.policy import OperatorPolicy
from edge.preparation import Preparation
from edge.session import EdgeSession

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

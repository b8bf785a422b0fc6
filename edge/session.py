"""What an edge does next in its conversation with the cloud. Pure: events in, effects out.

At any time an edge owes the cloud one thing: a hello, or one gradient. A lost message is sent again, a gradient as
the very same bytes, so that the cloud can apply it once; a model counts only if it is of the run's present
incarnation and acknowledges the last gradient made.

Any message may be late, come twice, or be of an earlier cloud process. So an answer counts only for the hello that it
names by number, and a halt is believed when its cloud has said goodbye, or confirms it when asked.

Every change of phase happens here. A message from the network never raises; an outcome that no effect asked for is a
bug of the shell, and does. Events and effects of every update are tuples. Names are from the edge's side: it receives
models, makes gradients and pushes them.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum
from typing import NamedTuple

from common.errors import LocalProtocolError
from common.messages import AWAY, Halt, ModelReceived, Presence, Refuse, SendModel, Welcome

EXIT_DONE, EXIT_FAILED, EXIT_REFUSED, EXIT_FULL, EXIT_INTERRUPTED = 0, 1, 2, 4, 130


class Phase(Enum):
    GREETING = "greeting"  # a hello is out, or due once there are a connection and a cloud; no welcome yet
    PREPARING = "preparing"  # the shell takes what a welcome deals
    REROUTING = "rerouting"  # the shell changes the connection; nothing counts until the next one is there
    WAITING = "waiting"  # for a model
    MAKING = "making"  # the shell makes a gradient
    PUSHING = "pushing"  # a gradient is out, no model yet
    RENEWING = "renewing"  # the shell takes another edge id, if it may
    AWAY = "away"  # outside the device's time: nothing is said or made until it comes back
    DONE = "done"


BUSY = frozenset({Phase.PREPARING, Phase.MAKING, Phase.RENEWING})  # the shell owes the outcome of an effect
WELCOMED = frozenset({Phase.WAITING, Phase.MAKING, Phase.PUSHING})  # models can be read
_LISTENING = frozenset({Phase.GREETING, Phase.WAITING, Phase.PUSHING})  # answers to a hello count
_TRIES = 3  # hellos without an answer until an edge that took no part believes that the run has ended


# -- events; from the cloud also Welcome, Refuse, ModelReceived, Presence and Halt -------------------------


class Signal(Enum):
    """Events that are told by their name alone."""

    CONNECTED = "connected"  # the broker is there, for the first time or again
    DISCONNECTED = "disconnected"
    UNANSWERED = "unanswered"  # what the edge last sent has had no answer for too long
    WENT_AWAY = "went away"  # the device's time is over for now
    CAME_BACK = "came back"
    OTHER_SHARD_HELD = "other shard held"  # outcome of Prepare: the ledger holds it: ask for that one
    IDENTITY_RENEWED = "identity renewed"  # outcome of RenewIdentity: another id, with an empty account


@dataclass(frozen=True, slots=True)
class Ending:
    """The operator ends this edge, or the shell cannot go on or may not do what an effect asks for."""

    code: int
    text: str
    leave: str | None = None  # the reason that the cloud is told; None: it is told nothing


@dataclass(frozen=True, slots=True)
class Prepared:
    """Outcome of Prepare: the welcome is followed."""

    rerouted: bool = False  # the scenario gives this edge a link: it must connect through it first
    slow: bool = False  # the scenario gives it a device that takes its time over a gradient
    announced: bool = True  # False: the hello said that this edge was not ready, and the next says that it is


@dataclass(frozen=True, slots=True)
class TimeTaken:
    """Outcome of TakeTime."""

    number: int  # of the TakeTime


class GradientDebited(NamedTuple):
    """Outcome of MakeGradient: it was made, debited and put into the outbox."""

    sequence: int


Outcome = Prepared | TimeTaken | GradientDebited
SessionEvent = Welcome | Refuse | ModelReceived | Presence | Halt | Signal | Ending | Outcome


# -- effects ----------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class SayHello:
    last_sequence: int
    number: int
    incarnation: int  # of the run that it is meant for


@dataclass(frozen=True, slots=True)
class Prepare:
    """Take the shard and the mechanism that the welcome names, or see that they are those taken before."""

    admission: Welcome


@dataclass(frozen=True, slots=True)
class Reroute:
    """End the connection and make another: through the link, under the new id, or after an absence as a new process."""

    returned: bool = False  # after an absence: whatever was said before it is of another process


@dataclass(frozen=True, slots=True)
class TakeTime:
    """Sleep for the extra time the emulated device would need for this gradient.

    Before the gradient is made: no record was touched yet, and giving up costs nothing.
    """

    sequence: int
    number: int  # counts these waits: only the newest one's end counts


class MakeGradient(NamedTuple):
    """Make the gradient of this sequence and debit it."""

    sequence: int
    received: ModelReceived


class PushOutbox(NamedTuple):
    """Publish the bytes of this sequence, as they stand in the outbox."""

    sequence: int


@dataclass(frozen=True, slots=True)
class DropOutbox:
    """Never send the bytes up to this sequence again: they are of another incarnation. The debit stays."""

    sequence: int


@dataclass(frozen=True, slots=True)
class RenewIdentity:
    """The ledger of this edge id is lost: take another id, if that may be."""

    last_sequence: int  # of this id, by the word of the cloud: more than the ledger has


@dataclass(frozen=True, slots=True)
class SayLeave:
    reason: str


@dataclass(frozen=True, slots=True)
class Stop:
    code: int
    text: str


SessionEffect = (
    SayHello
    | Prepare
    | Reroute
    | TakeTime
    | MakeGradient
    | PushOutbox
    | DropOutbox
    | RenewIdentity
    | SayLeave
    | Stop
)


@dataclass(slots=True)
class CloudWatch:
    """What was heard of the cloud: its presence, and which halt to believe. Any client of the broker may forge both."""

    presence: Presence | None = None  # what was last heard
    incarnation: int | None = None  # that the cloud last named: a hello is meant for it
    online: int | None = None  # incarnation of the last cloud that said it was online
    halt: Halt | None = None  # heard, and neither believed nor disproved
    halt_after: int = 0  # number of the newest hello when it was heard

    def see(self, presence: Presence) -> bool:
        """Note a presence; tell whether a cloud is there that was not before."""
        before, self.presence = self.presence, presence
        self.incarnation = presence.incarnation
        if not presence.online:
            return False
        self.online = presence.incarnation
        return before is None or not before.online or before.nonce != presence.nonce

    @property
    def ended(self) -> bool:
        """Whether the last cloud heard of has said goodbye, and is the one that the halt is of."""
        cloud, halt = self.presence, self.halt
        if cloud is None or halt is None:
            return False
        return cloud.over and not cloud.online and cloud.incarnation == halt.incarnation

    def ended_for(self, incarnation: int | None) -> bool:
        """Tell whether the run has ended in the incarnation that an edge joined; None: it has joined none yet.

        An edge that has heard of no cloud online may have started before its cloud: it waits before it believes.
        """
        if self.halt is None or not self.ended:
            return False
        ours = incarnation if incarnation is not None else self.online
        return ours is not None and ours == self.halt.incarnation


@dataclass(slots=True)
class EdgeSession:
    """The conversation of one edge in one run. Only `receive` changes it."""

    last_sequence: int = 0  # of the last gradient debited
    pending: int | None = None  # sequence in the outbox without acknowledgement
    pending_incarnation: int | None = None  # that its bytes name
    phase: Phase = field(default=Phase.GREETING, init=False)
    connected: bool = field(default=False, init=False)
    overtaken: bool = field(default=False, init=False)  # while the shell was busy a hello fell due
    incarnation: int | None = field(default=None, init=False)  # of the run, by the last welcome
    applied: int = field(default=0, init=False)  # last sequence that the cloud applied, by the last welcome
    awaited: int = field(default=0, init=False)  # what a model must acknowledge to count
    hellos: int = field(default=0, init=False)  # said so far: the number of the newest
    answered: int = field(default=0, init=False)  # number of the hello that the last welcome answered
    tries: int = field(default=0, init=False)  # since something was last answered
    slow: bool = field(default=False, init=False)  # the device takes its time, by the last welcome
    leaving: bool = field(default=False, init=False)  # away once the gradient under way is pushed
    waits: int = field(default=0, init=False)  # so far: the number of the newest
    _due: MakeGradient | None = field(default=None, init=False)  # once the device has taken its time
    cloud: CloudWatch = field(default_factory=CloudWatch, init=False)

    def receive(self, event: SessionEvent) -> list[SessionEffect]:
        """Change by one event; return what the shell must perform, in this order."""
        if self.phase is Phase.DONE:
            return []
        match event:
            # those of every update, first
            case SendModel():
                return self._model(event)
            case GradientDebited(sequence=sequence) if self.phase is Phase.MAKING:
                self.last_sequence = self.pending = self.awaited = sequence
                self.pending_incarnation = self.incarnation
                return self._push(sequence)
            case Signal.CONNECTED:
                self.connected = True
                return self._greet_now() if self.phase is Phase.REROUTING else self._greet()
            case Signal.DISCONNECTED:
                self.connected = False
                return []
            case Signal.UNANSWERED:
                return self._again()
            case Signal.WENT_AWAY:
                return self._away()
            case Signal.CAME_BACK:
                self.leaving = False
                # as another process would, so that a late leave is known for one
                return self._reroute(returned=True) if self.phase is Phase.AWAY else []
            case Welcome():
                return self._admitted(event)
            case Refuse():
                return self._refused(event)
            case Presence():
                return self._presence(event)
            case Halt():
                return self._halt(event)
            case Ending(code=code, text=text, leave=leave):
                return self._done(
                    code, text, leave if self.hellos else None
                )  # else no cloud knows of this edge
            # outcomes of effects, which only the shell can know
            case Prepared(rerouted=rerouted, slow=slow, announced=announced) if self.phase is Phase.PREPARING:
                self.slow = slow
                self.overtaken = self.overtaken or not announced
                return self._reroute() if rerouted else self._settled()
            case Signal.OTHER_SHARD_HELD if self.phase is Phase.PREPARING:
                return self._greet_now()
            case TimeTaken(number=number) if 0 < number <= self.waits:
                return self._time_taken(number)
            case Signal.IDENTITY_RENEWED if self.phase is Phase.RENEWING:
                return self._renewed()
            case _:
                raise LocalProtocolError(f"{event} in phase {self.phase.value}: nothing asked for it")

    def _done(self, code: int, text: str, leave: str | None = None) -> list[SessionEffect]:
        self.phase = Phase.DONE
        stop = Stop(code, text)
        return [stop] if leave is None else [SayLeave(leave), stop]

    # -- hellos and connections -----------------------------------------------------------------------

    def _greet(self) -> list[SessionEffect]:
        """Say hello as soon as it can be answered; nothing else counts before the answer."""
        if self.phase in BUSY:
            self.overtaken = True
        if self.phase in BUSY or self.phase in (Phase.REROUTING, Phase.AWAY):
            return []  # the end of that phase begins with a hello
        return self._greet_now()

    def _greet_now(self) -> list[SessionEffect]:
        self.phase, self.overtaken = Phase.GREETING, False
        return self._hello()

    def _hello(self) -> list[SessionEffect]:
        """Say hello, if a cloud was heard of and there is a connection; the next connection begins with a hello."""
        if self.cloud.incarnation is None or not self.connected:
            return []
        self.hellos += 1
        return [SayHello(self.last_sequence, self.hellos, self.cloud.incarnation)]

    def _again(self) -> list[SessionEffect]:
        self.tries += 1
        if self.cloud.ended and self.tries >= _TRIES:
            return self._over()  # the run began and ended while this edge was away
        if self.phase in BUSY or self.phase is Phase.AWAY or not self.connected:
            return []
        if self.phase is Phase.PUSHING and self.pending is not None:
            return [PushOutbox(self.pending)]
        return self._hello()  # it is answered with the model too

    def _reroute(self, *, returned: bool = False) -> list[SessionEffect]:
        self.phase, self.connected, self.overtaken = Phase.REROUTING, False, False
        return [Reroute(returned)]

    def _renewed(self) -> list[SessionEffect]:
        """Start over under another id, with what is known of the cloud."""
        self.last_sequence = self.applied = self.awaited = self.hellos = self.answered = self.tries = 0
        self.pending = self.pending_incarnation = self.incarnation = None
        self.cloud.halt, self.cloud.halt_after = None, 0
        return self._reroute()

    # -- answers --------------------------------------------------------------------------------------

    def _admitted(self, admission: Welcome) -> list[SessionEffect]:
        if self.phase not in _LISTENING or admission.number <= self.answered:
            return []  # it answers an older hello, or has come before
        self.answered, self.tries = admission.number, 0
        if admission.number > self.cloud.halt_after:
            self.cloud.halt = None  # the hello was sent after the halt was heard: the cloud still serves
        self.incarnation, self.applied = admission.incarnation, admission.last_sequence
        self.phase = Phase.PREPARING
        return [Prepare(admission)]

    def _settled(self) -> list[SessionEffect]:
        """Send what the cloud of the welcome lacks, or wait for its model."""
        effects: list[SessionEffect] = []
        if self.pending is not None and self.pending_incarnation != self.incarnation:
            effects.append(DropOutbox(self.pending))
            self.pending = None
        if self.pending is not None and self.pending > self.applied:
            self.awaited = self.pending
            return [*effects, *self._push(self.pending)]
        self.awaited = self.applied  # a restarted cloud may know less than the ledger
        self.pending = None
        self.phase = Phase.WAITING
        if self.leaving:
            return effects + self._gone()
        return effects + (self._greet_now() if self.overtaken else [])

    def _push(self, sequence: int) -> list[SessionEffect]:
        self.phase = Phase.PUSHING
        if self.leaving:
            return [PushOutbox(sequence), *self._gone()]
        return self._greet_now() if self.overtaken else [PushOutbox(sequence)]

    def _refused(self, refuse: Refuse) -> list[SessionEffect]:
        if refuse.nonce is None:  # it answers a gradient: the worst that it can ask for is another hello
            asked = refuse.reason != "stranger" or self.phase is Phase.GREETING
            return [] if asked else self._greet()
        if self.phase not in _LISTENING:
            return []
        if refuse.number != self.hellos or refuse.number <= self.answered:
            return []  # it answers an older hello, the newest gets an answer of its own; or another cloud has welcomed
        match refuse.reason:
            case "incarnation":
                self.cloud.incarnation = refuse.incarnation
                return self._greet_now()
            case "ledger-lost":
                if refuse.last_sequence is None or refuse.last_sequence <= self.last_sequence:
                    return []  # nothing that this ledger lacks: no cloud refuses that
                self.phase = Phase.RENEWING
                return [RenewIdentity(refuse.last_sequence)]
            case "halted":
                return self._done(EXIT_DONE, f"the run has ended: {refuse.detail}")
            case "fleet-full":
                return self._done(EXIT_FULL, f"the fleet is full: {refuse.detail}")
            case "banned" | "epsilon-floor" | "mechanism":
                return self._done(EXIT_REFUSED, f"refused, {refuse.reason}: {refuse.detail}")
            case _:
                return []  # no reason that a cloud gives: the hello is said again when its time comes

    def _model(self, received: ModelReceived) -> list[SessionEffect]:
        if self.phase not in (Phase.WAITING, Phase.PUSHING):
            return []
        if received.incarnation != self.incarnation or received.acknowledged < self.awaited:
            return []  # an answer to something older; what is owed is still owed
        self.pending, self.tries = None, 0
        self.phase = Phase.MAKING
        make = MakeGradient(self.last_sequence + 1, received)
        if not self.slow:
            return [make]
        self._due, self.waits = make, self.waits + 1
        return [TakeTime(make.sequence, self.waits)]

    # -- the device -----------------------------------------------------------------------------------

    def _time_taken(self, number: int) -> list[SessionEffect]:
        """Make the gradient, unless the run has restarted or may have ended meanwhile: no cloud would take it."""
        if number != self.waits or self._due is None:
            return []
        due, self._due = self._due, None
        if self.cloud.halt is not None or self.cloud.incarnation not in (None, self.incarnation):
            return self._gone() if self.leaving else self._greet_now()
        return [due]

    def _away(self) -> list[SessionEffect]:
        """Leave for a while; a gradient under way is pushed first, so that none is made for nothing."""
        if self.phase is Phase.AWAY:
            return []
        if self.phase in BUSY or self.phase is Phase.REROUTING:
            self.leaving = True
            return []
        return self._gone()

    def _gone(self) -> list[SessionEffect]:
        """Go away, and say so if connected; else the broker or the cloud finds out. What is owed stays owed."""
        told = self.connected and self.hellos > 0
        self.phase, self.leaving, self.overtaken = Phase.AWAY, False, False
        return [SayLeave(AWAY)] if told else []

    # -- presence and halt ----------------------------------------------------------------------------

    def _presence(self, presence: Presence) -> list[SessionEffect]:
        if self.cloud.see(presence):
            return self._greet()  # it is here, back, or another one, which may not know us
        return self._over() if self.cloud.ended_for(self.incarnation) else []

    def _halt(self, halt: Halt) -> list[SessionEffect]:
        """Believe a halt whose cloud has gone; else ask: it may be forged, or of an earlier incarnation."""
        asked = self.cloud.halt == halt and self.phase is Phase.GREETING
        self.cloud.halt = halt
        if self.cloud.ended_for(self.incarnation):
            return self._over()
        if asked:
            return []
        self.cloud.halt_after = self.hellos
        return self._greet()

    def _over(self) -> list[SessionEffect]:
        halt = self.cloud.halt
        assert halt is not None
        joined = self.incarnation is not None
        when = "the run has ended" if joined else "the run had ended before this edge joined"
        return self._done(EXIT_DONE, f"{when}: {halt.reason} after {halt.updates} updates")

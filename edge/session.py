"""What an edge does next in the conversation with the cloud. Pure: events in, effects out.

At any time an edge owes the cloud one thing: a hello, or one gradient. Whatever is lost on the way is
sent again, the gradient as the very same bytes, so the cloud can apply it once; a model counts only
when it is of the run's present incarnation and acknowledges the last gradient made.

Whatever comes may be late, come twice, or be of another life of the cloud. So an answer counts only for the
hello that it names by number, and a halt is believed when the cloud that it is of has said goodbye, or says so
when it is asked.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import assert_never

from common.messages import Halt, Refuse, SendModel
from common.wire.codec import Admission, Presence

EXIT_DONE, EXIT_FAILED, EXIT_REFUSED, EXIT_FULL = 0, 1, 2, 4
_TRIES = 3  # hellos without an answer until the halt of a life that this edge has no part in is believed


class Phase(Enum):
    GREETING = "greeting"  # hello is out, no welcome yet
    WAITING = "waiting"  # for a model
    PUSHING = "pushing"  # a gradient is out, no model yet
    DONE = "done"


@dataclass(frozen=True, slots=True)
class Connected:
    """The broker is there, for the first time or again."""


@dataclass(frozen=True, slots=True)
class OtherShardWanted:
    """The welcome deals a shard that the ledger does not hold: ask for the one that it holds."""


@dataclass(frozen=True, slots=True)
class Unanswered:
    """What the edge last sent has had no answer for too long."""


@dataclass(frozen=True, slots=True)
class GradientDebited:
    """A gradient was made, debited and put into the outbox."""

    sequence: int


@dataclass(frozen=True, slots=True)
class BudgetSpent:
    """The ledger permits no further release."""


SessionEvent = (
    Connected
    | OtherShardWanted
    | Unanswered
    | Admission
    | Refuse
    | SendModel
    | Presence
    | Halt
    | GradientDebited
    | BudgetSpent
)


@dataclass(frozen=True, slots=True)
class SayHello:
    last_sequence: int
    number: int
    incarnation: int  # of the run that it is meant for


@dataclass(frozen=True, slots=True)
class Prepare:
    """Take the shard and the recipe that the welcome names; nothing to do where they are taken."""

    admission: Admission


@dataclass(frozen=True, slots=True)
class MakeGradient:
    sequence: int
    sent: SendModel


@dataclass(frozen=True, slots=True)
class PushOutbox:
    """Publish the bytes of this sequence, as they stand in the outbox."""

    sequence: int


@dataclass(frozen=True, slots=True)
class DropOutbox:
    """Never send the bytes up to this sequence again: they are of another life of the run. The debit stays."""

    sequence: int


@dataclass(frozen=True, slots=True)
class SayLeave:
    reason: str


@dataclass(frozen=True, slots=True)
class NewIdentity:
    """The ledger of this edge id is lost: go on as a newcomer, on a shard that nobody has used."""

    detail: str


@dataclass(frozen=True, slots=True)
class Stop:
    code: int
    text: str


SessionEffect = SayHello | Prepare | MakeGradient | PushOutbox | DropOutbox | SayLeave | NewIdentity | Stop


@dataclass(slots=True)
class EdgeSession:
    """The conversation of one edge id in one run."""

    last_sequence: int = 0  # of the last gradient debited
    pending: int | None = None  # sequence in the outbox without acknowledgement
    pending_incarnation: int | None = None  # that its bytes name
    awaited: int = 0  # what a model must acknowledge to count
    phase: Phase = Phase.GREETING
    incarnation: int | None = None  # of the run, by the last welcome
    heard: int | None = None  # incarnation that a hello is meant for: the last one that the cloud named
    hellos: int = 0  # said so far: the number of the newest
    answered: int = 0  # number of the hello that the last welcome answered
    tries: int = 0  # since something was last answered
    cloud: Presence | None = None  # what was last heard of it
    online: int | None = None  # incarnation of the last cloud that said it was online
    halt: Halt | None = None  # heard, and neither believed nor disproved
    halt_after: int = 0  # number of the newest hello when it was heard

    def receive(self, event: SessionEvent) -> list[SessionEffect]:
        if self.phase is Phase.DONE:
            return []
        match event:
            case Connected() | OtherShardWanted():
                return self._greet()
            case Unanswered():
                return self._again()
            case Admission():
                return self._admitted(event)
            case SendModel():
                return self._model(event)
            case GradientDebited():
                self.last_sequence = self.pending = self.awaited = event.sequence
                self.pending_incarnation = self.incarnation
                self.phase = Phase.PUSHING
                return [PushOutbox(event.sequence)]
            case BudgetSpent():
                self.phase = Phase.DONE
                return [SayLeave("budget"), Stop(EXIT_DONE, "the privacy budget is spent")]
            case Presence():
                return self._presence(event)
            case Halt():
                return self._halt(event)
            case Refuse():
                return self._refused(event)
            case _:
                assert_never(event)

    def _greet(self) -> list[SessionEffect]:
        """Say hello; nothing else counts before it is answered."""
        self.phase = Phase.GREETING
        return self._hello()

    def _hello(self) -> list[SessionEffect]:
        """Say hello to the cloud that was heard of; where none was there is nobody to say it to."""
        if self.heard is None:
            return []
        self.hellos += 1
        return [SayHello(self.last_sequence, self.hellos, self.heard)]

    def _again(self) -> list[SessionEffect]:
        self.tries += 1
        if self._ended(self.halt) and self.tries >= _TRIES:
            return self._over()  # of a life that began and ended while this edge was away
        if self.phase is Phase.PUSHING and self.pending is not None:
            return [PushOutbox(self.pending)]
        return self._hello()  # it is answered with the model too

    def _admitted(self, admission: Admission) -> list[SessionEffect]:
        if admission.number <= self.answered:
            return []  # it answers an older hello, or has come before
        self.answered, self.tries = admission.number, 0
        if admission.number > self.halt_after:
            self.halt = None  # the cloud was asked after it was heard, and serves
        self.incarnation = admission.incarnation
        applied = admission.welcome.last_sequence
        effects: list[SessionEffect] = [Prepare(admission)]
        if self.pending is not None and self.pending_incarnation != admission.incarnation:
            effects.append(DropOutbox(self.pending))
            self.pending = None
        if self.pending is not None and self.pending > applied:
            self.phase, self.awaited = Phase.PUSHING, self.pending
            return [*effects, PushOutbox(self.pending)]
        self.awaited = applied  # a cloud that was started anew knows less than the ledger
        self.pending = None
        self.phase = Phase.WAITING
        return effects

    def _model(self, sent: SendModel) -> list[SessionEffect]:
        if self.phase is Phase.GREETING or sent.acknowledged < self.awaited:
            return []  # an answer to something older; what is owed is still owed
        if sent.incarnation != self.incarnation:
            return []
        self.pending, self.tries = None, 0
        return [MakeGradient(self.last_sequence + 1, sent)]

    # -- the cloud's comings and goings ---------------------------------------------------------------

    def _presence(self, presence: Presence) -> list[SessionEffect]:
        before, self.cloud = self.cloud, presence
        self.heard = presence.incarnation
        if not presence.online:
            return self._over() if self._concerns(self.halt) else []
        self.online = presence.incarnation
        if before is not None and before.online and before.nonce == presence.nonce:
            return []
        return self._greet()  # it is here, back, or another one: nobody there may know us

    def _halt(self, halt: Halt) -> list[SessionEffect]:
        """Believe a halt whose cloud has gone; else ask: anybody may have sent it, or it is of an earlier life."""
        asked = self.halt == halt and self.phase is Phase.GREETING
        self.halt = halt
        if self._concerns(halt):
            return self._over()
        if asked:
            return []
        self.halt_after = self.hellos
        return self._greet()

    def _ended(self, halt: Halt | None) -> bool:
        """Tell whether the last cloud heard of has said goodbye, and is the one that this halt is of."""
        cloud = self.cloud
        said = cloud is not None and cloud.over and not cloud.online
        return said and halt is not None and cloud is not None and cloud.incarnation == halt.incarnation

    def _concerns(self, halt: Halt | None) -> bool:
        """Tell whether a halt is of the life that this edge has a part in, or of the only one that it knows."""
        if halt is None or not self._ended(halt):
            return False
        ours = self.incarnation if self.incarnation is not None else self.online
        return ours is None or ours == halt.incarnation

    def _over(self) -> list[SessionEffect]:
        assert self.halt is not None
        self.phase = Phase.DONE
        return [Stop(EXIT_DONE, f"the run has ended: {self.halt.reason} after {self.halt.updates} updates")]

    def _refused(self, refuse: Refuse) -> list[SessionEffect]:
        if refuse.nonce is None:  # it answers a gradient: the worst that it can ask for is another hello
            return self._greet() if refuse.reason == "stranger" and self.phase is not Phase.GREETING else []
        if refuse.number != self.hellos or refuse.number <= self.answered:
            return []  # it answers an older hello, the newest gets an answer of its own; or another cloud has welcomed
        if refuse.reason == "incarnation":
            self.heard = refuse.incarnation
            return self._greet()
        if refuse.reason == "ledger-lost":
            return [NewIdentity(refuse.detail)]
        self.phase = Phase.DONE
        match refuse.reason:
            case "halted":
                return [Stop(EXIT_DONE, f"the run has ended: {refuse.detail}")]
            case "fleet-full":
                return [Stop(EXIT_FULL, f"the fleet is full: {refuse.detail}")]
            case _:
                return [Stop(EXIT_REFUSED, f"refused, {refuse.reason}: {refuse.detail}")]

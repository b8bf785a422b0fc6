"""What an edge does next in the conversation with the cloud. Pure: events in, effects out.

At any time an edge owes the cloud one thing: a hello, or one gradient. Whatever is lost on the way is
sent again, the gradient as the very same bytes, so the cloud can apply it once; a model counts only
when it acknowledges the last gradient made.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import assert_never

from common.messages import Halt, SendModel
from common.wire.codec import Admission, Refusal

EXIT_DONE, EXIT_FAILED, EXIT_REFUSED, EXIT_FULL = 0, 1, 2, 4


class Phase(Enum):
    GREETING = "greeting"  # hello is out, no welcome yet
    WAITING = "waiting"  # for a model
    PUSHING = "pushing"  # a gradient is out, no model yet
    DONE = "done"


@dataclass(frozen=True, slots=True)
class Connected:
    """The broker is there, for the first time or again."""


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


SessionEvent = Connected | Unanswered | Admission | Refusal | SendModel | Halt | GradientDebited | BudgetSpent


@dataclass(frozen=True, slots=True)
class SayHello:
    last_sequence: int


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


SessionEffect = SayHello | Prepare | MakeGradient | PushOutbox | SayLeave | NewIdentity | Stop


@dataclass(slots=True)
class EdgeSession:
    """The conversation of one edge id in one run."""

    last_sequence: int = 0  # of the last gradient debited
    pending: int | None = None  # sequence in the outbox without acknowledgement
    awaited: int = 0  # what a model must acknowledge to count
    phase: Phase = Phase.GREETING

    def receive(self, event: SessionEvent) -> list[SessionEffect]:
        if self.phase is Phase.DONE:
            return []
        match event:
            case Connected():
                self.phase = Phase.GREETING
                return [SayHello(self.last_sequence)]
            case Unanswered():
                return self._again()
            case Admission():
                return self._admitted(event)
            case SendModel():
                return self._model(event)
            case GradientDebited():
                self.last_sequence = self.pending = self.awaited = event.sequence
                self.phase = Phase.PUSHING
                return [PushOutbox(event.sequence)]
            case BudgetSpent():
                self.phase = Phase.DONE
                return [SayLeave("budget"), Stop(EXIT_DONE, "the privacy budget is spent")]
            case Halt():
                self.phase = Phase.DONE
                return [Stop(EXIT_DONE, f"the run has ended: {event.reason} after {event.updates} updates")]
            case Refusal():
                return self._refused(event)
            case _:
                assert_never(event)

    def _again(self) -> list[SessionEffect]:
        if self.phase is Phase.PUSHING and self.pending is not None:
            return [PushOutbox(self.pending)]
        return [SayHello(self.last_sequence)]  # a hello is answered with the model too

    def _admitted(self, admission: Admission) -> list[SessionEffect]:
        applied = admission.welcome.last_sequence
        effects: list[SessionEffect] = [Prepare(admission)]
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
        self.pending = None
        return [MakeGradient(self.last_sequence + 1, sent)]

    def _refused(self, refusal: Refusal) -> list[SessionEffect]:
        reason, detail = refusal.refuse.reason, refusal.refuse.detail
        match reason:
            case "full":
                return []  # the outbox is pushed again when its time comes
            case "stranger":
                self.phase = Phase.GREETING
                return [SayHello(self.last_sequence)]
            case "ledger-lost":
                return [NewIdentity(detail)]
            case "fleet-full":
                self.phase = Phase.DONE
                return [Stop(EXIT_FULL, f"the fleet is full: {detail}")]
            case _:
                self.phase = Phase.DONE
                return [Stop(EXIT_REFUSED, f"refused, {reason}: {detail}")]

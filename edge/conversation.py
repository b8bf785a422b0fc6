"""The words between an edge's session and its shell: phases, events in, effects out.

They are named from the edge's side: an edge receives models, makes gradients and pushes them.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from common.messages import Halt, ModelReceived, Refuse
from common.wire.codec import Admission, Presence

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


# -- events: the connection, the clock, the operator. From the cloud: Admission, Refuse, ModelReceived, Presence, Halt.


@dataclass(frozen=True, slots=True)
class Connected:
    """The broker is there, for the first time or again."""


@dataclass(frozen=True, slots=True)
class Disconnected:
    """The connection to the broker is lost."""


@dataclass(frozen=True, slots=True)
class Unanswered:
    """What the edge last sent has had no answer for too long."""


@dataclass(frozen=True, slots=True)
class LeaveWanted:
    """The operator ends this edge."""

    reason: str
    code: int = EXIT_DONE


@dataclass(frozen=True, slots=True)
class WentAway:
    """The device's time is over for now."""


@dataclass(frozen=True, slots=True)
class CameBack:
    """The device's time begins again."""


@dataclass(frozen=True, slots=True)
class GivenUp:
    """The shell cannot go on: no broker, no memory, a run that diverges."""

    code: int
    text: str
    unreachable: bool = False  # it is the broker that cannot be had: nothing more can be said


# -- events: the outcome of an effect


@dataclass(frozen=True, slots=True)
class Prepared:
    """The welcome is followed."""

    rerouted: bool = False  # the scenario gives this edge a link: it must connect through it first
    slow: bool = False  # the scenario gives it a device that takes its time over a gradient
    announced: bool = (
        True  # False: the hello said that this edge was not ready, and the next one says that it is
    )


@dataclass(frozen=True, slots=True)
class OtherShardHeld:
    """The welcome deals a shard that the ledger does not hold: ask for the one that it holds."""


@dataclass(frozen=True, slots=True)
class WelcomeDeclined:
    """The welcome cannot be followed."""

    text: str


@dataclass(frozen=True, slots=True)
class TimeTaken:
    """The device has taken its time."""

    number: int  # of the TakeTime


@dataclass(frozen=True, slots=True)
class GradientDebited:
    """A gradient was made, debited and put into the outbox."""

    sequence: int


@dataclass(frozen=True, slots=True)
class BudgetSpent:
    """The ledger permits no further release."""

    cap: int | None = None  # R_k, where that is why: ε may be less than the budget


@dataclass(frozen=True, slots=True)
class IdentityRenewed:
    """The edge has another id, with an empty account."""


@dataclass(frozen=True, slots=True)
class IdentityKept:
    """The edge may take no other id."""

    text: str


FromCloud = Admission | Refuse | ModelReceived | Presence | Halt
Outcome = (
    Prepared
    | OtherShardHeld
    | WelcomeDeclined
    | TimeTaken
    | GradientDebited
    | BudgetSpent
    | IdentityRenewed
    | IdentityKept
)
SessionEvent = (
    FromCloud | Connected | Disconnected | Unanswered | LeaveWanted | WentAway | CameBack | GivenUp | Outcome
)


# -- effects


@dataclass(frozen=True, slots=True)
class SayHello:
    last_sequence: int
    number: int
    incarnation: int  # of the run that it is meant for


@dataclass(frozen=True, slots=True)
class Prepare:
    """Take the shard and the mechanism that the welcome names, or see that they are those taken before.

    Its outcome: Prepared, OtherShardHeld or WelcomeDeclined.
    """

    admission: Admission


@dataclass(frozen=True, slots=True)
class Reroute:
    """End the connection and make another: through the link, under the new id, or after an absence as a new process."""

    returned: bool = False  # after an absence: whatever was said before it is of another process


@dataclass(frozen=True, slots=True)
class TakeTime:
    """Wait for as long as the device takes longer than this machine over the gradient of this sequence.

    Before it is made: of records nothing was touched yet, and what is given up costs nothing. Its outcome: TimeTaken.
    """

    sequence: int
    number: int  # counts these waits: only the newest one's end counts


@dataclass(frozen=True, slots=True)
class MakeGradient:
    """Make the gradient of this sequence and debit it. Its outcome: GradientDebited, BudgetSpent or GivenUp."""

    sequence: int
    received: ModelReceived


@dataclass(frozen=True, slots=True)
class PushOutbox:
    """Publish the bytes of this sequence, as they stand in the outbox."""

    sequence: int


@dataclass(frozen=True, slots=True)
class DropOutbox:
    """Never send the bytes up to this sequence again: they are of another life of the run. The debit stays."""

    sequence: int


@dataclass(frozen=True, slots=True)
class RenewIdentity:
    """The ledger of this edge id is lost: take another id. Its outcome: IdentityRenewed or IdentityKept."""

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

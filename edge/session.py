"""What an edge does next in the conversation with the cloud. Pure: events in, effects out.

At any time an edge owes the cloud one thing: a hello, or one gradient. Whatever is lost on the way is
sent again, the gradient as the very same bytes, so the cloud can apply it once; a model counts only
when it is of the run's present incarnation and acknowledges the last gradient made.

Whatever comes may be late, come twice, or be of another life of the cloud. So an answer counts only for the
hello that it names by number, and a halt is believed when the cloud that it is of has said goodbye, or says so
when it is asked.

Every change of phase happens here. What comes from the network never raises; an outcome that no effect asked for
is a mistake of the shell, and does.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from common.errors import LocalProtocolError
from common.messages import AWAY, Halt, ModelReceived, Presence, Refuse, Welcome
from edge.cloud_watch import CloudWatch
from edge.conversation import (
    BUSY,
    EXIT_DONE,
    EXIT_FULL,
    EXIT_REFUSED,
    BudgetSpent,
    CameBack,
    Connected,
    Disconnected,
    DropOutbox,
    GivenUp,
    GradientDebited,
    IdentityKept,
    IdentityRenewed,
    LeaveWanted,
    MakeGradient,
    OtherShardHeld,
    Outcome,
    Phase,
    Prepare,
    Prepared,
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
    WelcomeDeclined,
    WentAway,
)

_TRIES = 3  # hellos without an answer until the halt of a life that this edge has no part in is believed
_LISTENING = frozenset({Phase.GREETING, Phase.WAITING, Phase.PUSHING})  # answers to a hello count


@dataclass(slots=True)
class EdgeSession:
    """The conversation of one edge in one run. Only `receive` changes it."""

    last_sequence: int = 0  # of the last gradient debited
    pending: int | None = None  # sequence in the outbox without acknowledgement
    pending_incarnation: int | None = None  # that its bytes name
    _phase: Phase = field(default=Phase.GREETING, init=False)
    connected: bool = field(default=False, init=False)
    overtaken: bool = field(default=False, init=False)  # while the shell was busy a hello fell due
    incarnation: int | None = field(default=None, init=False)  # of the run, by the last welcome
    applied: int = field(default=0, init=False)  # last sequence that the cloud applied, by the last welcome
    awaited: int = field(default=0, init=False)  # what a model must acknowledge to count
    hellos: int = field(default=0, init=False)  # said so far: the number of the newest
    answered: int = field(default=0, init=False)  # number of the hello that the last welcome answered
    tries: int = field(default=0, init=False)  # since something was last answered
    late: int = field(default=0, init=False)  # models of another life that came and did not count
    slow: bool = field(default=False, init=False)  # the device takes its time, by the last welcome
    leaving: bool = field(default=False, init=False)  # away once the gradient under way is pushed
    waits: int = field(default=0, init=False)  # so far: the number of the newest
    _due: MakeGradient | None = field(
        default=None, init=False
    )  # what is made once the device has taken its time
    cloud: CloudWatch = field(default_factory=CloudWatch, init=False)

    @property
    def phase(self) -> Phase:
        return self._phase

    @property
    def welcomed(self) -> bool:
        """Whether models can be read: a welcome is followed."""
        return self._phase in (Phase.WAITING, Phase.MAKING, Phase.PUSHING)

    def receive(self, event: SessionEvent) -> list[SessionEffect]:
        """Change by one event; return what the shell must perform, in this order."""
        if self._phase is Phase.DONE:
            return []
        match event:
            case Connected():
                return self._connected()
            case Disconnected():
                self.connected = False
                return []
            case Unanswered():
                return self._again()
            case Welcome():
                return self._admitted(event)
            case Refuse():
                return self._refused(event)
            case ModelReceived():
                return self._model(event)
            case Presence():
                return self._presence(event)
            case Halt():
                return self._halt(event)
            case LeaveWanted():
                told = self.hellos > 0  # else nobody knows of this edge
                return self._done(event.code, f"left: {event.reason}", event.reason if told else None)
            case WentAway():
                return self._away()
            case CameBack():
                return self._back()
            case GivenUp():
                told = self.hellos > 0 and not event.unreachable  # lest the cloud wait
                return self._done(event.code, event.text, "failed" if told else None)
            case _:
                return self._outcome(event)

    def _outcome(self, event: Outcome) -> list[SessionEffect]:
        """Go on after an effect whose outcome only the shell can know."""
        match event, self._phase:
            case Prepared(rerouted=rerouted, slow=slow, announced=announced), Phase.PREPARING:
                self.slow = slow
                self.overtaken = self.overtaken or not announced
                return self._reroute() if rerouted else self._settled()
            case OtherShardHeld(), Phase.PREPARING:
                return self._greet_now()
            case WelcomeDeclined(text=text), Phase.PREPARING:
                return self._done(EXIT_REFUSED, text, "refused")
            case TimeTaken(number=number), _ if 0 < number <= self.waits:
                return self._time_taken(number)
            case GradientDebited(sequence=sequence), Phase.MAKING:
                self.last_sequence = self.pending = self.awaited = sequence
                self.pending_incarnation = self.incarnation
                return self._push(sequence)
            case BudgetSpent(cap=cap), Phase.MAKING:
                spent = "the privacy budget is spent: it permits no further release on the terms of this run"
                return self._done(
                    EXIT_DONE, spent if cap is None else f"all R_k = {cap} releases are made", "budget"
                )
            case IdentityRenewed(), Phase.RENEWING:
                return self._renewed()
            case IdentityKept(text=text), Phase.RENEWING:
                return self._done(EXIT_REFUSED, text)
            case _:
                raise LocalProtocolError(f"{event} in phase {self._phase.value}: nothing asked for it")

    def _done(self, code: int, text: str, leave: str | None = None) -> list[SessionEffect]:
        self._phase = Phase.DONE
        stop = Stop(code, text)
        return [stop] if leave is None else [SayLeave(leave), stop]

    # -- hellos and connections -----------------------------------------------------------------------

    def _connected(self) -> list[SessionEffect]:
        self.connected = True
        if self._phase is Phase.REROUTING:
            return self._greet_now()
        return self._greet()

    def _greet(self) -> list[SessionEffect]:
        """Say hello as soon as it can be answered; nothing else counts before it is."""
        if self._phase in BUSY:
            self.overtaken = True
        if self._phase in BUSY or self._phase in (Phase.REROUTING, Phase.AWAY):
            return []  # the end of that phase begins with a hello
        return self._greet_now()

    def _greet_now(self) -> list[SessionEffect]:
        self._phase, self.overtaken = Phase.GREETING, False
        return self._hello()

    def _hello(self) -> list[SessionEffect]:
        """Say hello to the cloud that was heard of; where none was there is nobody to say it to.

        Without a connection it would wait in a queue with all that follow; the next one begins with a hello.
        """
        if self.cloud.incarnation is None or not self.connected:
            return []
        self.hellos += 1
        return [SayHello(self.last_sequence, self.hellos, self.cloud.incarnation)]

    def _again(self) -> list[SessionEffect]:
        self.tries += 1
        if self.cloud.ended and self.tries >= _TRIES:
            return self._over()  # of a life that began and ended while this edge was away
        if self._phase in BUSY or self._phase is Phase.AWAY or not self.connected:
            return []
        if self._phase is Phase.PUSHING and self.pending is not None:
            return [PushOutbox(self.pending)]
        return self._hello()  # it is answered with the model too

    def _reroute(self, *, returned: bool = False) -> list[SessionEffect]:
        self._phase, self.connected, self.overtaken = Phase.REROUTING, False, False
        return [Reroute(returned)]

    def _renewed(self) -> list[SessionEffect]:
        """Begin anew under another id, with what is known of the cloud."""
        self.last_sequence = self.applied = self.awaited = self.hellos = self.answered = self.tries = 0
        self.pending = self.pending_incarnation = self.incarnation = None
        self.cloud.forget_halt()
        return self._reroute()

    # -- answers --------------------------------------------------------------------------------------

    def _admitted(self, admission: Welcome) -> list[SessionEffect]:
        if self._phase not in _LISTENING or admission.number <= self.answered:
            return []  # it answers an older hello, or has come before
        self.answered, self.tries = admission.number, 0
        self.cloud.answered(admission.number)
        self.incarnation, self.applied = admission.incarnation, admission.last_sequence
        self._phase = Phase.PREPARING
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
        self.awaited = self.applied  # a cloud that was started anew knows less than the ledger
        self.pending = None
        self._phase = Phase.WAITING
        if self.leaving:
            return effects + self._gone()
        return effects + (self._greet_now() if self.overtaken else [])

    def _push(self, sequence: int) -> list[SessionEffect]:
        self._phase = Phase.PUSHING
        if self.leaving:
            return [PushOutbox(sequence), *self._gone()]
        return self._greet_now() if self.overtaken else [PushOutbox(sequence)]

    def _refused(self, refuse: Refuse) -> list[SessionEffect]:
        if refuse.nonce is None:  # it answers a gradient: the worst that it can ask for is another hello
            asked = refuse.reason != "stranger" or self._phase is Phase.GREETING
            return [] if asked else self._greet()
        if self._phase not in _LISTENING:
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
                self._phase = Phase.RENEWING
                return [RenewIdentity(refuse.last_sequence)]
            case "halted":
                return self._done(EXIT_DONE, f"the run has ended: {refuse.detail}")
            case "fleet-full":
                return self._done(EXIT_FULL, f"the fleet is full: {refuse.detail}")
            case "epsilon-floor" | "mechanism":
                return self._done(EXIT_REFUSED, f"refused, {refuse.reason}: {refuse.detail}")
            case _:
                return []  # no reason that a cloud gives: the hello is said again when its time comes

    def _model(self, received: ModelReceived) -> list[SessionEffect]:
        if self._phase not in (Phase.WAITING, Phase.PUSHING):
            return []
        if received.incarnation != self.incarnation:
            self.late += 1
            return []
        if received.acknowledged < self.awaited:
            return []  # an answer to something older; what is owed is still owed
        self.pending, self.tries = None, 0
        self._phase = Phase.MAKING
        make = MakeGradient(self.last_sequence + 1, received)
        if not self.slow:
            return [make]
        self._due, self.waits = make, self.waits + 1
        return [TakeTime(make.sequence, self.waits)]

    # -- the device -----------------------------------------------------------------------------------

    def _time_taken(self, number: int) -> list[SessionEffect]:
        """Make what was waited for, unless the run has begun anew or may have ended meanwhile: nobody would take it."""
        if number != self.waits or self._due is None:
            return []
        due, self._due = self._due, None
        if self.cloud.halt is not None or self.cloud.incarnation not in (None, self.incarnation):
            return self._gone() if self.leaving else self._greet_now()
        return [due]

    def _away(self) -> list[SessionEffect]:
        """Leave for a while; where a gradient is under way once that is pushed, so that none is made for nothing."""
        if self._phase is Phase.AWAY:
            return []
        if self._phase in BUSY or self._phase is Phase.REROUTING:
            self.leaving = True
            return []
        return self._gone()

    def _gone(self) -> list[SessionEffect]:
        """Whoever is not connected cannot say so: the broker or the cloud finds out. What is owed stays owed."""
        told = self.connected and self.hellos > 0
        self._phase, self.leaving, self.overtaken = Phase.AWAY, False, False
        return [SayLeave(AWAY)] if told else []

    def _back(self) -> list[SessionEffect]:
        """Come back as another process would, so that a late leave is known for one."""
        self.leaving = False
        return self._reroute(returned=True) if self._phase is Phase.AWAY else []

    # -- the cloud's comings and goings ---------------------------------------------------------------

    def _presence(self, presence: Presence) -> list[SessionEffect]:
        if self.cloud.see(presence):
            return self._greet()  # it is here, back, or another one: nobody there may know us
        return self._over() if self.cloud.ended_for(self.incarnation) else []

    def _halt(self, halt: Halt) -> list[SessionEffect]:
        """Believe a halt whose cloud has gone; else ask: anybody may have sent it, or it is of an earlier life."""
        asked = self.cloud.halt == halt and self._phase is Phase.GREETING
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
        when = (
            "the run has ended"
            if self.incarnation is not None
            else "the run had ended before this edge joined"
        )
        return self._done(EXIT_DONE, f"{when}: {halt.reason} after {halt.updates} updates")

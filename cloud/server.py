"""What the records are told of a stage that opens and of an edge that joins, whichever engine runs; pure."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace
from typing import assert_never

import numpy as np

from cloud.admission import FOR_GOOD, Admitted, EdgeAccount, Indices, Terms, judged
from cloud.algorithm import Algorithm, Update
from common.messages import (
    EdgeGone,
    EdgeJoined,
    Effect,
    EvaluationDue,
    Event,
    GradientApplied,
    GradientArrived,
    GradientRefused,
    Halt,
    Hello,
    Leave,
    Refuse,
    SendModel,
    StageOpened,
    Welcome,
)
from common.noise.law import NoiseLaw
from common.quantities import EdgeId, Vector, is_finite, length


def stage_opened(schedule: Algorithm, t: int, *, reopened: bool) -> StageOpened | None:
    """State the stage that opens before update t; None: the algorithm has no stages."""
    stage = schedule.opened()
    if stage is None:
        return None
    return StageOpened(
        stage=stage.index,
        t=t,
        sensitivity=stage.sensitivity,
        variance=stage.variance,
        p=stage.p,
        learning_rate=stage.learning_rate,
        length=stage.length,
        tau_max=stage.tau_max,
        reopened=reopened,
    )


def edge_joined(
    index: int, edge_id: EdgeId, t: int, law: NoiseLaw | None, *, returned: bool, device: str | None = None
) -> EdgeJoined:
    """State under which law an edge takes part from update t on."""
    parameters = {} if law is None else law.parameters
    return EdgeJoined(
        edge=index,
        edge_id=edge_id,
        t=t,
        noise="none" if law is None else law.name,
        epsilon=parameters.pop("epsilon", None),
        noise_multiplier=parameters.pop("noise_multiplier", None),
        returned=returned,
        parameters=parameters,
        device=device,
    )


class GradientFifo:
    """Gradients that arrived and wait for their update.

    It does not look for duplicates: the server refuses a sequence that was applied, and applies all that waits
    before it takes the next event.
    """

    def __init__(self, capacity: int) -> None:
        if capacity < 1:
            raise ValueError(f"capacity = {capacity}: must be at least 1")
        self.capacity = capacity
        self._waiting: deque[GradientArrived] = deque()

    def __len__(self) -> int:
        return len(self._waiting)

    def offer(self, arrived: GradientArrived) -> str | None:
        """Take a gradient; return None, or why it was refused: `full`."""
        if len(self._waiting) >= self.capacity:
            return "full"
        self._waiting.append(arrived)
        return None

    def take(self) -> GradientArrived:
        """Remove and return the gradient that came first."""
        return self._waiting.popleft()


_FLOAT32 = np.dtype(np.float32)


@dataclass(slots=True)
class CloudServer:
    """x_t, the FIFO buffer, and the stage controller."""

    terms: Terms
    model: Vector  # x_t
    begin: Callable[[float], Algorithm]  # the algorithm at t = 1, given v
    incarnation: int = 0  # of the run, from t = 1 on
    t: int = 1  # the next update
    tau_seen: int = 0  # largest staleness so far
    halted: Halt | None = None
    schedule: Algorithm | None = None  # what follows from the updates so far
    stage: int = 1  # s of the last stage opened
    moment: float = 0.0  # v, relative noise variance: never falls in a run, so ε₀ never rises
    edges: dict[EdgeId, EdgeAccount] = field(default_factory=dict)
    fifo: GradientFifo = field(init=False)
    longest: float = 0.0  # ‖x‖ of the models sent, at most
    indices: Indices = field(init=False)  # which of them an edge id holds

    def __post_init__(self) -> None:
        self.model = np.array(self.model, dtype=np.float32)
        self.fifo = GradientFifo(self.terms.fifo_capacity)
        self.indices = Indices(self.terms.edges)

    @property
    def updates(self) -> int:
        return self.t - 1

    @property
    def result(self) -> Vector:
        """The model to evaluate and keep."""
        return self.model if self.schedule is None else self.schedule.result(self.model)

    def receive(self, event: Event) -> list[Effect]:
        """Handle one event; return what must be sent and what is to be recorded, in order."""
        match event:
            case GradientArrived():
                return self._gradient(event)
            case Hello():
                return list(self._hello(event))
            case Leave():
                return list(self._leave(event))
            case _:
                assert_never(event)

    def heeds(self, event: Event) -> bool:
        """Tell whether an event will change this state: what does not need not be remembered."""
        match event:
            case GradientArrived():
                return self.is_new(event) or self._is_repeat(event)
            case Hello():
                return isinstance(judged(self, event), Admitted)
            case Leave():
                return self._leaving(event) is not None
            case _:
                assert_never(event)

    def is_new(self, arrived: GradientArrived) -> bool:
        """Tell whether a gradient's sequence will be used up, by its update or by a refusal for good."""
        account = self.edges.get(arrived.edge_id)
        return (
            account is not None
            and self.halted is None
            and arrived.incarnation == self.incarnation
            and account.last_sequence < arrived.sequence <= max(account.last_sequence, account.announced) + 1
        )

    def _is_repeat(self, arrived: GradientArrived) -> bool:
        """Tell whether a gradient that is not new will all the same be answered by a model, or bring its edge back."""
        account = self.edges.get(arrived.edge_id)
        if account is None or self.halted is not None or arrived.incarnation != self.incarnation:
            return False
        if not account.present and not account.left:
            return True
        schedule = self.schedule
        if arrived.sequence > account.last_sequence or schedule is None:
            return False
        sensitivity = schedule.sensitivity_for(self.t, account.index, account.law)
        return not account.openings.newest(self.t, self.stage, sensitivity)

    def halt(self, reason: str) -> list[Effect]:
        """End the training early; what waits in the buffer is not applied."""
        return [self._ended(reason)]

    def _ended(self, reason: str) -> Halt:
        if self.halted is None:
            self.halted = Halt(reason, self.updates, self.incarnation)
        return self.halted

    def spent(self) -> str:
        """Tell whether an edge has spent its budget and no edge is present to train: '' where one is.

        `gone`: every known edge has left for good. `away`: some are lost or silent and may come back.
        """
        edges = self.edges.values()
        begun = self.schedule is not None and self.halted is None
        if not begun or any(e.present for e in edges) or not any(e.left == "budget" for e in edges):
            return ""
        return "gone" if all(e.left in FOR_GOOD for e in edges) else "away"

    @property
    def spent_reason(self) -> str:
        """Why a run ends whose budgets are spent: as planned, where each edge has a pace of its own, or too early."""
        edges = self.edges.values()
        planned = bool(self.terms.caps) and len(edges) >= self.terms.edges
        return "finished" if planned and all(e.left == "budget" for e in edges) else "no-budget"

    @property
    def ready(self) -> int:
        """How many edges are here and can train."""
        return sum(edge.present and not edge.preparing for edge in self.edges.values())

    def begin_with_those_here(self) -> list[Effect]:
        """Start with the edges present; does nothing where the training runs or no edge is present."""
        if self.schedule is not None or self.halted is not None or not self.edges:
            return []
        self.terms = replace(self.terms, edges_at_least=len(self.edges))
        return list(self._first_stage())

    def take_accounts(self, accounts: Iterable[EdgeAccount]) -> None:
        """Take the edges of a state that is restored, in their order."""
        self.edges = {account.edge_id: account for account in accounts}
        self.indices = Indices(self.terms.edges, {account.index for account in self.edges.values()})

    # -- hello and leave ------------------------------------------------------------------------------

    def _hello(self, hello: Hello) -> Iterator[Effect]:
        """Answer a hello; one that is late or comes twice has no effect at all."""
        verdict = judged(self, hello)
        if not isinstance(verdict, Admitted):
            if verdict is not None:
                yield verdict
            return
        index, law, moment = verdict.index, verdict.law, verdict.moment
        account = self.edges.get(hello.edge_id)
        returned = account is not None
        if verdict.instead_of is not None:
            del self.edges[verdict.instead_of]
        if account is None:
            account = self.edges[hello.edge_id] = EdgeAccount(
                hello.edge_id, index, earlier=hello.last_sequence
            )
        # an edge that waits says hello again and again: that is no news
        news = not (returned and account.present and account.law == law and account.index == index)
        self.indices.exchange(account.index, index)
        account.index = index
        account.moment, account.law, account.reach = moment, law, self.terms.reach(law)
        account.spoken_for_by(hello)
        yield Welcome(hello.edge_id, account.index, min(account.last_sequence, hello.last_sequence))
        if news:
            device = self.terms.device(account.index)
            yield edge_joined(account.index, account.edge_id, self.t, law, returned=returned, device=device)
        yield from self._admit(account)

    def _admit(self, account: EdgeAccount) -> Iterator[Effect]:
        """Begin or continue the schedule and send the model to the edges that wait for it."""
        larger = account.moment > self.moment
        self.moment = max(self.moment, account.moment)
        if self.schedule is not None:
            if larger:
                account.reopenings += 1
                self.schedule = self.schedule.with_moment(self.moment, self.t)
                yield from self._stage_opened(reopened=True)
            yield self._send(account)
        elif self._enough():
            yield from self._first_stage()

    def _enough(self) -> bool:
        """Return whether the edges that the first stage waits for are here and can train."""
        least = self.terms.edges_at_least
        if len(self.edges) < least:  # so that K hellos do not count K edges each
            return False
        return self.ready >= least

    def _first_stage(self) -> Iterator[Effect]:
        self.schedule = self.begin(self.moment)
        yield from self._stage_opened(reopened=False)
        if self.terms.evaluate_every:
            yield EvaluationDue(0, self.stage, self.result)
        for waiting in self.edges.values():
            yield self._send(waiting)
        yield from self._drain()

    def _leave(self, leave: Leave) -> Iterator[Effect]:
        """Handle a leave or a last will; one from a process that was replaced, or has left before, is ignored."""
        account = self._leaving(leave)
        if account is None:
            return
        account.present = False
        account.left = leave.reason if leave.on_purpose else ""
        yield EdgeGone(account.index, account.edge_id, self.t, leave.reason)
        if len(self.edges) >= self.terms.edges and self.spent() == "gone":  # and nobody else can come
            yield from self.halt(self.spent_reason)

    def _leaving(self, leave: Leave) -> EdgeAccount | None:
        """Return the account of an edge that goes by this leave; None: it goes by none, or has gone."""
        account = self.edges.get(leave.edge_id)
        if account is None or account.nonce != leave.nonce or account.left:
            return None
        # gone already; but a silent edge may still say that it goes
        return account if account.present or leave.on_purpose else None

    # -- gradients ------------------------------------------------------------------------------------

    def _gradient(self, arrived: GradientArrived) -> list[Effect]:
        account = self.edges.get(arrived.edge_id)
        refusal = self._refusal(arrived, account)
        if refusal is None:
            return self._drain() if self.schedule is not None else []
        effects: list[Effect] = [GradientRefused(arrived.edge_id, arrived.sequence, self.t, refusal)]
        if self.halted is not None:
            effects.append(self.halted)
        elif account is None or refusal in ("incarnation", "sequence"):
            effects.append(self._turn_away(arrived, "stranger", "send a hello first"))
        elif refusal == "full":
            effects.append(self._turn_away(arrived, "full", "the gradient buffer is full; send again"))
        elif self.schedule is not None:
            effects.append(self._send(account))
        return effects

    def _turn_away(self, arrived: GradientArrived, reason: str, detail: str) -> Refuse:
        return Refuse(arrived.edge_id, reason, detail, incarnation=self.incarnation)

    def _refusal(self, arrived: GradientArrived, account: EdgeAccount | None) -> str | None:
        """Put the gradient into the buffer, or say why not."""
        if self.halted is not None:
            return "after-halt"
        if account is None:
            return "stranger"
        if arrived.incarnation != self.incarnation:
            return "incarnation"
        account.present = not account.left  # what was under way when its process left brings nobody back
        if arrived.sequence <= account.last_sequence:
            return "duplicate"
        if arrived.sequence > max(account.last_sequence, account.announced) + 1:
            return "sequence"  # neither applied nor used up, so nobody can lock an edge out by it
        impossible = self._impossible(arrived, account)
        if impossible is not None:
            account.last_sequence = arrived.sequence  # used up: the edge goes on with the next
            return impossible
        return self.fifo.offer(arrived)

    def _impossible(self, arrived: GradientArrived, account: EdgeAccount) -> str | None:
        """Say why no honest edge can have made this gradient; None: one can."""
        version, sensitivity = arrived.version, arrived.sensitivity
        if arrived.sequence > self.terms.cap(account.index):
            return "cap"
        if version > self.t:
            return "future"
        if self.schedule is None or version < 1:
            return "no-such-model"
        if account.openings.stage_of(version, sensitivity) is None:
            return "sensitivity"
        if account.reach < math.inf:
            regular = self.terms.regular_part(account.law, sensitivity, self.longest)
            honest = account.reach * sensitivity + regular
            norm = length(arrived.gradient) if arrived.norm is None else arrived.norm
            if not norm <= honest:  # NaN fails too
                return "norm"
        return None

    def _drain(self) -> list[Effect]:
        effects: list[Effect] = []
        while self.fifo and self.halted is None:
            self._apply(self.fifo.take(), effects)
        return effects

    def _apply(self, arrived: GradientArrived, effects: list[Effect]) -> None:
        """Lines 11-16: let the algorithm change x, then answer that edge alone."""
        schedule, t = self.schedule, self.t
        assert schedule is not None
        account = self.edges[arrived.edge_id]
        staleness = t - arrived.version
        stage = account.openings.stage_of(arrived.version, arrived.sensitivity)
        assert stage is not None  # else it was refused
        update = Update(
            arrived.gradient,
            t,
            arrived.version,
            staleness,
            account.index,
            account.law,
            account.moment,
            stage,
            arrived.sensitivity,
        )
        x, following = schedule.apply(self.model, update)
        self.model = x if x.dtype == _FLOAT32 else x.astype(np.float32)
        self.schedule = following
        if staleness > self.tau_seen:
            self.tau_seen = staleness
        # what waited for the first stage may be out of order; the mark must never go back
        if arrived.sequence > account.last_sequence:
            account.last_sequence = arrived.sequence
        account.applied += 1
        self.t = t + 1
        effects.append(
            GradientApplied(
                account.index,
                arrived.edge_id,
                arrived.sequence,
                arrived.version,
                t,
                staleness,
                stage,
                arrived.sensitivity,
            )
        )
        if self.terms.evaluate_every and t % self.terms.evaluate_every == 0:
            effects.append(EvaluationDue(t, self.stage, following.result(self.model)))
        if t >= self.terms.iterations:
            # the last model is sent to nobody, so nobody else would notice
            effects += self.halt("finished" if is_finite(self.model) else "diverged")
            return
        if following is not schedule:
            self.stage = following.stage
            if following.opened() is not schedule.opened():
                effects += self._stage_opened(reopened=False)
        effects.append(self._send(account))

    def _send(self, account: EdgeAccount) -> SendModel | Halt:
        """Send x_t, or end the run where it is not finite: no edge would take such a model."""
        schedule = self.schedule
        assert schedule is not None
        norm = length(self.model)  # serves both questions: a second dot product costs 3 % of an update
        if not norm < math.inf:  # NaN fails too
            return self._ended("diverged")
        if norm > self.longest:
            self.longest = norm
        sensitivity = schedule.sensitivity_for(self.t, account.index, account.law)
        account.openings.sent(self.t, self.stage, sensitivity)
        return SendModel(
            account.edge_id,
            self.t,
            sensitivity,
            account.last_sequence,
            self.model,
            self.incarnation,
        )

    def _stage_opened(self, *, reopened: bool) -> Iterator[StageOpened]:
        schedule = self.schedule
        assert schedule is not None
        self.stage = schedule.stage
        fact = stage_opened(schedule, self.t, reopened=reopened)
        if fact is not None:
            yield fact

"""The cloud side of algorithm:MAPA: events in, effects out, nothing performed.

An event is judged first, which changes nothing, then committed; the shell writes its log between the two. The paper's
FIFO buffer is the connection: each gradient is applied before the next message is read.
Every update makes a new x (in the memory of its step), so a model that was handed out never changes.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple, assert_never

import numpy as np

from cloud.admission import BANS, FOR_GOOD, Admitted, EdgeAccount, Restarts, ShardIndices, Terms, judge_hello
from cloud.algorithm import Algorithm, Update
from cloud.sums import within
from common import messages
from common.messages import (
    Effect,
    Event,
    GradientApplied,
    GradientArrived,
    GradientRefused,
    Halt,
    Hello,
    Leave,
    SendModel,
    quick,
)
from common.noise.law import NoiseLaw
from common.quantities import EdgeId, Vector, is_finite, length

_FLOAT32 = np.dtype(np.float32)


def stage_opened(schedule: Algorithm, t: int, *, reopened: bool) -> messages.StageOpened | None:
    """Return the record of the stage that opens before update t; None: the algorithm has no stages."""
    stage = schedule.opened()
    if stage is None:
        return None
    return messages.StageOpened(
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
) -> messages.EdgeJoined:
    """Return the record of an edge that takes part from update t on."""
    parameters = {} if law is None else law.parameters
    return messages.EdgeJoined(
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


class JudgedGradient(NamedTuple):
    """What becomes of a gradient. A tuple: one is made for every update."""

    arrived: GradientArrived
    account: EdgeAccount | None  # None: no edge said hello under this id
    refusal: str | None  # None: it will be applied
    stage: int | None = None  # that it was made in, where it will be applied
    is_new: bool = False  # its sequence will be used up, by its update or by a refusal for good
    changes: bool = False  # it changes the state, so the log must have it


class JudgedHello(NamedTuple):
    """What a hello is answered with; None: with nothing, since it is late or comes twice."""

    hello: Hello
    answer: Admitted | messages.Refuse | None

    @property
    def changes(self) -> bool:
        return isinstance(self.answer, Admitted)


class JudgedLeave(NamedTuple):
    """Which edge goes by a leave; None: it goes by none, or has gone."""

    leave: Leave
    account: EdgeAccount | None

    @property
    def changes(self) -> bool:
        return self.account is not None


Judged = JudgedGradient | JudgedHello | JudgedLeave


@dataclass(slots=True)
class CloudServer:
    """x_t, the accounts of the edges, and the stage controller."""

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
    restarts: Restarts = field(default_factory=Restarts)  # of the processes behind edge ids
    longest: float = 0.0  # ‖x‖ of the models sent, at most
    indices: ShardIndices = field(init=False)  # which of them an edge id holds

    def __post_init__(self) -> None:
        self.model = np.array(self.model, dtype=np.float32)
        self.indices = ShardIndices(self.terms.edges)

    @property
    def updates(self) -> int:
        return self.t - 1

    @property
    def result(self) -> Vector:
        """The model to evaluate and keep."""
        return self.model if self.schedule is None else self.schedule.result(self.model)

    def receive(self, event: Event) -> list[Effect]:
        """Handle one event; return what must be sent and what is to be recorded, in order."""
        return self.commit(self.judge(event))

    def judge(self, event: Event) -> Judged:
        """Return what will become of an event; changes nothing."""
        match event:
            case GradientArrived():
                return self.judge_gradient(event)
            case Hello():
                return JudgedHello(event, judge_hello(self, event))
            case Leave():
                return JudgedLeave(event, self._leaving(event))
            case _:
                assert_never(event)

    def commit(self, judged: Judged) -> list[Effect]:
        """Perform what was judged in this very state; return the effects, in order."""
        match judged:
            case JudgedGradient():
                return self._gradient(judged)
            case JudgedHello():
                return list(self._hello(judged))
            case JudgedLeave():
                return list(self._leave(judged))
            case _:
                assert_never(judged)

    def halt(self, reason: str) -> list[Effect]:
        """End the training early."""
        return [self._ended(reason)]

    def _ended(self, reason: str) -> Halt:
        if self.halted is None:
            self.halted = Halt(reason, self.updates, self.incarnation)
        return self.halted

    def spent(self) -> str:
        """Return '' while the run can go on, else which edges a run waits for where some budget is spent.

        `gone`: none, every known edge has left for good. `away`: some are lost or silent and may come back.
        """
        edges = self.edges.values()
        training = self.schedule is not None and self.halted is None
        if not training or any(e.present for e in edges) or not any(e.left == "budget" for e in edges):
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
        """Start with the edges that have joined; does nothing where the training runs or there is none."""
        if self.schedule is not None or self.halted is not None or not self.edges:
            return []
        self.terms = replace(self.terms, edges_at_least=len(self.edges))
        return list(self._first_stage())

    def take_accounts(self, accounts: Iterable[EdgeAccount]) -> None:
        """Take the edges of a restored state, in their order."""
        self.edges = {account.edge_id: account for account in accounts}
        self.indices = ShardIndices(self.terms.edges, {account.index for account in self.edges.values()})

    # -- hello and leave ------------------------------------------------------------------------------

    def _hello(self, judged: JudgedHello) -> Iterator[Effect]:
        hello, verdict = judged
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
        # an edge that waits repeats its hello: that is no news
        news = not (returned and account.present and account.law == law and account.index == index)
        self.indices.exchange(account.index, index)
        account.index = index
        account.moment, account.law, account.reach = moment, law, self.terms.reach(law)
        account.spoken_for_by(hello)
        self.restarts.welcomed(hello)
        yield messages.Welcome(
            edge_id=hello.edge_id,
            index=account.index,
            edges=self.terms.edges,
            last_sequence=min(account.last_sequence, hello.last_sequence),
            incarnation=self.incarnation,
            nonce=hello.nonce,
            number=hello.number,
            coding=hello.coding,
        )
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
            yield self.send(account)
        elif self._enough():
            yield from self._first_stage()

    def _enough(self) -> bool:
        """Return whether the edges that the first stage waits for are here and can train."""
        least = self.terms.edges_at_least
        return len(self.edges) >= least and self.ready >= least  # the quick question first

    def _first_stage(self) -> Iterator[Effect]:
        self.schedule = self.begin(self.moment)
        yield from self._stage_opened(reopened=False)
        if self.terms.evaluate_every:
            yield messages.EvaluationDue(0, self.stage, self.result)
        for waiting in self.edges.values():
            yield self.send(waiting)

    def _leave(self, judged: JudgedLeave) -> Iterator[Effect]:
        leave, account = judged
        if account is None:
            return
        account.present = False
        account.left = leave.reason if leave.on_purpose else ""
        yield messages.EdgeGone(account.index, account.edge_id, self.t, leave.reason)
        if len(self.edges) >= self.terms.edges and self.spent() == "gone":
            yield from self.halt(self.spent_reason)

    def _leaving(self, leave: Leave) -> EdgeAccount | None:
        """Return the account of an edge that goes by this leave; None: it goes by none, or has gone."""
        account = self.edges.get(leave.edge_id)
        if account is None or account.nonce != leave.nonce or account.left:
            return None
        # a silent edge may still say that it goes
        return account if account.present or leave.on_purpose else None

    # -- gradients ------------------------------------------------------------------------------------

    def judge_gradient(self, arrived: GradientArrived) -> JudgedGradient:
        """Return whether a gradient will be applied, and whether the log must have it."""
        edge_id, sequence, version, sensitivity, gradient, incarnation, norm = arrived  # quicker than by name
        account = self.edges.get(edge_id)
        if self.halted is not None:
            return JudgedGradient(arrived, account, "after-halt")
        if account is None:
            return JudgedGradient(arrived, None, "stranger")
        if incarnation != self.incarnation:
            return JudgedGradient(arrived, account, "incarnation")
        if account.left in BANS:
            return JudgedGradient(arrived, account, "banned")
        last = account.last_sequence
        if sequence <= last or sequence > max(last, account.announced) + 1:
            returns = not account.present and not account.left
            if sequence <= last:
                return JudgedGradient(
                    arrived, account, "duplicate", changes=returns or self._has_news_for(account)
                )
            # neither applied nor used up: a forged sequence must not lock an edge out
            return JudgedGradient(arrived, account, "sequence", changes=returns)
        # the next one is applied unless no honest edge can have made it
        refusal, stage, terms = None, None, self.terms
        if terms.caps and sequence > terms.cap(account.index):
            refusal = "cap"
        elif version > self.t:
            refusal = "future"
        elif self.schedule is None or version < 1:
            refusal = "no-such-model"
        elif (stage := account.sent_models.stage_of(version, sensitivity)) is None:
            refusal = "sensitivity"
        elif account.reach < math.inf and self.is_too_long(
            account, length(gradient) if norm is None else norm, sensitivity
        ):
            refusal = "norm"
        return quick(JudgedGradient, (arrived, account, refusal, stage, True, True))

    def _has_news_for(self, account: EdgeAccount) -> bool:
        """Return whether the model that a repeated gradient is answered with is another than was sent last."""
        if self.schedule is None:
            return False
        sensitivity = self.schedule.sensitivity_for(self.t, account.index, account.law)
        return not account.sent_models.newest(self.t, self.stage, sensitivity)

    def _gradient(self, judged: JudgedGradient) -> list[Effect]:
        arrived, account, refusal, stage, is_new, _ = judged
        if account is not None and self.halted is None and refusal != "incarnation":
            account.present = not account.left  # what was under way when its process left brings no edge back
            if stage is not None and refusal is None:
                return self._apply(arrived, account, stage)
            if is_new:
                account.last_sequence = arrived.sequence  # used up: the edge goes on with the next
        effects: list[Effect] = [GradientRefused(arrived.edge_id, arrived.sequence, self.t, refusal or "")]
        if self.halted is not None:
            effects.append(self.halted)
        elif account is None or refusal in ("incarnation", "banned", "sequence"):
            effects.append(
                messages.Refuse(
                    arrived.edge_id, "stranger", "send a hello first", incarnation=self.incarnation
                )
            )
        elif self.schedule is not None:
            effects.append(self.send(account))
        return effects

    def is_too_long(self, account: EdgeAccount, norm: float, sensitivity: float) -> bool:
        """Return whether no honest edge's gradient has this norm; NaN is none's."""
        longest = account.reach * sensitivity
        if self.terms.regularization:
            longest += self.terms.regular_part(account.law, sensitivity, self.longest)
        return not norm <= longest

    def _apply(self, arrived: GradientArrived, account: EdgeAccount, stage: int) -> list[Effect]:
        """Lines 11-16: let the algorithm change x, then answer that edge alone."""
        former, t = self.schedule, self.t
        assert former is not None
        edge_id, sequence, version, sensitivity, gradient, _, _ = arrived
        fact = self.change(account, edge_id, sequence, version, sensitivity, gradient, stage)
        return [fact, *self.followed(account, t, former)]

    def change(
        self,
        account: EdgeAccount,
        edge_id: EdgeId,
        sequence: int,
        version: int,
        sensitivity: float,
        gradient: Vector,
        stage: int,
    ) -> GradientApplied:
        """Let the algorithm change x by a gradient that was judged; return what is recorded of it."""
        schedule, t, edge = self.schedule, self.t, account.index
        assert schedule is not None
        staleness, law, moment = t - version, account.law, account.moment
        x, self.schedule = schedule.apply(
            self.model,
            quick(Update, (gradient, t, version, staleness, edge, law, moment, stage, sensitivity)),
        )
        self.model = x if x.dtype == _FLOAT32 else x.astype(np.float32)
        if staleness > self.tau_seen:
            self.tau_seen = staleness
        account.last_sequence = sequence
        account.applied += 1
        self.t = t + 1
        return quick(GradientApplied, (edge, edge_id, sequence, version, t, staleness, stage, sensitivity))

    def open_sum(self, mean: Vector, releases: Sequence[tuple[int, int]]) -> None:
        """Move x by the mean of releases that came masked; each is an edge's index and the version that it read.

        λx is of the present x: which models they read is in no sum.
        """
        schedule = self.schedule
        assert schedule is not None
        if self.terms.regularization:
            mean = mean + np.float32(self.terms.regularization) * self.model
        x, self.schedule = within(
            schedule, lambda sums: sums.moved_by(self.model, mean, releases, self.updates)
        )
        self.model = x if x.dtype == _FLOAT32 else x.astype(np.float32)

    def drop_releases(self, releases: Sequence[tuple[int, int]]) -> None:
        """Forget releases that are in no sum."""
        if self.schedule is not None:
            _, self.schedule = within(self.schedule, lambda sums: (self.model, sums.dropped(releases)))

    def followed(self, account: EdgeAccount, t: int, former: Algorithm) -> list[Effect]:
        """Return what follows from update t beside its record: an evaluation, the end, a stage, the next model."""
        terms, following = self.terms, self.schedule
        assert following is not None
        effects: list[Effect] = []
        if terms.evaluate_every and t % terms.evaluate_every == 0:
            effects.append(messages.EvaluationDue(t, self.stage, following.result(self.model)))
        if t >= terms.iterations:
            # the last model is never sent, so no edge would notice that it is not finite
            effects += self.halt("finished" if is_finite(self.model) else "diverged")
            return effects
        if following is not former:
            self.stage = following.stage
            if following.opened() is not former.opened():
                effects += self._stage_opened(reopened=False)
        effects.append(self.send(account))
        return effects

    def send(self, account: EdgeAccount) -> SendModel | Halt:
        """Send x_t, or end the run where it is not finite: no edge would take such a model."""
        schedule = self.schedule
        assert schedule is not None
        norm = length(self.model)
        if not norm < math.inf:  # NaN fails too
            return self._ended("diverged")
        if norm > self.longest:
            self.longest = norm
        t, model = self.t, self.model
        sensitivity = schedule.sensitivity_for(t, account.index, account.law)
        account.sent_models.sent(t, self.stage, sensitivity)
        last = account.last_sequence
        return quick(SendModel, (account.edge_id, t, sensitivity, last, model, self.incarnation, norm))

    def _stage_opened(self, *, reopened: bool) -> Iterator[messages.StageOpened]:
        schedule = self.schedule
        assert schedule is not None
        self.stage = schedule.stage
        fact = stage_opened(schedule, self.t, reopened=reopened)
        if fact is not None:
            yield fact

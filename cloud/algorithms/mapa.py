"""MAPA: stages, each with its own clipping bound and rate."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar, Self

from cloud.algorithm import StepSchedule, option
from cloud.stages import Stage, first_stage, next_stage, reopen_stage
from common.mechanism.guarantee import LEAST_BOUND
from common.problem import Problem


@dataclass(frozen=True, slots=True)
class Mapa(StepSchedule):
    """Stages of T_s updates; the clipping bound shrinks from one to the next (algorithm:MAPA)."""

    private: ClassVar[bool] = True

    tau_quantile: float = option(
        "with tau_max_from = 'measured': this quantile of recent staleness is τ_max (D-16)",
        0.99,
        above=0,
        at_most=1,
        only=("tau_max_from", "measured"),
    )
    tau_window: int = option(
        "how many of the last updates are recent",
        1000,
        at_least=1,
        at_most=100_000,
        only=("tau_max_from", "measured"),
    )

    problem: Problem | None = None
    moment: float = 0.0  # v
    current: Stage | None = None
    start: int = 1  # the update at which t_s = 1
    seen: tuple[int, ...] = ()  # staleness of recent updates, where it is measured

    def begin(self, problem: Problem, moment: float) -> Self:
        return replace(
            self, problem=problem, moment=moment, current=first_stage(moment, problem, problem.tau_max)
        )

    @property
    def _state(self) -> tuple[Problem, Stage]:
        assert self.problem is not None
        assert self.current is not None
        return self.problem, self.current

    @property
    def stage(self) -> int:
        return 1 if self.current is None else self.current.index

    @property
    def sensitivity(self) -> float:
        return 0.0 if self.current is None else self.current.sensitivity

    def learning_rate(self, t: int) -> float:  # noqa: ARG002 - constant within a stage
        assert self.current is not None
        return self.current.learning_rate

    def after(self, t: int, staleness: int) -> Self:
        assert self.problem is not None
        assert self.current is not None
        observed = self
        if self.problem.measure_tau:
            observed = replace(self, seen=(*self.seen, staleness)[-self.tau_window :])
        if t - self.start + 1 < self.current.length:
            return observed
        return observed._next_stage(t)

    def _next_stage(self, t: int) -> Self:
        problem, current = self._state
        following = next_stage(current, self.moment, problem, self.tau_max)
        if following.clip < LEAST_BOUND:  # no edge would work with it, so this stage is the last (D-22)
            return self
        return replace(self, current=following, start=t + 1)

    @property
    def tau_max(self) -> int:
        """τ_max of the next stage: as configured, or the quantile of recent staleness where that is more."""
        problem, _ = self._state
        if not self.seen:
            return problem.tau_max
        place = int(self.tau_quantile * (len(self.seen) - 1))  # so that one straggler never counts alone
        return max(problem.tau_max, sorted(self.seen)[place])

    def with_moment(self, moment: float, t: int) -> Self:
        problem, current = self._state
        stage = reopen_stage(current, moment, problem, current.tau_max)
        return replace(self, moment=moment, current=stage, start=t)

    def opened(self) -> Stage | None:
        return self.current


ALGORITHM = Mapa

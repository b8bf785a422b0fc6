"""AUDP: one clipping bound for the whole run, and a rate that falls like 1/√t."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import ClassVar, Self

from cloud.algorithm import StepSchedule
from cloud.stages import initial_sensitivity, noise_variance
from common.errors import ConfigurationError
from common.problem import Problem


@dataclass(frozen=True, slots=True)
class Audp(StepSchedule):
    """One clipping bound; γ_t⁻¹ = L(τ_max+1) + √(Δ_b+1)·√t (eq:convex_errorbound_varingrate)."""

    private: ClassVar[bool] = True

    problem: Problem | None = None
    bound: float = 0.0  # ΔS
    variance: float = 0.0  # Δ_b

    def begin(self, problem: Problem, moment: float) -> Self:
        begun = replace(self, problem=problem, bound=initial_sensitivity(problem))
        return begun.with_moment(moment, 1)

    @property
    def sensitivity(self) -> float:
        return self.bound

    def learning_rate(self, t: int) -> float:
        assert self.problem is not None
        steady = self.problem.smoothness * (self.problem.tau_max + 1)
        return 1 / (steady + math.sqrt(self.variance + 1) * math.sqrt(t))

    def with_moment(self, moment: float, t: int) -> Self:  # noqa: ARG002
        assert self.problem is not None
        variance = noise_variance(self.bound, moment, self.problem)
        if not variance < math.inf:  # γ would be 0 for ever
            raise ConfigurationError(
                f"Δ_b = {variance} with v = {moment} leaves float64: less noise is needed"
            )
        return replace(self, variance=variance)


ALGORITHM = Audp

"""ASGD: asynchronous SGD without privacy."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import ClassVar, Self

from cloud.algorithm import StepSchedule
from common.problem import Problem


@dataclass(frozen=True, slots=True)
class Asgd(StepSchedule):
    """Asynchronous SGD, neither clipped nor noised: γ_t⁻¹ = L(τ_max+1)² + √(t+1)·σ/(R√b)."""

    private: ClassVar[bool] = False

    steady: float = 0.0  # L(τ_max+1)²
    growth: float = 0.0  # σ/(R√b)

    def begin(self, problem: Problem, moment: float) -> Self:  # noqa: ARG002 - no noise, no v
        growth = problem.sigma / (problem.radius * math.sqrt(problem.batch_size))
        return replace(self, steady=problem.smoothness * (problem.tau_max + 1) ** 2, growth=growth)

    def learning_rate(self, t: int) -> float:
        return 1 / (self.steady + math.sqrt(t + 1) * self.growth)


ALGORITHM = Asgd

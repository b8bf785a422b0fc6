"""Delay-adaptive ASGD: the rate of each gradient by its own staleness."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Self

from cloud.algorithm import FixedBound, Update, descend, option
from common.problem import Problem
from common.quantities import Vector


@dataclass(frozen=True, slots=True, eq=False)
class DelayAdaptive(FixedBound):
    """ASGD with γ_t = ρ/C · min(1, τ_C/τ_t), or 0 beyond τ_C: late gradients cannot throw x off.

    τ_C is the concurrency, the number of gradients under way at a time.
    """

    concurrency: int = option(
        "τ_C; 0: algorithm.tau_max, which is the number of edges unless given",
        0,
        at_least=0,
        at_most=10_000_000,
    )
    late: str = option("what becomes of τ > τ_C: rate ρ/C·τ_C/τ, or none", "scale", choices=("scale", "drop"))

    threshold: int = 1  # τ_C in force

    def begin(self, problem: Problem, moment: float) -> Self:
        threshold = max(1, self.concurrency or problem.tau_max)
        return replace(FixedBound.begin(self, problem, moment), threshold=threshold)

    def apply(self, x: Vector, update: Update) -> tuple[Vector, Self]:
        if update.staleness <= self.threshold:
            return descend(x, update.gradient, self.gamma), self
        if self.late == "drop":
            return x, self
        return descend(x, update.gradient, self.gamma * (self.threshold / update.staleness)), self


ALGORITHM = DelayAdaptive

"""Staleness-weighted steps, after FedAsync: an algorithm of one's own in one file."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar, Self

from cloud.algorithm import Algorithm, Update, descend, option
from cloud.stages import initial_sensitivity
from common.problem import Problem
from common.quantities import Vector


@dataclass(frozen=True, slots=True)
class FedAsync(Algorithm):
    """A step of ρ/C · (1 + τ)^−a for a gradient that is τ updates stale."""

    private: ClassVar[bool] = True
    needs_constants: ClassVar[bool] = False
    requires: ClassVar[tuple[str, ...]] = ("first_clip",)

    rate: float = option("ρ", above=0)
    power: float = option("a of the weight", 0.5, at_least=0)
    bound: float = 0.0  # state: ΔS
    step: float = 0.0  # state: ρ/C

    def begin(self, problem: Problem, moment: float) -> Self:  # noqa: ARG002
        bound = initial_sensitivity(problem)
        return replace(self, bound=bound, step=2 * self.rate / (bound * problem.batch_size))

    @property
    def sensitivity(self) -> float:
        return self.bound

    def apply(self, x: Vector, update: Update) -> tuple[Vector, Self]:
        return descend(x, update.gradient, self.step * (1 + update.staleness) ** -self.power), self

"""A buffer of gradients, after FedBuff: an algorithm of one's own in one file."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar, Self

from cloud.algorithm import Algorithm, Update, descend, option
from cloud.stages import initial_sensitivity
from common.problem import Problem
from common.quantities import Vector


@dataclass(frozen=True, slots=True, eq=False)
class FedBuff(Algorithm):
    """x stays until m gradients have come, then moves by their mean."""

    private: ClassVar[bool] = True
    needs_constants: ClassVar[bool] = False

    rate: float = option("γ", above=0)
    size: int = option("m, gradients in the buffer", 4, at_least=1, at_most=10_000)
    bound: float = 0.0  # state: ΔS
    held: int = 0  # state: gradients in the buffer
    total: Vector | None = None  # state: their sum, in the order in which they came

    def begin(self, problem: Problem, moment: float) -> Self:  # noqa: ARG002
        return replace(self, bound=initial_sensitivity(problem))

    @property
    def sensitivity(self) -> float:
        return self.bound

    def apply(self, x: Vector, update: Update) -> tuple[Vector, Self]:
        total = update.gradient if self.total is None else self.total + update.gradient
        if self.held + 1 < self.size:
            return x, replace(self, held=self.held + 1, total=total)
        return descend(x, total, self.rate / self.size), replace(self, held=0, total=None)

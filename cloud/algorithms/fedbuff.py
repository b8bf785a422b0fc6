"""FedBuff: x moves once m gradients have come."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import ClassVar, Self

import numpy as np

from cloud.algorithm import FixedBound, Update, descend, option
from common.errors import ConfigurationError
from common.problem import Problem
from common.quantities import Vector


@dataclass(frozen=True, slots=True, eq=False)
class FedBuff(FixedBound):
    """x stays until a buffer holds m gradients, then moves by ρ/C times their mean.

    As published, staleness counts moves of x, not gradients: a gradient made in this very round of m has τ = 0.
    """

    takes_sums: ClassVar[bool] = True

    buffer: int = option("m, gradients in the buffer", 10, at_least=1, at_most=100_000)
    staleness_scaling: bool = option("scale each gradient by 1/√(1+τ)", default=False)

    held: int = 0  # gradients in the buffer
    total: Vector | None = None  # their sum, in the order in which they came

    def begin(self, problem: Problem, moment: float) -> Self:
        if self.buffer > problem.iterations:
            raise ConfigurationError(
                f"algorithm.buffer = {self.buffer}: must be at most {problem.iterations}, the updates of this run"
                " (iterations, or the sum of privacy.release_caps), or x would never move"
            )
        return FixedBound.begin(self, problem, moment)

    def apply(self, x: Vector, update: Update) -> tuple[Vector, Self]:
        scaled = update.gradient
        if self.staleness_scaling:
            scaled = np.multiply(scaled, 1 / math.sqrt(1 + self.moves_since(update)), dtype=np.float32)
        total = scaled if self.total is None else self.total + scaled
        if self.held + 1 < self.buffer:
            return x, replace(self, held=self.held + 1, total=total)
        return descend(x, total, self.gamma / self.buffer), replace(self, held=0, total=None)

    def moves_since(self, update: Update) -> int:
        """Return how often x moved since the model that the gradient was made on."""
        return (update.t - 1) // self.buffer - (update.version - 1) // self.buffer


ALGORITHM = FedBuff

"""The mean of all iterates as the result of a run: state that edges never see."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar, Self

import numpy as np

from cloud.algorithm import Algorithm, Update, descend, option
from common.quantities import Vector


@dataclass(frozen=True, slots=True, eq=False)
class Averaged(Algorithm):
    """Plain steps; what is evaluated and kept is the mean of all models so far."""

    private: ClassVar[bool] = False
    needs_constants: ClassVar[bool] = False

    rate: float = option("γ", 0.1, above=0)
    count: int = 0
    mean: Vector | None = None

    def apply(self, x: Vector, update: Update) -> tuple[Vector, Self]:
        moved = descend(x, update.gradient, self.rate)
        mean = moved if self.mean is None else self.mean + (moved - self.mean) / np.float32(self.count + 1)
        return moved, replace(self, count=self.count + 1, mean=mean)

    def result(self, x: Vector) -> Vector:
        return x if self.mean is None else self.mean

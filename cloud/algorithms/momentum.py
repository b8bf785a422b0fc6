"""Momentum at the cloud."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar, Self

import numpy as np

from cloud.algorithm import FixedBound, Update, descend, option
from common.quantities import Vector


@dataclass(frozen=True, slots=True, eq=False)
class Momentum(FixedBound):
    """u ← βu + (1 − β)g̃, x ← x − ρ/C·u: each gradient counts as with `constant`, spread over many updates."""

    takes_sums: ClassVar[bool] = True

    beta: float = option("β", 0.9, at_least=0, below=1)

    u: Vector | None = None  # None: 0

    def apply(self, x: Vector, update: Update) -> tuple[Vector, Self]:
        u: Vector = np.multiply(update.gradient, 1 - self.beta, dtype=np.float32)
        if self.u is not None:
            u += np.multiply(self.u, self.beta, dtype=np.float32)
        return descend(x, u, self.gamma), replace(self, u=u)


ALGORITHM = Momentum

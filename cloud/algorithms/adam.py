"""Adam at the cloud."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar, Self

import numpy as np

from cloud.algorithm import FixedBound, Update, descend, option
from common.quantities import Vector


@dataclass(frozen=True, slots=True, eq=False)
class Adam(FixedBound):
    """Adam on the released gradients: x ← x − ρ·m̂/(√v̂ + e), with m and v of g̃/C.

    Steps do not depend on the scale of gradients, so ρ is not divided by C; e is in units of C for the same reason.
    """

    takes_sums: ClassVar[bool] = True

    rate: float = option("ρ, the size of a step in each coordinate", above=0)
    beta1: float = option("β₁ of the first moment", 0.9, at_least=0, below=1)
    beta2: float = option("β₂ of the second moment", 0.999, at_least=0, below=1)
    regulariser: float = option("e, in units of C", 1e-8, at_least=1e-12)

    m: Vector | None = None  # None: 0, as is v
    v: Vector | None = None
    power1: float = 1.0  # β₁^t: a product at a time, which every machine rounds alike
    power2: float = 1.0  # β₂^t

    def apply(self, x: Vector, update: Update) -> tuple[Vector, Self]:
        g = np.divide(update.gradient, self.clip, dtype=np.float32)
        m: Vector = np.multiply(g, 1 - self.beta1, dtype=np.float32)
        np.multiply(g, g, out=g)
        v: Vector = np.multiply(g, 1 - self.beta2, dtype=np.float32)
        if self.m is not None and self.v is not None:
            m += np.multiply(self.m, self.beta1, dtype=np.float32)
            v += np.multiply(self.v, self.beta2, dtype=np.float32)
        power1, power2 = self.power1 * self.beta1, self.power2 * self.beta2
        direction: Vector = np.divide(v, 1 - power2, dtype=np.float32)
        np.sqrt(direction, out=direction)
        direction += np.float32(self.regulariser)
        np.divide(m, direction, out=direction)
        moved = descend(x, direction, self.rate / (1 - power1))
        return moved, replace(self, m=m, v=v, power1=power1, power2=power2)


ALGORITHM = Adam

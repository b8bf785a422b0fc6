"""Private quantile clipping: C follows a quantile of the samples' gradient norms."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import ClassVar, Self

from cloud.algorithm import FixedBound, Update, descend, option
from common.mechanism.clippings.quantile import parts_of_bound
from common.mechanism.guarantee import LARGEST_BOUND, LEAST_BOUND, Norm
from common.quantities import Vector

_LEAST, _LARGEST = 1e3 * LEAST_BOUND, 1e-3 * LARGEST_BOUND  # C stays well within what an edge takes


@dataclass(frozen=True, slots=True, eq=False)
class Quantile(FixedBound):
    """x ← x − ρ/C·g̃, where C moves until a given share of the samples is not clipped.

    The last coordinate of g̃ is the noised count (common/mechanism/clippings/quantile.py). A gradient is taken in units
    of the C that it was made with. After every `window` gradients C ← C·exp(−η(f − q)), f the mean share among them.
    """

    clipping: ClassVar[str | None] = "quantile"

    quantile: float = option("q, share of samples that is not to be clipped", 0.5, above=0, below=1)
    adaptation: float = option("η, how fast C moves; 0: not at all", 0.2, at_least=0, at_most=1)
    window: int = option("gradients between two moves of C", 10, at_least=1, at_most=100_000)

    held: int = 0  # gradients of this window
    shares: float = 0.0  # the sum of their shares

    def apply(self, x: Vector, update: Update) -> tuple[Vector, Self]:
        made_with = self.ratio_of_bound * update.sensitivity
        moved = descend(x, update.gradient, self.rate / made_with)
        moved[-1] = 0
        return moved, self._counted(float(update.gradient[-1]), made_with, update)

    @property
    def ratio_of_bound(self) -> float:
        """b/2, so that C = ratio · ΔS."""
        return self.clip / self.bound

    def _counted(self, count: float, made_with: float, update: Update) -> Self:
        """Return the algorithm after one more count; what is no share, because of noise or malice, is cut to one."""
        norm = Norm.L2 if update.law is None else update.law.norm
        _, unit = parts_of_bound(made_with, norm)
        share = min(1.0, max(0.0, (1 + count / unit) / 2))
        held, shares = self.held + 1, self.shares + share
        if held < self.window:
            return replace(self, held=held, shares=shares)
        factor = math.exp(-self.adaptation * (shares / held - self.quantile))
        clip = min(_LARGEST, max(_LEAST, self.clip * factor))
        return replace(self, clip=clip, bound=clip / self.ratio_of_bound, held=0, shares=0.0)


ALGORITHM = Quantile

"""Norm cap: no gradient is longer than those of the other edges usually are."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Self

from cloud.algorithm import FixedBound, Update, descend, option, square_length
from common.quantities import Vector


@dataclass(frozen=True, slots=True, eq=False)
class NormCap(FixedBound):
    """x ← x − ρ/C·g̃·min(1, c·M/‖g̃‖) with M the median over edges of the length of each one's newest gradient.

    Of an even number it is the lower of the two in the middle. More than half of the edges must be honest.
    """

    cap: float = option("c, in units of the median length", 1.0, above=0, at_most=1000)

    lengths: tuple[tuple[int, float], ...] = ()  # of each edge heard: k and the length of its newest gradient

    def apply(self, x: Vector, update: Update) -> tuple[Vector, Self]:
        length = math.sqrt(square_length(update.gradient))
        known = {**dict(self.lengths), update.edge: length}
        median = sorted(known.values())[(len(known) - 1) // 2]
        shrunk = min(1.0, self.cap * median / length) if length > 0 else 1.0
        return descend(x, update.gradient, self.gamma * shrunk), replace(self, lengths=tuple(known.items()))


ALGORITHM = NormCap

"""Trimmed mean, coordinate by coordinate, over the mean gradients of m edges."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from cloud.algorithm import EdgeBuffer, Vectors, option
from common.quantities import Vector


@dataclass(frozen=True, slots=True, eq=False)
class TrimmedMean(EdgeBuffer):
    """x moves by the mean of what is left of each coordinate without its f largest and f smallest values.

    What f edges send stays in each coordinate between values of the others. With m = 2f + 1 it is the median.
    """

    trim: int = option("f, values cut off at each end", 1, at_least=1, at_most=499)

    @property
    def least_edges(self) -> int:
        return 2 * self.trim + 1

    def combined(self, means: Vectors) -> Vector:
        kept = np.sort(means, axis=0)[self.trim : len(means) - self.trim]
        moves: Vector = np.add.reduce(kept, axis=0) / np.float32(len(kept))
        return moves


ALGORITHM = TrimmedMean

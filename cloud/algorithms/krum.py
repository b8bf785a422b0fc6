"""Krum and Multi-Krum over the mean gradients of m edges."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self

import numpy as np

from cloud.algorithm import EdgeBuffer, Vectors, option, square_length
from common.errors import ConfigurationError
from common.problem import Problem
from common.quantities import Vector


@dataclass(frozen=True, slots=True, eq=False)
class Krum(EdgeBuffer):
    """x moves by the gradient that lies closest to its m − f − 2 nearest ones, or by the mean of the q closest.

    A gradient's score is the sum of its squared distances to them; of equal scores the first that came counts.
    """

    byzantine: int = option("f, edges that may send anything", 1, at_least=1, at_most=498)
    chosen: int = option(
        "q, gradients of the smallest scores; 1: Krum, more: Multi-Krum", 1, at_least=1, at_most=999
    )

    @property
    def least_edges(self) -> int:
        return 2 * self.byzantine + 3

    def begin(self, problem: Problem, moment: float) -> Self:
        most = self.buffer - self.byzantine
        if self.chosen > most:
            raise ConfigurationError(
                f"algorithm.chosen = {self.chosen}: must be at most {most}, buffer less byzantine"
            )
        return EdgeBuffer.begin(self, problem, moment)

    def combined(self, means: Vectors) -> Vector:
        count = len(means)
        distances = np.zeros((count, count))
        for i in range(count):
            for j in range(i):
                distances[i, j] = distances[j, i] = square_length(means[i] - means[j])
        near = count - self.byzantine - 2
        scores = [float(sum(np.sort(np.delete(row, i))[:near])) for i, row in enumerate(distances)]
        chosen = sorted(range(count), key=scores.__getitem__)[: self.chosen]
        moves: Vector = np.add.reduce(means[sorted(chosen)], axis=0) / np.float32(self.chosen)
        return moves


ALGORITHM = Krum

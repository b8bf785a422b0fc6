"""An average of models as the result of any algorithm. Edges never see it: post-processing, at no cost of privacy."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any, Self

import numpy as np
import numpy.typing as npt

from cloud.algorithm import Algorithm, Update
from cloud.wrapping import Wrapping
from common.problem import Problem
from common.quantities import Vector

DECAY = 0.99  # β where the scenario gives none
FROM = 0.5  # share of T where the scenario gives none


@dataclass(frozen=True, slots=True, eq=False)
class WithAverage(Wrapping):
    """Another algorithm, unchanged, beside an average of the models that it made; the average is the result.

    ema: x̄ ← β_t x̄ + (1 − β_t)x with β_t = min(β, (1+t)/(10+t)), so that x₁ is soon forgotten.
    tail: x̄ is the mean of the models after update first − 1; before that, the result is x.
    The average is kept in float64, each coordinate by itself.
    """

    decay: float | None = None  # β; None: the mean of the tail
    share: float = FROM  # of T, that the tail leaves out

    first: int = 1  # the update whose model is the first of the average
    count: int = 0  # models in the average
    mean: npt.NDArray[np.float64] | None = None

    def begin(self, problem: Problem, moment: float) -> Self:
        first = 1 if self.decay is not None else first_of_tail(self.share, problem.iterations)
        return replace(self, inner=self.inner.begin(problem, moment), first=first)

    def apply(self, x: Vector, update: Update) -> tuple[Vector, Self]:
        moved, inner = self.inner.apply(x, update)
        if update.t < self.first:
            return moved, replace(self, inner=inner)
        count = self.count + 1
        if self.mean is None:
            mean = moved.astype(np.float64)
        else:
            mean = np.subtract(moved, self.mean, dtype=np.float64)
            mean *= 1 / count if self.decay is None else 1 - min(self.decay, (1 + count) / (10 + count))
            mean += self.mean
        return moved, replace(self, inner=inner, count=count, mean=mean)

    def result(self, x: Vector) -> Vector:
        return self.inner.result(x) if self.mean is None else self.mean.astype(np.float32)


def first_of_tail(share: float | None, last: int) -> int:
    """Return the update whose model is the first of the tail, where `last` updates can be made."""
    return min(last, math.floor((FROM if share is None else share) * last) + 1)


def averaged(algorithm: Algorithm, kind: str, decay: float | None, share: float | None) -> Algorithm:
    """Return the algorithm with the average that a scenario asks for: none, ema or tail."""
    options: dict[str, dict[str, Any]] = {
        "ema": {"decay": DECAY if decay is None else decay},
        "tail": {"share": FROM if share is None else share},
    }
    return algorithm if kind == "none" else WithAverage(algorithm, **options[kind])

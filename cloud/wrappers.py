"""An algorithm around another: all as the inner one has it, but for what a subclass says itself."""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Self

import numpy as np
import numpy.typing as npt

from cloud.algorithm import Algorithm, Update
from cloud.stages import Stage
from common.noise.law import NoiseLaw
from common.problem import Problem
from common.quantities import Vector


@dataclass(frozen=True, slots=True, eq=False)
class Wrapping(Algorithm):
    """What averages and weights share. `apply` is the subclass's own."""

    inner: Algorithm

    def begin(self, problem: Problem, moment: float) -> Self:
        return replace(self, inner=self.inner.begin(problem, moment))

    @property
    def stage(self) -> int:
        return self.inner.stage

    @property
    def sensitivity(self) -> float:
        return self.inner.sensitivity

    def sensitivity_for(self, t: int, edge: int, law: NoiseLaw | None) -> float:
        return self.inner.sensitivity_for(t, edge, law)

    def with_moment(self, moment: float, t: int) -> Self:
        return replace(self, inner=self.inner.with_moment(moment, t))

    def opened(self) -> Stage | None:
        return self.inner.opened()

    def result(self, x: Vector) -> Vector:
        return self.inner.result(x)


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


LARGEST = 5.0  # times the mean: a bound on what one edge can gain by a false word about its noise


@dataclass(frozen=True, slots=True, eq=False)
class WithWeights(Wrapping):
    """Another algorithm that is given w_k·g̃ instead of g̃; the weights' mean over all planned updates is 1.

    They follow from the plan. An edge that noises more than planned weighs less, and none can weigh more.
    """

    weights: tuple[float, ...] = ()  # w_k
    variances: tuple[float, ...] = ()  # v_k that w_k was computed for, in one dimension

    def apply(self, x: Vector, update: Update) -> tuple[Vector, Self]:
        weight = self.weight(update.edge, update.law)
        gradient = np.multiply(update.gradient, weight, dtype=np.float32)
        moved, inner = self.inner.apply(x, update._replace(gradient=gradient))
        return moved, self if inner is self.inner else replace(self, inner=inner)

    def weight(self, edge: int, law: NoiseLaw | None) -> float:
        """Return w_k, less where the edge said that it noises more than planned."""
        weight, planned = self.weights[edge], self.variances[edge]
        said = planned if law is None else law.relative_second_moment(1)
        return weight if said <= planned else weight * planned / said


@functools.lru_cache(maxsize=16)
def noise_weights(
    variances: tuple[float, ...], releases: tuple[int, ...], largest: float = LARGEST
) -> tuple[float, ...]:
    """Return w_k ∝ 1/v_k with Σ R_k·w_k = Σ R_k and no w_k above `largest`; what a cap takes the others get."""
    total = float(sum(releases))
    capped: set[int] = set()
    while True:
        free = [k for k in range(len(variances)) if k not in capped]
        left = total - largest * sum(releases[k] for k in capped)
        scale = left / sum(releases[k] / variances[k] for k in free)
        above = {k for k in free if scale / variances[k] > largest}
        if not above:
            return tuple(largest if k in capped else scale / v for k, v in enumerate(variances))
        capped |= above


def effective_multiplier(
    multipliers: Sequence[float], weights: Sequence[float], releases: Sequence[int]
) -> float:
    """Return the root mean square of w_k·z_k over all planned updates."""
    squares = sum(r * (w * z) ** 2 for z, w, r in zip(multipliers, weights, releases, strict=True))
    return float((squares / sum(releases)) ** 0.5)

"""Gradients weighted by the inverse of their noise variance, with any algorithm: post-processing, free of charge."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Self

import numpy as np

from cloud.algorithm import Update
from cloud.wrapping import Wrapping
from common.noise.law import NoiseLaw
from common.quantities import Vector

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

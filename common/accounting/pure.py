"""Composition and amplification of pure ε-DP releases.

KOV: Kairouz, Oh, Viswanath, "The Composition Theorem for Differential Privacy" (2015).
DRV: Dwork, Rothblum, Vadhan, "Boosting and Differential Privacy" (2010), KOV's Theorem 3.2.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

# KOV's exact sum has as many terms as there are releases; beyond this their closed bound stands alone.
EXACT_RELEASES = 2**20


@dataclass(frozen=True, slots=True)
class PureReleases:
    """`count` releases, each ε-DP."""

    epsilon: float
    count: int


def amplify_zero_out(epsilon: float, rate: float) -> float:
    """Return ε of a Poisson-sampled release: log(1 + q(e^ε − 1)).

    A record that is left out and one that is zeroed give the same release A (but for rounding: docs/privacy.md);
    let B be the release with it, e^−ε ≤ B/A ≤ e^ε. Then ((1−q)A + qB)/A ≤ 1 − q + q·e^ε, and the inverse ratio
    is below that too.
    """
    return _log_mixture(epsilon, rate)


def amplify_replace_one(zero_out: float, replace_one: float, rate: float) -> float:
    """Return ε of a Poisson-sampled release under replace-one adjacency.

    The ratio is ((1−q)A + qB)/((1−q)A + qB′) with A without the record, B and B′ with either version.
    Where A = 1: B ≤ min(e^ε₀, e^ε₁·B′) for ε₀ zero-out and ε₁ replace-one. The ratio rises in B′ up to
    B′ = e^(ε₀−ε₁) and falls from there on, so that point is the worst.
    """
    return _log_mixture(zero_out, rate) - _log_mixture(zero_out - replace_one, rate)


def basic(groups: Sequence[PureReleases]) -> float:
    """Σ ε, at δ = 0."""
    return math.fsum(group.epsilon * group.count for group in groups)


def advanced(groups: Sequence[PureReleases], delta: float) -> float:
    """DRV: Σ ε(e^ε − 1) + √(2 ln(1/δ) Σ ε²)."""
    if delta == 0:
        return math.inf
    drift = math.fsum(g.count * g.epsilon * _expm1(g.epsilon) for g in groups)
    return drift + math.sqrt(2 * math.log(1 / delta) * _squares(groups))


def heterogeneous(groups: Sequence[PureReleases], delta: float) -> float:
    """KOV Theorem 3.5, for releases whose ε differ: the least of its three bounds."""
    if delta == 0:
        return basic(groups)
    # (e^ε − 1)/(e^ε + 1) = tanh(ε/2)
    drift = math.fsum(g.count * g.epsilon * math.tanh(g.epsilon / 2) for g in groups)
    squares = _squares(groups)
    return min(
        basic(groups),
        drift + math.sqrt(2 * squares * math.log(math.e + math.sqrt(squares) / delta)),
        drift + math.sqrt(2 * squares * math.log(1 / delta)),
    )


def optimal(epsilon: float, count: int, delta: float) -> float:
    """KOV Theorem 3.3, exact for k releases of one ε: the least (k − 2i)ε whose δ_i is at most δ.

    δ_i = Σ_{l<i} C(k,l)·(e^{(k−l)ε} − e^{(k−2i+l)ε}) / (1+e^ε)^k, which rises with i.
    """
    if delta < sys.float_info.min:  # below, a δ_i that underflows to 0 would pass for one that is 0
        return count * epsilon
    reach = np.arange(count // 2 + 1, dtype=np.float64)  # l
    steps = np.log((count - reach[1:] + 1) / reach[1:])
    choose = np.concatenate(([0.0], np.cumsum(steps)))  # log C(k, l)
    weights = np.exp(choose - reach * epsilon - count * math.log1p(math.exp(-epsilon)))

    def delta_of(i: int) -> float:
        return float(weights[:i] @ -np.expm1(2 * (reach[:i] - i) * epsilon))

    low, high = 0, count // 2  # δ_0 = 0 always holds
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if delta_of(middle) <= delta else (low, middle - 1)
    return (count - 2 * low) * epsilon


def _log_mixture(epsilon: float, rate: float) -> float:
    """log(1 − q + q·e^ε), without overflow."""
    if rate == 1:
        return epsilon
    if epsilon > 1:
        return epsilon + math.log(rate + (1 - rate) * math.exp(-epsilon))
    return math.log1p(rate * math.expm1(epsilon))


def _squares(groups: Sequence[PureReleases]) -> float:
    return math.fsum(g.count * g.epsilon**2 for g in groups)


def _expm1(value: float) -> float:
    return math.expm1(value) if value < 700 else math.inf

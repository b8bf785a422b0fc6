"""Privacy loss distributions of Gaussian releases on a grid: pessimistic, composed by Fourier transforms, as arrays.

The method, and every operation in its order, is that of Google's dp-accounting 0.6 (Apache License 2.0), so that each
ε is that library's to the last bit; tests/common/test_losses.py compares them. There, each point of a grid is computed
by itself in Python, and the import alone takes a second.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
from scipy import fft, special

Array = npt.NDArray[Any]  # of float64
Side = Literal[
    "remove", "add", "replace"
]  # which two versions of a release are compared; the first one is drawn

GRID = 1e-4  # between two losses
_FAR = 0.5 * math.exp(-50)  # mass of the noise that is taken for an infinite loss
_TAIL = 1e-15  # mass that a composition may cut off, and counts as an infinite loss
_FEW = 1000  # points, up to which few releases are composed by a plain sum
_RISE = 1e-12  # by which rounding may let δ rise with ε
_ORDERS = np.arange(1, 21)
_LARGEST = 709.0  # whose exponential is a float
_BLOCK = 4096  # points from the top that are looked at together


@dataclass(frozen=True, slots=True)
class Losses:
    """A distribution of privacy losses: `masses` at (lowest + i)·grid, and the mass at ∞."""

    lowest: int
    masses: Array
    infinite: float
    grid: float = GRID
    few: bool = False  # made of so few points that losses are multiples of the grid to the last bit

    def composed(self, count: int) -> Losses:
        """Return the losses of `count` such releases together."""
        size = len(self.masses)
        if self.few and (count == 1 or (count < _FEW and size**count <= _FEW)):
            result = self
            for number in range(2, count + 1):
                result = result._and(self)._cut(_TAIL if number == count else 0.0)
            return result._cut(_TAIL)
        low, high = _reach(self.masses, count)
        length = high - low + 1
        padded = fft.next_fast_len(max(length, size))
        half = fft.fft(self.masses, padded)[: padded // 2 + 1] ** count  # of real masses: the rest mirrors it
        masses = np.real(fft.ifft(np.concatenate((half, half[(padded - 1) // 2 : 0 : -1].conj()))))
        infinite = _TAIL - math.expm1(count * math.log1p(-self.infinite))
        whole = Losses(self.lowest * count + low, np.roll(masses, -low)[:length], infinite, self.grid)
        return whole._cut(_TAIL)

    def _and(self, other: Losses) -> Losses:
        masses = np.zeros(len(self.masses) + len(other.masses) - 1)
        for place, mass in enumerate(self.masses):
            masses[place : place + len(other.masses)] += mass * other.masses
        infinite = self.infinite + other.infinite - self.infinite * other.infinite
        return Losses(self.lowest + other.lowest, masses, infinite, self.grid, few=True)

    def _cut(self, tails: float) -> Losses:
        """Round up what lies in both tails: the lower one to the least loss that stays, the upper one to ∞."""
        if tails == 0:
            return self
        left = _first_above(self.masses, tails / 2)
        right = max(len(self.masses) - _first_above(self.masses[::-1], tails / 2), left + 1)
        masses = self.masses[left:right].copy()
        masses[0] += np.sum(self.masses[:left])
        infinite = self.infinite + np.sum(self.masses[right:])
        return Losses(self.lowest + left, masses, float(infinite), self.grid, self.few)

    def mixed(self, other: Losses, weight: float) -> Losses:
        """Return this distribution with a probability of `weight`, else the other one."""
        if weight in (0, 1):
            return self if weight else other
        lowest = min(self.lowest, other.lowest)
        highest = max(one.lowest + len(one.masses) for one in (self, other))
        masses = np.zeros(highest - lowest)
        for one, share in ((self, weight), (other, 1 - weight)):
            start = one.lowest - lowest
            masses[start : start + len(one.masses)] += share * one.masses
        infinite = self.infinite * weight + other.infinite * (1 - weight)
        return Losses(lowest, masses, infinite, self.grid)

    def _from_the_top(self) -> Array:
        """Return all losses, the largest first."""
        size = len(self.masses)
        if self.few:
            return np.arange(self.lowest + size - 1, self.lowest - 1, -1) * self.grid
        steps = np.full(size, -self.grid)
        steps[0] = (self.lowest + size - 1) * self.grid
        return np.cumsum(steps)

    def delta(self, epsilon: float) -> float:
        """Return δ at ε, the hockey-stick divergence."""
        losses = (np.arange(len(self.masses)) + self.lowest) * self.grid
        above = losses > epsilon
        return float(self.infinite + np.dot(-np.expm1(epsilon - losses[above]), self.masses[above]))

    def epsilon(self, delta: float) -> float:
        """Return the least ε ≥ 0 with δ(ε) ≤ δ; ∞ where there is none."""
        if self.infinite > delta:
            return math.inf
        losses, masses = self._from_the_top(), self.masses[::-1]
        upper, lower = self.infinite, 0.0  # Σ p and Σ p·e^−loss, of the losses above the present one
        for start in range(0, len(masses), _BLOCK):
            loss, mass = losses[start : start + _BLOCK], masses[start : start + _BLOCK]
            weights = _each(math.exp, np.minimum(-loss, _LARGEST))
            uppers = np.cumsum(np.concatenate(([upper], mass)))
            lowers = np.cumsum(np.concatenate(([lower], weights * mass)))
            ended = (uppers[:-1] > delta) & (lowers[:-1] > 0)
            ended &= np.log((uppers[:-1] - delta) / lowers[:-1]) >= loss
            unlike = (uppers[1:] >= delta) & (lowers[1:] == 0)  # e^−loss is 0 in floating point
            if ended.any() or unlike.any():
                end = int(np.argmax(ended | unlike))
                if not ended[end]:
                    return max(0.0, float(loss[end]))
                upper, lower = float(uppers[end]), float(lowers[end])
                break
            upper, lower = float(uppers[-1]), float(lowers[-1])
        if upper <= lower + delta:
            return 0.0
        return math.log((upper - delta) / lower) if lower > 0 else math.inf


def _first_above(masses: Array, threshold: float) -> int:
    """Return how many masses from the beginning add up to no more than the threshold."""
    above = np.cumsum(masses) > threshold
    return int(np.argmax(above)) if above.any() else len(masses)


def _reach(masses: Array, count: int) -> tuple[int, int]:
    """Return between which places all but a mass of _TAIL of the composition lies, by Chernoff's bound."""
    size, places = len(masses), np.arange(len(masses))
    reach = [(size - 1) * count, 0]
    for side, sign in enumerate((1, -1)):
        growth, weighted, rough = np.exp(sign * places / size), masses, np.empty(len(_ORDERS))
        for place, order in enumerate(_ORDERS):
            weighted = weighted * growth
            rough[place] = (count * math.log(np.sum(weighted)) + math.log(2 / _TAIL)) / order
        # only the least bound counts: those that may be it are computed again with care
        for order in _ORDERS[rough <= rough.min() + 1e-6 * abs(rough.min())] * sign / size:
            bound = (count * special.logsumexp(places * order, b=masses) + math.log(2 / _TAIL)) / order
            if math.isfinite(bound):
                reach[side] = (
                    min(reach[0], math.ceil(bound)) if sign > 0 else max(reach[1], math.floor(bound))
                )
    return reach[1], reach[0]


# -- of one release ------------------------------------------------------------------------------------------


def of_release(
    noise_multiplier: float, rate: float, sides: Sequence[Side], grid: float = GRID
) -> tuple[Losses, ...]:
    """Return the losses of a Gaussian release that is sampled at a rate, or not at all at 1, for each side."""
    if not 0 < rate <= 1:
        raise ValueError(f"rate = {rate}: must be greater than 0 and at most 1")
    return tuple(_of_side(noise_multiplier, rate, side, grid) for side in sides)


def _of_side(std: float, rate: float, side: Side, grid: float) -> Losses:
    """Connect the dots: the distribution on the grid whose δ(ε) is the true one there, and above it in between."""
    lower_x = special.ndtri(_FAR) * std
    upper_x = -lower_x
    if side == "add":
        upper_x += 1
    else:
        lower_x -= 1
    highest = math.ceil(_loss(lower_x, std, rate, side) / grid)
    lowest = math.floor(_loss(upper_x, std, rate, side) / grid)
    deltas = _deltas(np.arange(lowest, highest + 1) * grid, std, rate, side)
    few = len(deltas) <= _FEW
    if len(deltas) == 1:
        return Losses(lowest, 1 - deltas, float(deltas[0]), grid, few)
    if np.any(np.diff(deltas) > _RISE):
        raise ValueError("δ rises with ε")
    deltas = np.minimum.accumulate(deltas)
    steps = np.diff(deltas)
    masses = np.zeros_like(deltas)
    masses[0] = 1 - deltas[0] + steps[0] / math.expm1(grid)
    masses[1:-1] = (steps[1:] - steps[:-1] * math.exp(grid)) / math.expm1(grid)
    masses[-1] = steps[-1] / math.expm1(-grid)
    return Losses(lowest, np.maximum(0.0, masses), float(deltas[-1]), grid, few)


def _loss(x: float, std: float, rate: float, side: Side) -> float:
    """Return the loss at an outcome."""
    removed = 0.0 if side == "add" else _sampled((-0.5 - x) / std**2, rate)
    return removed if side == "remove" else removed - _sampled((-0.5 + x) / std**2, rate)


def _sampled(loss: float, rate: float) -> float:
    """Return log(1 − q + q·e^loss)."""
    if rate == 1:
        return loss
    if loss == 0:
        return float(np.log(rate + (1 - rate)))
    one, other = loss + np.log(rate), np.log(1 - rate)
    return float(max(one, other) + np.log1p(np.exp(min(one, other) - max(one, other))))


def _unsampled(losses: Array, rate: float) -> Array:
    """Return log(1 + (e^loss − 1)/q), the inverse of `_sampled`; ValueError where rounding leaves nothing of it."""
    factor, rest = 1 / rate, 1 - 1 / rate
    whole: Array = losses + np.log(factor)
    if rest == 0:
        return whole
    less = np.log(-rest)
    if np.any((less >= whole) & (losses != 0)):
        raise ValueError(f"rate = {rate}: too close to 1")
    found: Array = whole + np.log1p(-np.exp(less - whole))
    found[losses == 0] = np.log(factor + rest)
    return found


def _outcomes(losses: Array, std: float, rate: float, side: Side) -> Array:
    """Return the largest outcome whose loss is at least this, for each loss: they fall with the outcome."""
    if side == "replace":
        return _outcomes_replaced(losses, std, rate)
    shift, sign = (1, -1) if side == "add" else (0, 1)
    if rate == 1:
        return shift + (-0.5 - losses * std**2)
    limit = sign * math.log(1 - rate)
    close = np.abs(losses - limit) <= 1e-9 * np.maximum(np.abs(losses), abs(limit))
    if np.any(~close & (sign * losses <= sign * limit if side == "remove" else losses > limit)):
        raise ValueError(f"rate = {rate}: a loss is beyond its limit")
    plain = np.full_like(losses, -sign * math.inf)
    plain[~close] = sign * _unsampled(sign * losses[~close], rate)
    return shift + (-0.5 - plain * std**2)


def _outcomes_replaced(losses: Array, std: float, rate: float) -> Array:
    if rate == 1:
        return -losses * std**2 / 2
    found = np.zeros_like(losses)
    some = losses != 0
    loss = losses[some]
    half = np.abs(loss) / 2
    # log(sinh(|loss|/2)), and then asinh of it times α = e^(1/2σ²)·(1 − q)/q
    log_sinh = half + _each(math.log1p, -_each(math.exp, -2 * half)) - math.log(2)
    log_alpha = 0.5 * (1 / std) ** 2 + math.log1p(-rate) - math.log(rate)
    product = log_alpha + log_sinh
    asinh = -np.sign(loss) * np.logaddexp(0.5 * np.logaddexp(0, 2 * product), product)
    found[some] = std**2 * (asinh - loss / 2)
    return found


def _each(function: Callable[[float], float], values: Array) -> Array:
    """Return a function of Python's `math` of each value: numpy's may differ in the last bit."""
    return np.fromiter(map(function, values), np.float64, len(values))


def _deltas(epsilons: Array, std: float, rate: float, side: Side) -> Array:
    """Return δ at each ε: the mass of outcomes of a larger loss, less e^ε times their mass in the other version."""
    deltas = np.zeros_like(epsilons)
    inside = np.full_like(epsilons, True, dtype=bool)
    if rate < 1 and side == "add":
        inside = epsilons < -math.log1p(-rate)
    elif rate < 1 and side == "remove":
        inside = epsilons > math.log1p(-rate)
        deltas[~inside] = -np.expm1(epsilons[~inside])
    x = _outcomes(epsilons[inside], std, rate, side)
    here = special.ndtr(x / std)
    if side != "add":
        there = special.ndtr((x + 1) / std)
        here = there if rate == 1 else (1 - rate) * here + rate * there
    log_other = special.log_ndtr(x / std)
    if side != "remove":
        log_there = special.log_ndtr((x - 1) / std)
        mixed = np.logaddexp(np.log1p(-rate) + log_other, np.log(rate) + log_there)
        log_other = log_there if rate == 1 else mixed
    deltas[inside] = here - np.exp(epsilons[inside] + log_other)
    return np.clip(deltas, 0, 1)

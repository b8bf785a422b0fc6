"""Integer noise: sums of rounded Gaussians from an exact table, and the grid of integers that a release lies on.

What is drawn is Σ c_i·rint(X_i), X_i ~ N(0, 128²). Added to integers, by one edge or by several whose releases are
summed, that is a Gaussian of variance 128²·Σ c_i² with uniform numbers added and then rounded, but for a probability
below `MISSED` for each number drawn: a Gaussian mechanism and post-processing (docs/secure-aggregation.md has the
proof). No floating-point sample is involved: the table is of integers, and random bits are compared with it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from decimal import Decimal, localcontext
from functools import lru_cache
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from common.errors import ConfigurationError, require

Integers = npt.NDArray[np.int64]

UNIT = 128  # standard deviation of a number in the table
RATIO = 32  # of a multiplier to the next smaller one, at most: c_i·rint(X_i) alone has gaps, which smaller ones fill
REACH = 2040  # numbers in the table lie between -REACH and REACH, 15.9 standard deviations
MISSED = (
    2.0**-178
)  # for each number drawn: the table's rounding and its tail, and how uniform X_i − rint(X_i) is
MOST_MULTIPLIERS = 8  # so σ up to 4e12 steps
MOST_COORDINATES = 1 << 30  # N
LEAST_BITS, MOST_BITS = 8, 40
_COLUMN_BITS = (
    12  # of a random word; the others, and two more words in a tie, are compared with a column's threshold
)
_HIGH_BITS, _LOW_BITS = 64 - _COLUMN_BITS, 128
WHOLE = 1 << (_COLUMN_BITS + _HIGH_BITS + _LOW_BITS)  # what the weights of the table add up to
_DIGITS, _TERMS = 80, 20


class _Table(NamedTuple):
    """Walker's alias table: a column keeps its own number below its threshold, and gives its alias from there on."""

    high: npt.NDArray[np.uint64]  # the threshold's first 52 bits
    low: list[int]  # its last 128
    alias: npt.NDArray[np.intp]


def weights() -> list[int]:
    """Return P(rint(N(0, 128²)) = n) for n from -REACH to REACH, in parts of WHOLE."""
    with localcontext() as context:
        context.prec = _DIGITS
        masses = [_mass(n) for n in range(REACH + 1)]
        scale = WHOLE / (masses[0] + 2 * sum(masses[1:]))
        half = [int((mass * scale).to_integral_value()) for mass in masses]
    half[0] = WHOLE - 2 * sum(half[1:])
    return [*half[:0:-1], *half]


def _mass(n: int) -> Decimal:
    """Return ∫ exp(−x²/2σ²) dx from n − ½ to n + ½, the series Σ φ^(2j)(n) / ((2j + 1)!·4^j)."""
    x, square = Decimal(n) / UNIT, Decimal(UNIT * UNIT)
    before, hermite, total, factor = Decimal(0), Decimal(1), Decimal(0), Decimal(1)
    for j in range(_TERMS):
        total += hermite * factor
        for order in (2 * j, 2 * j + 1):
            before, hermite = hermite, x * hermite - order * before
        factor /= square * 4 * (2 * j + 2) * (2 * j + 3)
    return total * (-x * x / 2).exp()


@lru_cache(maxsize=1)
def _table() -> _Table:
    columns, whole = 1 << _COLUMN_BITS, WHOLE >> _COLUMN_BITS
    left = weights()
    left += [0] * (columns - len(left))
    keeps, alias = [whole] * columns, list(range(columns))
    small = [column for column, weight in enumerate(left) if weight < whole]
    large = [column for column, weight in enumerate(left) if weight >= whole]
    while small:
        less, more = small.pop(), large[-1]
        keeps[less], alias[less] = left[less], more
        left[more] -= whole - left[less]
        if left[more] < whole:
            small.append(large.pop())
    high = np.array([one >> _LOW_BITS for one in keeps], np.uint64)
    low = [one & ((1 << _LOW_BITS) - 1) for one in keeps]
    return _Table(high, low, np.array(alias, np.intp))


def _numbers(count: int, bits: np.random.BitGenerator) -> Integers:
    """Return `count` independent rint(N(0, 128²)), by 64 random bits each, and 128 more in a tie."""
    table = _table()
    raw: npt.NDArray[np.uint64] = bits.random_raw(count)
    column = (raw & np.uint64((1 << _COLUMN_BITS) - 1)).astype(np.intp)
    raw >>= np.uint64(_COLUMN_BITS)
    high = table.high[column]
    drawn = np.where(raw < high, column, table.alias[column])
    for place in np.flatnonzero(raw == high):  # one in 2^52
        mine = column[place]
        further = int(bits.random_raw()) << 64 | int(bits.random_raw())
        drawn[place] = mine if further < table.low[mine] else table.alias[mine]
    drawn -= REACH
    return drawn


@lru_cache(maxsize=64)
def multipliers(sigma: float) -> tuple[int, ...]:
    """Return c_i, from 1 on and each at most RATIO times the one before, with 128²·Σ c_i² ≥ σ²."""
    found, squares = [1], 1
    wanted = math.ceil((sigma / UNIT) ** 2 * (1 + 2.0**-40))
    while squares < wanted:
        following = min(math.isqrt(wanted - squares - 1) + 1, RATIO * found[-1])
        found.append(following)
        squares += following * following
    require(len(found) <= MOST_MULTIPLIERS, "noise", sigma, "of fewer grid steps")
    return tuple(found)


def integer_noise(sigma: float, dimension: int, rng: np.random.Generator) -> Integers:
    """Draw integers whose Gaussian has a standard deviation of σ grid steps, or up to 0.4 % more from 32,768 on."""
    total: Integers = np.zeros(dimension, np.int64)
    for factor in multipliers(sigma):
        drawn = _numbers(dimension, rng.bit_generator)
        drawn *= factor
        total += drawn
    return total


@dataclass(frozen=True, slots=True)
class Grid:
    """A release is integers: sums of clipped gradients times s, rounded, and integer noise.

    With members m > 1 it is one of m whose sum alone is seen: its noise is a share of 1/m of the law's variance.
    """

    bits: int = 0  # s·C is at most 2^bits, and more than half of it; 0: not yet known
    members: int = 1  # m
    colluding: int = 0  # a: other edges that may tell the cloud their noise
    helpers: int = 0  # c
    away: int = 0  # t: that may be away, and that may side with the cloud
    clip: float = 0.0  # C of every release, where they are summed; 0: whatever the model says that comes
    in_sums: bool = (
        False  # as the cloud sees it with t helpers and a edges on its side; else as all others together
    )

    def __post_init__(self) -> None:
        known = not self.bits or LEAST_BITS <= self.bits <= MOST_BITS
        require(known, "privacy.grid", self.bits, f"from {LEAST_BITS} to {MOST_BITS}")
        require(self.members >= 1, "secure.at_least", self.members, "at least 1")
        allowed = f"from 0 to {self.members - 1}"
        require(0 <= self.colluding < self.members, "privacy.colluding", self.colluding, allowed)

    @property
    def noise_share(self) -> float:
        """What is left of the law's noise multiplier for whom the guarantee is against: √((m − a)/m), or 1/√m."""
        return math.sqrt((self.members - self.colluding if self.in_sums else 1) / self.members)

    def missed(self, charges: int) -> float:
        """Return how far, in total variation, all of a record's releases lie from what is accounted."""
        edges = self.members - self.colluding if self.in_sums else 1
        return charges * edges * MOST_MULTIPLIERS * MOST_COORDINATES * MISSED

    def scale(self, bound: float) -> float:
        """Return s for the bound C, a power of two."""
        if not self.bits:
            raise ConfigurationError("privacy.grid: not yet known; it follows when a run is assembled")
        mantissa, exponent = math.frexp(self.clip or bound)
        return math.ldexp(1.0, self.bits - exponent + (mantissa == 0.5))

    def deviation(self, noise_multiplier: float, bound: float, dimension: int) -> float:
        """Return σ of one release in grid steps: z/√m times what a record moves, sC, and √N for the rounding.

        A C that is less than the agreed one by a rounding makes no less noise: others count on it.
        """
        steps = self.scale(bound) * max(bound, self.clip) + math.sqrt(dimension)
        return noise_multiplier / math.sqrt(self.members) * steps

    def release(
        self,
        total: npt.NDArray[np.float64],
        noise_multiplier: float,
        bound: float,
        rng: np.random.Generator,
    ) -> Integers:
        """Return rint(s·Σ clipped g) + noise; `total` is that sum."""
        scale = self.scale(bound)
        rounded: Integers = np.rint(total * scale).astype(np.int64)
        rounded += integer_noise(self.deviation(noise_multiplier, bound, total.size), total.size, rng)
        return rounded


class Fit(NamedTuple):
    """A grid that sums do not leave, and the bits of its modulus."""

    bits: int
    modulus_bits: int


def fitting(
    members: int, rows: float, noise_multiplier: float, dimension: int, wanted: int | None = None
) -> Fit:
    """Return the finest grid for 32 bits where rounding costs at most 1 % of noise there, else one for 64 bits.

    `rows` is what a batch has at most, but with a probability of 1e-12: a sum leaves the modulus only with more, and
    then accuracy suffers, and no privacy. `wanted`: this grid and no other.
    """
    root, tail = math.sqrt(dimension), REACH / UNIT * noise_multiplier

    def most(modulus_bits: int) -> int:
        """Return the largest g with 2^g·(m·rows + 16z) + 16z·√N below half the modulus."""
        room = (2.0 ** (modulus_bits - 1) - tail * root) / (members * rows + tail)
        return min(math.floor(math.log2(room)), MOST_BITS) if room >= 1 else 0

    fine = math.ceil(math.log2(100 * root)) + 1  # √N is at most 1 % of sC
    if wanted is not None:
        return Fit(wanted, 32 if wanted <= most(32) else 64)
    if most(32) >= max(fine, LEAST_BITS):
        return Fit(most(32), 32)
    bits = min(most(64), max(fine + 4, LEAST_BITS))
    require(bits >= LEAST_BITS, "privacy.grid", bits, "possible: with fewer edges, records or parameters")
    return Fit(bits, 64)

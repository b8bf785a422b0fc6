"""Integer noise: its table, its sums, and how far they lie from what is accounted."""

from __future__ import annotations

import math
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from common.errors import ConfigurationError
from common.mechanism import grid
from common.mechanism.grid import RATIO, REACH, UNIT, WHOLE, Fit, Grid, fitting, integer_noise, multipliers

Masses = np.ndarray[Any, np.dtype[np.float64]]


def test_the_table_gives_every_number_its_weight_to_the_last_bit() -> None:
    """Walker's columns, added up again in integers."""
    table, columns = grid._table(), 1 << 12
    given_back = [0] * columns
    for column, (high, low) in enumerate(zip(table.high.tolist(), table.low, strict=True)):
        kept = high << 128 | low
        given_back[column] += kept
        given_back[int(table.alias[column])] += WHOLE // columns - kept
    assert given_back[: 2 * REACH + 1] == grid.weights()
    assert not any(given_back[2 * REACH + 1 :])
    assert sum(given_back) == WHOLE


@pytest.mark.parametrize("n", [0, 1, 77, 400, 1500, REACH])
def test_weights_are_those_of_a_rounded_gaussian(n: int) -> None:
    below, above = (math.erfc((n + side) / UNIT / math.sqrt(2)) / 2 for side in (-0.5, 0.5))
    weight = grid.weights()[REACH + n] / WHOLE
    assert weight == pytest.approx(below - above, rel=1e-9)


def test_what_the_table_leaves_out_is_less_than_what_is_said_to_be_missed() -> None:
    tail = math.erfc((REACH + 0.5) / UNIT / math.sqrt(2))
    rounding = (2 * REACH + 1) / WHOLE
    gaps = 1.01 * math.exp(-2 * math.pi**2 * UNIT**2 / (RATIO**2 + 1))
    assert tail + rounding + gaps < grid.MISSED


class _Ties(np.random.Philox):
    """Words whose first bits are those of a column's threshold; then two that decide."""

    def __new__(cls, *_: object) -> _Ties:
        return super().__new__(cls)

    def __init__(self, column: int, further: int) -> None:
        super().__init__(key=0)
        table = grid._table()
        self.first = (int(table.high[column]) << 12) | column
        self.rest = [further >> 64, further & (2**64 - 1)]

    def random_raw(self, size: Any = None, output: bool = True) -> Any:
        del output
        return self.rest.pop(0) if size is None else np.array([self.first] * size, np.uint64)


@pytest.mark.parametrize("below", [True, False])
def test_a_tie_is_settled_by_further_bits(below: bool) -> None:
    table = grid._table()
    column = next(c for c, low in enumerate(table.low) if low > 1 and int(table.alias[c]) != c)
    [drawn] = grid._numbers(1, _Ties(column, table.low[column] - below))
    assert drawn + REACH == (column if below else table.alias[column])


@given(st.floats(1e-3, 1e11))
def test_multipliers_never_give_less_noise_and_leave_no_gap(sigma: float) -> None:
    found = multipliers(sigma)
    assert found[0] == 1
    assert all(after <= RATIO * before for before, after in pairwise(found))
    reached = UNIT * math.sqrt(sum(one * one for one in found))
    assert reached >= sigma
    assert reached <= max(sigma, UNIT) * 1.5
    if sigma >= 2**15:
        assert reached <= 1.005 * sigma


def test_noise_has_the_deviation_that_was_asked_for() -> None:
    drawn = integer_noise(40_000.0, 200_000, np.random.Generator(np.random.Philox(key=7)))
    assert drawn.std() == pytest.approx(40_000, rel=0.01)
    assert abs(drawn.mean()) < 5 * 40_000 / math.sqrt(drawn.size)
    assert np.array_equal(
        drawn, integer_noise(40_000.0, 200_000, np.random.Generator(np.random.Philox(key=7)))
    )


# -- the proof, at a size at which everything can be enumerated ---------------------------------------------------


def rounded(sigma: float, reach: int) -> Masses:
    """Return P(rint(N(0, σ²)) = n) for n from −reach to reach."""
    edges = (np.arange(-reach, reach + 2) - 0.5) / sigma / math.sqrt(2)
    return np.diff([math.erf(edge) for edge in edges]) / 2


def spread(masses: Masses, factor: int) -> Masses:
    """Return the law of c times a number."""
    wide = np.zeros((len(masses) - 1) * factor + 1)
    wide[::factor] = masses
    return wide


def gaussian_with_uniforms(sigma: float, factors: list[int], reach: int) -> Masses:
    """Return the law of rint(N(0, σ²) + Σ c_i·U_i), by numerical integration over the uniform numbers."""
    fine = 64  # parts of a grid step
    density = np.exp(-0.5 * (np.arange(-reach * fine, reach * fine + 1) / fine / sigma) ** 2)
    for factor in factors:
        width = factor * fine
        box = np.full(width + 1, 1 / width)
        box[[0, -1]] /= 2
        density = np.convolve(density, box, mode="same")
    box = np.full(fine + 1, 1 / fine)
    box[[0, -1]] /= 2
    masses = np.convolve(density, box, mode="same")[::fine]
    return masses / masses.sum()


def hockey_stick(p: Masses, q: Masses, epsilon: float) -> float:
    return float(np.maximum(p - math.exp(epsilon) * q, 0).sum())


def gaussian_delta(shift_over_sigma: float, epsilon: float) -> float:
    def cdf(x: float) -> float:
        return math.erfc(-x / math.sqrt(2)) / 2

    half, ratio = shift_over_sigma / 2, epsilon / shift_over_sigma
    return cdf(half - ratio) - math.exp(epsilon) * cdf(-half - ratio)


@pytest.mark.parametrize(
    ("sigma", "members", "factors"), [(2.0, 2, [1]), (2.0, 3, [1]), (1.6, 2, [1]), (8.0, 1, [1, 4])]
)
def test_a_sum_of_rounded_gaussians_is_a_gaussian_with_uniform_numbers_that_is_rounded(
    sigma: float, members: int, factors: list[int]
) -> None:
    """The lemma of docs/secure-aggregation.md, all but a bound that it states, on each number that is enumerated."""
    reach = int(12 * sigma)
    law: Masses = np.ones(1)
    for _ in range(members):
        for factor in factors:
            law = np.convolve(law, spread(rounded(sigma, reach), factor))
    all_factors = factors * members
    whole = sigma * math.sqrt(sum(one * one for one in all_factors))
    ideal = gaussian_with_uniforms(whole, sorted(all_factors)[1:], len(law) // 2)
    least = min(1 / (largest**2 + 1) for largest in (max(factors),)) * sigma**2
    bound = (len(all_factors) - 1) * 1.01 * math.exp(-2 * math.pi**2 * least)
    assert np.abs(law - ideal).sum() / 2 <= bound + 2e-5  # the integral's own error


@settings(max_examples=40)
@given(
    st.sampled_from([1, 2, 3]),
    st.floats(1.0, 3.0),
    st.integers(1, 6),
    st.floats(0.0, 3.0),
)
def test_no_shift_of_a_sum_tells_more_than_the_gaussian_that_is_accounted(
    members: int, sigma: float, shift: int, epsilon: float
) -> None:
    """Hockey-stick divergences of enumerated sums against the closed form, at a few grid steps of noise."""
    sigma = max(sigma, 1.5)
    law: Masses = np.ones(1)
    for _ in range(members):
        law = np.convolve(law, rounded(sigma, int(14 * sigma)))
    p, q = np.pad(law, (shift, 0)), np.pad(law, (0, shift))
    missed = (members - 1) * 1.01 * math.exp(-(math.pi**2) * sigma**2)
    claimed = gaussian_delta(shift / (sigma * math.sqrt(members)), epsilon)
    measured = max(hockey_stick(p, q, epsilon), hockey_stick(q, p, epsilon))
    assert measured <= claimed + (1 + math.exp(epsilon)) * missed + 1e-12


def test_the_claim_is_tight_and_half_the_noise_breaks_it() -> None:
    law = np.convolve(rounded(3.0, 50), rounded(3.0, 50))
    p, q = np.pad(law, (4, 0)), np.pad(law, (0, 4))
    measured, claimed = hockey_stick(p, q, 0.5), gaussian_delta(4 / (3 * math.sqrt(2)), 0.5)
    assert 0.97 * claimed < measured <= claimed
    assert measured > 1.5 * gaussian_delta(4 / (6 * math.sqrt(2)), 0.5)


# -- what a release is --------------------------------------------------------------------------------------------


@given(st.integers(0, 2**32 - 1), st.integers(8, 20), st.floats(1e-3, 50.0))
def test_rounding_moves_a_record_by_no_more_than_is_counted(seed: int, bits: int, bound: float) -> None:
    """‖rint(s·a) − rint(s·b)‖ ≤ s·‖a − b‖ + √N, and the noise is of all of it."""
    rng, terms = np.random.default_rng(seed), Grid(bits)
    total = rng.normal(scale=20 * bound, size=40)
    record = rng.normal(size=40)
    record *= bound / np.linalg.norm(record)
    scale = terms.scale(bound)
    moved = np.linalg.norm(np.rint((total + record) * scale) - np.rint(total * scale))
    assert moved <= scale * bound + math.sqrt(40)
    assert terms.deviation(1.7, bound, 40) == pytest.approx(1.7 * (scale * bound + math.sqrt(40)))


@given(st.integers(8, 40), st.floats(1e-9, 1e9))
def test_a_grid_is_a_power_of_two_that_brings_the_bound_to_its_bits(bits: int, bound: float) -> None:
    scale = Grid(bits).scale(bound)
    assert math.frexp(scale)[0] == 0.5
    assert 2.0 ** (bits - 1) < scale * bound <= 2.0**bits


def test_the_noise_of_m_shares_is_that_of_one_release_of_all() -> None:
    one, share = Grid(16), Grid(16, members=9)
    assert share.deviation(2.0, 1.0, 100) * 3 == pytest.approx(one.deviation(2.0, 1.0, 100))


def test_no_bound_makes_less_noise_than_the_agreed_one() -> None:
    agreed = Grid(16, members=4, clip=1.0)
    assert agreed.deviation(2.0, 1 - 1e-10, 100) == agreed.deviation(2.0, 1.0, 100)


@pytest.mark.parametrize(
    ("colluding", "in_sums", "share"), [(0, True, 1.0), (3, True, 0.5), (0, False, 0.5), (3, False, 0.5)]
)
def test_what_is_left_of_the_noise_depends_on_who_sides_with_the_cloud(
    colluding: int, in_sums: bool, share: float
) -> None:
    assert Grid(16, members=4, colluding=colluding, in_sums=in_sums).noise_share == share


@given(
    st.integers(2, 40),
    st.floats(12, 2000),
    st.floats(0.3, 10),
    st.integers(10, 2_000_000),
    st.integers(0, 2**32),
)
def test_sums_stay_within_the_modulus_that_the_rule_chose(
    members: int, rows: float, z: float, dimension: int, seed: int
) -> None:
    fit = fitting(members, rows, z, dimension)
    steps, root = 2.0**fit.bits, math.sqrt(dimension)
    tail = REACH / UNIT * z * (steps + root)
    assert members * rows * steps + tail <= 2.0 ** (fit.modulus_bits - 1)
    assert root <= 0.02 * steps  # at C just above half of 2^bits/s
    del seed


def test_a_grid_that_was_asked_for_gets_the_modulus_that_holds_its_sums() -> None:
    assert fitting(20, 700, 2.0, 7850) == Fit(17, 32)
    assert fitting(20, 700, 2.0, 7850, wanted=24) == Fit(24, 64)
    assert fitting(10, 700, 2.0, 10**9).modulus_bits == 64


def test_a_grid_that_is_not_known_yet_releases_nothing() -> None:
    with pytest.raises(ConfigurationError, match=r"privacy\.grid: not yet known"):
        Grid(members=4).release(np.zeros(3), 1.0, 1.0, np.random.Generator(np.random.Philox(key=1)))

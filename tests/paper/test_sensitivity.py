"""PAPER-NOTES 2 and 5: how far one sample can move what an edge releases, before the noise."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from common.mechanism.clipping import Clipping
from common.mechanism.clippings.quantile import parts_of_bound
from common.mechanism.guarantee import CLIP_MARGIN, Adjacency, Norm
from common.mechanism.mechanism import Mechanism
from common.models.gradients import OuterGradients, RowGradients
from common.models.registry import CountedGradients
from tests.mechanism_support import (
    BATCH_MEAN,
    EVERY_CLIPPING,
    NORMALISED,
    PER_SAMPLE,
    POISSON,
    QUANTILE,
    WITH_REPLACEMENT,
    clip,
)

Rows = npt.NDArray[np.float32]
ROUNDING = 1 + 1e-6  # of float32
values = st.floats(-1e6, 1e6, width=32, allow_subnormal=False)


@st.composite
def neighbours(draw: st.DrawFn) -> tuple[Rows, Rows, int, float]:
    """Draw a batch, one that differs in one sample, which one, and ΔS."""
    b, n = draw(st.integers(1, 16)), draw(st.integers(1, 6))
    batch = draw(arrays.arrays(np.float32, (b, n), elements=values))
    place = draw(st.integers(0, b - 1))
    other = batch.copy()
    other[place] = draw(arrays.arrays(np.float32, (n,), elements=values))
    return batch, other, place, draw(st.floats(1e-3, 1e3))


def moved(one: Rows, other: Rows, sensitivity: float, how: Clipping, b: int | None = None) -> float:
    b = len(one) if b is None else b
    bound = b * sensitivity / 2
    a = clip(RowGradients(one), how, bound, b).astype(np.float64)
    return float(np.linalg.norm(a - clip(RowGradients(other), how, bound, b)))


@given(neighbours())
def test_replacing_one_sample_moves_the_clipped_mean_by_at_most_the_sensitivity(
    case: tuple[Rows, Rows, int, float],
) -> None:
    batch, other, _, sensitivity = case
    assert moved(batch, other, sensitivity, PER_SAMPLE) <= sensitivity * ROUNDING


@given(neighbours())
def test_setting_one_samples_contribution_to_zero_moves_it_by_at_most_c_over_b(
    case: tuple[Rows, Rows, int, float],
) -> None:
    batch, _, place, sensitivity = case
    without = np.delete(batch, place, axis=0)
    b = len(batch)
    assert moved(batch, without, sensitivity, PER_SAMPLE, b) <= sensitivity / 2 * ROUNDING


@given(neighbours())
def test_with_replacement_a_record_may_fill_the_batch_and_move_it_by_b_times_the_sensitivity(
    case: tuple[Rows, Rows, int, float],
) -> None:
    batch, other, place, sensitivity = case
    b = len(batch)
    full, replaced = np.repeat(batch[[place]], b, axis=0), np.repeat(other[[place]], b, axis=0)
    assert moved(full, replaced, sensitivity, PER_SAMPLE) <= b * sensitivity * ROUNDING


@given(neighbours())
def test_the_clipped_batch_mean_moves_by_at_most_b_times_the_sensitivity(
    case: tuple[Rows, Rows, int, float],
) -> None:
    batch, other, _, sensitivity = case
    assert moved(batch, other, sensitivity, BATCH_MEAN) <= len(batch) * sensitivity * ROUNDING


@pytest.mark.parametrize("b", [1, 2, 12])
def test_opposite_samples_attain_every_one_of_these_bounds(b: int) -> None:
    """The bounds are no larger than they need be: Mechanism states exactly what can happen."""
    sensitivity = 0.5
    far = np.zeros((b, 3), np.float32)
    far[0, 0] = 1e6
    for sampling in (POISSON, WITH_REPLACEMENT):
        one = np.repeat(far[:1], b, axis=0) if sampling == WITH_REPLACEMENT else far
        for clipping in (
            PER_SAMPLE,
            NORMALISED,
            BATCH_MEAN,
        ):  # a count takes a part of C
            mechanism = Mechanism(None, b, sampling, clipping)
            stated = mechanism.sensitivity_over_clip(Adjacency.REPLACE_ONE) * b * sensitivity / 2
            assert moved(one, -one, sensitivity, clipping) == pytest.approx(stated, rel=3e-4)


def test_clipping_the_batch_mean_breaks_the_papers_sensitivity() -> None:
    """D-02: one sample of twelve moves the mean by 12 ΔS."""
    batch = np.zeros((12, 2), np.float32)
    batch[0, 0] = 1e4
    other = batch.copy()
    other[0, 0] = -1e4
    assert moved(batch, other, 0.5, BATCH_MEAN) == pytest.approx(12 * 0.5, rel=3e-4)
    assert moved(batch, other, 0.5, PER_SAMPLE) == pytest.approx(0.5, rel=3e-4)


@given(neighbours())
def test_gradients_within_the_bound_are_averaged_as_they_are(case: tuple[Rows, Rows, int, float]) -> None:
    batch, _, _, _ = case
    b = len(batch)
    bound = float(np.linalg.norm(batch.astype(np.float64), axis=1).max()) * 1.01 + 1
    mean = batch.astype(np.float64).sum(axis=0) / b
    scale = np.abs(batch).max() + 1
    for how in (PER_SAMPLE, BATCH_MEAN):
        np.testing.assert_allclose(clip(RowGradients(batch), how, bound, b), mean, atol=1e-5 * scale)


@given(neighbours())
def test_normalised_samples_all_have_the_length_of_the_bound(case: tuple[Rows, Rows, int, float]) -> None:
    """And so one of them moves the mean by C/b where it is zeroed, and by 2C/b where it is replaced."""
    batch, other, place, sensitivity = case
    bound = len(batch) * sensitivity / 2
    for row in batch:
        length = float(np.linalg.norm(row.astype(np.float64)))
        scaled = np.linalg.norm(clip(RowGradients(row[None]), NORMALISED, bound, 1).astype(np.float64))
        assert scaled <= bound * (1 + 1e-6)
        if length == 0 or length > 1e-8:
            assert scaled == pytest.approx(bound if length else 0, rel=3e-4)
    zeroed = batch.copy()
    zeroed[place] = 0
    assert moved(batch, zeroed, sensitivity, NORMALISED) <= sensitivity / 2 * ROUNDING
    assert moved(batch, other, sensitivity, NORMALISED) <= sensitivity * ROUNDING


@given(neighbours(), st.sampled_from(list(Norm)))
def test_gradient_and_count_together_are_no_longer_than_the_bound(
    case: tuple[Rows, Rows, int, float], norm: Norm
) -> None:
    """And so one record moves both together by C/b where it is zeroed, and by 2C/b where it is replaced."""
    batch, other, place, sensitivity = case
    bound = len(batch) * sensitivity / 2
    zeroed = batch.copy()
    zeroed[place] = 0

    def released(rows: Rows) -> np.ndarray:
        counted = CountedGradients(RowGradients(rows))
        return clip(counted, QUANTILE, bound, len(rows), norm).astype(np.float64)

    order = 2 if norm is Norm.L2 else 1
    for neighbour, most in ((zeroed, sensitivity / 2), (other, sensitivity)):
        assert np.linalg.norm(released(batch) - released(neighbour), order) <= most * ROUNDING


def test_the_last_coordinate_counts_who_is_not_clipped() -> None:
    rows = np.array([[0.1, 0], [0, 0.2], [3, 4], [0, 0], [np.inf, 0]], np.float32)
    with np.errstate(invalid="ignore"):
        clipped = clip(CountedGradients(RowGradients(rows)), QUANTILE, 1.0, 10)
    of_gradient, of_count = parts_of_bound(1.0, Norm.L2)
    expected = [0.1 + 0.6 * of_gradient, 0.2 + 0.8 * of_gradient, of_count * (2 - 1)]
    np.testing.assert_allclose(clipped, np.array(expected) / 10, rtol=3e-4)
    assert of_gradient**2 + of_count**2 == pytest.approx(1)


def test_both_parts_are_noised_as_two_gaussians_that_cost_what_one_does() -> None:
    """z⁻² = z_g⁻² + z_b⁻² with z_g, z_b the multipliers of gradient and count by themselves."""
    z = 2.25
    std = z * 1.0  # of noise for C = 1
    of_gradient, of_count = parts_of_bound(1.0, Norm.L2)
    z_g, z_b = std / of_gradient, std / of_count
    assert (z_g**-2 + z_b**-2) ** -0.5 == pytest.approx(z)
    assert z_g == pytest.approx(z, rel=0.01)  # the count costs half a percent of noise


@pytest.mark.parametrize("how", [how for how in EVERY_CLIPPING if how != QUANTILE])
@pytest.mark.parametrize("present", [0, 1, 3, 9])
def test_under_poisson_the_sum_is_divided_by_the_configured_b(how: Clipping, present: int) -> None:
    rows = np.ones((present, 2), np.float32)
    bound = 2**0.5 if how == NORMALISED else 1e9  # that leaves them as they are
    np.testing.assert_allclose(clip(RowGradients(rows), how, bound, 4), np.full(2, present / 4), rtol=3e-4)


@pytest.mark.parametrize("how", [PER_SAMPLE, NORMALISED, BATCH_MEAN])
def test_an_empty_batch_gives_zero_in_either_form_of_gradients(how: Clipping) -> None:
    for gradients in (
        RowGradients(np.empty((0, 6), np.float32)),
        OuterGradients(np.empty((0, 2), np.float32), np.empty((0, 3), np.float32)),
    ):
        clipped = clip(gradients, how, 1.0, 5)
        assert clipped.dtype == np.float64
        np.testing.assert_array_equal(clipped, np.zeros(6))


@given(st.integers(0, 2**32 - 1), st.floats(0.01, 10))
def test_a_linear_models_factored_gradients_are_clipped_like_their_rows(seed: int, bound: float) -> None:
    rng = np.random.default_rng(seed)
    d = rng.standard_normal((7, 3)).astype(np.float32)
    x = rng.standard_normal((7, 4)).astype(np.float32)
    rows = np.einsum("ic,ij->icj", d, x).reshape(7, 12)
    for how in EVERY_CLIPPING:
        ours = clip(OuterGradients(d, x), how, bound, 5)
        np.testing.assert_allclose(ours, clip(RowGradients(rows), how, bound, 5), rtol=1e-4, atol=1e-5)
    weights = np.minimum(1, bound * (1 - CLIP_MARGIN) / np.linalg.norm(rows.astype(np.float64), axis=1))
    by_hand = (weights[:, None] * rows).sum(axis=0) / 5
    np.testing.assert_allclose(
        clip(OuterGradients(d, x), PER_SAMPLE, bound, 5), by_hand, rtol=3e-4, atol=1e-5
    )

"""perturb: which coordinates get noise, in which precision. Clipping is in tests/paper/test_sensitivity.py."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from common.models.gradients import RowGradients
from common.noise import Clipping, ExponentialNorm, GammaNorm, Gaussian, NoiseLaw
from common.quantities import ClippedGradient
from edge.privacy import clip, perturb

LAWS: list[NoiseLaw] = [ExponentialNorm(0.5), GammaNorm(0.5), Gaussian(2.0)]


def clipped(values: list[float]) -> ClippedGradient:
    return ClippedGradient(np.array(values, np.float32))


@pytest.mark.parametrize("law", LAWS, ids=lambda law: law.name)
def test_the_release_is_the_gradient_plus_one_draw_rounded_after_the_sum(law: NoiseLaw) -> None:
    gradient = clipped([1.0, -2.0, 1e-3, 5.0])
    eta = law.draw(0.7, 4, np.random.default_rng(5))
    released = perturb(gradient, law, 0.7, slice(0, 4), np.random.default_rng(5))
    np.testing.assert_array_equal(released, (gradient + eta).astype(np.float32))
    assert released.dtype == np.float32
    np.testing.assert_array_equal(gradient, clipped([1.0, -2.0, 1e-3, 5.0]))


@pytest.mark.parametrize("law", LAWS, ids=lambda law: law.name)
@pytest.mark.parametrize("noised", [slice(0, 2), slice(1, 3), slice(2, 4)])
def test_noise_on_a_part_leaves_the_other_coordinates_untouched(law: NoiseLaw, noised: slice) -> None:
    gradient = clipped([1.0, -2.0, 3.0, 5.0])
    released = perturb(gradient, law, 0.7, noised, np.random.default_rng(6))
    eta = law.draw(0.7, 2, np.random.default_rng(6))  # of the part's dimension, not the whole one's
    others = np.ones(4, bool)
    others[noised] = False
    np.testing.assert_array_equal(released[others], gradient[others])
    np.testing.assert_array_equal(released[noised], (gradient[noised] + eta).astype(np.float32))
    assert (released[noised] != gradient[noised]).all()
    np.testing.assert_array_equal(gradient, clipped([1.0, -2.0, 3.0, 5.0]))


@given(st.integers(1, 8), st.floats(0.01, 100), st.sampled_from(Clipping))
def test_a_clipped_gradient_never_exceeds_its_bound(b: int, bound: float, how: Clipping) -> None:
    rows = np.random.default_rng(b).normal(0, 1e3, (b, 5)).astype(np.float32)
    assert np.linalg.norm(clip(RowGradients(rows), how, bound, b)) <= bound * (1 + 1e-5)


@pytest.mark.parametrize("how", list(Clipping))
def test_a_gradient_of_zero_stays_zero(how: Clipping) -> None:
    np.testing.assert_array_equal(clip(RowGradients(np.zeros((3, 2), np.float32)), how, 1e-6, 3), np.zeros(2))

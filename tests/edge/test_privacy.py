"""perturb: which coordinates get noise, in which precision. Clipping is in tests/paper/test_sensitivity.py."""

from __future__ import annotations

import numpy as np
import pytest

from common.errors import RemoteProtocolError
from common.mechanism.clipping import Clipping
from common.mechanism.guarantee import LARGEST_BOUND, LEAST_BOUND
from common.models.gradients import OuterGradients, RowGradients
from common.noise.exponential_norm import ExponentialNorm
from common.noise.gamma_norm import GammaNorm
from common.noise.gaussian import Gaussian
from common.noise.law import NoiseLaw
from common.quantities import ClippedGradient, PerSampleGradients
from edge.worker import perturb
from tests.mechanism_support import EVERY_CLIPPING, NORMALISED, PER_SAMPLE, clip

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


def in_either_form(d: list[float], x: list[float]) -> list[PerSampleGradients]:
    """Return one sample's gradient d ⊗ x, factored and as a row."""
    factors = np.array([d], np.float32), np.array([x], np.float32)
    return [OuterGradients(*factors), RowGradients(np.outer(*factors).astype(np.float32).reshape(1, -1))]


@pytest.mark.parametrize("how", EVERY_CLIPPING)
@pytest.mark.parametrize("bound", [0.0, -1.0, 1e-30, 9e-10, 1.1e9, 1e300, float("inf"), float("nan")])
def test_a_bound_under_which_float32_misjudges_norms_is_refused(how: Clipping, bound: float) -> None:
    with pytest.raises(RemoteProtocolError, match="clipping bound"):
        clip(RowGradients(np.ones((2, 3), np.float32)), how, bound, 2)


@pytest.mark.parametrize("how", EVERY_CLIPPING)
@pytest.mark.parametrize("bound", [LEAST_BOUND, 1.0, LARGEST_BOUND])
@pytest.mark.parametrize("size", [1e-45, 1e-30, 1e-23, 1e-20, 1e-12, 1e-9, 1e-6, 1.0, 1e12, 1e18, 1e20, 3e38])
def test_within_the_allowed_bounds_no_gradient_is_too_small_or_too_large_to_be_clipped(
    how: Clipping, bound: float, size: float
) -> None:
    """Squares underflow below 1e-19 and overflow above 1e19: one that vanishes is within the bound, or counts as 0."""
    for gradients in in_either_form([size, -size], [1.0] * 400):
        with np.errstate(over="ignore", invalid="ignore"):
            clipped = clip(gradients, how, bound, 1).astype(np.float64)
        assert np.linalg.norm(clipped) <= bound * (1 + 1e-6)


@pytest.mark.parametrize("how", [PER_SAMPLE, NORMALISED])
@pytest.mark.parametrize(
    ("d", "x"), [(1e-20, 1e18), (1e-30, 1e18), (1e-22, 1e17), (1e18, 1e-20), (1e-43, 1e19)]
)
def test_a_factor_whose_squares_vanish_does_not_hide_a_long_gradient(
    how: Clipping, d: float, x: float
) -> None:
    """‖D‖²‖X‖² in float32 would be 0, and the gradient pass for one that is short."""
    for gradients in in_either_form([d, 0.0], [x, x, 0.0]):
        clipped = clip(gradients, how, 1e-3, 1).astype(np.float64)
        assert np.linalg.norm(clipped) <= 1e-3 * (1 + 1e-6)


@pytest.mark.parametrize("size", [1e-45, 1e-30, 1e-20, 1e-12, 1e-9, 1e-8, 1e-3, 1.0, 1e12, 1e17])
def test_normalised_gradients_are_as_long_as_the_bound_unless_they_vanish(size: float) -> None:
    for gradients in in_either_form([size, -size], [1.0] * 400):
        length = np.linalg.norm(clip(gradients, NORMALISED, 0.5, 1).astype(np.float64))
        norm = float(np.float32(size)) * (2 * 400) ** 0.5
        assert length == pytest.approx(0.5 * min(1.0, norm / LEAST_BOUND), rel=3e-4, abs=1e-30)


@pytest.mark.parametrize("how", EVERY_CLIPPING)
def test_a_gradient_of_zero_stays_zero(how: Clipping) -> None:
    np.testing.assert_array_equal(clip(RowGradients(np.zeros((3, 2), np.float32)), how, 1e-6, 3), np.zeros(2))

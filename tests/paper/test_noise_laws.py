"""PAPER-NOTES 1: the laws of η, by moments, norms and directions. Seeds are fixed, bounds are five standard errors."""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt
import pytest
from scipy import stats

from common.noise.exponential_norm import ExponentialNorm
from common.noise.gamma_norm import GammaNorm
from common.noise.gaussian import Gaussian
from common.noise.law import NoiseLaw

DRAWS = 8000
SENSITIVITY = 0.7
LAWS: list[NoiseLaw] = [ExponentialNorm(0.3), GammaNorm(0.3), Gaussian(1.7)]
SIZES = [1, 2, 5, 60]


def drawn(law: NoiseLaw, dimension: int, seed: int = 20) -> npt.NDArray[np.float64]:
    rng = np.random.default_rng(seed)
    return np.array([law.draw(SENSITIVITY, dimension, rng) for _ in range(DRAWS)])


def fourth_moment(law: NoiseLaw, n: int) -> float:
    """Return E‖η‖⁴/ΔS⁴ by hand."""
    if isinstance(law, ExponentialNorm):
        return 24 / law.epsilon**4
    if isinstance(law, GammaNorm):
        return n * (n + 1) * (n + 2) * (n + 3) / law.epsilon**4
    assert isinstance(law, Gaussian)
    return n * (n + 2) * (law.noise_multiplier / 2) ** 4


@pytest.mark.parametrize("dimension", SIZES)
@pytest.mark.parametrize("law", LAWS, ids=lambda law: law.name)
def test_the_stated_second_moment_is_the_one_that_is_drawn(law: NoiseLaw, dimension: int) -> None:
    squares = np.sum(drawn(law, dimension) ** 2, axis=1) / SENSITIVITY**2
    moment = law.relative_second_moment(dimension)
    error = math.sqrt((fourth_moment(law, dimension) - moment**2) / DRAWS)
    assert abs(squares.mean() - moment) < 5 * error
    assert 5 * error < 0.2 * moment  # the bound says something


@pytest.mark.parametrize("dimension", [1, 785, 7850])
def test_second_moments_are_those_of_the_notes(dimension: int) -> None:
    assert ExponentialNorm(0.1).relative_second_moment(dimension) == pytest.approx(2 / 0.1**2, rel=1e-14)
    gamma = GammaNorm(0.1).relative_second_moment(dimension)
    assert gamma == pytest.approx(dimension * (dimension + 1) / 0.1**2, rel=1e-14)
    assert Gaussian(3.0).relative_second_moment(dimension) == pytest.approx(dimension * 9 / 4, rel=1e-14)


@pytest.mark.parametrize("dimension", SIZES)
@pytest.mark.parametrize("law", LAWS, ids=lambda law: law.name)
def test_the_norm_has_the_laws_own_distribution(law: NoiseLaw, dimension: int) -> None:
    norms = np.linalg.norm(drawn(law, dimension, seed=21), axis=1)
    if isinstance(law, ExponentialNorm):
        reference = stats.expon(scale=SENSITIVITY / law.epsilon)
    elif isinstance(law, GammaNorm):
        reference = stats.gamma(dimension, scale=SENSITIVITY / law.epsilon)
    else:
        assert isinstance(law, Gaussian)
        reference = stats.chi(dimension, scale=law.noise_multiplier * SENSITIVITY / 2)
    assert stats.kstest(norms, reference.cdf).pvalue > 1e-3


def test_the_exponential_norm_is_not_the_gamma_norm() -> None:
    """The test above can tell them apart: the paper's variance belongs to another law than its proof."""
    norms = np.linalg.norm(drawn(ExponentialNorm(0.3), 5), axis=1)
    assert stats.kstest(norms, stats.gamma(5, scale=SENSITIVITY / 0.3).cdf).pvalue < 1e-12


def test_in_one_dimension_both_radial_laws_are_laplaces() -> None:
    for law in (ExponentialNorm(0.3), GammaNorm(0.3)):
        assert stats.kstest(drawn(law, 1)[:, 0], stats.laplace(scale=SENSITIVITY / 0.3).cdf).pvalue > 1e-3


@pytest.mark.parametrize("law", LAWS, ids=lambda law: law.name)
def test_the_direction_is_uniform(law: NoiseLaw) -> None:
    """On the sphere of R³ every coordinate of a uniform direction is uniform on [−1, 1] (Archimedes)."""
    noise = drawn(law, 3, seed=22)
    directions = noise / np.linalg.norm(noise, axis=1, keepdims=True)
    for coordinate in directions.T:
        assert stats.kstest(coordinate, stats.uniform(-1, 2).cdf).pvalue > 1e-3
    correlation = directions.T @ directions / DRAWS
    np.testing.assert_allclose(correlation, np.eye(3) / 3, atol=5 / math.sqrt(DRAWS))


@pytest.mark.parametrize("law", LAWS, ids=lambda law: law.name)
def test_norm_and_direction_are_independent(law: NoiseLaw) -> None:
    noise = drawn(law, 3, seed=23)
    norms = np.linalg.norm(noise, axis=1)
    assert abs(stats.spearmanr(norms, noise[:, 0] / norms).statistic) < 5 / math.sqrt(DRAWS)


@pytest.mark.parametrize("law", LAWS, ids=lambda law: law.name)
def test_the_noise_is_in_proportion_to_the_sensitivity(law: NoiseLaw) -> None:
    one = law.draw(1.0, 9, np.random.default_rng(3))
    five = law.draw(5.0, 9, np.random.default_rng(3))
    np.testing.assert_allclose(five, 5 * one, rtol=1e-14)
    assert one.dtype == np.float64

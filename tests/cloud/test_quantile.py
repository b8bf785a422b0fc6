"""C follows a quantile of the norms, by counts behind noise; a hostile count moves it no further than an honest one."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from cloud.algorithm import Algorithm, Update
from common.algorithms import describe
from common.mechanism.clipping import check_bound
from common.mechanism.guarantee import LARGEST_BOUND, LEAST_BOUND
from common.models.gradients import RowGradients
from common.models.registry import CountedGradients
from common.noise.gaussian import Gaussian
from common.problem import Problem
from common.quantities import NoisyGradient
from edge.worker import perturb
from tests.mechanism_support import QUANTILE, clip

B, Z = 256, 2.0


def begun(first_clip: float, **options: Any) -> Any:
    described = describe("quantile")
    problem = Problem(
        batch_size=B, smoothness=1.0, sigma=1.0, tau_max=2, iterations=1000, first_clip=first_clip
    )
    return described.make(described.resolve({"rate": 0.1, **options})).begin(problem, 1.0)


def step(algorithm: Algorithm, gradient: np.ndarray, t: int, sensitivity: float) -> Any:
    update = Update(NoisyGradient(gradient), t, t, 0, 0, Gaussian(Z), 1.0, 1, sensitivity)
    x, following = algorithm.apply(np.zeros(gradient.size, np.float32), update)
    assert x[-1] == 0
    return following


@pytest.mark.parametrize("quantile", [0.2, 0.5, 0.9])
@pytest.mark.parametrize("first_clip", [1e-2, 1.0, 1e2])
def test_the_bound_finds_the_quantile_wherever_it_begins(first_clip: float, quantile: float) -> None:
    rng = np.random.default_rng(3)
    algorithm = begun(first_clip, quantile=quantile, adaptation=0.5, window=4)
    late = []
    for t in range(1, 401):
        norms = rng.lognormal(0, 1, B)
        rows = rng.standard_normal((B, 3))
        rows *= (norms / np.linalg.norm(rows, axis=1))[:, None]
        sensitivity = algorithm.sensitivity
        gradients = CountedGradients(RowGradients(rows.astype(np.float32)))
        clipped = clip(gradients, QUANTILE, B * sensitivity / 2, B)
        released = perturb(clipped, Gaussian(Z), sensitivity, slice(0, 4), rng)
        algorithm = step(algorithm, released, t, sensitivity)
        if t > 300:
            late.append(math.log(algorithm.clip))
    share = np.mean(rng.lognormal(0, 1, 100_000) <= math.exp(float(np.mean(late))))
    assert share == pytest.approx(quantile, abs=0.06)


@pytest.mark.parametrize("count", [1e30, -1e30, math.inf, -math.inf, math.nan, 0.0])
def test_a_hostile_count_moves_the_bound_no_further_than_an_honest_one(count: float) -> None:
    algorithm = begun(1.0, window=1)
    gradient = np.array([0, 0, 0, count], np.float32)
    with np.errstate(invalid="ignore"):
        following = step(algorithm, gradient, 1, algorithm.sensitivity)
    assert abs(math.log(following.clip)) <= 0.2 * 0.5 + 1e-12
    for t in range(2, 2000):
        with np.errstate(invalid="ignore"):
            following = step(following, gradient, t, following.sensitivity)
    assert LEAST_BOUND < following.clip < LARGEST_BOUND
    check_bound(B * following.sensitivity / 2)


def test_a_gradient_is_taken_in_units_of_the_bound_that_it_was_made_with() -> None:
    algorithm = begun(1.0, window=1, adaptation=1.0)
    moved = step(algorithm, np.array([0, 0, 0, -1], np.float32), 1, algorithm.sensitivity)
    assert moved.clip > 1.2
    update = Update(
        NoisyGradient(np.array([1, 0, 0, 0], np.float32)),
        2,
        1,
        1,
        0,
        Gaussian(Z),
        1.0,
        1,
        algorithm.sensitivity,
    )
    x, _ = moved.apply(np.zeros(4, np.float32), update)
    assert x[0] == pytest.approx(-0.1)  # ρ times a gradient of length C


def test_the_bound_stays_where_it_is_told_to() -> None:
    algorithm = begun(3.0, adaptation=0.0, window=1)
    moved = step(algorithm, np.array([0, 0, 0, -1], np.float32), 1, algorithm.sensitivity)
    assert (moved.clip, moved.sensitivity) == (algorithm.clip, algorithm.sensitivity)

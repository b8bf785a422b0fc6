"""The Laplace mechanism: its draw, clipping in L1, and what a release guarantees against the closed form."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from scipy import stats

from common.accounting.pure import amplify_replace_one, amplify_zero_out
from common.accounting.releases import ReleaseKind, Spent
from common.accounting.total import total
from common.mechanism.clipping import Clipping
from common.mechanism.guarantee import CLIP_MARGIN, Adjacency, Norm, Scope
from common.mechanism.mechanism import Mechanism
from common.mechanism.sampler import Sampler
from common.models.gradients import OuterGradients, RowGradients
from common.models.registry import make_model
from common.noise.laplace import Laplace
from edge.worker import EdgeWorker
from mapa.simulation.simulator import simulate
from mapa.simulation.vectorised import simulate_rounds
from tests.core_support import small_world
from tests.mechanism_support import (
    BATCH_MEAN,
    EVERY_CLIPPING,
    NORMALISED,
    PER_SAMPLE,
    POISSON,
    QUANTILE,
    clip,
    every_sampler,
)

SENSITIVITY = 0.7


@pytest.mark.parametrize("dimension", [1, 5, 400])
def test_each_coordinate_is_laplace_of_scale_sensitivity_over_epsilon(dimension: int) -> None:
    law, rng = Laplace(0.3), np.random.default_rng(3)
    drawn = np.array([law.draw(SENSITIVITY, dimension, rng) for _ in range(8000 // dimension + 200)])
    scale = SENSITIVITY / 0.3
    assert stats.kstest(drawn.ravel()[:20_000], stats.laplace(scale=scale).cdf).pvalue > 1e-3
    assert abs(np.corrcoef(drawn[:-1, 0], drawn[1:, 0])[0, 1]) < 5 / math.sqrt(len(drawn))
    squares = (drawn**2).sum(axis=1) / SENSITIVITY**2
    moment = law.relative_second_moment(dimension)
    assert moment == pytest.approx(2 * dimension / 0.3**2, rel=1e-14)
    error = math.sqrt(20 * dimension / 0.3**4 / len(drawn))  # E η⁴ − (E η²)² = 20 of the standard law
    assert abs(squares.mean() - moment) < 5 * error


@pytest.mark.parametrize("dimension", [1, 2, 100, 7850, 10**6])
def test_the_tail_is_near_the_root_of_the_moment_where_there_are_many_coordinates(dimension: int) -> None:
    law = Laplace(0.5)
    root = math.sqrt(law.relative_second_moment(dimension))
    assert root < law.relative_tail(dimension) < (30 if dimension < 1000 else 2) * root


def bound_over_grid(mechanism: Mechanism, epsilon: float, adjacency: Adjacency) -> float:
    """Return the largest log ratio of two densities whose centres are as far apart as neighbours can be, C = 1."""
    scale = 2 / mechanism.batch_size / epsilon  # ΔS/ε
    apart = mechanism.sensitivity_over_clip(adjacency)  # in L1; along one coordinate, the worst case
    grid = np.linspace(-5, 5, 2001)
    here, there = (stats.laplace(loc=loc, scale=scale).logpdf(grid) for loc in (0, apart))
    return float(np.abs(here - there).max())


@pytest.mark.parametrize("adjacency", list(Adjacency))
@pytest.mark.parametrize("sampling", every_sampler(7))
@pytest.mark.parametrize("clipping", EVERY_CLIPPING)
def test_a_release_guarantees_the_largest_log_ratio_of_its_densities(
    clipping: Clipping, sampling: Sampler, adjacency: Adjacency
) -> None:
    mechanism = Mechanism(None, 4, sampling, clipping)
    guarantee = Laplace(0.3).guarantee(mechanism, adjacency)
    assert guarantee.noise_multiplier is None
    assert guarantee.epsilon == pytest.approx(bound_over_grid(mechanism, 0.3, adjacency), rel=1e-9)
    partly = Mechanism(Laplace(0.3), 4, POISSON, clipping, scope=Scope.FIRST_CONV)
    assert "in the clear" in partly.guarantee(adjacency).reason


def test_a_runs_total_is_that_of_pure_releases_under_both_adjacencies() -> None:
    """Per-sample, Poisson: ε/2 zero-out and ε replace-one, amplified at q = b/n, added up at δ = 0."""
    kind = ReleaseKind(Mechanism(Laplace(0.4), 10), 100)
    stated = total([Spent(kind, 7)], 0.0)
    assert stated.basic == pytest.approx(7 * math.log1p(0.1 * math.expm1(0.2)))
    assert stated.basic == pytest.approx(7 * amplify_zero_out(0.2, 0.1))
    assert stated.replace_one is not None
    assert stated.replace_one == pytest.approx(7 * amplify_replace_one(0.2, 0.4, 0.1))


@pytest.mark.parametrize("how", [how for how in EVERY_CLIPPING if how != QUANTILE])
@pytest.mark.parametrize("form", ["outer", "rows"])
def test_clipping_bounds_the_l1_norm(how: Clipping, form: str) -> None:
    rng = np.random.default_rng(5)
    d, x = (rng.standard_normal(size).astype(np.float32) for size in ((6, 3), (6, 20)))
    rows = np.einsum("ic,id->icd", d, x).reshape(6, 60)
    gradients = OuterGradients(d, x) if form == "outer" else RowGradients(rows)
    norms = np.abs(rows).sum(axis=1)
    np.testing.assert_allclose(gradients.l1_norms(), norms, rtol=1e-5)
    bound = 1.0 if how == BATCH_MEAN else float(np.median(norms))
    clipped = clip(gradients, how, bound, 6, Norm.L1)
    within = bound * (1 - CLIP_MARGIN)
    if how == PER_SAMPLE:
        expected = (rows * np.minimum(1, within / norms)[:, None]).sum(axis=0) / 6
    elif how == NORMALISED:
        expected = (rows * (within / norms)[:, None]).sum(axis=0) / 6
    else:
        mean = rows.mean(axis=0)
        expected = mean * min(1, bound / np.abs(mean).sum())
        assert np.abs(clipped).sum() == pytest.approx(bound, rel=1e-5)
    np.testing.assert_allclose(clipped, expected, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("how", EVERY_CLIPPING)
def test_one_sample_moves_the_mean_by_no_more_than_its_sensitivity_in_l1(how: Clipping) -> None:
    rng = np.random.default_rng(6)
    rows = (10 * rng.standard_normal((4, 50))).astype(np.float32)
    zeroed = rows.copy()
    zeroed[0] = 0
    moved = clip(RowGradients(rows), how, 1.0, 4, Norm.L1) - clip(RowGradients(zeroed), how, 1.0, 4, Norm.L1)
    allowed = Mechanism(None, 4, POISSON, how).sensitivity_over_clip(Adjacency.ZERO_OUT)
    assert np.abs(moved).sum() <= allowed * (1 + 1e-6)
    if how != BATCH_MEAN:  # clipping in L2 would let it move by up to √N times that
        in_l2 = clip(RowGradients(rows), how, 1.0, 4) - clip(RowGradients(zeroed), how, 1.0, 4)
        assert np.abs(in_l2).sum() > 3 * allowed


@pytest.mark.parametrize("clipping", ["per-sample", "normalised", "batch-mean"])
def test_a_worker_clips_in_the_norm_of_its_law(clipping: str) -> None:
    released = [_released(noise, clipping) for noise in ("laplace", "gamma-norm")]
    assert np.abs(released[0]).sum() <= 0.05 * (1 + 1e-3)
    assert np.abs(released[1]).sum() > 0.1  # its L2 norm is what is bounded


def _released(noise: str, clipping: str) -> Any:
    """Return a gradient with next to no noise, for C = 0.05."""
    privacy = {"noise": noise, "epsilon": 1e9, "clipping": clipping}
    worker: EdgeWorker = small_world(privacy=privacy, model={"regularization": 0.0}).workers()[0]
    sensitivity = 2 * 0.05 / worker.mechanism.batch_size
    return worker.gradient(np.zeros(worker.model.dimension, np.float32), sensitivity, 1)


@pytest.mark.parametrize("clipping", ["per-sample", "normalised", "batch-mean"])
def test_the_engines_agree_on_it(clipping: str) -> None:
    privacy = {"noise": "laplace", "epsilon": 5.0, "clipping": clipping}
    world = small_world(privacy=privacy, delays={"kind": "cyclic"})
    one, many = simulate(world), simulate_rounds(world)
    np.testing.assert_allclose(many.x, one.x, rtol=1e-3, atol=1e-4)
    assert np.isfinite(simulate_rounds(world, blocks=True).x).all()


def test_a_cnns_blocks_have_l1_norms() -> None:
    pytest.importorskip("torch")
    model = make_model("cnn", shape=(28, 28), classes=10, options={})
    rng = np.random.default_rng(0)
    images = rng.random((3, 784), dtype=np.float32)
    features, targets = model.features(images), model.targets(np.array([1, 2, 3]))
    gradients = model.gradients(model.initial(rng), features, targets)
    rows = [gradients.weighted_sum(np.eye(3, dtype=np.float32)[i]) for i in range(3)]
    np.testing.assert_allclose(gradients.l1_norms(), np.abs(rows).sum(axis=1), rtol=1e-4)

"""Weights by the inverse variance of the noise: the mean is kept, none passes the cap, no edge's word raises one."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cloud.admission import Terms
from cloud.algorithm import LARGEST, Update, WithWeights, effective_multiplier, noise_weights
from cloud.assembly import algorithm_for, begun, public_numbers, weights_of
from common.algorithms import algorithm_names, describe
from common.errors import ConfigurationError
from common.messages import Hello
from common.noise.gaussian import Gaussian
from common.quantities import EdgeId, NoisyGradient
from mapa.simulation.synchronous import check_synchronous_scenario
from mapa.simulation.vectorised import check_vectorised_scenario
from tests.core_support import small_scenario, small_world

EDGES = st.lists(st.tuples(st.floats(1e-3, 1e3), st.integers(1, 10_000)), min_size=1, max_size=12)


@given(EDGES)
def test_the_mean_step_is_kept_and_no_weight_is_above_the_cap(edges: list[tuple[float, int]]) -> None:
    variances, releases = zip(*edges, strict=True)
    weights = noise_weights(variances, releases)
    mean = sum(r * w for r, w in zip(releases, weights, strict=True)) / sum(releases)
    assert mean == pytest.approx(1)
    assert all(0 < w <= LARGEST for w in weights)
    free = [w * v for w, v in zip(weights, variances, strict=True) if w < LARGEST]
    assert free == pytest.approx([free[0]] * len(free))  # ∝ 1/v but for the cap
    for w, v in zip(weights, variances, strict=True):  # who noises less never weighs less
        assert all(w >= other for other, its in zip(weights, variances, strict=True) if its > v)


@given(EDGES)
def test_weights_never_add_noise(edges: list[tuple[float, int]]) -> None:
    """Of all weights with this mean step 1/v gives the least noise; with the cap it is still no more than alike."""
    multipliers, releases = [math.sqrt(v) for v, _ in edges], tuple(r for _, r in edges)
    weights = noise_weights(tuple(v for v, _ in edges), releases)
    alike = effective_multiplier(multipliers, [1.0] * len(edges), releases)
    assert effective_multiplier(multipliers, weights, releases) <= alike * (1 + 1e-9)


def paced_world(**algorithm: Any) -> Any:
    return small_world(
        algorithm={"name": "constant", "rate": 0.5, **algorithm},
        privacy={"noise": "gaussian", "noise_multiplier": [1.0, 2.0, 4.0, 8.0]},
    )


def test_the_algorithm_gets_the_weighted_gradient() -> None:
    world = paced_world(weights="noise")
    algorithm = begun(world.scenario, world.model)
    assert isinstance(algorithm, WithWeights)
    weights, _ = weights_of(world.scenario)
    assert weights == pytest.approx([4 * 64 / 85, 64 / 85, 16 / 85, 4 / 85])
    x, g = np.zeros(world.model.dimension, np.float32), np.ones(world.model.dimension, np.float32)
    plain = begun(paced_world().scenario, world.model)
    for k, z in enumerate([1.0, 2.0, 4.0, 8.0]):
        update = Update(g, 1, 1, 0, k, Gaussian(z), 1.0, 1, algorithm.sensitivity)
        moved, after = algorithm.apply(x, update)
        expected, _ = plain.apply(x, update._replace(gradient=np.float32(weights[k]) * g))
        np.testing.assert_allclose(moved, expected, rtol=1e-6)
        assert after is algorithm  # nothing to remember
    assert (algorithm.stage, algorithm.sensitivity) == (plain.stage, plain.sensitivity)


@given(z=st.floats(1e-6, 1e6), edge=st.integers(0, 3))
def test_no_word_about_its_noise_gains_an_edge_anything(z: float, edge: int) -> None:
    """What one message can move x by is weight × reach; saying more noise widens the reach and lowers the product."""
    planned = [1.0, 2.0, 4.0, 8.0]
    releases = (1, 2, 4, 8)
    variances = tuple(v * v / 4 for v in planned)
    algorithm = WithWeights(
        algorithm_for(paced_world().scenario), noise_weights(variances, releases), variances
    )
    terms = Terms(
        edges=4,
        iterations=15,
        private=True,
        noise="gaussian",
        parameters={"noise_multiplier": planned},
        noised_dimension=100,
        most_samples=50,
        caps=releases,
    )
    said = terms.law(Hello(edge_id=EdgeId("a"), noise="gaussian", parameters={"noise_multiplier": z}), edge)
    honest = Gaussian(planned[edge])
    assert said.parameters["noise_multiplier"] == max(z, planned[edge])
    gain = algorithm.weight(edge, said) * terms.reach(said)
    assert gain <= algorithm.weight(edge, honest) * terms.reach(honest) * (1 + 1e-9)


def test_in_a_paced_run_only_more_noise_of_the_same_law_is_taken() -> None:
    terms = Terms(
        edges=1,
        iterations=5,
        private=True,
        noise="gaussian",
        parameters={"noise_multiplier": [2.0]},
        caps=(5,),
    )
    for noise, parameters in (("gamma-norm", {"epsilon": 1.0}), ("laplace", {})):
        with pytest.raises(ConfigurationError, match="every edge noises by 'gaussian'"):
            terms.law(Hello(edge_id=EdgeId("a"), noise=noise, parameters=parameters), 0)
    assert terms.law(Hello(edge_id=EdgeId("a")), 0) == Gaussian(2.0)


@pytest.mark.parametrize("name", algorithm_names())
def test_every_private_algorithm_can_be_weighted(name: str) -> None:
    described = describe(name)
    if (
        not described.private or described.clipping == "quantile"
    ):  # a count is no gradient: refused by the scenario
        return
    own = {"rate": 0.2} if any(one.name == "rate" for one in described.options) else {}
    world = small_world(
        edges=5,
        algorithm={"name": name, "weights": "noise", **own},
        privacy={
            "noise": "gaussian",
            "noise_multiplier": [1.0, 3.0],
            "clipping": described.clipping or "per-sample",
        },
    )
    algorithm = begun(world.scenario, world.model)
    x = np.zeros(world.model.dimension, np.float32)
    g = NoisyGradient(np.ones(world.model.dimension, np.float32))
    for t in range(1, 5):
        update = Update(
            g, t, t, 0, t % 2, world.scenario.law(t % 2), 1.0, algorithm.stage, algorithm.sensitivity
        )
        x, algorithm = algorithm.apply(x, update)
    assert np.isfinite(algorithm.result(x)).all()


def test_z_of_the_rule_is_the_root_mean_square_of_weighted_noise() -> None:
    world = paced_world(weights="noise")
    weights, _ = weights_of(world.scenario)
    expected = math.sqrt(sum((w * z) ** 2 for w, z in zip(weights, (1, 2, 4, 8), strict=True)) / 4)
    assert public_numbers(world.scenario, world.model).noise_multiplier == pytest.approx(expected)


def test_a_pace_with_quantile_clipping_says_how_to_go_without_weights() -> None:
    paced = {"total_epsilon": 3.0, "pace": "own", "paces": [1.0, 2.0], "clipping": "quantile"}
    with pytest.raises(ConfigurationError, match=r"privacy\.pace = 'own'.*set algorithm\.weights = 'none'"):
        small_scenario(algorithm={"name": "quantile", "rate": 0.2}, privacy=paced)
    small_scenario(algorithm={"name": "quantile", "rate": 0.2, "weights": "none"}, privacy=paced)


def test_engines_that_take_all_edges_alike_refuse_weights() -> None:
    world = paced_world(weights="noise")
    for check in (check_vectorised_scenario, check_synchronous_scenario):
        with pytest.raises(ConfigurationError, match=r"algorithm\.weights = 'noise'|delays\.kind"):
            check(world.scenario)


@pytest.mark.parametrize("name", ["asgd", "csgd"])
def test_gradients_without_noise_have_no_weights_by_noise(name: str) -> None:
    with pytest.raises(
        ConfigurationError, match=r"algorithm\.weights = 'noise': needs an algorithm whose edges"
    ):
        small_scenario(algorithm={"name": name, "weights": "noise"})

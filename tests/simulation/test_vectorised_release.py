"""A release of the vectorised engine is made as an edge makes it: clip, mean, noise, then λx; no NaN leaves."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from common.datasets.dataset import Dataset, Samples
from common.errors import ConfigurationError
from common.models.linear import LogisticRegression, Softmax
from common.noise.exponential_norm import ExponentialNorm
from common.noise.gamma_norm import GammaNorm
from common.noise.gaussian import Gaussian
from common.noise.laplace import Laplace
from common.noise.law import NoiseLaw
from common.quantities import Vector
from mapa.simulation.simulator import World, simulate
from mapa.simulation.vectorised import BlockStreams, noise_block, simulate_rounds
from tests.core_support import SIDE, small_dataset, small_scenario, small_world


class BegunLr(LogisticRegression):
    """Begins where λx matters, at integers: sums with pixels of 1/16 are exact in any order."""

    def initial(self, rng: np.random.Generator) -> Vector:
        return rng.integers(-8, 9, self.dimension).astype(np.float32)


class HugeSoftmax(Softmax):
    """Begins so far out that scores overflow, to both sides."""

    def initial(self, rng: np.random.Generator) -> Vector:
        signs = rng.integers(0, 2, self.dimension) * 2 - 1
        return (signs * 3e38).astype(np.float32)


def in_sixteenths(samples: Samples) -> Samples:
    return Samples(np.round(samples.values() * 16).astype(np.float32) / 16, samples.labels)


def exact_dataset() -> Dataset:
    dataset = small_dataset()
    return replace(dataset, train=in_sixteenths(dataset.train), test=in_sixteenths(dataset.test))


@pytest.mark.parametrize("clipping", ["per-sample", "batch-mean"])
def test_the_regulariser_is_added_after_the_noise_as_an_edge_adds_it(clipping: str) -> None:
    scenario = small_scenario(
        edges=40,
        iterations=40,  # one round: every gradient is made on x₁
        batch_size=1,
        algorithm={"first_clip": 1000.0},  # nothing is clipped, so nothing is rounded by it
        model={"name": "lr", "regularization": 0.3},
        privacy={"noise": "exponential-norm", "epsilon": 1.0, "clipping": clipping},
    )
    world = World.on(scenario, exact_dataset())
    world = replace(world, model=BegunLr(shape=(SIDE, SIDE), classes=10))
    events, vectorised = simulate(world), simulate_rounds(world)
    assert events.tally.updates == vectorised.tally.updates == 40
    np.testing.assert_array_equal(events.x, vectorised.x)


@pytest.mark.parametrize("clipping", ["per-sample", "batch-mean"])
def test_a_sample_whose_gradient_is_not_finite_counts_as_0_as_on_an_edge(clipping: str) -> None:
    values: dict[str, Any] = {"name": "softmax", "regularization": 0.0}
    scenario = small_scenario(
        model=values, privacy={"noise": "exponential-norm", "epsilon": 1.0, "clipping": clipping}
    )
    world = World.on(scenario, small_dataset())
    world = replace(world, model=HugeSoftmax(shape=(SIDE, SIDE), classes=10))
    events, vectorised = simulate(world), simulate_rounds(world)
    assert (events.reason, vectorised.reason) == ("finished", "finished")
    np.testing.assert_array_equal(events.x, vectorised.x)


def test_the_vectorised_engine_refuses_an_edge_below_the_floor_as_the_server_does() -> None:
    privacy = {"noise": "exponential-norm", "epsilon": [1.0, 0.1], "epsilon_floor": 0.5}
    with pytest.raises(ConfigurationError, match=r"edge-1 is refused .epsilon-floor.: epsilon = 0\.1"):
        simulate_rounds(small_world(privacy=privacy))


@pytest.mark.parametrize("law", [Gaussian(1.0), GammaNorm(1.0), Laplace(1.0), ExponentialNorm(1.0)])
def test_the_block_engine_adds_its_noise_in_float64(law: NoiseLaw) -> None:
    """Noise of float32 has steps: added to 0 it gives numbers that it cannot give when added to a record's part."""
    gradients = np.zeros((20, 50))
    noise_block(gradients, [law] * 20, np.ones(20), BlockStreams(3))
    assert np.mean(gradients == gradients.astype(np.float32)) < 0.01


def test_a_law_whose_blocks_are_coarser_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Laplace, "draw_block", lambda *_: np.zeros((1, 2), np.float32))
    with pytest.raises(ConfigurationError, match="'laplace': draw_block gives float32, must be float64"):
        noise_block(np.zeros((1, 2)), [Laplace(1.0)], np.ones(1), BlockStreams(3))

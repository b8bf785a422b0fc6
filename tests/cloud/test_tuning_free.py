"""tuning-free: ρ = 1.5·b/(ℓ·z·√T) from public numbers, in the records from then on; a model without ℓ needs a rate."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from cloud.algorithm import PublicNumbers
from cloud.algorithms.tuning_free import TuningFree
from cloud.assembly import begun, explained, public_numbers
from common.errors import ConfigurationError
from common.metrics import ACCURACY
from common.models.linear import LinearModel, Softmax
from common.models.model import Features, Images, feature_length
from common.models.scattering_softmax import ScatteringSoftmax
from common.problem import Problem
from common.scenario.scenario import Scenario, parse_scenario
from mapa.simulation.simulator import World, simulate
from mapa.simulation.vectorised import simulate_rounds
from tests.core_support import small_dataset, small_scenario, small_world

PRIVACY = {"noise": "gaussian", "noise_multiplier": 2.0, "clipping": "normalised"}
FREE = {"name": "tuning-free", "first_clip": None}


class Unit(Softmax):
    """Softmax on inputs of length 3, with a bias input of a tenth of that."""

    name = "unit"
    feature_length = 3.0

    def features(self, images: Images) -> Features:
        features = super().features(images)
        features[:, -1] = 0
        features *= (3 / np.linalg.norm(features, axis=1))[:, None]
        features[:, -1] = 0.3
        return features


UNIT = "tests.cloud.test_tuning_free:Unit"


def free_scenario(**changes: Any) -> Scenario:
    values: dict[str, Any] = {"model": {"name": UNIT}, "algorithm": FREE, "privacy": PRIVACY}
    return small_scenario(**{**values, **changes})


def free_world(**changes: Any) -> World:
    return World.on(free_scenario(**changes), small_dataset())


def rate_of(world: World) -> Any:
    return world.scenario.algorithm.options["rate"]


@given(b=st.integers(1, 10_000), t=st.integers(1, 10**6), z=st.floats(1e-3, 1e3), length=st.floats(1e-3, 1e3))
def test_the_noise_on_a_score_is_one_and_a_half_deviations(b: int, t: int, z: float, length: float) -> None:
    assume(b / (z * math.sqrt(t)) < 200)  # else a delay caps it
    made = TuningFree().settled(PublicNumbers(b, t, z, length, "m"))
    begins = made.begin(
        Problem(batch_size=b, smoothness=1, sigma=1, tau_max=1, iterations=t, first_clip=0.1), 1
    )
    per_update = begins.learning_rate(1) * z * begins.sensitivity / 2  # γ·zC/b in each coordinate
    assert per_update * math.sqrt(t) * length == pytest.approx(1.5)


def test_the_rate_is_filled_into_the_scenario_and_stays_there() -> None:
    world = free_world()
    assert rate_of(world) == pytest.approx(1.5 * 5 / (3.0 * 2.0 * math.sqrt(60)))
    words = "ρ = 0.161374 = 1.5·b/(ℓ·z·√T) with b = 5, ℓ = 3, z = 2, T = 60"
    assert explained(world.scenario, world.model) == words
    recorded = parse_scenario(world.scenario.canonical())
    assert recorded == world.scenario
    again = World.on(recorded, small_dataset())
    assert (again.scenario, again.scenario.digest) == (world.scenario, world.scenario.digest)
    assert "algorithm" not in world.scenario.for_edge(0)


def test_a_rate_that_is_given_is_kept_and_said() -> None:
    world = free_world(algorithm={**FREE, "rate": 0.25})
    assert rate_of(world) == 0.25
    assert explained(world.scenario, world.model) == "ρ = 0.25, as algorithm.rate says"
    assert explained(small_world().scenario, small_world().model) == ""


def test_z_is_the_root_mean_square_over_edges_and_that_of_any_law() -> None:
    own = free_world(privacy={**PRIVACY, "noise_multiplier": [1.0, 3.0]})
    assert public_numbers(own.scenario, own.model).noise_multiplier == pytest.approx(math.sqrt(5))
    gamma = free_world(privacy={"noise": "gamma-norm", "epsilon": 1.0, "clipping": "normalised"})
    law, n = gamma.scenario.law(0), gamma.model.dimension
    assert law is not None
    z = public_numbers(gamma.scenario, gamma.model).noise_multiplier
    assert n * z * z / 4 == pytest.approx(law.relative_second_moment(n))


@pytest.mark.slow
def test_a_budget_is_turned_into_z_first() -> None:
    privacy = {"clipping": "normalised", "total_epsilon": 3.0, "releases": 20}
    world = free_world(privacy=privacy, data={"sampler": "poisson"})
    z = world.scenario.privacy.parameters(0)["noise_multiplier"]
    assert rate_of(world) == pytest.approx(1.5 * 5 / (3.0 * z * math.sqrt(60)))


def test_a_model_without_a_feature_length_needs_a_rate() -> None:
    with pytest.raises(ConfigurationError, match=r"algorithm\.rate: needed .* model 'softmax' has no fixed"):
        free_world(model={"name": "softmax"})
    assert rate_of(free_world(model={"name": "softmax"}, algorithm={**FREE, "rate": 0.1})) == 0.1


@pytest.mark.parametrize("clipping", ["per-sample", "batch-mean"])
def test_gradients_that_are_not_normalised_are_refused(clipping: str) -> None:
    with pytest.raises(
        ConfigurationError, match=rf"privacy\.clipping = '{clipping}': must be 'normalised' with"
    ):
        free_scenario(privacy={**PRIVACY, "clipping": clipping})


def test_begin_without_a_rate_says_what_is_missing() -> None:
    world = free_world()
    with pytest.raises(ConfigurationError, match=r"algorithm\.rate: needed"):
        begun(free_scenario(), world.model)


def test_the_vectorised_engine_plans_it() -> None:
    events, rounds = simulate(free_world()), simulate_rounds(free_world())
    np.testing.assert_allclose(events.x, rounds.x, rtol=1e-4, atol=1e-5)


def test_scattering_features_have_the_length_that_the_model_says() -> None:
    images = np.random.default_rng(3).random((7, 28 * 28)).astype(np.float32)
    model = ScatteringSoftmax(shape=(28, 28), classes=10, landmarks=50)
    assert feature_length(model) == pytest.approx(math.sqrt(50))
    lengths = np.linalg.norm(model.features(images)[:, :-1], axis=1)
    np.testing.assert_allclose(lengths, feature_length(model), rtol=1e-5)
    assert feature_length(ScatteringSoftmax(shape=(28, 28), classes=10, landmarks=0)) is None


def test_a_class_of_ones_own_may_leave_the_length_out_or_say_nonsense() -> None:
    class Silent:
        name = "silent"

    silent: Any = Silent()
    assert feature_length(silent) is None
    for wrong in (0, -1.0, math.inf, math.nan, "1", True):
        silent.feature_length = wrong
        with pytest.raises(ConfigurationError, match=r"feature_length = .*must be a number greater than 0"):
            feature_length(silent)
    assert LinearModel.feature_length is None


def test_it_learns_without_a_rate() -> None:
    """Blobs are easy: tuning-free gets near the non-private accuracy at moderate noise."""
    blobs = small_dataset(rows=2000)
    scenario = free_scenario(iterations=200, batch_size=100, data={"sampler": "poisson"})
    outcome = simulate(World.on(scenario, blobs))
    assert outcome.tally.evaluations[-1].values[ACCURACY] > 0.9


@given(delay=st.integers(0, 1000), m=st.integers(1, 40), length=st.floats(1e-3, 1e3))
def test_no_rate_moves_a_score_further_than_a_delay_bears(delay: int, m: int, length: float) -> None:
    numbers = PublicNumbers(512, 2381 // m, 2.8 / m, length, "m", delay)
    made = TuningFree().settled(numbers)
    assert made.rate * length * (delay + 1) <= 300 * (1 + 1e-9)
    words = made.explained(numbers)
    assert ("300/(ℓ·(τ + 1))" in words) == (made.rate * length * (delay + 1) > 299.999)


@pytest.mark.parametrize(("edges", "b", "releases", "z"), [(5, 1024, 300, 1.16), (20, 512, 120, 1.2)])
def test_the_cap_binds_in_no_recipe_without_sums(edges: int, b: int, releases: int, z: float) -> None:
    """ε = 8, the least noise of the recipes."""
    numbers = PublicNumbers(b, edges * (releases - 1) + 1, z, 1.0, "m", edges - 1)
    assert "1.5·b" in TuningFree().settled(numbers).explained(numbers)

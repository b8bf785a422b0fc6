"""Local steps in the simulator: with every private algorithm, counted, and refused where an engine cannot."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from cloud.assembly import terms_for
from common.algorithms import describe
from common.noise.gaussian import Gaussian
from common.quantities import EdgeId
from mapa.releases import privacy_of
from mapa.simulation.delays import drawn_trips
from mapa.simulation.simulator import simulate
from tests.core_support import small_scenario, small_world

STEPS: dict[str, Any] = {
    "model": {"name": "softmax", "regularization": 0.01},
    "data": {"sampler": "poisson"},
    "privacy": {"noise": "gaussian", "noise_multiplier": 2.0},
    "local": {"steps": 3, "rate": 0.05},
}
PRIVATE = [
    "audp",
    "mapa",
    "constant",
    "fedasync",
    "fedbuff",
    "delay-adaptive",
    "momentum",
    "adam",
]


@pytest.mark.parametrize("name", PRIVATE)
def test_every_private_algorithm_runs_with_local_steps(name: str) -> None:
    assert describe(name).private
    table = {"name": name, "first_clip": 1.0}
    if name not in ("audp", "mapa"):
        table["rate"] = 0.05
    world = small_world(algorithm=table, **STEPS)
    outcome = simulate(world)
    assert (outcome.reason, outcome.tally.updates) == ("finished", 60)
    assert np.isfinite(outcome.x).all()
    assert not outcome.tally.refused  # no honest message is taken for one that is too long
    stated = privacy_of(
        world.scenario,
        [(k, f"edge-{k}", world.scenario.law(k), 100, n) for k, n in enumerate(outcome.releases)],
    )
    for row, messages in zip(stated["edges"], outcome.releases, strict=True):
        assert (row["releases"], row["charges"], row["local_steps"]) == (messages, 3 * messages, 3)
    assert any("mean of 3 noised gradients" in line for line in stated["words"])


def test_a_message_of_three_gradients_takes_three_times_as_long_to_make() -> None:
    world = small_world(delays={"kind": "constant", "compute": 2.0, "network": 1.0})
    one = drawn_trips(world.scenario.delays, world.streams)
    three = drawn_trips(world.scenario.delays, world.streams, 3)
    assert (one(0, 1), three(0, 1)) == ((1.0, 2.0, 1.0), (1.0, 6.0, 1.0))


def test_the_noise_of_a_message_is_the_root_of_e_shorter_and_so_is_what_the_cloud_takes() -> None:
    world = small_world(algorithm={"name": "constant", "rate": 0.05}, **STEPS)
    law = Gaussian(2.0)
    stepping = terms_for(world.scenario, world.model, edges_at_least=1)
    plain = terms_for(
        world.scenario.model_copy(update={"local": small_scenario().local}), world.model, edges_at_least=1
    )
    assert stepping.moment(law) == pytest.approx(plain.moment(law) / 3)
    noise = law.relative_tail(world.model.dimension)
    assert stepping.reach(law) - plain.reach(law) == pytest.approx(
        1.001 * noise * (3**-0.5 - 1) + 1.001 * (stepping.most_samples - plain.most_samples) / 2
    )


@pytest.mark.parametrize("rate", [0.05, 40.0])
def test_the_regulariser_s_part_knows_how_far_steps_may_lead(rate: float) -> None:
    """At ρ_local = 40 and λ = 2, γλ is far above 2: each step takes x further away."""
    changes = {
        **STEPS,
        "model": {"name": "softmax", "regularization": 2.0},
        "local": {"steps": 5, "rate": rate},
    }
    world = small_world(algorithm={"name": "constant", "rate": 0.05}, **changes)
    terms = terms_for(world.scenario, world.model, edges_at_least=1)
    edge = world.workers()[0]
    assert edge.edge_id == EdgeId("edge-0")
    x = np.full(world.model.dimension, 0.1, np.float32)
    sensitivity, law = 0.4, world.scenario.law(0)
    longest = float(np.linalg.norm(x))
    honest = terms.reach(law) * sensitivity + terms.regular_part(law, sensitivity, longest)
    lengths = [float(np.linalg.norm(edge.gradient(x, sensitivity, n))) for n in range(1, 40)]
    assert max(lengths) <= honest < 1e12
    if rate > 1:  # without the steps' own part an honest edge would be refused
        assert max(lengths) > terms.reach(law) * sensitivity + 1.001 * 2.0 * longest

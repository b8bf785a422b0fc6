"""Secure sums in the simulator: sets of different edges, the noise of a sum, and what is recorded of both."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cloud.algorithm import Update
from cloud.algorithms.constant import Constant
from cloud.sums import InSums, waiting_in
from common.errors import ConfigurationError
from common.problem import Problem
from common.scenario.scenario import parse_scenario
from mapa.releases import privacy_of
from mapa.run_parts import assemble
from mapa.simulation.simulator import World, check_world, simulate
from mapa.simulation.synchronous import simulate_synchronously
from mapa.simulation.vectorised import check_vectorised_scenario
from tests.core_support import small_dataset

PROBLEM = Problem(batch_size=4, smoothness=1.0, sigma=1.0, tau_max=1, iterations=100, first_clip=1.0)


def summed_world(members: int = 3, **changes: Any) -> World:
    values: dict[str, Any] = {
        "edges": 4,
        "iterations": 60,
        "batch_size": 10,
        "seed": 7,
        "model": {"name": "softmax"},
        "algorithm": {"name": "constant", "first_clip": 1.0, "rate": 0.5},
        "privacy": {"noise_multiplier": 2.0},
        "secure": {"at_least": members},
        "evaluation": {"every": 0},
        **changes,
    }
    return World._of(assemble(parse_scenario(values), lambda _: small_dataset()))


def update(edge: int, t: int, version: int, value: float) -> Update:
    return Update(np.full(2, value, np.float32), t, version, t - version, edge, None, 1.0, 1, 0.5)


def sums(members: int) -> InSums:
    return InSums(Constant(rate=1.0), members=members).begin(PROBLEM, 1.0)


def test_x_moves_by_the_mean_of_the_oldest_releases_of_different_edges() -> None:
    x, algorithm = np.zeros(2, np.float32), sums(2)
    for t, (edge, value) in enumerate([(0, 1.0), (0, 5.0), (0, 9.0)], 1):
        x, algorithm = algorithm.apply(x, update(edge, t, 1, value))
    assert not x.any()
    assert waiting_in(algorithm, 0) == 3
    x, algorithm = algorithm.apply(x, update(1, 4, 1, 3.0))
    assert x.tolist() == [-2.0, -2.0]  # of 1 and 3
    assert (waiting_in(algorithm, 0), waiting_in(algorithm, 1), algorithm.sets) == (2, 0, 1)
    x, algorithm = algorithm.apply(x, update(1, 5, 5, 7.0))
    assert x.tolist() == [-8.0, -8.0]  # of 5 and 7


@given(st.integers(2, 5), st.lists(st.integers(0, 6), max_size=60))
def test_every_release_is_in_one_set_at_most_and_no_set_has_an_edge_twice(
    members: int, edges: list[int]
) -> None:
    x, algorithm, opened = np.zeros(2, np.float32), sums(members), 0
    for t, edge in enumerate(edges, 1):
        before = [*algorithm.waiting]
        x, algorithm = algorithm.apply(x, update(edge, t, 1, float(t)))
        if algorithm.sets == opened:
            assert len(algorithm.waiting) == len(before) + 1
            assert len({one.edge for one in algorithm.waiting}) < members
            continue
        opened = algorithm.sets
        taken = [one for one in before if not any(one is left for left in algorithm.waiting)]
        assert len({one.edge for one in taken} | {edge}) == members == len(taken) + 1
    assert opened * members + len(algorithm.waiting) == len(edges)


def test_the_noise_of_a_mean_is_that_of_the_sum() -> None:
    """Batches of nothing: what is left of a run's sums is noise, and it is z·C/b over m, neither more nor less."""
    world = summed_world(4, model={"name": "softmax", "regularization": 0.0})
    workers = world.workers()
    x = np.zeros(world.model.dimension, np.float32)
    for worker in workers:
        worker.shard.features[:] = 0
    draws = [
        np.mean([worker.gradient(x, 0.2, n).astype(np.float64) for worker in workers], axis=0)
        for n in range(1, 60)
    ]
    measured, claimed = np.std(draws), 2.0 * 1.0 / 10 / 4
    assert measured == pytest.approx(claimed, rel=0.03)


def test_a_run_states_both_figures_and_its_terms_are_filled_in() -> None:
    world = summed_world()
    table, grid = world.scenario.secure, world.workers()[0].mechanism.grid
    assert table is not None
    assert grid is not None
    assert (table.clip, table.modulus_bits) == (1.0, 32)
    assert grid.clip == 1.0
    assert grid.bits == world.scenario.privacy.grid
    check_world(world)
    outcome = simulate(world)
    assert outcome.reason == "finished"
    edges = [(k, f"edge-{k}", world.scenario.law(k), 60, count) for k, count in enumerate(outcome.releases)]
    stated = privacy_of(world.scenario, edges)
    assert 0 < stated["in_sums"]["epsilon"] < stated["epsilon"]
    assert "In sums" in " ".join(stated["words"])
    assert "On its own" in " ".join(stated["words"])


def test_an_edge_is_sent_no_model_while_its_release_waits() -> None:
    world = summed_world(4)
    outcome = simulate(world)
    assert outcome.tally.updates == 60
    assert max(outcome.releases) - min(outcome.releases) <= 1


def test_a_budget_is_of_sums_and_caps_an_edge() -> None:
    world = summed_world(2, privacy={"total_epsilon": 2.0, "releases": 20}, iterations=40)
    assert world.caps[0] is not None
    assert world.caps[0] >= 20
    tight = summed_world(
        2, privacy={"total_epsilon": 2.0, "releases": 20}, secure={"at_least": 2, "own_epsilon": 2.0}
    )
    assert tight.caps[0] is not None
    assert tight.caps[0] < world.caps[0]


def test_colluding_edges_are_made_up_for_by_more_noise() -> None:
    budget = {"total_epsilon": 2.0, "releases": 20}
    alone, some = (
        summed_world(4, privacy={**budget, "colluding": a}).scenario.privacy.given["noise_multiplier"][0]
        for a in (0, 1)
    )
    assert some == pytest.approx(alone * math.sqrt(4 / 3), rel=1e-3)


def test_a_run_on_a_grid_without_sums_learns_as_one_without() -> None:
    world = summed_world(secure=None, privacy={"noise_multiplier": 0.01, "grid": 20})
    plain = summed_world(secure=None, privacy={"noise_multiplier": 0.01})
    assert world.workers()[0].mechanism.grid is not None
    on_grid, float_ = simulate(world).x, simulate(plain).x
    assert np.abs(on_grid - float_).max() < 0.05 * np.abs(float_).max()
    assert not np.array_equal(on_grid, float_)


@pytest.mark.parametrize("privacy", [{"noise_multiplier": 1.0, "grid": 16}, None])
def test_engines_that_draw_no_integers_refuse(privacy: dict[str, Any] | None) -> None:
    changes: dict[str, Any] = {"secure": None, "privacy": privacy} if privacy else {}
    with pytest.raises(ConfigurationError, match="draws no integers"):
        check_vectorised_scenario(summed_world(**changes).scenario)


def test_rounds_and_logs_refuse_sums() -> None:
    with pytest.raises(ConfigurationError, match="secure: not with engine = 'synchronous'"):
        simulate_synchronously(summed_world(delays={"kind": "uniform"}))
    with pytest.raises(ConfigurationError, match=r"records\.keep_gradients"):
        check_world(summed_world(records={"keep_gradients": True}))

"""Runs in which each edge has a pace of its own: all spend the budget, none passes it, fast or slow."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from cloud.assembly import server_for
from cloud.server import CloudServer
from common.accounting.releases import ReleaseKind, Spent
from common.accounting.total import total
from common.errors import ConfigurationError
from common.messages import GradientArrived, GradientRefused, Halt, Hello, Leave, SendModel
from common.quantities import EdgeId, NoisyGradient
from common.scenario.scenario import parse_scenario
from mapa.simulation.simulator import Outcome, check_world, simulate
from mapa.simulation.synchronous import simulate_synchronously
from mapa.simulation.vectorised import check_vectorised
from mapa.simulation.world import World
from tests.core_support import small_dataset, small_scenario, small_world

SPEEDS = [1.0, 2.0, 4.0, 8.0, 10.0]
DELAYS = {"kind": "constant", "compute": 0.01, "network": 0.0, "speeds": SPEEDS}
ROWS = 300


def paced_world(**changes: Any) -> World:
    """Return five edges of 60 records, all in each batch: the accountant has a closed form, and is quick."""
    values: dict[str, Any] = {
        "edges": 5,
        "iterations": 250,
        "batch_size": 60,
        "data": {"sampler": "poisson"},
        "algorithm": {"name": "constant", "rate": 0.3},
        "privacy": {"total_epsilon": 3.0, "pace": "own"},
        "delays": DELAYS,
    }
    return World.on(small_scenario(**{**values, **changes}), small_dataset(rows=ROWS))


def epsilons(world: World, outcome: Outcome) -> list[float]:
    """Return the total ε of each edge, accounted anew."""
    scenario = world.scenario
    kinds = [ReleaseKind(scenario.law(k), scenario.mechanism, len(rows)) for k, rows in enumerate(world.rows)]
    pairs = zip(kinds, outcome.releases, strict=True)
    return [total([Spent(kind, releases)], 1e-5, replace_one=False).epsilon for kind, releases in pairs]


def test_all_edges_end_with_the_same_epsilon_whatever_their_speed() -> None:
    world = paced_world()
    outcome = simulate(world)
    assert (outcome.reason, outcome.tally.updates) == ("finished", 250)
    assert outcome.releases == [10, 20, 40, 80, 100] == world.scenario.privacy.release_caps
    assert all(0.98 * 3.0 <= epsilon <= 3.0 for epsilon in epsilons(world, outcome))
    multipliers = world.scenario.privacy.noise_multiplier
    assert multipliers == sorted(multipliers or [])
    last = [outcome.tally.edges[k].applied for k in range(5)]
    assert last == outcome.releases  # nothing was on its way in vain


def test_without_a_pace_fast_edges_lose_more_than_twice_and_a_half_as_much() -> None:
    world = paced_world(privacy={"noise_multiplier": 20.0})
    found = epsilons(world, simulate(world))
    assert max(found) / min(found) >= 2.5


@pytest.mark.parametrize("kind", ["exponential", "lognormal", "cyclic"])
def test_no_edge_passes_its_number_however_the_run_turns_out(kind: str) -> None:
    world = paced_world(delays={**DELAYS, "kind": kind})
    outcome = simulate(world)
    assert outcome.releases == world.scenario.privacy.release_caps
    assert outcome.reason == "finished"


def test_with_local_steps_a_message_is_charged_as_all_its_releases() -> None:
    world = paced_world(local={"steps": 3, "rate": 0.1})
    outcome = simulate(world)
    assert outcome.releases == [10, 20, 40, 80, 100] == world.scenario.privacy.release_caps  # messages
    kind = ReleaseKind(world.scenario.law(1), world.scenario.mechanism, 60)
    spent = total([Spent(kind, kind.charges(20))], 1e-5, replace_one=False).epsilon
    assert kind.charges(20) == 60
    assert 0.98 * 3.0 <= spent <= 3.0


def test_a_recorded_run_is_the_same_run() -> None:
    world = paced_world()
    again = World.on(parse_scenario(world.scenario.canonical()), small_dataset(rows=ROWS))
    assert again.scenario == world.scenario
    np.testing.assert_array_equal(simulate(again).x, simulate(world).x)


def test_weights_change_the_model_and_can_be_left_out() -> None:
    plain = {"name": "constant", "rate": 0.3, "weights": "none"}
    assert not np.array_equal(simulate(paced_world()).x, simulate(paced_world(algorithm=plain)).x)


def test_a_run_ends_at_its_time_limit() -> None:
    world = paced_world(time_limit=0.05)
    outcome = simulate(world)
    assert outcome.reason == "time-limit"
    assert outcome.virtual_seconds is not None
    assert outcome.virtual_seconds <= 0.05
    assert all(done <= cap for done, cap in zip(outcome.releases, world.caps, strict=True) if cap)
    assert max(epsilons(world, outcome)) <= 3.0
    with pytest.raises(ConfigurationError, match=r"time_limit = 0\.05: means nothing with"):
        check_world(paced_world(time_limit=0.05, delays={"kind": "cyclic", "speeds": SPEEDS}))


def test_synchronous_rounds_end_at_the_time_limit_too() -> None:
    delays = {"kind": "constant", "compute": 1.0, "network": 0.0, "speeds": [1.0, 0.25]}  # a round: 4 s
    world = small_world(delays=delays, iterations=100, time_limit=10.0)
    rounds = simulate_synchronously(world)
    edges = world.scenario.edges
    assert (rounds.rounds, rounds.outcome.reason, rounds.outcome.virtual_seconds) == (2, "time-limit", 10.0)
    assert rounds.outcome.tally.updates == 2 * edges
    assert rounds.outcome.releases == [3] * edges  # the third round's were released, and came too late


def test_a_plan_that_passes_the_budget_is_refused() -> None:
    filled = paced_world().scenario.privacy
    privacy = filled.model_dump(exclude_none=True) | {"release_caps": [11, 20, 40, 80, 100]}
    with pytest.raises(ConfigurationError, match=r"privacy\.release_caps = 11 of edge 0"):
        paced_world(privacy=privacy)


def test_the_vectorised_engine_refuses_it() -> None:
    with pytest.raises(ConfigurationError, match=r"privacy\.pace = 'own'"):
        check_vectorised([paced_world(delays={"kind": "cyclic", "speeds": SPEEDS})], blocks=False)


# -- edges that lie ---------------------------------------------------------------------------------------


def served(world: World) -> tuple[CloudServer, list[SendModel]]:
    server = server_for(world.scenario, world.model, world.streams, edges_at_least=5)
    sent = [
        effect
        for k in range(5)
        for effect in server.receive(Hello(edge_id=EdgeId(f"edge-{k}"), index=k))
        if isinstance(effect, SendModel)
    ]
    return server, sent


def push(server: CloudServer, model: SendModel, sequence: int, length: float) -> list[Any]:
    gradient = np.zeros(server.model.size, np.float32)
    gradient[0] = length
    arrived = GradientArrived(
        model.edge_id, sequence, model.version, model.sensitivity, NoisyGradient(gradient)
    )
    return list(server.receive(arrived))


def test_an_edge_that_sends_more_than_its_number_is_not_applied() -> None:
    server, sent = served(paced_world())
    slow = sent[0]
    for sequence in range(1, 13):
        effects = push(server, slow, sequence, 0.01)
        refused = [effect.reason for effect in effects if isinstance(effect, GradientRefused)]
        assert refused == (["cap"] if sequence > 10 else [])
        slow = next(effect for effect in effects if isinstance(effect, SendModel))
    assert server.edges[EdgeId("edge-0")].applied == 10


def test_gradients_longer_than_the_noise_that_was_said_are_refused() -> None:
    """The slowest edge was planned with the least noise; with the noise of the fastest it is found out by a length."""
    world = paced_world(
        batch_size=1, privacy={"total_epsilon": 3.0, "pace": "own"}, data={"sampler": "shuffled"}
    )
    server, sent = served(world)
    reach = [account.reach for account in server.edges.values()]
    assert reach[0] < reach[4]
    effects = push(server, sent[0], 1, 0.5 * (reach[0] + reach[4]) * sent[0].sensitivity)
    assert [one.reason for one in effects if isinstance(one, GradientRefused)] == ["norm"]
    effects = push(server, sent[4], 1, 0.5 * (reach[0] + reach[4]) * sent[4].sensitivity)
    assert not [one for one in effects if isinstance(one, GradientRefused)]


def test_a_run_whose_edges_have_all_reached_their_numbers_is_finished_although_gradients_were_refused() -> (
    None
):
    server, sent = served(paced_world())
    halts = []
    for model in sent:
        halts += [e for e in server.receive(Leave(model.edge_id, "budget")) if isinstance(e, Halt)]
    assert [halt.reason for halt in halts] == ["finished"]
    other, models = served(paced_world())
    other.receive(Leave(models[0].edge_id, "failed"))
    for model in models[1:]:
        halts += [e for e in other.receive(Leave(model.edge_id, "budget")) if isinstance(e, Halt)]
    assert halts[-1].reason == "no-budget"

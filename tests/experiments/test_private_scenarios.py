"""The scenarios with a total budget: what they promise holds in their numbers and in a run."""

from __future__ import annotations

from pathlib import Path

import pytest

from common.accounting.releases import Budget, ReleaseKind, Spent
from common.accounting.total import total
from common.noise import Clipping, Sampling, Scope
from common.scenario import Scenario
from experiments.budget import calibrated, release_caps
from experiments.recording import record_simulation
from experiments.scenario_files import load_scenario, shipped_names
from experiments.simulator import simulate
from experiments.vectorised import check_vectorised, simulate_rounds
from experiments.world import World
from tests.core_support import small_world

PRIVATE = [name for name in shipped_names() if name.startswith("private-")]
TRAINING = {"mnist": 60_000, "usps": 7_291, "mnist-5k": 4_000}
BUDGET = Budget(2.0, 1e-5)


def shard_sizes(scenario: Scenario) -> list[int]:
    rows, edges = TRAINING[scenario.data.set], scenario.edges
    return [rows // edges + (k < rows % edges) for k in range(edges)]


def test_the_scenarios_that_people_start_from_are_shipped() -> None:
    wanted = {
        f"private-{model}-{data}" for model in ("softmax", "cnn", "scattering") for data in ("mnist", "usps")
    }
    assert wanted | {"private-scattering-mnist-k20", "private-scattering-mnist-5k"} <= set(PRIVATE)


@pytest.mark.parametrize("name", PRIVATE)
def test_a_private_scenario_is_sound_and_everything_in_it_has_a_use(name: str) -> None:
    _, scenario = load_scenario(name)
    assert scenario.seed is None  # a seed would make the noise reproducible, which is not private
    mechanism = scenario.mechanism
    assert (mechanism.clipping, mechanism.scope) == (Clipping.PER_SAMPLE, Scope.ALL)
    assert mechanism.sampling is Sampling.POISSON
    privacy = scenario.privacy
    assert (privacy.noise, privacy.total_epsilon, privacy.total_delta) == ("gaussian", 2.0, 1e-5)
    assert scenario.private
    assert scenario.data.partition == "iid"
    assert scenario.data.holdout == 0
    assert privacy.releases is not None
    # the last round ends with its first update: the other edges' last gradients are still on their way
    assert scenario.iterations == scenario.edges * (privacy.releases - 1) + 1


@pytest.mark.parametrize("name", PRIVATE)
def test_the_releases_that_are_planned_for_are_those_that_the_budget_permits(name: str) -> None:
    _, scenario = load_scenario(name)
    sizes = shard_sizes(scenario)
    scenario = calibrated(scenario, sizes)
    planned = scenario.privacy.releases
    assert planned is not None
    kind = ReleaseKind(scenario.law(0), scenario.mechanism, min(sizes))
    assert total([Spent(kind, planned)], BUDGET.delta, replace_one=False).epsilon <= BUDGET.epsilon
    assert total([Spent(kind, planned + 2)], BUDGET.delta, replace_one=False).epsilon > BUDGET.epsilon
    caps = release_caps(scenario, sizes)
    assert all(cap is not None and planned <= cap for cap in caps)


def constant(edges: int, releases: int, iterations: int) -> World:
    return small_world(
        edges=edges,
        iterations=iterations,
        data={"sampler": "poisson"},
        model={"name": "softmax"},
        algorithm={"name": "constant", "rate": 0.5, "rate_decay": "linear"},
        privacy={"total_epsilon": 2.0, "total_delta": 1e-5, "releases": releases},
    )


def test_a_run_of_the_planned_length_uses_every_edge_s_budget_and_never_more(tmp_path: Path) -> None:
    world = constant(4, 10, 4 * 9 + 1)
    summary = record_simulation(world, name="small", runs=tmp_path, engine="events")
    assert summary["reason"] == "finished"
    statement = summary["privacy"]
    assert [edge["releases"] for edge in statement["edges"]] == [10] * 4
    assert 1.9 < statement["epsilon"] <= 2.0


def test_a_run_that_asks_for_more_ends_without_budget_and_within_it() -> None:
    world = constant(4, 10, 400)
    caps = world.caps
    assert all(cap is not None and 10 <= cap <= 12 for cap in caps)
    outcome = simulate(world)
    assert outcome.reason == "no-budget"
    assert outcome.releases == caps
    assert outcome.tally.updates == sum(cap for cap in caps if cap is not None)


def test_both_engines_step_by_the_same_falling_rate() -> None:
    world, twin = constant(4, 30, 81), constant(4, 30, 81)
    check_vectorised([twin])
    events, rounds = simulate(world), simulate_rounds(twin)
    assert abs(events.x).max() > 0.01
    assert abs(events.x - rounds.x).max() < 1e-5

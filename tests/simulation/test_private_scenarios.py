"""The scenarios with a total budget: what they promise holds in their numbers and in a run."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from common.accounting.releases import Budget, ReleaseKind, Spent
from common.accounting.total import total
from common.mechanism.guarantee import Scope
from common.mechanism.mechanism import Mechanism
from common.scenario.scenario import Scenario, parse_scenario, parse_welcome
from mapa.budget import calibrated, release_caps
from mapa.scenario_files import load_scenario, shipped_names
from mapa.scenario_patterns import recipe_names
from mapa.simulation.simulator import World, simulate
from tests.core_support import small_world
from tests.mechanism_support import PER_SAMPLE, POISSON

# recipes by patterns: tests/mapa/test_recipes.py
PRIVATE = [name for name in shipped_names() if name.startswith("private-") and name not in recipe_names()]
TRAINING = {"mnist": 60_000, "usps": 7_291, "mnist-5k": 4_000}


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
    mechanism = scenario.mechanism(None)
    assert (mechanism.clipping, mechanism.scope) == (PER_SAMPLE, Scope.ALL)
    assert mechanism.sampler == POISSON
    privacy = scenario.privacy
    assert (privacy.noise, privacy.total_epsilon, privacy.total_delta) == ("gaussian", 2.0, 1e-5)
    assert scenario.private
    assert scenario.data.partition == "iid"
    assert scenario.data.holdout == 0
    assert privacy.releases is not None
    # the last round ends with its first update: the other edges' last gradients are still on their way
    assert scenario.iterations == scenario.edges * (privacy.releases - 1) + 1


@pytest.mark.parametrize("name", PRIVATE)
def test_what_manifests_and_edges_get_of_a_private_scenario_can_be_read_again(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, scenario = load_scenario(name)
    asked: list[int] = []

    def calibrate(
        _: Budget, __: Mechanism, *, releases: int, **___: Any
    ) -> float:  # the true one takes a second
        asked.append(releases)
        return 4.0

    monkeypatch.setattr("common.accounting.budget.calibrate", calibrate)
    filled = calibrated(scenario, shard_sizes(scenario))
    assert asked == [scenario.privacy.releases]
    assert filled.privacy.noise_multiplier == [4.0]
    assert parse_scenario(filled.canonical()) == filled
    sent = parse_welcome({**filled.for_edge(0), "seed": None})
    assert sent.privacy == filled.privacy
    assert (sent.privacy.total_epsilon, sent.privacy.total_delta) == (2.0, 1e-5)  # the ledger's cap


@pytest.mark.slow
@pytest.mark.parametrize("name", PRIVATE)
def test_the_releases_that_are_planned_for_are_those_that_the_budget_permits(name: str) -> None:
    _, scenario = load_scenario(name)
    sizes, planned = shard_sizes(scenario), scenario.privacy.releases
    assert planned is not None
    scenario = calibrated(scenario, sizes)
    kind = ReleaseKind(scenario.mechanism(scenario.law(0)), min(sizes))
    assert 1.999 < spent(kind, planned) <= 2.0
    assert spent(kind, planned + 2) > 2.0
    caps = release_caps(scenario, sizes)
    assert all(cap is not None and planned <= cap for cap in caps)


def spent(kind: ReleaseKind, releases: int) -> float:
    return total([Spent(kind, releases)], 1e-5, replace_one=False).epsilon


def constant(iterations: int, **privacy: Any) -> World:
    return small_world(
        edges=2,
        iterations=iterations,
        batch_size=30,
        data={"sampler": "poisson"},
        model={"name": "softmax"},
        algorithm={"name": "constant", "rate": 0.5, "rate_decay": "linear"},
        privacy=privacy,
    )


@pytest.fixture(scope="module")
def within_budget() -> World:
    """Two edges with a budget for 100 gradients each, and a T that all of them make up."""
    return constant(2 * 99 + 1, total_epsilon=2.0, total_delta=1e-5, releases=100)


@pytest.mark.slow
def test_a_run_of_the_planned_length_uses_every_edge_s_budget_and_never_more(within_budget: World) -> None:
    outcome = simulate(within_budget)
    assert (outcome.reason, outcome.releases) == ("finished", [100, 100])
    scenario = within_budget.scenario
    kind = ReleaseKind(scenario.mechanism(scenario.law(0)), len(within_budget.rows[0]))
    assert 1.99 < spent(kind, max(outcome.releases)) <= 2.0


@pytest.mark.slow
def test_a_run_that_asks_for_more_ends_without_budget_and_within_it(within_budget: World) -> None:
    longer = within_budget.scenario.model_copy(update={"iterations": 2000})
    outcome = simulate(replace(within_budget, scenario=longer))
    assert within_budget.caps == [100, 100]
    assert (outcome.reason, outcome.releases, outcome.tally.updates) == ("no-budget", [100, 100], 200)


def test_a_run_over_the_wire_is_named_by_the_model_that_it_needs() -> None:
    """An edge gets all of the recipe: the bound, the budget and the features; the rate stays with the cloud."""
    _, scenario = load_scenario("private-scattering-mnist-5k")
    sent = parse_welcome({**scenario.for_edge(3), "seed": None})
    assert (sent.model, sent.privacy, sent.data) == (scenario.model, scenario.privacy, scenario.data)

"""Scenarios of private training by patterns: found by name, sound, and each kind of them trains."""

from __future__ import annotations

import dataclasses
import math

import numpy as np
import pytest

from common.datasets.dataset import Dataset, Samples
from common.mechanism.guarantee import Scope
from common.models.scattering_softmax import ScatteringSoftmax
from common.scenario.parts import model_for
from common.scenario.scenario import parse_welcome
from mapa.commands.containers import for_a_container
from mapa.scenario_files import load_scenario, shipped_names
from mapa.scenario_patterns import about_recipe, recipe_names
from mapa.simulation.simulator import World, simulate
from mapa.simulation.vectorised import simulate_rounds
from tests.mechanism_support import NORMALISED, POISSON
from tests.program_support import ROOT

SETS = {"mnist": (28, 28), "fashion": (28, 28), "cifar10": (3, 32, 32)}


def test_every_data_set_has_four_budgets_with_5_and_with_20_edges() -> None:
    wanted = {
        f"private-{data}-eps{epsilon}{k}" for data in SETS for epsilon in (1, 2, 3, 8) for k in ("", "-k20")
    }
    assert set(recipe_names()) == wanted
    assert wanted < set(shipped_names())
    assert len({about_recipe(name) for name in wanted}) == len(wanted)
    assert about_recipe("private-cifar10-eps8-k20") == (
        "Softmax on fixed scattering features of CIFAR-10, 20 edges, each with a total budget of (ε = 8, δ = 1e-05)"
    )


@pytest.mark.parametrize("name", recipe_names())
def test_a_recipe_is_sound_and_ends_with_every_budget_used(name: str) -> None:
    short, scenario = load_scenario(name)
    assert short == name
    assert for_a_container(name) == (name, None)
    _, data, epsilon, *many = name.split("-")
    mechanism, privacy = scenario.mechanism(None), scenario.privacy
    assert (mechanism.clipping, mechanism.scope) == (NORMALISED, Scope.ALL)
    assert mechanism.sampler == POISSON
    assert (scenario.seed, scenario.data.holdout, scenario.data.partition) == (None, 0, "iid")
    assert (privacy.total_epsilon, privacy.total_delta) == (float(epsilon[3:]), 1e-5)
    assert (scenario.edges, scenario.batch_size, privacy.releases) == (
        (20, 512, 120) if many else (5, 1024, 300)
    )
    assert privacy.releases is not None
    assert scenario.iterations == scenario.edges * (privacy.releases - 1) + 1
    assert scenario.algorithm.name == "tuning-free"
    model = model_for(scenario, SETS[data], 10)
    assert isinstance(model, ScatteringSoftmax)
    assert model.feature_length == math.sqrt(scenario.model.options["landmarks"])
    assert scenario.model.options["bias"] == 0.1
    sent = parse_welcome({**scenario.for_edge(0), "seed": None})
    assert (sent.model, sent.privacy) == (scenario.model, scenario.privacy)


def pictures(shape: tuple[int, ...], count: int) -> Samples:
    """Noise around a picture of each class."""
    rng = np.random.default_rng(5)
    classes = rng.integers(0, 256, (10, math.prod(shape)))
    labels = np.arange(count) % 10
    noisy = classes[labels] + rng.normal(0, 20, (count, math.prod(shape)))
    return Samples(noisy.clip(0, 255).astype(np.uint8), labels.astype(np.int64))


@pytest.mark.slow
@pytest.mark.parametrize("data", SETS)
def test_a_small_run_of_each_kind_learns_and_both_engines_agree(data: str) -> None:
    changes = ["edges=2", "iterations=41", "batch_size=100", "model.options.landmarks=40"]
    changes += [
        "evaluation.every=0",
        "privacy.total_epsilon=",
        "privacy.releases=",
        "privacy.noise_multiplier=1.0",
        "seed=3",
    ]
    _, scenario = load_scenario(f"private-{data}-eps3", changes)
    shape = SETS[data]
    part = pictures(shape, 300)
    world = World.on(scenario, Dataset(scenario.data.set, shape, 10, part, part, "2" * 64))
    events, rounds = simulate(world), simulate_rounds(dataclasses.replace(world))
    assert events.tally.evaluations[-1]["accuracy"] > 0.8
    np.testing.assert_allclose(events.x, rounds.x, atol=1e-4)


def test_the_demonstration_has_a_stated_budget_and_five_edges_on_unlike_links() -> None:
    _, scenario = load_scenario("demo")
    privacy = scenario.privacy
    assert scenario.seed is None  # secure noise
    assert (privacy.noise, privacy.scope) == ("gaussian", "all")
    assert (privacy.total_epsilon, privacy.total_delta) == (3.0, 1e-5)
    assert len({link.name for link in scenario.links}) == scenario.edges == 5
    assert privacy.releases is not None
    assert scenario.iterations == scenario.edges * (privacy.releases - 1) + 1
    assert scenario.algorithm.name == "tuning-free"
    assert not scenario.algorithm.rate  # 0 or none: by the rule
    assert scenario.model.options == {"bias": 0.1}  # as new scenarios have it

    first, second = (ROOT / "mapa" / "scenarios" / "demo.toml").read_text(encoding="utf-8").splitlines()[:2]
    assert first.startswith("# ")  # which `mapa scenarios` shows
    assert "ε = 3" in first
    assert not second.startswith("#")
    assert "$(BIN)/mapa run demo --dashboard" in (ROOT / "Makefile").read_text()

"""The documented example of a custom model and a custom data set."""

from __future__ import annotations

import tomllib
from pathlib import Path

import numpy as np
import pytest
import torch

from common.errors import ConfigurationError
from common.models.model import Model
from common.models.registry import make_model
from common.own_code import import_dotted
from experiments.examples.custom import HuberHinge, TwoBlobs
from mapa.recording import record_simulation
from mapa.scenario_files import load_scenario
from mapa.simulation.world import World
from tests.program_support import Mapa

EXAMPLE = Path(__file__).parents[2] / "experiments" / "examples" / "custom.toml"


@pytest.fixture(scope="module")
def scenario() -> dict[str, dict[str, str]]:
    return tomllib.loads(EXAMPLE.read_text(encoding="utf-8"))


def model_of(scenario: dict[str, dict[str, object]]) -> Model:
    table = scenario["model"]
    return make_model(str(table["name"]), shape=(8, 8), classes=2, options=table["options"])  # type: ignore[arg-type]


def test_the_scenario_names_the_two_classes(scenario: dict[str, dict[str, str]]) -> None:
    assert import_dotted(scenario["data"]["set"], "data.set") is TwoBlobs
    assert import_dotted(scenario["model"]["name"], "model.name") is HuberHinge
    assert model_of(scenario).dimension == 65


def test_the_blobs_are_always_the_same_and_hold_to_the_contract(tmp_path: Path) -> None:
    first, second = TwoBlobs().load(tmp_path), TwoBlobs().load(tmp_path)
    assert first.checksum == second.checksum
    assert len(first.checksum) == 64
    assert (len(first.train), len(first.test)) == (2000, 500)
    for samples in (first.train, first.test):
        assert samples.inputs.shape == (len(samples), 64)
        assert set(samples.labels.tolist()) == {0, 1}
        assert samples.labels.dtype == np.int64
        assert samples.values().min() >= 0
        assert samples.values().max() <= 1
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("width", [0.1, 0.5, 2.0])
def test_the_huber_hinges_gradient_is_that_of_its_loss(width: float) -> None:
    model = HuberHinge(shape=(8, 8), classes=2, width=width)
    scores = np.linspace(-3, 3, 61, dtype=np.float32)[:, None] + np.float32(0.013)
    for target in (-1, 1):
        targets = np.full(61, target)
        s = torch.tensor(scores[:, 0], dtype=torch.float64, requires_grad=True)
        losses = (
            torch.nn.functional.huber_loss(
                torch.relu(1 - target * s),
                torch.zeros(61, dtype=torch.float64),
                reduction="none",
                delta=width,
            )
            / width
        )
        (d,) = torch.autograd.grad(losses.sum(), s)
        np.testing.assert_allclose(model.losses(scores, targets), losses.detach(), atol=1e-5)
        np.testing.assert_allclose(model.score_gradient(scores, targets)[:, 0], d, atol=1e-5)


def test_a_width_of_nought_is_refused() -> None:
    with pytest.raises(ConfigurationError, match=r"model\.options\.width = 0"):
        HuberHinge(shape=(8, 8), classes=2, width=0)


def test_plain_descent_learns_the_blobs(scenario: dict[str, dict[str, object]], tmp_path: Path) -> None:
    model, dataset = model_of(scenario), TwoBlobs().load(tmp_path)
    features, targets = model.features(dataset.train.values()), model.targets(dataset.train.labels)
    tested = model.features(dataset.test.values()), model.targets(dataset.test.labels)
    x = model.initial(np.random.default_rng(0))
    assert model.evaluate(x, *tested)["loss"] == pytest.approx(0.75)
    for _ in range(200):
        x -= np.float32(0.05 / len(targets)) * model.gradients(x, features, targets).weighted_sum(None)
    evaluated = model.evaluate(x, *tested)
    loss, accuracy = evaluated["loss"], evaluated["accuracy"]
    assert loss < 0.2
    assert accuracy > 0.95


@pytest.mark.slow
def test_the_example_scenario_simulates(tmp_path: Path) -> None:
    name, scenario = load_scenario(str(EXAMPLE))
    summary = record_simulation(World.of(scenario, tmp_path), name=name, runs=tmp_path)
    assert summary["reason"] == "finished"
    assert summary["final_accuracy"] > 0.95
    assert summary["privacy"]["epsilon"] > 0


OWN = EXAMPLE.with_name("own.toml")


@pytest.mark.slow
def test_a_model_a_data_set_and_an_algorithm_are_one_short_file(tmp_path: Path) -> None:
    """tests/broker and tests/stack run the very same file over MQTT and in containers."""
    assert len(OWN.with_suffix(".py").read_text(encoding="utf-8").splitlines()) < 60
    name, scenario = load_scenario(str(OWN), seed=1)
    summary = record_simulation(World.of(scenario, tmp_path), name=name, runs=tmp_path)
    assert (summary["reason"], summary["updates"]) == ("finished", 400)
    assert summary["final_accuracy"] > 0.95
    assert summary["privacy"]["epsilon"] <= 4


def test_a_data_set_of_ones_own_needs_no_download(mapa: Mapa) -> None:
    done = mapa("data", "get", "--scenario", str(OWN))
    assert (done.code, "nothing to download" in done.out) == (0, True)

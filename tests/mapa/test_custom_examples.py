"""The documented example of a custom model, data set and algorithm."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from experiments.examples.own import SquaredHinge, TwoRings
from mapa.recording import record_simulation
from mapa.scenario_files import load_scenario
from mapa.simulation.simulator import World
from tests.program_support import Mapa

OWN = Path(__file__).parents[2] / "experiments" / "examples" / "own.toml"


def test_the_rings_are_always_the_same_and_hold_to_the_contract(tmp_path: Path) -> None:
    first, second = TwoRings().load(tmp_path), TwoRings().load(tmp_path)
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


def test_the_squared_hinges_gradient_is_that_of_its_loss() -> None:
    model = SquaredHinge(shape=(8, 8), classes=2)
    scores = np.linspace(-3, 3, 61, dtype=np.float32)[:, None] + np.float32(0.013)
    for target in (-1, 1):
        targets = np.full(61, target)
        s = torch.tensor(scores[:, 0], dtype=torch.float64, requires_grad=True)
        losses = torch.relu(1 - target * s) ** 2 / 2
        (d,) = torch.autograd.grad(losses.sum(), s)
        np.testing.assert_allclose(model.losses(scores, targets), losses.detach(), atol=1e-5)
        np.testing.assert_allclose(model.score_gradient(scores, targets)[:, 0], d, atol=1e-5)


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

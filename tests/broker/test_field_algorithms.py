"""An algorithm of the field with normalised gradients and an average, between real processes: run, stated, replayed."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.program_support import run_mapa as mapa
from tests.program_support import run_over_mosquitto

pytestmark = [pytest.mark.broker, pytest.mark.slow]

SCENARIO = """
edges = 3
iterations = 240
batch_size = 64
data.set = "mnist-5k"
data.sampler = "poisson"
model.name = "softmax"

[algorithm]
name = "fedbuff"
rate = 0.8
first_clip = 1.0
buffer = 4
staleness_scaling = true
average = "ema"
average_decay = 0.9

[privacy]
noise = "gaussian"
noise_multiplier = 1.0
clipping = "normalised"
total_delta = 1e-5

[evaluation]
every = 0
"""


@pytest.mark.usefixtures("mosquitto")
def test_fedbuff_runs_over_mqtt_and_its_average_is_replayed_bit_for_bit(tmp_path: Path) -> None:
    ran = run_over_mosquitto(SCENARIO, tmp_path)
    assert (ran["reason"], ran["updates"], ran["algorithm"]) == ("finished", 240, "fedbuff")
    assert ran["final_accuracy"] > 0.7
    assert {edge["clipping"] for edge in ran["privacy"]["edges"]} == {"normalised"}
    assert ran["privacy"]["epsilon"] > 0
    again = mapa("replay", ran["path"], "--json")
    assert again.returncode == 0, again.stderr
    assert json.loads(again.stdout)["same_model"]
    other = mapa(
        *("replay", ran["path"], "--algorithm", "momentum", "--set", "algorithm.rate=0.2", "--json"),
    )
    assert other.returncode == 0, other.stderr
    assert [row["algorithm"] for row in json.loads(other.stdout)["metrics"]] == ["fedbuff", "momentum"]


@pytest.mark.usefixtures("mosquitto")
def test_quantile_clipping_runs_over_mqtt_and_is_verified(tmp_path: Path) -> None:
    """ΔS changes all the time here, and every gradient must carry the one that it was made with."""
    changed = SCENARIO.replace('"fedbuff"', '"quantile"').replace("rate = 0.8", "rate = 0.2")
    changed = changed.replace("buffer = 4\nstaleness_scaling = true", "window = 2").replace(
        '"normalised"', '"quantile"'
    )
    ran = run_over_mosquitto(changed.replace("first_clip = 1.0", "first_clip = 30.0"), tmp_path)
    assert (ran["reason"], ran["updates"], ran["algorithm"]) == ("finished", 240, "quantile")
    assert ran["final_accuracy"] > 0.7
    assert {edge["clipping"] for edge in ran["privacy"]["edges"]} == {"quantile"}
    verified = mapa("verify", ran["path"])
    assert verified.returncode == 0, verified.stdout

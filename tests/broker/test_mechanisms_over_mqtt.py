"""Samplers, clippings, local steps, paces and averages over a real broker: verified, and made again."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from common.accounting.releases import ReleaseKind, Spent
from common.accounting.total import total
from common.mechanism.mechanism import Mechanism
from common.noise.gaussian import Gaussian
from common.records.gradient_log import FOLDER
from tests.mechanism_support import NORMALISED, SHUFFLED
from tests.program_support import run_mapa as mapa
from tests.program_support import run_over_mosquitto

pytestmark = [pytest.mark.broker, pytest.mark.slow, pytest.mark.usefixtures("mosquitto")]

# shuffled: unamplified Gaussian releases, whose total has a closed form; 5000 records in thirds, 26 batches an epoch
PACED = """
edges = 3
iterations = 210
batch_size = 64
devices = [{ slowdown = 4, reference_ms = 8 }, { slowdown = 2, reference_ms = 8 }, { slowdown = 1, reference_ms = 8 }]
data = { set = "mnist-5k", sampler = "shuffled" }
model = { name = "scattering", options = { landmarks = 50 }, regularization = 0.0 }
algorithm.name = "tuning-free"
privacy = { clipping = "normalised", total_epsilon = 8.0, pace = "own" }
evaluation.every = 0
"""
AVERAGED = """
edges = 3
iterations = 240
batch_size = 64
data = { set = "mnist-5k", sampler = "poisson" }
model.name = "softmax"
privacy = { noise = "gaussian", noise_multiplier = 1.0, clipping = "normalised", total_delta = 1e-5 }
evaluation.every = 0

[algorithm]
name = "fedbuff"
rate = 0.8
first_clip = 1.0
buffer = 4
staleness_scaling = true
average = "ema"
average_decay = 0.9
"""
TRUNCATED = """
edges = 2
iterations = 40
batch_size = 64
seed = 5
data = { set = "mnist-5k", sampler = "truncated-poisson", largest_batch = 72 }
model.name = "lr"
algorithm = { name = "constant", rate = 0.2, first_clip = 1.0 }
privacy = { noise_multiplier = 2.0, clipping = "normalised" }
evaluation.every = 0
"""
STEPS = 4  # local ones
STEPPING = """
edges = 2
iterations = {}
batch_size = 32
seed = 5
data.set = "mnist-5k"
model.name = "lr"
algorithm = {{ name = "mapa", first_clip = 6.0 }}
privacy.noise_multiplier = 2.0
evaluation.every = 0
"""


def verified(ran: dict[str, Any], *names: str) -> None:
    """The run passes `mapa verify`, and these checks were made; its model is the same again."""
    done = mapa("verify", ran["path"], "--json")
    checks = json.loads(done.stdout)["checks"]
    assert done.returncode == 0, [one for one in checks if one["status"] == "failed"]
    status = {one["name"]: one["status"] for one in checks}
    assert {status[name] for name in names} <= {"passed"}
    again = mapa("replay", ran["path"], "--json")
    assert again.returncode == 0, again.stderr
    told = json.loads(again.stdout)
    assert told["same_model"]
    if ran["seed"] is not None:
        assert told["gradients"]["same"] == ran["updates"]


def test_fast_and_slow_edges_end_with_the_same_epsilon(tmp_path: Path) -> None:
    ran = run_over_mosquitto(PACED, tmp_path)
    assert "= 1.5·b/(ℓ·z·√T) with b = 64, ℓ = 7.07107" in ran["rate"]
    assert (ran["reason"], ran["updates"], ran["releases"]) == ("finished", 210, [30, 60, 120])
    assert [edge["releases"] for edge in ran["privacy"]["edges"]] == [30, 60, 120]
    for edge in ran["privacy"]["edges"]:
        assert 0.98 * 8 <= edge["epsilon"] <= 8
    manifest = json.loads((Path(ran["path"]) / "manifest.json").read_text())
    multipliers, sizes = manifest["scenario"]["privacy"]["noise_multiplier"], manifest["shard_sizes"]
    for z, releases, size in zip(multipliers, ran["releases"], sizes, strict=True):
        mechanism = replace(Mechanism(None, 64, SHUFFLED, NORMALISED), law=Gaussian(z))
        kind = ReleaseKind(mechanism, size)
        spent = total([Spent(kind, kind.charges(releases))], 1e-5, replace_one=False)
        assert 0.98 * 8 <= spent.epsilon <= 8
    verified(ran)


def test_fedbuff_runs_over_mqtt_and_its_average_is_replayed_bit_for_bit(tmp_path: Path) -> None:
    ran = run_over_mosquitto(AVERAGED, tmp_path)
    assert (ran["reason"], ran["updates"], ran["algorithm"]) == ("finished", 240, "fedbuff")
    assert ran["final_accuracy"] > 0.7
    assert {edge["clipping"] for edge in ran["privacy"]["edges"]} == {"normalised"}
    assert ran["privacy"]["epsilon"] > 0
    verified(ran)
    other = mapa(
        *("replay", ran["path"], "--algorithm", "momentum", "--set", "algorithm.rate=0.2", "--json"),
    )
    assert other.returncode == 0, other.stderr
    assert [row["algorithm"] for row in json.loads(other.stdout)["metrics"]] == ["fedbuff", "momentum"]


def test_quantile_clipping_runs_over_mqtt_and_is_verified(tmp_path: Path) -> None:
    """ΔS changes all the time here, and every gradient must carry the one that it was made with."""
    changed = AVERAGED.replace('"fedbuff"', '"quantile"').replace("rate = 0.8", "rate = 0.2")
    changed = changed.replace("buffer = 4\nstaleness_scaling = true", "window = 2")
    changed = changed.replace('"normalised"', '"quantile"').replace("first_clip = 1.0", "first_clip = 30.0")
    ran = run_over_mosquitto(changed, tmp_path)
    assert (ran["reason"], ran["updates"], ran["algorithm"]) == ("finished", 240, "quantile")
    assert ran["final_accuracy"] > 0.7
    assert {edge["clipping"] for edge in ran["privacy"]["edges"]} == {"quantile"}
    verified(ran)


def test_a_run_with_truncated_batches_is_verified_and_its_gradients_are_made_again(tmp_path: Path) -> None:
    ran = run_over_mosquitto(TRUNCATED, tmp_path)
    assert (ran["reason"], ran["updates"]) == ("finished", 40)
    for row in ran["privacy"]["edges"]:
        assert row["sampler"] == "truncated-poisson, rate 0.032, at most 72"
        assert (row["method"], row["charges"]) == ("pld", row["releases"])
    verified(ran, "ledgers", "ε", "model")


def logged(ran: dict[str, Any]) -> int:
    """Return how many bytes of gradients the run's log holds: those that came over the wire."""
    size = sum(path.stat().st_size for path in (Path(ran["path"]) / FOLDER).iterdir())
    assert size > 4 * ran["parameters"] * ran["updates"]
    return size


def test_a_run_with_local_steps_is_verified_and_sends_a_quarter_for_the_same_releases(tmp_path: Path) -> None:
    local = f"local = {{ steps = {STEPS}, rate = 0.05 }}\n"
    stepping = run_over_mosquitto(STEPPING.format(60) + local, tmp_path / "steps")
    plain = run_over_mosquitto(STEPPING.format(60 * STEPS), tmp_path / "plain")
    for row in stepping["privacy"]["edges"]:
        assert row["charges"] == STEPS * row["releases"]
    verified(stepping, "ledgers")
    assert logged(stepping) == pytest.approx(logged(plain) / STEPS, rel=0.05)

"""Truncated batches over a real broker: charged as such, verified, and made again from the seed."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.program_support import run_mapa as mapa
from tests.program_support import run_over_mosquitto

pytestmark = [pytest.mark.broker, pytest.mark.slow]

SCENARIO = """
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


@pytest.mark.usefixtures("mosquitto")
def test_a_run_with_truncated_batches_is_verified_and_its_gradients_are_made_again(tmp_path: Path) -> None:
    ran = run_over_mosquitto(SCENARIO, tmp_path)
    assert (ran["reason"], ran["updates"]) == ("finished", 40)
    for row in ran["privacy"]["edges"]:
        assert row["sampler"] == "truncated-poisson, rate 0.032, at most 72"
        assert (row["method"], row["charges"]) == ("pld", row["releases"])
    verified = mapa("verify", ran["path"], "--json")
    checks = json.loads(verified.stdout)["checks"]
    assert verified.returncode == 0, [one for one in checks if one["status"] == "failed"]
    status = {one["name"]: one["status"] for one in checks}
    assert (status["ledgers"], status["ε"], status["model"]) == ("passed", "passed", "passed")
    replayed = json.loads(mapa("replay", ran["path"], "--json").stdout)
    assert replayed["same_model"]
    assert replayed["gradients"]["same"] == 40

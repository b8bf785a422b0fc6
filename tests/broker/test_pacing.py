"""Edges of three speeds over a real broker: each makes its own number of releases, and all end with the same ε."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from common.accounting.releases import ReleaseKind, Spent
from common.accounting.total import total
from common.mechanism.mechanism import Mechanism
from common.noise.gaussian import Gaussian
from tests.mechanism_support import NORMALISED, SHUFFLED
from tests.program_support import run_mapa as mapa
from tests.program_support import run_over_mosquitto

pytestmark = [pytest.mark.broker, pytest.mark.slow]

# shuffled: unamplified Gaussian releases, whose total has a closed form; 5000 records in thirds, 26 batches an epoch
SCENARIO = """
edges = 3
iterations = 210
batch_size = 64
devices = [{ slowdown = 4, reference_ms = 8 }, { slowdown = 2, reference_ms = 8 }, { slowdown = 1, reference_ms = 8 }]
data.set = "mnist-5k"
data.sampler = "shuffled"
model.name = "scattering"
model.options = { landmarks = 50 }
model.regularization = 0.0

[algorithm]
name = "tuning-free"

[privacy]
clipping = "normalised"
total_epsilon = 8.0
pace = "own"

[evaluation]
every = 0
"""


@pytest.mark.usefixtures("mosquitto")
def test_fast_and_slow_edges_end_with_the_same_epsilon(tmp_path: Path) -> None:
    ran = run_over_mosquitto(SCENARIO, tmp_path)
    assert "= 1.5·b/(ℓ·z·√T) with b = 64, ℓ = 7.07107" in ran["rate"]
    assert (ran["reason"], ran["updates"], ran["releases"]) == ("finished", 210, [30, 60, 120])
    assert [edge["releases"] for edge in ran["privacy"]["edges"]] == [30, 60, 120]
    for edge in ran["privacy"]["edges"]:
        assert 0.98 * 8 <= edge["epsilon"] <= 8
    scenario = json.loads((Path(ran["path"]) / "manifest.json").read_text())["scenario"]
    mechanism = Mechanism(None, 64, SHUFFLED, NORMALISED)
    sizes = json.loads((Path(ran["path"]) / "manifest.json").read_text())["shard_sizes"]
    for z, releases, size in zip(
        scenario["privacy"]["noise_multiplier"], ran["releases"], sizes, strict=True
    ):
        kind = ReleaseKind(replace(mechanism, law=Gaussian(z)), size)
        spent = total([Spent(kind, kind.charges(releases))], 1e-5, replace_one=False)
        assert 0.98 * 8 <= spent.epsilon <= 8
    again = mapa("replay", ran["path"], "--json")
    assert again.returncode == 0, again.stderr
    assert json.loads(again.stdout)["same_model"]
    checked = mapa("verify", ran["path"])
    assert checked.returncode == 0, checked.stdout + checked.stderr

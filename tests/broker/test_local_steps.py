"""Local steps over a real broker: verified, made again from the seed, and a quarter of the bytes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from common.records.gradient_log import FOLDER
from tests.program_support import run_mapa as mapa

pytestmark = pytest.mark.broker

STEPS = 4


def run(runs: Path, messages: int, *words: str) -> dict[str, Any]:
    shared = ("--edges", "2", "--seed", "5", "--runs-dir", str(runs), "--json", "--broker", "mosquitto")
    ran = mapa("run", "quickstart", *shared, "--iterations", str(messages), *words)
    assert ran.returncode == 0, ran.stderr
    summary: dict[str, Any] = json.loads(ran.stdout)
    return summary


def logged(summary: dict[str, Any]) -> int:
    """Return how many bytes of gradients the run's log holds: those that came over the wire."""
    size = sum(path.stat().st_size for path in (Path(summary["path"]) / FOLDER).iterdir())
    assert size > 4 * summary["parameters"] * summary["updates"]
    return size


@pytest.mark.usefixtures("mosquitto")
def test_a_run_with_local_steps_is_verified_and_sends_a_quarter_for_the_same_releases(tmp_path: Path) -> None:
    stepping = run(tmp_path / "steps", 60, "--set", f"local.steps={STEPS}", "--set", "local.rate=0.05")
    plain = run(tmp_path / "plain", 60 * STEPS)
    for row in stepping["privacy"]["edges"]:
        assert row["charges"] == STEPS * row["releases"]
    verified = mapa("verify", stepping["path"], "--json")
    checks = json.loads(verified.stdout)["checks"]
    assert verified.returncode == 0, [one for one in checks if one["status"] == "failed"]
    [ledgers] = [one for one in checks if one["name"] == "ledgers"]
    assert ledgers["status"] == "passed"
    replayed = json.loads(mapa("replay", stepping["path"], "--json").stdout)
    assert replayed["same_model"]
    assert replayed["gradients"]["same"] == 60
    assert logged(stepping) == pytest.approx(logged(plain) / STEPS, rel=0.05)

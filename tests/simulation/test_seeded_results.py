"""Seeded scenarios give the models they always gave: all engines, algorithms, laws and samplers.

`seeded_results.json` holds what they gave. Where machine and libraries are those it was written on the
final models are equal byte for byte; elsewhere BLAS may add in another order, and 1e-5 is asked for.
After a change that is meant to change results: `python -m tests.simulation.test_seeded_results`.
"""

from __future__ import annotations

import hashlib
import json
import os
import platform
import tomllib
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from common.datasets.catalogue import load_dataset
from common.datasets.dataset import Dataset
from common.quantities import Vector
from common.scenario.scenario import parse_scenario
from experiments.harness import ONE_THREAD
from mapa.simulation.simulator import Outcome, World, simulate
from mapa.simulation.synchronous import simulate_synchronously
from mapa.simulation.vectorised import simulate_rounds

STORED = Path(__file__).with_name("seeded_results.json")
_SAMPLE = 16  # coordinates of the final model that are compared where bytes cannot be

SCENARIOS = tomllib.loads(Path(__file__).with_name("seeded_scenarios.toml").read_text(encoding="utf-8"))


def fingerprint() -> str:
    """Name what decides how floating-point sums are rounded here."""
    from numpy._core._multiarray_umath import __cpu_features__ as features  # type: ignore[attr-defined]

    blas = np.show_config(mode="dicts")["Build Dependencies"]["blas"]  # type: ignore[call-overload,index]
    try:
        from importlib.metadata import version

        torch = version("torch")
    except ImportError:
        torch = "none"
    parts = [
        platform.machine(),
        platform.python_version(),
        np.__version__,
        str(blas.get("name")),
        str(blas.get("version")),
        torch,
        ",".join(sorted(name for name, there in features.items() if there)),
        str(len(os.sched_getaffinity(0))),
        *(os.environ.get(name, "") for name in ONE_THREAD),  # how many threads share a product
    ]
    return hashlib.sha256("|".join(parts).encode()).hexdigest()[:16]


@cache
def dataset() -> Dataset:
    return load_dataset("mnist-5k", Path("data"))


def outcome_of(name: str) -> Outcome:
    values = dict(SCENARIOS[name])
    engine = values.pop("engine")
    world = World.on(
        parse_scenario({"seed": 11, "batch_size": 8, "evaluation": {"every": 100}, **values}), dataset()
    )
    if engine == "events":
        return simulate(world)
    if engine == "synchronous":
        return simulate_synchronously(world)
    return simulate_rounds(world, blocks=engine == "block")


def result_of(outcome: Outcome) -> dict[str, Any]:
    x, tally = outcome.x, outcome.tally
    last = tally.evaluations[-1]
    return {
        "sha256": hashlib.sha256(x.tobytes()).hexdigest(),
        "norm": float(np.linalg.norm(x.astype(np.float64))),
        "sample": [float(value) for value in _sample(x)],
        "updates": tally.updates,
        "stage": last.stage,
        "accuracy": last["accuracy"],
        "loss": last["loss"],
        "staleness_max": max(tally.staleness),
        "releases": outcome.releases,
        "reason": outcome.reason,
    }


def _sample(x: Vector) -> Vector:
    """Return a few coordinates that are not all at the rim of the image."""
    return x[np.linspace(x.size // 4, 3 * x.size // 4, _SAMPLE).astype(int)]


@pytest.mark.parametrize("name", SCENARIOS)
def test_a_seeded_scenario_gives_the_stored_model(name: str) -> None:
    stored = json.loads(STORED.read_text(encoding="utf-8"))
    expected, found = stored["results"][name], result_of(outcome_of(name))
    if stored["fingerprint"] == fingerprint():
        assert found == expected
        return
    for key in ("updates", "stage", "staleness_max", "releases", "reason"):
        assert found[key] == expected[key], key
    for key in ("norm", "sample", "loss"):
        assert found[key] == pytest.approx(expected[key], rel=1e-5, abs=1e-5), key
    assert found["accuracy"] == pytest.approx(expected["accuracy"], abs=5e-3)


def test_every_scenario_has_a_stored_result_and_no_other() -> None:
    assert set(json.loads(STORED.read_text(encoding="utf-8"))["results"]) == set(SCENARIOS)


if __name__ == "__main__":
    found = {name: result_of(outcome_of(name)) for name in SCENARIOS}
    text = json.dumps({"fingerprint": fingerprint(), "results": found}, indent=1)
    STORED.write_text(text + "\n", encoding="utf-8")

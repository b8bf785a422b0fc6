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
from mapa.simulation.simulator import Outcome, simulate
from mapa.simulation.synchronous import simulate_synchronously
from mapa.simulation.vectorised import simulate_rounds
from mapa.simulation.world import World

STORED = Path(__file__).with_name("seeded_results.json")
_SAMPLE = 16  # coordinates of the final model that are compared where bytes cannot be

_CALM = {"loss_gap": 1e-4}  # short stages, so that a short run sees several
SCENARIOS: dict[str, tuple[str, dict[str, Any]]] = {
    "events-csgd-lr": ("events", {"iterations": 300, "algorithm": {"name": "csgd"}}),
    "events-asgd-svm": (
        "events",
        {
            "iterations": 300,
            "edges": 7,
            "model": {"name": "svm"},
            "algorithm": {"name": "asgd"},
            "data": {"sampler": "with-replacement"},
            "delays": {"kind": "lognormal", "speeds": [1.0, 2.0, 0.5]},
        },
    ),
    "events-audp-lr-gaussian": (
        "events",
        {
            "iterations": 300,
            "algorithm": {"name": "audp", "first_clip": 4.0},
            "privacy": {"noise": "gaussian", "noise_multiplier": [1.0, 2.0]},
            "delays": {"kind": "exponential"},
        },
    ),
    "events-mapa-lr-batch-mean": (
        "events",
        {
            "iterations": 400,
            "algorithm": {"name": "mapa", "first_clip": 8.0, "rule": "table", **_CALM},
            "privacy": {"noise": "exponential-norm", "epsilon": [1.0, 0.5], "clipping": "batch-mean"},
        },
    ),
    "events-constant-softmax-gamma": (
        "events",
        {
            "iterations": 200,
            "model": {"name": "softmax"},
            "data": {"sampler": "shuffled", "partition": "dirichlet"},
            "algorithm": {"name": "constant", "first_clip": 1.0, "rate": 0.3, "rate_decay": "linear"},
            "privacy": {"noise": "gamma-norm", "epsilon": 50.0},
        },
    ),
    "events-mapa-cnn-first-conv": (
        "events",
        {
            "iterations": 40,
            "edges": 3,
            "model": {"name": "cnn"},
            "algorithm": {"name": "mapa", "first_clip": 8.0, **_CALM},
            "privacy": {"noise": "gaussian", "noise_multiplier": 1.0, "scope": "first-conv"},
        },
    ),
    "events-mapa-measured": (
        "events",
        {
            "iterations": 400,
            "edges": 6,
            "algorithm": {
                "name": "mapa",
                "first_clip": 50.0,
                "tau_max": 1,
                "tau_max_from": "measured",
                "loss_gap": 0.1,
            },
            "privacy": {"noise": "exponential-norm", "epsilon": 50.0},
            "delays": {"kind": "exponential", "speeds": [1.0, 10.0]},
        },
    ),
    "vectorised-mapa-lr-gamma": (
        "vectorised",
        {
            "iterations": 400,
            "algorithm": {"name": "mapa", "first_clip": 8.0, **_CALM},
            "privacy": {"noise": "gamma-norm", "epsilon": 100.0},
        },
    ),
    "vectorised-audp-softmax-batch-mean": (
        "vectorised",
        {
            "iterations": 200,
            "edges": 4,
            "model": {"name": "softmax"},
            "algorithm": {"name": "audp", "first_clip": 4.0},
            "privacy": {"noise": "exponential-norm", "epsilon": 1.0, "clipping": "batch-mean"},
        },
    ),
    "vectorised-csgd-svm": (
        "vectorised",
        {"iterations": 300, "model": {"name": "svm"}, "algorithm": {"name": "csgd"}},
    ),
    "block-constant-lr-gaussian": (
        "block",
        {
            "iterations": 400,
            "algorithm": {"name": "constant", "first_clip": 2.0, "rate": 0.5},
            "privacy": {"noise": "gaussian", "noise_multiplier": 1.5},
        },
    ),
    "block-mapa-svm": (
        "block",
        {
            "iterations": 400,
            "model": {"name": "svm"},
            "data": {"sampler": "with-replacement"},
            "algorithm": {"name": "mapa", "first_clip": 8.0, **_CALM},
            "privacy": {"noise": "exponential-norm", "epsilon": 1.0},
        },
    ),
    "synchronous-audp-lr": (
        "synchronous",
        {
            "iterations": 300,
            "algorithm": {"name": "audp", "first_clip": 4.0},
            "privacy": {"noise": "gaussian", "noise_multiplier": 1.0},
            "delays": {"kind": "uniform"},
        },
    ),
    "synchronous-mapa-svm": (
        "synchronous",
        {
            "iterations": 300,
            "model": {"name": "svm"},
            "algorithm": {"name": "mapa", "first_clip": 8.0, "loss_gap": 1e-5},
            "privacy": {"noise": "exponential-norm", "epsilon": 1.0},
            "delays": {"kind": "exponential"},
        },
    ),
    "synchronous-asgd-lr": (
        "synchronous",
        {"iterations": 200, "algorithm": {"name": "asgd"}, "delays": {"kind": "constant"}},
    ),
}


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
    engine, values = SCENARIOS[name]
    world = World.on(
        parse_scenario({"seed": 11, "batch_size": 8, "evaluation": {"every": 100}, **values}), dataset()
    )
    if engine == "events":
        return simulate(world)
    if engine == "synchronous":
        return simulate_synchronously(world).outcome
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

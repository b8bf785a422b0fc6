"""Small worlds for the tests of the core: a data set of a few pixels, and scenarios on it."""

from __future__ import annotations

import io
import json
from collections.abc import Callable
from typing import Any

import numpy as np

from common.datasets.dataset import Dataset, Samples
from common.records.recorder import Journal
from common.scenario.scenario import Scenario, parse_scenario
from mapa.simulation.simulator import World

SIDE = 4
CONSTANTS = {"smoothness": 2.0, "sigma": 3.0, "radius": 4.0, "loss_gap": 0.7}


def small_dataset(rows: int = 240, seed: int = 0) -> Dataset:
    """Return blobs that a linear model can tell apart, one for each of ten labels."""
    rng = np.random.default_rng(seed)
    centres = rng.random((10, SIDE * SIDE))

    def samples(count: int) -> Samples:
        labels = (np.arange(count) % 10).astype(np.int64)
        images = np.clip(centres[labels] + rng.normal(0, 0.1, (count, SIDE * SIDE)), 0, 1)
        return Samples(images.astype(np.float32), labels)

    return Dataset("blobs", (SIDE, SIDE), 10, samples(rows), samples(60), "0" * 64)


def small_scenario(**changes: Any) -> Scenario:
    """Return a quick seeded scenario; a table in `changes` is merged into the table here."""
    values: dict[str, Any] = {
        "edges": 4,
        "iterations": 60,
        "batch_size": 5,
        "seed": 7,
        "data": {"sampler": "with-replacement"},
        "algorithm": {**CONSTANTS, "first_clip": 2.0},
        "privacy": {"noise": "exponential-norm", "epsilon": 1.0},
        "evaluation": {"every": 20},
    }
    for key, change in changes.items():
        old = values.get(key)
        merge = isinstance(change, dict) and isinstance(old, dict) and key != "privacy"
        values[key] = {**old, **change} if merge else change  # type: ignore[dict-item]
    return parse_scenario(values)


def small_world(**changes: Any) -> World:
    return World.on(small_scenario(**changes), small_dataset())


def recorded(engine: Callable[..., Any], world: World, *more: Any) -> tuple[Any, list[dict[str, Any]]]:
    """Run a world on an engine; return its outcome and its events."""
    stream = io.StringIO()
    outcome = engine(world, Journal(stream), *more)
    return outcome, [json.loads(line) for line in stream.getvalue().splitlines()]

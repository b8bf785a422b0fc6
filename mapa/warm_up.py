"""How fast this machine makes gradients of a scenario: on made-up rows, before any release, without records."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from time import perf_counter

import numpy as np

from common.datasets.catalogue import describe
from common.errors import ConfigurationError
from common.noise.law import NoiseLaw
from common.quantities import EdgeId
from common.randomness import CounterStreams
from common.scenario.parts import model_for
from common.scenario.scenario import Scenario
from edge.assembly import worker_for
from edge.device import timed_gradients
from edge.worker import EdgeWorker, Shard


def gradients_per_second(
    scenario: Scenario, data_dir: Path, *, seconds: float = 3.0, clock: Callable[[], float] = perf_counter
) -> float:
    """Return how many messages a second an edge makes here: so many noised gradients, E of them in a message."""
    made, passed = 0, 0.0
    for taken in timed_gradients(made_up_worker(scenario, data_dir), clock):
        made, passed = made + 1, passed + taken
        if passed >= seconds:
            break
    return made / passed


def made_up_worker(scenario: Scenario, data_dir: Path) -> EdgeWorker:
    """Return an edge whose b rows are random numbers of the shape that the scenario's data have."""
    shape, classes, target_range = _form(scenario, data_dir)
    model = model_for(scenario, shape, classes, target_range, data_dir)
    rng, rows = np.random.default_rng(0), scenario.batch_size
    images = rng.random((rows, math.prod(shape)), dtype=np.float32)
    low, high = target_range or (0.0, 1.0)
    labels = (
        rng.integers(0, classes, rows, dtype=np.int64)
        if classes
        else (low + (high - low) * rng.random(rows, dtype=np.float32)).astype(np.float32)
    )
    shard = Shard(model.features(images), model.targets(labels), np.arange(rows, dtype=np.int64))
    return worker_for(
        scenario,
        model,
        _law(scenario),
        edge_id=EdgeId("edge-made-up"),
        index=0,
        shard=shard,
        streams=CounterStreams.seeded(0),
    )


def _law(scenario: Scenario) -> NoiseLaw | None:
    """Return a law of the scenario's kind: what a draw costs does not depend on how much noise it is."""
    if not scenario.private:
        return None
    law = scenario.privacy.described
    given = {key: values[0] for key, values in scenario.privacy.given.items()}
    return law.make({key: given.get(key, 1.0) for key in law.names})


def _form(scenario: Scenario, data_dir: Path) -> tuple[tuple[int, ...], int, tuple[float, float] | None]:
    table = scenario.data.declared
    if table is not None:
        return table.declared.shape, table.declared.classes, table.declared.target_range
    for known in describe(data_dir):
        if known.name == scenario.data.set:
            return known.shape, known.classes, None
    raise ConfigurationError(
        f"data.set = {scenario.data.set!r}: the shape of its samples is not known without reading records, and a pace"
        " must not depend on them; declare a schema, or give privacy.paces"
    )

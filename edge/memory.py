"""What a welcome may ask of an edge's memory, estimated before any of it is taken."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Protocol, runtime_checkable

from common.errors import ConfigurationError
from common.models.linear import LinearModel
from common.models.model import Images, Model
from common.scenario.scenario import Scenario

MEMORY_LIMIT_MB = 1024  # the largest scenario that is shipped takes 360 MB
MEMORY_VARIABLE = "MAPA_EDGE_MEMORY_MB"  # the operator's own limit
_COPIES = 8  # of x and of the gradient under way at once: received, clipped, noised, encoded, in the outbox
_STEP_COPIES = 5  # more of them with local steps: x on its way, the step, and a sum in float64
_FLOAT = 4  # bytes


@runtime_checkable
class StatesItsMemory(Protocol):
    """A model that says itself what the gradients of a batch take, as torch models do."""

    def batch_bytes(self, batch: int) -> int: ...


@runtime_checkable
class StatesItsFeatures(Protocol):
    """A model that says itself what the features of so many records take, and what it takes to make them."""

    def features_bytes(self, rows: int) -> int: ...


def memory_limit(environ: Mapping[str, str] = os.environ) -> int:
    """Return how many bytes a welcome may make this edge take."""
    text = environ.get(MEMORY_VARIABLE, "") or str(MEMORY_LIMIT_MB)
    if not text.isascii() or not text.isdigit() or not 0 < int(text[:12]) <= 1 << 30:
        raise ConfigurationError(
            f"{MEMORY_VARIABLE} = {text!r}: must be a whole number of MB from 1 to {1 << 30}"
        )
    return int(text) << 20


def check_pixels(scenario: Scenario, rows: int, pixels: int) -> None:
    """Refuse a shard whose images alone take more than the limit, before they are unpacked."""
    _require(rows * pixels * _FLOAT, scenario, rows)


def check_model(scenario: Scenario, model: Model, images: Images) -> None:
    """Refuse a model that takes more than the limit with the features of this shard and with one batch.

    A model may say how large its features are; of any other one record tells. A model that is linear in its
    scores never forms the b × N matrix of a batch's gradients; a torch model says what it takes; of any other
    b × N is assumed.
    """
    rows = len(images)
    batch = min(scenario.sampler.memory_rows(scenario.batch_size), rows)
    copies = _COPIES + (_STEP_COPIES if scenario.work.releases() > 1 else 0)
    vectors = copies * _FLOAT * model.dimension
    _require(vectors, scenario, rows)
    if isinstance(model, StatesItsFeatures):
        features = model.features_bytes(rows + batch)
    else:
        features = (rows + batch) * model.features(images[:1]).nbytes
    if isinstance(model, StatesItsMemory):
        gradients = model.batch_bytes(batch)
    else:
        gradients = 0 if isinstance(model, LinearModel) else batch * _FLOAT * model.dimension
    _require(images.nbytes + features + gradients + vectors, scenario, rows)


def _require(needed: int, scenario: Scenario, rows: int) -> None:
    limit = memory_limit()
    if needed > limit:
        raise ConfigurationError(
            f"model.name = {scenario.model.name!r}, batch_size = {scenario.batch_size}, a shard of {rows} records:"
            f" takes about {needed >> 20} MB; this edge takes at most {limit >> 20} MB ({MEMORY_VARIABLE})"
        )

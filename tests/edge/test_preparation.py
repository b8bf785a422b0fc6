"""What an edge keeps of a data set: its shard."""

from __future__ import annotations

import weakref
from typing import Any

import numpy as np
import pytest

from common.datasets.dataset import Dataset, Samples
from common.models.model import Model
from common.models.registry import make_model
from common.scenario import parts
from tests.core_support import small_scenario
from tests.edge_support import prepared, welcome_of

ROWS, SHAPE, EDGES = 20_000, (8, 8), 20


class Source:
    """A large data set, and whether anybody still holds it."""

    def __init__(self, kind: type[np.generic]) -> None:
        self.kind = kind
        self.arrays: list[weakref.ref[Any]] = []

    def load(self, name: str) -> Dataset:  # noqa: ARG002
        train, test = self._samples(ROWS), self._samples(100)
        self.arrays = [weakref.ref(array) for part in (train, test) for array in (part.inputs, part.labels)]
        return Dataset("large", SHAPE, 10, train, test, "1" * 64)

    def _samples(self, count: int) -> Samples:
        images: Any = np.zeros((count, SHAPE[0] * SHAPE[1]), self.kind)
        return Samples(images, np.arange(count, dtype=np.int64) % 10)

    @property
    def held(self) -> bool:
        assert self.arrays, "never loaded"
        return any(array() is not None for array in self.arrays)


@pytest.mark.parametrize("kind", [np.uint8, np.float32])
def test_an_edge_holds_its_shard_and_lets_the_data_set_go_before_its_model_is_made(
    monkeypatch: pytest.MonkeyPatch, kind: type[np.generic]
) -> None:
    source, held = Source(kind), []

    def make(*arguments: Any, **options: Any) -> Model:
        held.append(source.held)
        return make_model(*arguments, **options)

    monkeypatch.setattr(parts, "make_model", make)
    made = prepared(welcome_of(small_scenario(edges=EDGES), 3), load=source.load)
    assert held == [False]
    assert not source.held
    shard = made.worker.shard
    assert len(shard) == ROWS // EDGES
    for array in (shard.features, shard.targets, shard.rows):
        whole = array if array.base is None else array.base
        assert whole.nbytes <= 4 * len(shard) * (SHAPE[0] * SHAPE[1] + 1)

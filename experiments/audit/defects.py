"""Defects, each planted in a real edge: in its law, its streams, its gradients or its release."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np

from common.models.gradients import Matrix, RowGradients
from common.noise.law import Noise, NoiseLaw
from common.noise.mechanism import Adjacency, Guarantee, Mechanism, Norm
from common.quantities import Floats, NoisyGradient, PerSampleGradients, Vector
from common.randomness import CounterStreams, Purpose
from edge.worker import EdgeWorker
from experiments.audit.canary import CLIP, GivenGradients
from experiments.audit.design import Plant


@dataclass(frozen=True, slots=True)
class Muted(NoiseLaw):
    """A law that leaves some coordinates without noise."""

    name: ClassVar[str] = "muted"
    law: NoiseLaw
    mute: Callable[[int], slice]  # given N

    @property
    def norm(self) -> Norm:  # type: ignore[override]
        return self.law.norm

    def draw(self, sensitivity: float, dimension: int, rng: np.random.Generator) -> Noise:
        eta = self.law.draw(sensitivity, dimension, rng)
        eta[self.mute(dimension)] = 0
        return eta

    def relative_second_moment(self, dimension: int) -> float:
        return self.law.relative_second_moment(dimension)

    def relative_tail(self, dimension: int) -> float:
        return self.law.relative_tail(dimension)

    def guarantee(self, mechanism: Mechanism, adjacency: Adjacency) -> Guarantee:
        return self.law.guarantee(mechanism, adjacency)


class BetweenUnclipped(RowGradients):
    """Clipping that lets norms between C and 20 C pass."""

    def norms(self) -> Floats:
        norms = super().norms()
        return np.where(norms < 20 * CLIP, np.minimum(norms, np.float32(CLIP)), norms)


class ClippedAtMore(RowGradients):
    """Clipping to 1.5 C."""

    def norms(self) -> Floats:
        return super().norms() / np.float32(1.5)


class Scaled(RowGradients):
    """A sum that is to be divided by b, made so that something else comes out."""

    def __init__(self, rows: Matrix, factor: float) -> None:
        super().__init__(rows)
        self._factor = np.float32(factor)

    @classmethod
    def realised(cls, rows: Matrix, batch_size: int) -> Scaled:
        """Divide by the number of samples at hand; a zeroed record is none."""
        return cls(rows, batch_size / max(1, int(rows.any(axis=1).sum())))

    def weighted_sum(self, weights: Floats | None) -> Floats:
        return super().weighted_sum(weights) * self._factor


class OneBatch(CounterStreams):
    """Streams whose first batch is drawn again for ever."""

    def at(self, edge: int, purpose: Purpose, n: int) -> np.random.Generator:
        return super().at(edge, purpose, 1 if purpose is Purpose.BATCH else n)


class NoiseEvery100(CounterStreams):
    """Streams whose noise comes again after 100 releases."""

    def at(self, edge: int, purpose: Purpose, n: int) -> np.random.Generator:
        return super().at(edge, purpose, (n - 1) % 100 + 1 if purpose is Purpose.NOISE else n)


class NoiseOfTheBatch(CounterStreams):
    """Streams whose noise is drawn from the numbers that drew the batch."""

    def at(self, edge: int, purpose: Purpose, n: int) -> np.random.Generator:
        return super().at(edge, Purpose.BATCH if purpose is Purpose.NOISE else purpose, n)


class DoubledRate(CounterStreams):
    """Streams in which a batch is twice as large as was asked."""

    def at(self, edge: int, purpose: Purpose, n: int) -> Any:
        rng = super().at(edge, purpose, n)
        return _Doubling(rng) if purpose is Purpose.BATCH else rng


class _Doubling:
    def __init__(self, rng: np.random.Generator) -> None:
        self._rng = rng
        self.choice = rng.choice

    def binomial(self, trials: int, rate: float) -> int:
        return int(self._rng.binomial(trials, min(1.0, 2 * rate)))


class OneIn50Bare(EdgeWorker):
    """Every fiftieth release goes without noise."""

    def gradient(self, x: Vector, sensitivity: float, n: int) -> NoisyGradient:
        recipe = self.recipe
        if n % 50 or recipe.law is None:
            return EdgeWorker.gradient(self, x, sensitivity, n)
        self.recipe = replace(recipe, law=Muted(recipe.law, lambda _: slice(None)))
        try:
            return EdgeWorker.gradient(self, x, sensitivity, n)
        finally:
            self.recipe = recipe


def muted(mute: Callable[[int], slice]) -> Plant:
    """Return a plant of noise that misses some coordinates."""

    def plant(worker: EdgeWorker) -> EdgeWorker:
        assert worker.recipe.law is not None
        worker.recipe = replace(worker.recipe, law=Muted(worker.recipe.law, mute))
        return worker

    return plant


def streams(kind: type[CounterStreams]) -> Plant:
    """Return a plant of other streams of the same key."""

    def plant(worker: EdgeWorker) -> EdgeWorker:
        honest = worker.streams
        worker.streams = kind(honest._key, reproducible=honest.reproducible)
        return worker

    return plant


def gradients(form: Callable[[Matrix, int], PerSampleGradients]) -> Plant:
    """Return a plant between model and clipping, given the rows and b."""

    def plant(worker: EdgeWorker) -> EdgeWorker:
        b = worker.recipe.batch_size
        worker.model = GivenGradients(worker.model.dimension, lambda rows: form(rows, b))
        return worker

    return plant


def one_in_50_bare(worker: EdgeWorker) -> EdgeWorker:
    """Plant a missing noise in one release of 50."""
    return OneIn50Bare(
        worker.edge_id, worker.index, worker.model, worker.shard, worker.recipe, worker.streams
    )


MUTATIONS: dict[str, Plant] = {
    "half of the coordinates without noise": muted(lambda _: slice(0, None, 2)),
    "one coordinate without noise": muted(lambda _: slice(0, 1)),
    "one layer of four without noise": muted(lambda size: slice(size // 2, size // 2 + size // 4)),
    "one release in 50 without noise": one_in_50_bare,
    "noise repeated every 100 releases": streams(NoiseEvery100),
    "noise drawn from the batch's stream": streams(NoiseOfTheBatch),
    "norms between C and 20 C unclipped": gradients(lambda rows, _: BetweenUnclipped(rows)),
    "clipped at 1.5 C": gradients(lambda rows, _: ClippedAtMore(rows)),
    "divided by the realised batch size": gradients(Scaled.realised),
    "sampling rate doubled": streams(DoubledRate),
    "one batch reused for ever": streams(OneBatch),
}

"""The record that is drawn most often: which one it is is learned first, then judged on fresh releases.

To learn it, a canary stands in every row of the shard and pulls to and fro by a code of its own, by which it is told
from the others in as few coordinates as a law needs.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace

import numpy as np

from common.models.model import Features
from common.noise.mechanism import Sampling
from edge.worker import EdgeWorker, Recipe, Shard
from experiments.audit.canary import CLIP, LOUD, CodedGradients, counted_where, written
from experiments.audit.claims import Claim
from experiments.audit.design import Design, Plant, honest, resized
from experiments.audit.game import Finding, turned

_BATCH = 4  # b: seldom empty, and few enough that their codes hardly disturb each other
_FEWEST_ROWS, _MOST_ROWS = 256, 4096
_OF_EPOCH = 4  # releases of a round with the shuffled sampler, all of one epoch, which is charged once
_CLEAR = 7.0  # distance of a canary that is in every batch, in standard deviations of the sum
_MOST_RELEASES = 2048


@dataclass(frozen=True, slots=True, kw_only=True)
class MostDrawn:
    """A canary in the row that was drawn most often; b = 4, and as many rows as the shard has."""

    name: str
    recipe: Recipe
    shard_size: int
    dimension: int
    rounds: int
    plant: Plant = field(default=honest)

    @property
    def design(self) -> Design:
        last = np.zeros(self.dimension)
        last[-1] = float(LOUD)
        rows = (
            min(_MOST_ROWS, max(_FEWEST_ROWS, self.shard_size)) // (_BATCH * _OF_EPOCH) * _BATCH * _OF_EPOCH
        )
        return Design(
            recipe=replace(resized(self.recipe, _BATCH), steps=1),
            shard_size=rows,
            canary=last,
            releases=_OF_EPOCH if self.recipe.sampling is Sampling.SHUFFLED else 1,
            plant=self.plant,
        )

    @property
    def claim(self) -> Claim:
        return self.design.claim

    @property
    def cost(self) -> int:
        return self.rounds * self.design.releases + self._learning

    @property
    def _learning(self) -> int:
        """Return after how many releases a canary in every batch stands out from noise and the others' codes."""
        assert self.recipe.law is not None
        noise = 4 * self.recipe.law.relative_second_moment(self.dimension) / self.dimension
        return min(_MOST_RELEASES, math.ceil(_CLEAR**2 * (_BATCH + noise)))

    def play(self, *, alpha: float, seed: int) -> Finding:
        design, row = self.design, self._most_drawn(seed)

        def worker(there: bool, seed: int | None) -> EdgeWorker:
            made = design.worker(there, seed)
            made.shard = turned(made.shard, row)
            return made

        game = design.game(self.name, self.rounds)
        if design.releases == 1:
            game = design.likely(self.name, self.rounds)
        epoch = design.shard_size // _BATCH
        after = (
            -(-self._learning // epoch) * epoch
        )  # what was learned from is not judged, nor the rest of its epoch
        return replace(game, worker=worker, turning=False, after=after).play(alpha=alpha, seed=seed)

    def _most_drawn(self, seed: int) -> int:
        design, count = self.design, self._learning
        codes = np.random.default_rng(seed).choice(np.array([-1, 1], np.int8), (design.shard_size, count))
        features: Features = codes  # a byte each: few of them are used
        worker = design.worker(True, seed)
        worker.shard = Shard(features, np.zeros(len(codes), np.int64), np.arange(len(codes)))
        coded = CodedGradients(self.dimension)
        coded.form = written(worker.model).form
        worker.model = counted_where(self.recipe.clipping, coded)
        size = worker.model.dimension
        x, released = np.zeros(size, np.float32), np.empty((count, size))
        for n in range(count):
            x[0] = n
            released[n] = worker.gradient(x, design.sensitivity, n + 1)
            released[n] -= np.float32(self.recipe.regularization) * x
        pull = np.zeros(size)
        pull[self.dimension - 1] = CLIP / _BATCH
        assert self.recipe.law is not None
        told = self.recipe.law.log_ratio(design.sensitivity, released, -pull, pull)
        return int(np.argmax(codes.astype(np.float32) @ told.astype(np.float32)))

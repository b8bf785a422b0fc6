"""Many canaries in one run, one in every row of the shard: is every record drawn as seldom as is claimed?

Steinke, Nasr, Jagielski (2023): each canary has a coin, the adversary guesses at those it is surest of. Its
bound holds for any (ε, δ)-DP run, however the canaries depend on each other, so one run of R releases is as
good as hundreds with a single canary. Each canary pulls to and fro by a code of its own, by which it is told from
the others in as few coordinates as a law needs.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

from common.accounting.releases import ReleaseKind, Spent
from common.accounting.total import total
from common.models.model import Features
from common.quantities import EdgeId
from edge.worker import EdgeWorker, Recipe, Shard
from experiments.audit.bounds import Floats, one_run_epsilon
from experiments.audit.canary import CLIP, CodedGradients, counted_where
from experiments.audit.design import Plant, honest, mechanism_of, resized, streams_of
from experiments.audit.game import Finding

DELTA = 1e-8
_FEWEST_ROWS, _MOST_ROWS = 256, 4096
_CLEAR = 7.0  # distance of a canary that is in every batch, in standard deviations of the run's sum
_MOST_RELEASES = 1024
_SHARE = 0.3  # of a canary in each run is guessed at: half of those that are in every batch, if there is one


@dataclass(frozen=True, slots=True)
class RunClaim:
    """Total ε at δ of a run."""

    figure: ClassVar[str] = "ε"
    value: float

    def least(self, fpr: Floats, fnr: Floats) -> Floats:
        raise NotImplementedError("a run is judged by its guesses")

    def epsilon(self, value: float, delta: float) -> float:  # noqa: ARG002 - at δ of its own
        return value


@dataclass(frozen=True, kw_only=True)
class ManyCanaries:
    """Runs of R releases with b = 1; a canary that is in more batches than is claimed stands out."""

    name: str
    recipe: Recipe
    shard_size: int  # of the edge that is audited; the game takes as many rows, from 256 to 4,096
    dimension: int
    rounds: int = 8000  # as other games'; four times as many releases, in runs of R
    plant: Plant = field(default=honest)

    @property
    def rows(self) -> int:
        return min(_MOST_ROWS, max(_FEWEST_ROWS, self.shard_size))

    @cached_property
    def alone(self) -> Recipe:
        """The recipe of a release with one record on average."""
        return replace(resized(self.recipe, 1), steps=1, regularization=0.0)

    @cached_property
    def releases(self) -> int:
        """R: where a canary in every batch is seven standard deviations away from noise and the others' codes."""
        assert self.recipe.law is not None
        noise = 4 * self.recipe.law.relative_second_moment(self.dimension) / self.dimension
        return min(_MOST_RELEASES, math.ceil(_CLEAR**2 * (1 + noise)))

    @property
    def runs(self) -> int:
        return min(self.rounds // 25, max(self.rounds // 125, 4 * self.rounds // self.releases))

    @cached_property
    def claim(self) -> RunClaim:
        kind = ReleaseKind(self.alone.law, mechanism_of(self.alone), self.rows)
        return RunClaim(total([Spent(kind, kind.charges(self.releases))], DELTA, replace_one=False).epsilon)

    @property
    def cost(self) -> int:
        return self.runs * self.releases

    def play(self, *, alpha: float, seed: int) -> Finding:
        played = [self._run(run, seed) for run in range(self.runs)]
        scores, coins = (np.concatenate(part) for part in zip(*played, strict=True))
        guesses = int(_SHARE * self.runs)  # "there", of the highest scores; fixed before
        correct = int(coins[np.argsort(scores)[-guesses:]].sum())
        return Finding(
            name=self.name,
            figure="ε",
            claimed=self.claim.value,
            lower_bound=one_run_epsilon(
                canaries=len(scores), guesses=guesses, correct=correct, delta=DELTA, alpha=alpha
            ),
            false_positives=(guesses - correct) / max(1, int((~coins).sum())),
            false_negatives=1 - correct / max(1, int(coins.sum())),
            rounds=len(scores),
            alpha=alpha,
        )

    def _run(self, run: int, seed: int) -> tuple[Floats, npt.NDArray[np.bool_]]:
        rng = np.random.default_rng([seed, run])
        coins = rng.random(self.rows) < 0.5
        codes: Any = 2 * rng.integers(0, 2, (self.rows, self.releases), np.int8) - np.int8(1)
        there: Features = codes * coins[:, None]  # in a byte each; a row is used where it is drawn
        shard = Shard(there, np.zeros(self.rows, np.int64), np.arange(self.rows))
        model = counted_where(self.alone.clipping, CodedGradients(self.dimension))
        worker = self.plant(EdgeWorker(EdgeId("audited"), run, model, shard, self.alone, streams_of(seed)))
        x, released = np.zeros(model.dimension, np.float32), np.empty((self.releases, model.dimension))
        for n in range(self.releases):
            x[0] = n
            released[n] = worker.gradient(x, 2 * CLIP, n + 1)
        pull = np.zeros(model.dimension)
        pull[self.dimension - 1] = CLIP
        assert self.alone.law is not None
        told = self.alone.law.log_ratio(2 * CLIP, released, -pull, pull)
        scores: Floats = (codes.astype(np.float32) @ told.astype(np.float32)).astype(np.float64)
        return scores, coins

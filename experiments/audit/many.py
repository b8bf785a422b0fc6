"""Many canaries in one run, sampled: is every batch drawn anew?

Steinke, Nasr, Jagielski (2023): each canary has a coin, the adversary guesses at those it is surest of. Its
bound holds for any (ε, δ)-DP run, however the canaries depend on each other, so one run of R releases is as
good as hundreds with a single canary.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import ClassVar

import numpy as np
import numpy.typing as npt

from common.accounting.gaussian import GaussianReleases, rdp
from common.noise.gaussian import Gaussian
from common.noise.mechanism import Clipping, Sampling
from common.quantities import EdgeId
from common.randomness import CounterStreams
from edge.worker import EdgeWorker, Recipe, Shard
from experiments.audit.bounds import Floats, one_run_epsilon
from experiments.audit.canary import CLIP, LOUD, GivenGradients
from experiments.audit.design import Plant, honest
from experiments.audit.game import Finding

DELTA = 1e-10
_CANARIES = 256  # of a run, each on a coordinate of its own; all of the shard
_BATCH = 4
_CLEAR = 7.0  # distance of a canary that is in every batch, in standard deviations of the run's sum
_MOST_RELEASES = 1024
_SHARE = 0.0075  # of canaries that are guessed at: nearly those that are there and in a first batch


@dataclass(frozen=True, slots=True)
class RunClaim:
    """Total ε at δ of a run."""

    figure: ClassVar[str] = "ε"
    value: float

    def least(self, fpr: Floats, fnr: Floats) -> Floats:
        raise NotImplementedError("a run is judged by its guesses")

    def epsilon(self, value: float, delta: float) -> float:  # noqa: ARG002 - at δ of its own
        return value


@dataclass(frozen=True, slots=True, kw_only=True)
class ManyCanaries:
    """Runs of R releases at rate 1/64; a canary that is in every batch or in none stands out."""

    name: str
    law: Gaussian
    clipping: Clipping = Clipping.PER_SAMPLE  # or normalised
    plant: Plant = field(default=honest)

    @property
    def releases(self) -> int:
        """R: where a canary in every batch is seven standard deviations away."""
        return min(_MOST_RELEASES, math.ceil((_CLEAR * self.law.noise_multiplier) ** 2))

    @property
    def runs(self) -> int:
        return min(320, max(28, 16_000 // self.releases))

    @property
    def claim(self) -> RunClaim:
        group = GaussianReleases(self.law.noise_multiplier, _BATCH / _CANARIES, self.releases)
        return RunClaim(rdp([group], DELTA))

    def play(self, *, alpha: float, seed: int) -> Finding:
        played = [self._run(run, seed) for run in range(self.runs)]
        scores, coins = (np.concatenate(part) for part in zip(*played, strict=True))
        guesses = int(_SHARE * len(scores))  # "there", of the highest scores; fixed before
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
        coins = np.random.default_rng([seed, run]).random(_CANARIES) < 0.5
        rows = np.diag(np.where(coins, LOUD * CLIP, 0)).astype(np.float32)
        recipe = Recipe(
            batch_size=_BATCH,
            sampling=Sampling.POISSON,
            clipping=self.clipping,
            law=self.law,
            noised=slice(0, _CANARIES),
            regularization=0.0,
        )
        shard = Shard(rows, np.zeros(_CANARIES, np.int64), np.arange(_CANARIES))
        streams = CounterStreams.seeded(seed)
        worker = self.plant(
            EdgeWorker(EdgeId("audited"), run, GivenGradients(_CANARIES), shard, recipe, streams)
        )
        x = np.ones(_CANARIES, np.float32)
        total = np.zeros(_CANARIES)
        for n in range(self.releases):
            total += worker.gradient(x, 2 * CLIP / _BATCH, n + 1)
        return total, coins

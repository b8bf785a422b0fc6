"""One game's shards and models, with room for a defect: the canary, what the others pull, what x does to them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace

import numpy as np

from common.accounting.releases import ReleaseKind
from common.models.gradients import Matrix
from common.noise.law import NoiseLaw
from common.noise.mechanism import LEAST_BOUND, Clipping, Mechanism, Sampling, Scope
from common.quantities import EdgeId
from common.randomness import CounterStreams
from edge.worker import EdgeWorker, Recipe, Shard
from experiments.audit.bounds import Floats
from experiments.audit.canary import CLIP, GivenGradients
from experiments.audit.claims import Claim, GdpClaim, PureClaim, claim_for, composed
from experiments.audit.game import Game
from experiments.audit.scores import Aim

Plant = Callable[[EdgeWorker], EdgeWorker]  # puts a defect into an edge


def honest(worker: EdgeWorker) -> EdgeWorker:
    """Plant nothing."""
    return worker


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Design:
    """A canary and its company; samples clipped or normalised, noise on every coordinate."""

    law: NoiseLaw
    batch_size: int  # b
    shard_size: int  # n_k
    canary: Floats  # record 0 at x = 1, in units of C
    others: Floats | None = None  # every other record, in units of C; None: 0
    sampling: Sampling = Sampling.POISSON
    clipping: Clipping = Clipping.PER_SAMPLE  # or normalised
    releases: int = 1  # of a round
    steer: Floats | None = None  # rows of x; None: 1
    plant: Plant = field(default=honest)

    @property
    def sensitivity(self) -> float:
        """ΔS = 2C/b."""
        return 2 * CLIP / self.batch_size

    @property
    def kind(self) -> ReleaseKind:
        mechanism = Mechanism(self.clipping, Scope.ALL, self.sampling, self.batch_size)
        return ReleaseKind(self.law, mechanism, self.shard_size)

    @property
    def claim(self) -> Claim:
        """What the accountant states of a round: of one release, or composed where nothing is amplified."""
        one = claim_for(self.kind)
        if self.releases == 1:
            return one
        assert isinstance(one, PureClaim | GdpClaim)  # truncated batches have designs of single releases
        if self.kind.sampling_rate < 1:
            raise ValueError("a round of several sampled releases has no trade-off in closed form")
        return composed(one, self.releases)

    def rows(self, there: bool) -> Matrix:
        rows = np.zeros((self.shard_size, self.canary.size), np.float32)
        if self.others is not None:
            rows[:] = CLIP * self.others
        rows[0] = CLIP * self.canary if there else 0
        return rows

    def worker(self, there: bool, seed: int) -> EdgeWorker:
        """Return the real edge on this shard, with the defect in it."""
        rows = self.rows(there)
        shard = Shard(rows, np.zeros(len(rows), np.int64), np.arange(len(rows)))
        recipe = Recipe(
            batch_size=self.batch_size,
            sampling=self.sampling,
            clipping=self.clipping,
            law=self.law,
            noised=slice(0, self.canary.size),
            regularization=0.0,
        )
        model = GivenGradients(self.canary.size)
        return self.plant(EdgeWorker(EdgeId("audited"), 0, model, shard, recipe, CounterStreams.seeded(seed)))

    @property
    def aim(self) -> Aim:
        """Return where an honest release lies before noise, when the canary is in its batch."""
        steer = np.ones((1, self.canary.size)) if self.steer is None else self.steer
        company = self.batch_size - 1 if self.others is not None else 0
        zeroed = self._scaled(steer * (0 if self.others is None else self.others)) * company / self.batch_size
        places = self.batch_size if self.sampling is Sampling.WITH_REPLACEMENT else 1  # of a shard of 1
        there = zeroed + self._scaled(steer * self.canary) * places / self.batch_size
        law = self.law
        return Aim(law, self.sensitivity, zeroed, there, self.kind.sampling_rate)

    def _scaled(self, rows: Floats) -> Floats:
        """Return rows, in units of C, as an honest edge scales them."""
        norms = np.linalg.norm(rows, axis=1, keepdims=True)
        least = LEAST_BOUND / CLIP if self.clipping is Clipping.NORMALISED else 1
        scaled: Floats = CLIP * rows / np.maximum(norms, least)
        return scaled

    def game(self, name: str, rounds: int, *, fresh_runs: bool = False) -> Game:
        """Return the game: the score is the likelihood ratio or what is learned, whichever does better at first."""
        aim = self.aim
        return Game(
            name=name,
            claim=self.claim,
            worker=self.worker,
            sensitivity=self.sensitivity,
            score=aim.ratio,
            learner=aim.learned,
            rounds=rounds,
            releases_per_round=self.releases,
            steer=None if self.steer is None else self.steer.astype(np.float32),
            fresh_runs=fresh_runs,
        )

    def likely(self, name: str, rounds: int) -> Game:
        """Return the game of the likelihood ratio, fixed: above 1 says "there"."""
        return replace(self.game(name, rounds), learner=None, threshold=0.0)

    def exact(self, name: str, rounds: int) -> Game:
        """Return the game of exact coincidence, fixed: more with the canary's place than with the other."""
        return replace(self.game(name, rounds), score=self.aim.exact, learner=None, threshold=0.5)

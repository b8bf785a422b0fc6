"""Worst-case shards: a loss whose gradient is ξ∘x, so the auditor chooses every gradient of every release.

The rest is the real edge: its sampler, its clipping, its division by b, its noise.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from common.metrics import LOSS, Metric
from common.models.counted import Counted
from common.models.gradients import Matrix, RowGradients
from common.models.model import Features, Images, Labels, Model, Targets, layout
from common.noise.law import NoiseLaw, distances
from common.noise.mechanism import Clipping, Mechanism, Norm, Sampling, Scope, parts_of_bound
from common.quantities import EdgeId, PerSampleGradients, Vector
from common.randomness import CounterStreams
from edge.worker import EdgeWorker, Recipe, Shard
from experiments.audit.bounds import Floats
from experiments.audit.game import Releases

CLIP = 1.0  # C
_LOCAL_RATE = 1e-3  # of local steps: x moves, and stays near 1, where the canary is as loud as it was
LOUD = np.float32(1000.0)  # norm of a canary before clipping, in units of C


class GivenGradients:
    """F(x; ξ) = ½ Σ ξ_i x_i², whose gradient is ξ∘x: ξ at x = 1, and x may turn, scale or mask it."""

    name = "given-gradients"

    def __init__(self, dimension: int, form: Callable[[Matrix], PerSampleGradients] = RowGradients) -> None:
        self.dimension = dimension
        self.layout = layout(weight=(dimension,))
        self.first_layer = slice(0, dimension // 2)
        self.metrics: tuple[Metric, ...] = (LOSS,)
        self._form = form

    def initial(self, rng: np.random.Generator) -> Vector:  # noqa: ARG002
        return np.ones(self.dimension, np.float32)

    def features(self, images: Images) -> Features:
        return images

    def targets(self, labels: Labels) -> Targets:
        return labels

    def gradients(self, x: Vector, features: Features, targets: Targets) -> PerSampleGradients:  # noqa: ARG002
        return self._form(features * x)

    def evaluate(self, x: Vector, features: Features, targets: Targets) -> dict[str, float]:  # noqa: ARG002
        return {"loss": float((features @ (x * x)).mean()) / 2}


@dataclass(frozen=True, slots=True, kw_only=True)
class CanarySetting:
    """Two neighbouring shards behind one recipe; the canary is row 0 and points along the last coordinate."""

    law: NoiseLaw | None
    batch_size: int  # b
    shard_size: int  # n_k
    dimension: int  # N
    sampling: Sampling = Sampling.POISSON
    clipping: Clipping = Clipping.PER_SAMPLE
    first_layer_only: bool = False
    loudness: float = float(LOUD)  # norm of the canary before clipping, in units of C
    steps: int = 1  # E: a message is the mean of so many releases, each with the canary's chance
    largest_batch: int | None = None  # B_max of truncated batches
    opposed: bool = False  # the other samples, or the canary's other version, pull the other way

    @property
    def sensitivity(self) -> float:
        """ΔS = 2C/b."""
        return 2 * CLIP / self.batch_size

    @property
    def mechanism(self) -> Mechanism:
        scope = Scope.FIRST_CONV if self.first_layer_only else Scope.ALL
        return Mechanism(self.clipping, scope, self.sampling, self.batch_size, self.steps, self.largest_batch)

    @property
    def model(self) -> Model:
        return Counted(GivenGradients(self.dimension - 1)) if self.counts else GivenGradients(self.dimension)

    @property
    def counts(self) -> bool:
        """Whether the last coordinate is a count."""
        return self.clipping is Clipping.QUANTILE

    def rows(self, there: bool) -> Matrix:
        """Return the shard's per-sample gradients with the canary there, or zeroed.

        A clipped batch mean moves the most where the others pull it to −C and the canary to +C.
        """
        rows = np.zeros((self.shard_size, self.dimension - self.counts), np.float32)
        if self.clipping is Clipping.BATCH_MEAN:
            rows[1:, -1] = -self.batch_size
            rows[0, -1] = LOUD * self.batch_size**2 if there else 0
        elif self.opposed:
            rows[0, -1] = self.loudness if there else -self.loudness
        elif there:
            rows[0, -1] = self.loudness
        return rows

    def centres(self) -> tuple[Floats, Floats]:
        """Return what a batch with the canary releases before noise, zeroed and there."""
        zeroed, there = np.zeros(self.dimension), np.zeros(self.dimension)
        if self.clipping is Clipping.BATCH_MEAN:
            # a batch that is the canary alone has nobody to pull it back
            zeroed[-1] = -CLIP if self.shard_size > 1 else 0
            there[-1] = CLIP
        else:
            filled = (
                1 if self.sampling is not Sampling.WITH_REPLACEMENT else self.batch_size // self.shard_size
            )
            places = max(1, filled) / self.batch_size
            of_gradient, of_count = parts_of_bound(CLIP, Norm.L2) if self.counts else (CLIP, 0.0)
            along = -2 if self.counts else -1
            there[along] = places * of_gradient
            if self.opposed:
                zeroed[along] = -there[along]
            if self.counts:  # a loud canary is clipped, whichever way it points
                there[-1] = -places * of_count
                zeroed[-1] = there[-1] if self.opposed else 0
        return zeroed, there

    def recipe(self) -> Recipe:
        half = self.dimension // 2
        return Recipe(
            batch_size=self.batch_size,
            sampling=self.sampling,
            clipping=self.clipping,
            law=self.law,
            noised=slice(0, half) if self.first_layer_only else slice(0, self.dimension),
            regularization=0.0,
            steps=self.steps,
            local_rate=_LOCAL_RATE,
            largest_batch=self.largest_batch,
        )

    def worker(self, there: bool, seed: int) -> EdgeWorker:
        rows = self.rows(there)
        shard = Shard(rows, np.zeros(len(rows), np.int64), np.arange(len(rows)))
        streams = CounterStreams.seeded(seed)
        return EdgeWorker(EdgeId("audited"), 0, self.model, shard, self.recipe(), streams)

    def score(self, releases: Releases, first: int) -> Floats:  # noqa: ARG002 - an honest edge's noise is unknown
        """Return the log-likelihood ratio; over a round's releases, one of which has the canary, its mean's log."""
        zeroed, there = self.centres()
        law = None if self.first_layer_only else self.law  # what is in the clear decides alone
        ratios = log_likelihood_ratio(law, self.sensitivity, releases, zeroed, there)
        highest = ratios.max(axis=1, keepdims=True)
        score: Floats = highest[:, 0] + np.log(np.exp(ratios - highest).mean(axis=1))
        return score


def log_likelihood_ratio(
    law: NoiseLaw | None, sensitivity: float, releases: Releases, zeroed: Floats, there: Floats
) -> Floats:
    """Return log p(ν | there) − log p(ν | zeroed) of each release: the best score, by Neyman and Pearson."""
    if law is not None:
        return law.log_ratio(sensitivity, releases, zeroed, there)
    far, near = distances(releases, zeroed, there)
    return far - near

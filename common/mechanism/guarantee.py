"""How an edge makes a release, as far as privacy goes, and what one release guarantees."""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import Enum

# C lies between these: beyond them what is released, over b and times z, could leave float32 or lose digits in it.
LEAST_BOUND, LARGEST_BOUND = 1e-9, 1e9

# Samples are clipped to C·(1 − CLIP_MARGIN), so that a record moves the sum of a batch, as it is computed, by C at
# most. With u = 2⁻²⁴ and any order of summation, float32 errs by n·u in a sum of n terms at most, relative to the sum
# of their sizes. Norms: 1024 terms at a time (common/models/gradients.py), of two factors: 2048u in L1, half of it in
# L2. Weights and products: 4u. Sums: 32 rows at a time, each of them C long at most, with the record and without it:
# (32² + 31²)u. Together 4037u = 2.41e-4; what is done in float64 is far below the rest.
CLIP_MARGIN = 2.5e-4

MOST_STEPS = 100  # E of a run: so many gradients keep an edge busy; its operator may permit fewer


class Norm(Enum):
    """The norm that is clipped to C, and that sensitivities are measured in."""

    L1 = "L1"
    L2 = "L2"


class Clipping(Enum):
    """Where the bound C = bΔS/2 applies.

    D-02: line 5 of algorithm:MAPA clips the batch mean, whose sensitivity is then bΔS.
    Only clipping each sample first makes it ΔS, or scaling each to the length C whatever it was: g·C/‖g‖, where 0
    stays 0. `quantile` clips each sample, too, and counts in one coordinate more how many were short enough; see
    `parts_of_bound`.
    """

    PER_SAMPLE = "per-sample"
    NORMALISED = "normalised"
    QUANTILE = "quantile"
    BATCH_MEAN = "batch-mean"


COUNT_SHARE = 0.1  # κ: how long a sample's count is, over its clipped gradient


def parts_of_bound(bound: float, norm: Norm) -> tuple[float, float]:
    """Return what C is divided into where samples are counted, too: the gradient's bound, and a count's length.

    A sample's release is its clipped gradient and ±κ times that bound, together C long at most. So noise of multiplier
    z on the whole is z√(1+κ²) on the gradient and z√(1+κ⁻²) on the count, whose inverse squares add up to z⁻².
    """
    of_gradient = bound / (math.sqrt(1 + COUNT_SHARE**2) if norm is Norm.L2 else 1 + COUNT_SHARE)
    return of_gradient, COUNT_SHARE * of_gradient


class Scope(Enum):
    """Which coordinates are noised. D-03: the rest of a `first-conv` gradient is sent in the clear."""

    ALL = "all"
    FIRST_CONV = "first-conv"


class Sampling(Enum):
    """How an edge picks the batch of its n-th gradient."""

    POISSON = "poisson"
    TRUNCATED_POISSON = "truncated-poisson"  # at most `largest_batch` of them, chosen at random
    SHUFFLED = "shuffled"
    WITH_REPLACEMENT = "with-replacement"


class Adjacency(Enum):
    """What "differing in one sample" means."""

    ZERO_OUT = "zero-out"  # one sample's contribution is set to zero; shard sizes are public
    REPLACE_ONE = "replace-one"


@dataclass(frozen=True, slots=True)
class Mechanism:
    """How an edge makes a release, as far as privacy goes."""

    clipping: Clipping
    scope: Scope
    sampling: Sampling
    batch_size: int  # b
    steps: int = 1  # E: noised gradients in one message, each of them a release
    largest_batch: int | None = None  # B_max of the truncated-poisson sampler

    def sensitivity_over_clip(self, adjacency: Adjacency) -> float:
        """Return the true sensitivity of the released mean, in the norm that is clipped and in units of C.

        Samples that are clipped, counted or not, or normalised move it by C/b (zero-out) or 2C/b = ΔS (replace-one)
        for each place that a record fills; sampling with replacement lets one record fill all b of them. A clipped
        batch mean can go anywhere in its ball whatever the adjacency: 2C = bΔS.
        """
        if self.clipping is Clipping.BATCH_MEAN:
            return 2.0
        places = self.batch_size if self.sampling is Sampling.WITH_REPLACEMENT else 1
        moves = 1 if adjacency is Adjacency.ZERO_OUT else 2
        return moves * places / self.batch_size

    @property
    def amplified(self) -> bool:
        """Tell whether subsampling at rate b/n_k may be counted; of truncated batches the accountant knows more."""
        return self.sampling is Sampling.POISSON


@dataclass(frozen=True, slots=True)
class Guarantee:
    """What one release guarantees for the record it used, before amplification and composition.

    Exactly one of `epsilon` and `noise_multiplier` is set, or neither: then it is not DP at all.
    """

    adjacency: Adjacency
    epsilon: float | None = None  # pure ε of the release
    noise_multiplier: float | None = None  # Gaussian noise: its std over the true L2 sensitivity
    reason: str = ""  # why it is not DP

    @property
    def is_private(self) -> bool:
        return self.epsilon is not None or self.noise_multiplier is not None


def in_the_clear(adjacency: Adjacency) -> Guarantee:
    """Return what a release guarantees of which only a part is noised."""
    return Guarantee(
        adjacency,
        reason="only the first convolution's gradient is noised; the other layers leave in the clear",
    )

"""What one release guarantees, in which norm and adjacency, and the bounds C for which that holds."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from common.errors import ConfigurationError

# C lies between these: beyond them what is released, over b and times z, could leave float32 or lose digits in it.
LEAST_BOUND, LARGEST_BOUND = 1e-9, 1e9

LARGEST_COST = 1e100  # ε and z lie between 1/this and this: beyond, their squares leave float64

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


class Scope(Enum):
    """Which coordinates are noised. D-03: the rest of a `first-conv` gradient is sent in the clear."""

    ALL = "all"
    FIRST_CONV = "first-conv"


class Adjacency(Enum):
    """What "differing in one sample" means."""

    ZERO_OUT = "zero-out"  # one sample's contribution is set to zero; shard sizes are public
    REPLACE_ONE = "replace-one"


@dataclass(frozen=True, slots=True)
class Guarantee:
    """What one release guarantees for the record it used, before amplification and composition.

    Exactly one of `epsilon` and `noise_multiplier` is set, or neither: then it is not DP at all.
    """

    adjacency: Adjacency
    epsilon: float | None = None  # pure ε of the release
    noise_multiplier: float | None = None  # Gaussian noise: its std over the true L2 sensitivity
    reason: str = ""  # why it is not DP

    def __post_init__(self) -> None:
        if self.epsilon is not None and self.noise_multiplier is not None:
            raise ConfigurationError(
                f"guarantee: ε = {self.epsilon} and z = {self.noise_multiplier}: a law states one of them, or neither"
            )
        for symbol, value in (("ε", self.epsilon), ("z", self.noise_multiplier)):
            if value is not None and not 1 / LARGEST_COST <= value <= LARGEST_COST:
                raise ConfigurationError(
                    f"guarantee: {symbol} = {value}: a law must state a finite number greater than 0 (from"
                    f" {1 / LARGEST_COST:g} to {LARGEST_COST:g}), or neither ε nor"
                    " z and the reason why its releases are not private"
                )

    @property
    def is_private(self) -> bool:
        return self.epsilon is not None or self.noise_multiplier is not None


def in_the_clear(adjacency: Adjacency) -> Guarantee:
    """Return what a release guarantees of which only a part is noised."""
    return Guarantee(
        adjacency,
        reason="only the first convolution's gradient is noised; the other layers leave in the clear",
    )

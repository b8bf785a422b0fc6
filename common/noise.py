"""The noise laws: draw, second moment and the guarantee of one release, side by side.

λ = ΔS/ε is the paper's scale. What each law guarantees is stated here and nowhere else; how
releases compose over a run is the accountant's business.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import Enum
from typing import ClassVar, Protocol

import numpy as np
import numpy.typing as npt

from common.errors import ConfigurationError

Noise = npt.NDArray[np.float64]

# ε_k and z_k lie between these: accountants square them and divide by that, and η must fit float32.
LEAST_PARAMETER, LARGEST_PARAMETER = 1e-9, 1e9

# A gradient is refused where an honest edge makes one so long with a probability below e^-30 < 1e-13.
TAIL_NATS = 30.0

# C lies between these. Norms are squared in float32, which loses at most 1.2e-38 of every square: a norm comes
# out too small by √N·1.1e-19 at most, a millionth of the least C at N = 2²⁶. Far below that C, a gradient
# passes for one of norm 0 and is not clipped at all. Above the largest, a sum of clipped samples, or of noise,
# could leave float32.
LEAST_BOUND, LARGEST_BOUND = 1e-9, 1e9


class Clipping(Enum):
    """Where the bound C = bΔS/2 applies.

    D-02: line 5 of algorithm:MAPA clips the batch mean, whose sensitivity is then bΔS.
    Only clipping each sample first makes it ΔS.
    """

    PER_SAMPLE = "per-sample"
    BATCH_MEAN = "batch-mean"


class Scope(Enum):
    """Which coordinates are noised. D-03: the rest of a `first-conv` gradient is sent in the clear."""

    ALL = "all"
    FIRST_CONV = "first-conv"


class Sampling(Enum):
    """How an edge picks the batch of its n-th gradient."""

    POISSON = "poisson"
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

    def sensitivity_over_clip(self, adjacency: Adjacency) -> float:
        """Return the true L2 sensitivity of the released mean, in units of the bound C.

        Per-sample clipping moves by C/b (zero-out) or 2C/b = ΔS (replace-one) for each place that a
        record fills; sampling with replacement lets one record fill all b of them. A clipped batch
        mean can go anywhere in its ball whatever the adjacency: 2C = bΔS.
        """
        if self.clipping is Clipping.BATCH_MEAN:
            return 2.0
        places = self.batch_size if self.sampling is Sampling.WITH_REPLACEMENT else 1
        moves = 1 if adjacency is Adjacency.ZERO_OUT else 2
        return moves * places / self.batch_size

    @property
    def amplified(self) -> bool:
        """Tell whether subsampling at rate b/n_k may be counted."""
        return self.sampling is Sampling.POISSON


@dataclass(frozen=True, slots=True)
class Guarantee:
    """What one release guarantees for the record it used, before amplification and composition.

    Exactly one of `epsilon` and `noise_multiplier` is set, or neither: then it is not DP at all.
    """

    adjacency: Adjacency
    epsilon: float | None = None  # pure ε of the release
    noise_multiplier: float | None = None  # noise std over the true L2 sensitivity
    reason: str = ""  # why it is not DP

    @property
    def is_private(self) -> bool:
        return self.epsilon is not None or self.noise_multiplier is not None


class NoiseLaw(Protocol):
    """A law of η. `scale` arguments are ΔS: each law knows how its own parameter divides it."""

    name: ClassVar[str]

    def draw(self, sensitivity: float, dimension: int, rng: np.random.Generator) -> Noise:
        """Draw η for the sensitivity ΔS."""

    def relative_second_moment(self, dimension: int) -> float:
        """Return v = E‖η‖²/ΔS², so that Δ_b = σ²/b + ΔS²·v."""

    def relative_tail(self, dimension: int) -> float:
        """Return r such that ‖η‖ exceeds r·ΔS with a probability of at most e^-TAIL_NATS."""

    def guarantee(self, mechanism: Mechanism, adjacency: Adjacency) -> Guarantee:
        """State what one release guarantees."""


def _in_the_clear(adjacency: Adjacency) -> Guarantee:
    return Guarantee(
        adjacency,
        reason="only the first convolution's gradient is noised; the other layers leave in the clear",
    )


def _radial(radius: float, dimension: int, rng: np.random.Generator) -> Noise:
    direction = rng.standard_normal(dimension)
    direction *= radius / math.sqrt(float(direction @ direction))
    return direction


@dataclass(frozen=True, slots=True)
class ExponentialNorm:
    """‖η‖ ~ Exponential(ΔS/ε) with a uniform direction: the paper's variance 2ΔS²/ε² (D-01).

    Its density is singular at 0, so no finite pure ε holds for N > 1. Kept as a replica.
    """

    name: ClassVar[str] = "exponential-norm"
    epsilon: float  # ε_k

    def draw(self, sensitivity: float, dimension: int, rng: np.random.Generator) -> Noise:
        return _radial(rng.standard_exponential() * sensitivity / self.epsilon, dimension, rng)

    def relative_second_moment(self, dimension: int) -> float:  # noqa: ARG002 - the paper's has no N
        return 2 / self.epsilon / self.epsilon  # not ε**2, which may leave float64 by an exception

    def relative_tail(self, dimension: int) -> float:  # noqa: ARG002
        return TAIL_NATS / self.epsilon

    def guarantee(self, mechanism: Mechanism, adjacency: Adjacency) -> Guarantee:  # noqa: ARG002
        return Guarantee(
            adjacency,
            reason="exponential-norm noise has a density singular at 0: no finite pure ε beyond one parameter",
        )


@dataclass(frozen=True, slots=True)
class GammaNorm:
    """Density ∝ exp(−ε‖η‖/ΔS) on R^N, which the proof of theorem:varepsilon_DP uses: ‖η‖ ~ Gamma(N, ΔS/ε)."""

    name: ClassVar[str] = "gamma-norm"
    epsilon: float  # ε_k

    def draw(self, sensitivity: float, dimension: int, rng: np.random.Generator) -> Noise:
        return _radial(rng.standard_gamma(dimension) * sensitivity / self.epsilon, dimension, rng)

    def relative_second_moment(self, dimension: int) -> float:
        return dimension * (dimension + 1) / self.epsilon / self.epsilon

    def relative_tail(self, dimension: int) -> float:
        # Gamma(N, 1) exceeds N + √(2Nx) + x with probability e^-x at most (its sub-gamma bound)
        return (dimension + math.sqrt(2 * dimension * TAIL_NATS) + TAIL_NATS) / self.epsilon

    def guarantee(self, mechanism: Mechanism, adjacency: Adjacency) -> Guarantee:
        if mechanism.scope is not Scope.ALL:
            return _in_the_clear(adjacency)
        # ε belongs to a move of ΔS = 2C/b
        moves = mechanism.sensitivity_over_clip(adjacency) * mechanism.batch_size / 2
        return Guarantee(adjacency, epsilon=self.epsilon * moves)


@dataclass(frozen=True, slots=True)
class Gaussian:
    """N(0, (zΔS/2)²) in each coordinate; z is relative to C/b = ΔS/2, the zero-out sensitivity."""

    name: ClassVar[str] = "gaussian"
    noise_multiplier: float  # z_k

    def draw(self, sensitivity: float, dimension: int, rng: np.random.Generator) -> Noise:
        eta = rng.standard_normal(dimension)
        eta *= self.noise_multiplier * sensitivity / 2
        return eta

    def relative_second_moment(self, dimension: int) -> float:
        return dimension * (self.noise_multiplier * self.noise_multiplier) / 4

    def relative_tail(self, dimension: int) -> float:
        # ‖N(0, I)‖ exceeds √N + √(2x) with probability e^-x at most (it is 1-Lipschitz)
        return (math.sqrt(dimension) + math.sqrt(2 * TAIL_NATS)) * self.noise_multiplier / 2

    def guarantee(self, mechanism: Mechanism, adjacency: Adjacency) -> Guarantee:
        if mechanism.scope is not Scope.ALL:
            return _in_the_clear(adjacency)
        over_clip = self.noise_multiplier / mechanism.batch_size  # std/C
        return Guarantee(adjacency, noise_multiplier=over_clip / mechanism.sensitivity_over_clip(adjacency))


LAWS: dict[str, type[ExponentialNorm] | type[GammaNorm] | type[Gaussian]] = {
    law.name: law for law in (Gaussian, GammaNorm, ExponentialNorm)
}


def noise_law(name: str, *, epsilon: float | None = None, noise_multiplier: float | None = None) -> NoiseLaw:
    """Return the law called `name` with the one parameter that it takes."""
    law = LAWS.get(name)
    if law is None:
        raise ConfigurationError(f"noise = {name!r}: allowed are {', '.join(LAWS)}")
    if law is Gaussian:
        if noise_multiplier is None or epsilon is not None:
            raise ConfigurationError("noise = 'gaussian' takes noise_multiplier, not epsilon")
        value, parameter = noise_multiplier, "noise_multiplier"
    else:
        if epsilon is None or noise_multiplier is not None:
            raise ConfigurationError(f"noise = {name!r} takes epsilon, not noise_multiplier")
        value, parameter = epsilon, "epsilon"
    if not LEAST_PARAMETER <= value <= LARGEST_PARAMETER:
        raise ConfigurationError(
            f"{parameter} = {value}: must be from {LEAST_PARAMETER:g} to {LARGEST_PARAMETER:g}"
        )
    return law(value)

"""gamma-norm: the K-norm mechanism in L2, which is ε-DP without a δ."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Self

import numpy as np
import numpy.typing as npt

from common.mechanism.guarantee import Adjacency, Guarantee, Norm, Scope, in_the_clear
from common.noise.law import TAIL_NATS, Noise, NoiseLaw, distances, parameter, radial, radial_block

if TYPE_CHECKING:
    from common.mechanism.mechanism import Mechanism


@dataclass(frozen=True, slots=True)
class GammaNorm(NoiseLaw):
    """Density ∝ exp(−ε‖η‖/ΔS) on R^N, which the proof of theorem:varepsilon_DP uses: ‖η‖ ~ Gamma(N, ΔS/ε)."""

    name: ClassVar[str] = "gamma-norm"
    norm: ClassVar[Norm] = Norm.L2
    implied: ClassVar[bool] = True
    audit_dimension: ClassVar[int] = 2  # among many coordinates it hides a direction
    epsilon: float = parameter(
        "ε_k of one release, for a move of ΔS = 2C/b", symbol="ε", larger_is_noisier=False
    )

    def draw(self, sensitivity: float, dimension: int, rng: np.random.Generator) -> Noise:
        return radial(rng.standard_gamma(dimension) * sensitivity / self.epsilon, dimension, rng)

    @classmethod
    def draw_block(
        cls,
        laws: Sequence[Self],
        sensitivities: npt.NDArray[np.float64],
        dimension: int,
        noise: np.random.Generator,
        norms: np.random.Generator,
    ) -> Noise:
        radii = norms.standard_gamma(dimension, len(laws))
        epsilons = np.array([law.epsilon for law in laws])
        return radial_block(radii * sensitivities / epsilons, dimension, noise)

    def relative_second_moment(self, dimension: int) -> float:
        return dimension * (dimension + 1) / self.epsilon / self.epsilon

    def relative_tail(self, dimension: int) -> float:
        # Gamma(N, 1) exceeds N + √(2Nx) + x with probability e^-x at most (its sub-gamma bound)
        return (dimension + math.sqrt(2 * dimension * TAIL_NATS) + TAIL_NATS) / self.epsilon

    def guarantee(self, mechanism: Mechanism, adjacency: Adjacency) -> Guarantee:
        if mechanism.scope is not Scope.ALL:
            return in_the_clear(adjacency)
        # ε belongs to a move of ΔS = 2C/b
        moves = mechanism.sensitivity_over_clip(adjacency) * mechanism.batch_size / 2
        return Guarantee(adjacency, epsilon=self.epsilon * moves)

    def promise(self) -> Guarantee:
        return Guarantee(Adjacency.ZERO_OUT, epsilon=self.epsilon)

    def log_ratio(self, sensitivity: float, releases: Noise, zeroed: Noise, there: Noise) -> Noise:
        far, near = distances(releases, zeroed, there)
        return (far - near) * self.epsilon / sensitivity


LAW = GammaNorm

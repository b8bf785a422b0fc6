"""gamma-norm: the K-norm mechanism in L2, which is ε-DP without a δ."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from common.noise.law import Noise, PureLaw, RadialLaw, distances, gamma_tail, parameter


@dataclass(frozen=True, slots=True)
class GammaNorm(RadialLaw, PureLaw):
    """Density ∝ exp(−ε‖η‖/ΔS) on R^N, which the proof of theorem:varepsilon_DP uses: ‖η‖ ~ Gamma(N, ΔS/ε)."""

    name: ClassVar[str] = "gamma-norm"
    implied: ClassVar[bool] = True
    audit_dimension: ClassVar[int] = 2  # among many coordinates it hides a direction
    epsilon: float = parameter(
        "ε_k of one release, for a move of ΔS = 2C/b", symbol="ε", larger_is_noisier=False
    )

    @staticmethod
    def radii(rng: np.random.Generator, dimension: int, count: int | None = None) -> Any:
        return rng.standard_gamma(dimension, count)

    def relative_second_moment(self, dimension: int) -> float:
        return dimension * (dimension + 1) / self.epsilon / self.epsilon

    def relative_tail(self, dimension: int) -> float:
        return gamma_tail(dimension) / self.epsilon

    def log_ratio(self, sensitivity: float, releases: Noise, zeroed: Noise, there: Noise) -> Noise:
        far, near = distances(releases, zeroed, there)
        return (far - near) * self.epsilon / sensitivity


PART = GammaNorm

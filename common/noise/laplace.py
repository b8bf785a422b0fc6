"""laplace: independent Laplace noise in each coordinate, for gradients clipped in L1; ε-DP without a δ."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from common.mechanism.guarantee import Norm
from common.noise.law import TAIL_NATS, Noise, PureLaw, gamma_tail, parameter


@dataclass(frozen=True, slots=True)
class Laplace(PureLaw):
    """Density ∝ exp(−ε‖η‖₁/ΔS), ΔS measured in L1: each coordinate is Laplace of scale ΔS/ε."""

    name: ClassVar[str] = "laplace"
    norm: ClassVar[Norm] = Norm.L1
    epsilon: float = parameter(
        "ε_k of one release, for a move of ΔS = 2C/b in L1", symbol="ε", larger_is_noisier=False
    )

    def draw(self, sensitivity: float, dimension: int, rng: np.random.Generator) -> Noise:
        return rng.laplace(0.0, sensitivity / self.epsilon, dimension)

    def relative_second_moment(self, dimension: int) -> float:
        return 2 * dimension / self.epsilon / self.epsilon

    def relative_tail(self, dimension: int) -> float:
        # ‖η‖ ≤ ‖η‖₁, which is Gamma(N, 1): the better bound for few coordinates
        return min(gamma_tail(dimension), _tail_by_squares(dimension)) / self.epsilon

    def log_ratio(self, sensitivity: float, releases: Noise, zeroed: Noise, there: Noise) -> Noise:
        nearer: Noise = np.abs(releases - zeroed).sum(axis=-1) - np.abs(releases - there).sum(axis=-1)
        return nearer * self.epsilon / sensitivity


def _tail_by_squares(dimension: int) -> float:
    """Every |η_i| is below m, and the squares so cut obey Bernstein: each fails with probability e^-x at most.

    Their mean is at most E η² = 2, their variance at most E η⁴ = 24, and each is at most m².
    """
    x = TAIL_NATS + 1  # 2e^-31 < e^-30
    m = x + math.log(dimension)
    third = m * m * x / 3
    return math.sqrt(2 * dimension + third + math.sqrt(third * third + 48 * dimension * x))


PART = Laplace

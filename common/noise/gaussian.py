"""gaussian: independent normal noise in each coordinate."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Self

import numpy as np
import numpy.typing as npt

from common.mechanism.guarantee import Adjacency, Guarantee, Norm
from common.noise.law import TAIL_NATS, Noise, NoiseLaw, distances, parameter

if TYPE_CHECKING:
    from common.mechanism.mechanism import Mechanism


@dataclass(frozen=True, slots=True)
class Gaussian(NoiseLaw):
    """N(0, (zΔS/2)²) in each coordinate; z is relative to C/b = ΔS/2, the zero-out sensitivity."""

    name: ClassVar[str] = "gaussian"
    norm: ClassVar[Norm] = Norm.L2
    implied: ClassVar[bool] = True
    calibrated: ClassVar[str | None] = "noise_multiplier"
    adds_up: ClassVar[bool] = True
    noise_multiplier: float = parameter(
        "z_k: standard deviation over the zero-out sensitivity", symbol="z", larger_is_noisier=True
    )

    def draw(self, sensitivity: float, dimension: int, rng: np.random.Generator) -> Noise:
        eta = rng.standard_normal(dimension)
        eta *= self.noise_multiplier * sensitivity / 2
        return eta

    @classmethod
    def draw_block(
        cls,
        laws: Sequence[Self],
        sensitivities: npt.NDArray[np.float64],
        dimension: int,
        noise: np.random.Generator,
        norms: np.random.Generator,  # noqa: ARG003
    ) -> Noise:
        normals = noise.standard_normal((len(laws), dimension))
        scale = np.array([law.noise_multiplier for law in laws]) * sensitivities / 2
        normals *= scale[:, None]
        return normals

    def relative_second_moment(self, dimension: int) -> float:
        return dimension * (self.noise_multiplier * self.noise_multiplier) / 4

    def relative_tail(self, dimension: int) -> float:
        # ‖N(0, I)‖ exceeds √N + √(2x) with probability e^-x at most (it is 1-Lipschitz)
        return (math.sqrt(dimension) + math.sqrt(2 * TAIL_NATS)) * self.noise_multiplier / 2

    def relative_tail_of_mean(self, dimension: int, count: int) -> float:
        return self.relative_tail(dimension) / math.sqrt(count)

    def guarantee(self, mechanism: Mechanism, adjacency: Adjacency) -> Guarantee:
        over_clip = self.noise_multiplier / mechanism.batch_size  # std/C
        return Guarantee(adjacency, noise_multiplier=over_clip / mechanism.sensitivity_over_clip(adjacency))

    def log_ratio(self, sensitivity: float, releases: Noise, zeroed: Noise, there: Noise) -> Noise:
        far, near = distances(releases, zeroed, there)
        return (far - near) * (far + near) * (2 / (self.noise_multiplier * sensitivity) ** 2)


PART = Gaussian

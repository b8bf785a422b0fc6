"""exponential-norm: the paper's law as printed, which guarantees nothing. Kept as a replica."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Self

import numpy as np
import numpy.typing as npt

from common.mechanism.guarantee import Adjacency, Guarantee, Norm
from common.noise.law import TAIL_NATS, Noise, NoiseLaw, distances, parameter, radial, radial_block

if TYPE_CHECKING:
    from common.mechanism.mechanism import Mechanism


@dataclass(frozen=True, slots=True)
class ExponentialNorm(NoiseLaw):
    """‖η‖ ~ Exponential(ΔS/ε) with a uniform direction: the paper's variance 2ΔS²/ε² (D-01).

    Its density is singular at 0, so no finite pure ε holds for N > 1.
    """

    name: ClassVar[str] = "exponential-norm"
    norm: ClassVar[Norm] = Norm.L2
    protects: ClassVar[bool] = False
    epsilon: float = parameter("ε_k, as the paper calls it", symbol="ε", larger_is_noisier=False)

    def draw(self, sensitivity: float, dimension: int, rng: np.random.Generator) -> Noise:
        return radial(rng.standard_exponential() * sensitivity / self.epsilon, dimension, rng)

    @classmethod
    def draw_block(
        cls,
        laws: Sequence[Self],
        sensitivities: npt.NDArray[np.float64],
        dimension: int,
        noise: np.random.Generator,
        norms: np.random.Generator,
    ) -> Noise:
        radii = norms.standard_exponential(len(laws))
        epsilons = np.array([law.epsilon for law in laws])
        return radial_block(radii * sensitivities / epsilons, dimension, noise)

    def relative_second_moment(self, dimension: int) -> float:  # noqa: ARG002 - the paper's has no N
        return 2 / self.epsilon / self.epsilon  # not ε**2, which may leave float64 by an exception

    def relative_tail(self, dimension: int) -> float:  # noqa: ARG002
        return TAIL_NATS / self.epsilon

    def guarantee(self, mechanism: Mechanism, adjacency: Adjacency) -> Guarantee:  # noqa: ARG002
        return Guarantee(
            adjacency,
            reason="exponential-norm noise has a density singular at 0: no finite pure ε beyond one parameter",
        )

    def log_ratio(self, sensitivity: float, releases: Noise, zeroed: Noise, there: Noise) -> Noise:
        far, near = distances(releases, zeroed, there)
        tiny = np.finfo(np.float64).tiny
        singular = np.log(far + tiny) - np.log(near + tiny)
        ratio: Noise = (far - near) * self.epsilon / sensitivity + (releases.shape[-1] - 1) * singular
        return ratio


LAW = ExponentialNorm

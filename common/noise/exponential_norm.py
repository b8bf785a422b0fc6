"""exponential-norm: the paper's law as printed, which guarantees nothing. Kept as a replica."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from common.mechanism.guarantee import Adjacency, Guarantee
from common.noise.law import TAIL_NATS, Noise, RadialLaw, distances, parameter

if TYPE_CHECKING:
    from common.mechanism.mechanism import Mechanism


@dataclass(frozen=True, slots=True)
class ExponentialNorm(RadialLaw):
    """‖η‖ ~ Exponential(ΔS/ε) with a uniform direction: the paper's variance 2ΔS²/ε² (D-01).

    Its density is singular at 0, so no finite pure ε holds for N > 1.
    """

    name: ClassVar[str] = "exponential-norm"
    protects: ClassVar[bool] = False
    epsilon: float = parameter("ε_k, as the paper calls it", symbol="ε", larger_is_noisier=False)

    @staticmethod
    def radii(rng: np.random.Generator, dimension: int, count: int | None = None) -> Any:  # noqa: ARG004
        return rng.standard_exponential(count)

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


PART = ExponentialNorm

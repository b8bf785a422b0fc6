"""per-sample: each sample's gradient is scaled down to the norm C where it is longer."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

from common.mechanism.clipping import Clipping, finite_norms, move_of_samples, scaled_sum
from common.mechanism.guarantee import Adjacency, Norm
from common.quantities import ClippedGradient, PerSampleGradients


@dataclass(frozen=True, slots=True)
class PerSample(Clipping):
    """Scale every sample's gradient to norm ≤ C, sum, divide by b."""

    name: ClassVar[str] = "per-sample"
    bounds_each_sample: ClassVar[bool] = True
    block_form: ClassVar[Literal["", "samples", "mean"]] = "samples"

    def clip(
        self, gradients: PerSampleGradients, bound: float, batch_size: int, norm: Norm
    ) -> ClippedGradient:
        gradients, norms = finite_norms(gradients, norm)
        return scaled_sum(gradients, norms, bound, bound, batch_size)

    def sensitivity_over_clip(self, adjacency: Adjacency, places: int, batch_size: int) -> float:
        return move_of_samples(adjacency, places, batch_size)


PART = PerSample

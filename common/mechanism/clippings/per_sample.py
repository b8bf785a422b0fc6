"""per-sample: each sample's gradient is scaled down to the norm C where it is longer."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

from common.mechanism.clipping import SampleClipping, finite_norms, scaled_sum
from common.mechanism.guarantee import Norm
from common.quantities import ClippedGradient, PerSampleGradients


@dataclass(frozen=True, slots=True)
class PerSample(SampleClipping):
    """Scale every sample's gradient to norm ≤ C, sum, divide by b."""

    name: ClassVar[str] = "per-sample"
    block_form: ClassVar[Literal["", "samples", "mean"]] = "samples"

    def clip(
        self, gradients: PerSampleGradients, bound: float, batch_size: int, norm: Norm
    ) -> ClippedGradient:
        gradients, norms = finite_norms(gradients, norm)
        return scaled_sum(gradients, norms, bound, bound, batch_size)


PART = PerSample

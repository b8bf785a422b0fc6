"""batch-mean: line 5 of algorithm:MAPA as printed, which clips the mean of the batch."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar, Literal

import numpy as np

from common.mechanism.clipping import Clipping
from common.mechanism.guarantee import Adjacency, Norm
from common.quantities import ClippedGradient, PerSampleGradients


@dataclass(frozen=True, slots=True)
class BatchMean(Clipping):
    """Clip the mean of the batch to C (D-02): its sensitivity is bΔS, where clipping each sample first makes it ΔS."""

    name: ClassVar[str] = "batch-mean"
    block_form: ClassVar[Literal["", "samples", "mean"]] = "mean"
    opposed: ClassVar[bool] = True

    def clip(
        self, gradients: PerSampleGradients, bound: float, batch_size: int, norm: Norm
    ) -> ClippedGradient:
        mean = gradients.weighted_sum(None).astype(np.float64)
        mean /= batch_size
        length = float(np.sqrt(np.vdot(mean, mean)) if norm is Norm.L2 else np.abs(mean).sum())
        if not math.isfinite(length):
            mean[:] = 0
        elif length > bound:
            mean *= bound / length
        return ClippedGradient(mean)

    def length_over_clip(self, rows: float, batch_size: int) -> float:  # noqa: ARG002
        return 1.0

    def sensitivity_over_clip(self, adjacency: Adjacency, places: int, batch_size: int) -> float:  # noqa: ARG002
        return 2.0  # the mean can go anywhere in its ball, whatever the adjacency: 2C = bΔS


PART = BatchMean

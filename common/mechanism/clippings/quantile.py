"""quantile: per-sample clipping that counts, in one coordinate more, how many samples were short enough."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from common.mechanism.clipping import SampleClipping, finite_norms, scaled_sum
from common.mechanism.guarantee import Norm
from common.quantities import ClippedGradient, PerSampleGradients

COUNT_SHARE = 0.1  # κ: how long a sample's count is, over its clipped gradient


def parts_of_bound(bound: float, norm: Norm) -> tuple[float, float]:
    """Return what C is divided into where samples are counted, too: the gradient's bound, and a count's length.

    A sample's release is its clipped gradient and ±κ times that bound, together C long at most. So noise of multiplier
    z on the whole is z√(1+κ²) on the gradient and z√(1+κ⁻²) on the count, whose inverse squares add up to z⁻².
    """
    of_gradient = bound / (math.sqrt(1 + COUNT_SHARE**2) if norm is Norm.L2 else 1 + COUNT_SHARE)
    return of_gradient, COUNT_SHARE * of_gradient


@dataclass(frozen=True, slots=True)
class QuantileClipping(SampleClipping):
    """Scale every sample's gradient to its part of C, and count in the last coordinate how many needed it not.

    A sample counts +κ times that part where its gradient is within it, −κ times where it is not, and 0 where the
    gradient is 0 or not finite, as a null record's is: so a record moves the sum by C at most, all coordinates taken
    together.
    """

    name: ClassVar[str] = "quantile"
    extra: ClassVar[int] = 1

    def clip(
        self, gradients: PerSampleGradients, bound: float, batch_size: int, norm: Norm
    ) -> ClippedGradient:
        of_gradient, of_count = parts_of_bound(bound, norm)
        gradients, norms = finite_norms(gradients, norm)
        clipped = scaled_sum(gradients, norms, of_gradient, of_gradient, batch_size)
        counted = np.count_nonzero(norms)
        longer = np.count_nonzero(norms > of_gradient)
        clipped[-1] = of_count * (counted - 2 * longer) / batch_size
        return clipped


PART = QuantileClipping

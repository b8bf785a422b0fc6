"""The quantities both sides speak of. Types carry privacy: only a `NoisyGradient` may leave an edge."""

from __future__ import annotations

import math
from typing import Any, NewType, Protocol

import numpy as np
import numpy.typing as npt

EdgeId = NewType("EdgeId", str)  # kept by the edge for life
RunId = NewType("RunId", str)

Vector = npt.NDArray[np.float32]  # x_t and gradients: one flat vector of N parameters
Indices = npt.NDArray[np.int64]

Floats = npt.NDArray[np.floating[Any]]  # float32 or float64

ClippedGradient = NewType("ClippedGradient", Floats)  # clipped and averaged, still private
NoisyGradient = NewType("NoisyGradient", Vector)  # g̃: the only kind that may be encoded


def is_finite(x: Vector) -> bool:
    """Return whether every number is finite, at half the cost of looking at each; no other vector is sent or taken.

    Squares are never negative, so an infinity or a NaN in x makes x·x infinite or NaN: a finite x·x
    proves x finite. Large finite numbers may overflow x·x; only then is every number looked at.
    (`vdot`, because `dot` warns of the overflow.)
    """
    return math.isfinite(np.vdot(x, x)) or bool(np.isfinite(x).all())


def length(vector: Vector) -> float:
    """Return ‖v‖ by one dot product, or in float64 where the squares leave float32.

    It is finite if and only if every number is: squares of float32 cannot leave float64.
    """
    square = float(np.vdot(vector, vector))
    if math.isfinite(square):
        return math.sqrt(square)
    with np.errstate(
        invalid="ignore"
    ):  # a signalling NaN warns of its cast; another's vector may hold any bits
        return float(np.linalg.norm(vector.astype(np.float64)))


class PerSampleGradients(Protocol):
    """∇F(x, ξ_i) of a batch, private, in whatever factored form the model has.

    A linear model never forms the b × N matrix: row i is dloss/dscore_i ⊗ ξ_i. Clipping holds as far as norms and sums
    do: of any finite gradient to `CLIP_MARGIN` together (common/mechanism/guarantee.py); how a row is treated may
    depend on no other row.
    """

    def norms(self) -> Floats:
        """Return ‖∇F(x, ξ_i)‖ of each sample, in an array of its own; what is not finite of those that are not."""

    def l1_norms(self) -> Floats:
        """Return ‖∇F(x, ξ_i)‖₁ of each sample."""

    def nulled(self, rows: npt.NDArray[np.bool_]) -> PerSampleGradients:
        """Return the same with zeros for the chosen samples, whose rows stay: no other row's rounding changes."""

    def weighted_sum(self, weights: Floats | None) -> Floats:
        """Return Σ w_i ∇F(x, ξ_i) in float64; None means that every weight is 1, and float32 will do.

        It is an array of its own, which clipping may write into.
        """

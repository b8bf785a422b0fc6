"""The clipping port: what bounds how far one record moves the released mean, and how far that is."""

from __future__ import annotations

import math
from typing import ClassVar, Literal, Self

import numpy as np
import numpy.typing as npt

from common.errors import RemoteProtocolError
from common.mechanism.guarantee import CLIP_MARGIN, LARGEST_BOUND, LEAST_BOUND, Adjacency, Norm
from common.mechanism.part import Part, Port
from common.quantities import ClippedGradient, Floats, PerSampleGradients

BLOCK_FORMS = ("", "samples", "mean")


class Clipping(Part):
    """What every clipping has. `clip` and `sensitivity_over_clip` have no default."""

    __slots__ = ()

    extra: ClassVar[int] = 0  # coordinates after the gradient's own, 0 or 1, that an algorithm must read
    bounds_each_sample: ClassVar[bool] = False  # each place moves the sum by C at most, whatever the rest
    # How the vectorised engines may do it: scale each sample by `scaling`, or the mean to C at most; "": not at all.
    # A class that redefines `clip` has the form that it states itself.
    block_form: ClassVar[Literal["", "samples", "mean"]] = ""
    opposed: ClassVar[bool] = False  # an audit moves the mean most where other records oppose the canary

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        if "clip" in cls.__dict__ and "block_form" not in cls.__dict__:
            cls.block_form = ""

    def clip(
        self, gradients: PerSampleGradients, bound: float, batch_size: int, norm: Norm
    ) -> ClippedGradient:
        """Return what is noised, over the configured b and never the rows at hand, whose number may be private."""
        raise NotImplementedError

    def sensitivity_over_clip(self, adjacency: Adjacency, places: int, batch_size: int) -> float:
        """Return how far one record that fills so many places moves what `clip` returns, in units of C."""
        raise NotImplementedError

    def length_over_clip(self, rows: float, batch_size: int) -> float:
        """Return the largest L2 length of what `clip` makes of this many rows, in units of C; ∞: not known."""
        return rows / batch_size if self.bounds_each_sample else math.inf

    def fitted(self, feature_length: float) -> Self:  # noqa: ARG002
        """Return it as an edge uses it with a model whose features have this length; 0: not known."""
        return self

    def scaling(self, bounds: npt.NDArray[np.float64]) -> tuple[npt.NDArray[np.float64] | float, float]:
        """Return (least, s) of block_form = "samples": a sample is scaled by C/(max(‖g‖, least) + s)."""
        return bounds, 0.0


class SampleClipping(Clipping):
    """A clipping by which each place of a batch moves the sum by C at most."""

    __slots__ = ()

    bounds_each_sample: ClassVar[bool] = True

    def sensitivity_over_clip(self, adjacency: Adjacency, places: int, batch_size: int) -> float:
        return move_of_samples(adjacency, places, batch_size)


def check_bound(bound: float) -> None:
    """Refuse a C = bΔS/2 under which clipping and noise would not do what the ledger books; the cloud chose ΔS."""
    if not LEAST_BOUND <= bound <= LARGEST_BOUND:
        raise RemoteProtocolError(
            f"clipping bound bΔS/2 = {bound:g}: must be from {LEAST_BOUND:g} to {LARGEST_BOUND:g}"
        )


def move_of_samples(adjacency: Adjacency, places: int, batch_size: int) -> float:
    """Return the sensitivity over C where each place moves the sum by C at most: C/b (zero-out) or 2C/b = ΔS."""
    moves = 1 if adjacency is Adjacency.ZERO_OUT else 2
    return moves * places / batch_size


def finite_norms(gradients: PerSampleGradients, norm: Norm) -> tuple[PerSampleGradients, Floats]:
    """Return the gradients and their norms; a sample whose gradient is not finite counts as 0.

    A model sent with huge values could provoke one, and a NaN that depends on a sample would be a release without
    noise. Its row stays in the products, as a null record's does: how the others round depends on the batch's shape.
    """
    norms = gradients.norms() if norm is Norm.L2 else gradients.l1_norms()
    if norms.size and not math.isfinite(norms.item(norms.argmax())):  # it finds a NaN, too
        lost = ~np.isfinite(norms)
        gradients = gradients.nulled(lost)
        norms[lost] = 0
    return gradients, norms


def scaled_sum(
    gradients: PerSampleGradients,
    norms: Floats,
    bound: float,
    least: float,
    batch_size: int,
    stabiliser: float = 0.0,
) -> ClippedGradient:
    """Return Σ g_i·C/(max(‖g_i‖, least) + s) over b, where C is meant less CLIP_MARGIN, which makes up for rounding.

    In float64: weights may be as small as 1e-86, and how a float32 mean rounds would tell of the samples.
    """
    weights: npt.NDArray[np.float64] = np.maximum(norms, least * (1 - CLIP_MARGIN), dtype=np.float64)
    if stabiliser:
        weights += stabiliser
    np.divide(bound * (1 - CLIP_MARGIN), weights, out=weights)
    total = np.asarray(gradients.weighted_sum(weights), np.float64)
    total /= batch_size
    return ClippedGradient(total)


CLIPPINGS = Port(
    Clipping, "privacy.clipping", "common.mechanism.clippings", ("clip", "sensitivity_over_clip")
)

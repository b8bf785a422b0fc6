"""Clip to C = bΔS/2, average, perturb (lines 5-7, edge side). Pure: randomness is an argument."""

from __future__ import annotations

import math
from typing import assert_never

import numpy as np
import numpy.typing as npt

from common.errors import RemoteProtocolError
from common.mechanism.guarantee import CLIP_MARGIN, LARGEST_BOUND, LEAST_BOUND, Clipping, Norm, parts_of_bound
from common.noise.law import NoiseLaw
from common.quantities import ClippedGradient, Floats, NoisyGradient, PerSampleGradients, Vector


def check_bound(bound: float) -> None:
    """Refuse a C = bΔS/2 under which clipping and noise would not do what the ledger books; the cloud chose ΔS."""
    if not LEAST_BOUND <= bound <= LARGEST_BOUND:
        raise RemoteProtocolError(
            f"clipping bound bΔS/2 = {bound:g}: must be from {LEAST_BOUND:g} to {LARGEST_BOUND:g}"
        )


def clip_per_sample(
    gradients: PerSampleGradients, bound: float, batch_size: int, norm: Norm = Norm.L2
) -> ClippedGradient:
    """Scale every sample's gradient to norm ≤ C, sum, divide by the configured b.

    Here and below C is meant less CLIP_MARGIN, which makes up for rounding.
    """
    return _scaled_sum(gradients, bound, bound, batch_size, norm)


def normalise_per_sample(
    gradients: PerSampleGradients,
    bound: float,
    batch_size: int,
    norm: Norm = Norm.L2,
    stabiliser: float = 0.0,
) -> ClippedGradient:
    """Scale every sample's gradient to nearly norm C, g·C/(‖g‖ + s), sum, divide by the configured b; 0 stays 0.

    With s = 0 it is g·C/max(‖g‖, 1e-9): what is next to nothing stays so.
    """
    return _scaled_sum(gradients, bound, LEAST_BOUND, batch_size, norm, stabiliser)


def _scaled_sum(
    gradients: PerSampleGradients,
    bound: float,
    least: float,
    batch_size: int,
    norm: Norm,
    stabiliser: float = 0.0,
) -> ClippedGradient:
    """Return Σ g_i·C/(max(‖g_i‖, least) + s) over b."""
    gradients, norms = _finite(gradients, norm)
    return _sum(gradients, norms, bound, least, batch_size, stabiliser)


def _finite(gradients: PerSampleGradients, norm: Norm) -> tuple[PerSampleGradients, Floats]:
    """Return the gradients and their norms; a sample whose gradient is not finite counts as 0.

    A model sent with huge values could provoke one, and a NaN that depends on a sample would be a release without
    noise. Its row stays in the products, as a null record's does: how the others round depends on the batch's shape.
    """
    norms = gradients.norms() if norm is Norm.L2 else gradients.l1_norms()
    if not math.isfinite(norms.sum()):
        lost = ~np.isfinite(norms)
        gradients = gradients.nulled(lost)
        norms[lost] = 0
    return gradients, norms


def _sum(
    gradients: PerSampleGradients,
    norms: Floats,
    bound: float,
    least: float,
    batch_size: int,
    stabiliser: float = 0.0,
) -> ClippedGradient:
    """Return the scaled sum over b, never over the samples at hand: under Poisson sampling their number is private.

    In float64: weights may be as small as 1e-86, and how a float32 mean rounds would tell of the samples.
    """
    weights: npt.NDArray[np.float64] = np.maximum(norms, least * (1 - CLIP_MARGIN), dtype=np.float64)
    if stabiliser:
        weights += stabiliser
    np.divide(bound * (1 - CLIP_MARGIN), weights, out=weights)
    total = np.asarray(gradients.weighted_sum(weights), np.float64)
    total /= batch_size
    return ClippedGradient(total)


def clip_and_count(
    gradients: PerSampleGradients, bound: float, batch_size: int, norm: Norm = Norm.L2
) -> ClippedGradient:
    """Scale every sample's gradient to its part of C, and put into the last coordinate how many needed it not.

    A sample counts +κ times that part where its gradient is within it, −κ times where it is not, and 0 where the
    gradient is 0 or not finite, as a null record's is: so a record moves the sum by C at most, all coordinates taken
    together.
    """
    of_gradient, of_count = parts_of_bound(bound, norm)
    gradients, norms = _finite(gradients, norm)
    clipped = _sum(gradients, norms, of_gradient, of_gradient, batch_size)
    counted = np.count_nonzero(norms)
    longer = np.count_nonzero(norms > of_gradient)
    clipped[-1] = of_count * (counted - 2 * longer) / batch_size
    return clipped


def clip_batch_mean(
    gradients: PerSampleGradients, bound: float, batch_size: int, norm: Norm = Norm.L2
) -> ClippedGradient:
    """Line 5 as printed: clip the mean (D-02); its sensitivity is bΔS."""
    mean = gradients.weighted_sum(None).astype(np.float64)
    mean /= batch_size
    length = float(np.sqrt(np.vdot(mean, mean)) if norm is Norm.L2 else np.abs(mean).sum())
    if not math.isfinite(length):
        mean[:] = 0
    elif length > bound:
        mean *= bound / length
    return ClippedGradient(mean)


def clip(
    gradients: PerSampleGradients,
    how: Clipping,
    bound: float,
    batch_size: int,
    norm: Norm = Norm.L2,
    stabiliser: float = 0.0,
) -> ClippedGradient:
    """Clip to C in the norm that the noise law needs; the stabiliser s is of normalised gradients alone."""
    check_bound(bound)
    match how:
        case Clipping.PER_SAMPLE:
            return clip_per_sample(gradients, bound, batch_size, norm)
        case Clipping.NORMALISED:
            return normalise_per_sample(gradients, bound, batch_size, norm, stabiliser)
        case Clipping.QUANTILE:
            return clip_and_count(gradients, bound, batch_size, norm)
        case Clipping.BATCH_MEAN:
            return clip_batch_mean(gradients, bound, batch_size, norm)
        case _:
            assert_never(how)


def perturb(
    gradient: ClippedGradient | Vector,
    law: NoiseLaw,
    sensitivity: float,
    noised: slice,
    rng: np.random.Generator,
) -> NoisyGradient:
    """Add η to the coordinates `noised`; in float64, so that rounding to float32 comes after the noise."""
    start, stop, _ = noised.indices(gradient.size)
    eta = law.draw(sensitivity, stop - start, rng)
    if stop - start == gradient.size:
        eta += gradient
        return NoisyGradient(eta.astype(np.float32))
    released = gradient.astype(np.float32)
    released[start:stop] = (eta + gradient[start:stop]).astype(np.float32)
    return NoisyGradient(released)

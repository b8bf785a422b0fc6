"""What is claimed of a release, and the least claim that measured error rates still allow.

A test that tells "canary there" from "canary zeroed" has a false positive rate α and a false negative
rate β. Every claim says how small both can be at once; turned round, (α, β) says how large its ε or μ
must be at least. Each bound falls where α or β rises, so upper bounds may be put in for them.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar, Protocol

import numpy as np

from common.accounting.gaussian import GaussianReleases, pld
from common.accounting.pure import amplify_zero_out
from common.accounting.releases import ReleaseKind
from common.noise.mechanism import Adjacency
from experiments.audit.bounds import Floats, scipy_special


class Claim(Protocol):
    """A statement about one release, in one number."""

    figure: ClassVar[str]  # what the number is: ε or μ

    @property
    def value(self) -> float:
        """Return the claimed number; infinite: nothing is claimed."""

    def least(self, fpr: Floats, fnr: Floats) -> Floats:
        """Return the least number that error rates of at most these allow."""

    def epsilon(self, value: float, delta: float) -> float:
        """Return the number as ε at δ."""


@dataclass(frozen=True, slots=True)
class PureClaim:
    """ε-DP: β ≥ 1 − e^ε·α and α ≥ 1 − e^ε·β."""

    figure: ClassVar[str] = "ε"
    value: float  # ε

    def least(self, fpr: Floats, fnr: Floats) -> Floats:
        with np.errstate(divide="ignore"):
            one = np.log(np.maximum(1 - fnr, 0) / fpr)
            other = np.log(np.maximum(1 - fpr, 0) / fnr)
        least: Floats = np.maximum(np.maximum(one, other), 0)
        return least

    def epsilon(self, value: float, delta: float) -> float:  # noqa: ARG002 - holds at δ = 0
        return value


@dataclass(frozen=True, slots=True)
class GdpClaim:
    """μ-GDP (Dong, Roth, Su 2022), here Poisson-sampled at rate q: β ≥ q·Φ(Φ⁻¹(1−α) − μ) + (1−q)(1−α).

    q = 1: the Gaussian mechanism with μ = 1/z, told as it is, where (ε, δ) would waste the most samples.
    """

    figure: ClassVar[str] = "μ"
    value: float  # μ
    rate: float = 1.0  # q

    def least(self, fpr: Floats, fnr: Floats) -> Floats:
        quantile = scipy_special().ndtri
        share = (fnr - (1 - self.rate) * (1 - fpr)) / self.rate
        # a share below 0 is out of reach of any μ; one above 1 says nothing
        least: Floats = quantile(1 - fpr) - quantile(np.clip(share, 0, 1))
        return np.maximum(np.nan_to_num(least, nan=0.0, posinf=np.inf, neginf=0.0), 0)

    def epsilon(self, value: float, delta: float) -> float:
        if value <= 0 or math.isinf(value):
            return max(value, 0.0)
        return pld([GaussianReleases(1 / value, self.rate, 1)], delta, Adjacency.ZERO_OUT)


def claim_for(kind: ReleaseKind, adjacency: Adjacency = Adjacency.ZERO_OUT) -> PureClaim | GdpClaim:
    """Return what the accountant states of one release of this kind; infinite where it is not DP."""
    guarantee = kind.guarantee(adjacency)
    if adjacency is not Adjacency.ZERO_OUT and kind.sampling_rate < 1:
        raise ValueError("sampled releases are audited under zero-out adjacency")
    if guarantee.noise_multiplier is not None:
        return GdpClaim(1 / guarantee.noise_multiplier, kind.sampling_rate)
    if guarantee.epsilon is not None:
        return PureClaim(amplify_zero_out(guarantee.epsilon, kind.sampling_rate))
    return PureClaim(math.inf)

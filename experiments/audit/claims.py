"""What is claimed of a release, and the least claim that measured error rates still allow.

A test that tells "canary there" from "canary zeroed" has a false positive rate α and a false negative
rate β. Every claim says how small both can be at once; turned round, (α, β) says how large its ε or μ
must be at least. Each bound falls where α or β rises, so upper bounds may be put in for them.
"""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

from common.accounting.gaussian import GaussianReleases, one_release, pld
from common.accounting.pure import amplify_zero_out
from common.accounting.releases import ReleaseKind
from common.errors import ConfigurationError
from common.mechanism.guarantee import Adjacency

Floats = npt.NDArray[np.float64]


def scipy_special() -> Any:
    """Return scipy.special, or say how to get it."""
    try:
        from scipy import special
    except ImportError as error:
        raise ConfigurationError("an audit needs scipy: pip install 'mapa-testbed[privacy]'") from error
    return special


def upper_rate(errors: npt.ArrayLike, trials: int, alpha: float) -> Floats:
    """Return Clopper and Pearson's upper bound: a true rate above it has probability at most α."""
    counted = np.asarray(errors, np.float64)
    bound = scipy_special().betaincinv(counted + 1, np.maximum(trials - counted, 1e-12), 1 - alpha)
    return np.where(counted >= trials, 1.0, bound)


def one_run_epsilon(*, canaries: int, guesses: int, correct: int, delta: float, alpha: float) -> float:
    """Return the ε that one training run refutes at level α.

    Steinke, Nasr, Jagielski, "Privacy auditing with one (1) training run" (2023), section 5 and
    appendix D: under (ε, δ)-DP the number of correct guesses is dominated by Binomial(r, e^ε/(1+e^ε)),
    up to a term of 2mδ·max_i Pr[v > Binomial ≥ v−i]/i.
    """

    def p_value(epsilon: float) -> float:
        terms = _binomial(guesses, 1 / (1 + math.exp(-epsilon)))
        tail = float(terms[correct:].sum())
        below = np.cumsum(terms[:correct][::-1])  # Pr[v > B ≥ v−i] for i = 1, 2, …
        worst = float((below / np.arange(1, correct + 1)).max(initial=0.0))
        return min(1.0, tail + 2 * canaries * delta * worst)

    if p_value(0.0) > alpha:
        return 0.0
    low, high = 0.0, 1.0
    while p_value(high) <= alpha:
        low, high = high, 2 * high
        if high > 64:
            return low
    for _ in range(40):
        middle = (low + high) / 2
        low, high = (middle, high) if p_value(middle) <= alpha else (low, middle)
    return low


def _binomial(trials: int, rate: float) -> Floats:
    special = scipy_special()
    k = np.arange(trials + 1)
    log_choose = special.gammaln(trials + 1) - special.gammaln(k + 1) - special.gammaln(trials - k + 1)
    return np.asarray(np.exp(log_choose + special.xlogy(k, rate) + special.xlog1py(trials - k, -rate)))


# A claim states one number of a release, infinite where nothing is claimed. `least` is the least number that error
# rates of at most these allow, `epsilon` is such a number as ε at δ.


@dataclass(frozen=True, slots=True)
class PureClaim:
    """ε-DP: β ≥ 1 − e^ε·α and α ≥ 1 − e^ε·β."""

    figure: ClassVar[str] = "ε"
    value: float  # ε

    def least(self, fpr: Floats, fnr: Floats) -> Floats:
        with np.errstate(divide="ignore"):
            one = np.log(np.maximum(1 - fnr, 0) / fpr)
            other = np.log(np.maximum(1 - fpr, 0) / fnr)
        return np.asarray(np.maximum(np.maximum(one, other), 0))

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
    truncation: tuple[int, int] | None = None  # (B_max, n_k)

    def least(self, fpr: Floats, fnr: Floats) -> Floats:
        quantile = scipy_special().ndtri
        share = (fnr - (1 - self.rate) * (1 - fpr)) / self.rate
        # a share below 0 is out of reach of any μ; one above 1 says nothing
        least: Floats = quantile(1 - fpr) - quantile(np.clip(share, 0, 1))
        return np.maximum(np.nan_to_num(least, nan=0.0, posinf=np.inf, neginf=0.0), 0)

    def epsilon(self, value: float, delta: float) -> float:
        if value <= 0 or math.isinf(value):
            return max(value, 0.0)
        return pld(GaussianReleases(1 / value, self.rate, 1, self.truncation), delta, Adjacency.ZERO_OUT)


@dataclass(frozen=True, slots=True)
class TruncatedClaim(GdpClaim):
    """A Gaussian release of a truncated Poisson batch, by the hockey-stick curve of dp-accounting's bound.

    A test must have β ≥ 1 − δ(ε) − e^ε·α, and α and β exchanged, for every ε; the curve rises with μ = 1/z, which is
    looked for on a grid.
    """

    def least(self, fpr: Floats, fnr: Floats) -> Floats:
        assert self.truncation is not None
        fpr, fnr = np.asarray(fpr, np.float64), np.asarray(fnr, np.float64)
        least = np.zeros(np.broadcast(fpr, fnr).shape)
        growth = np.exp(_EPSILONS)
        for step in _STEPS:
            slack = 1 - _curve(self.value * step, self.rate, self.truncation)
            one = fnr[..., None] >= slack - growth * fpr[..., None]
            other = fpr[..., None] >= slack - growth * fnr[..., None]
            least = np.where((one & other).all(axis=-1), least, self.value * step)
        return least


_STEPS = (0.25, 0.5, 0.8, 1.02, 1.2, 1.5, 2.0)  # of the claimed μ; what is refuted at one is refuted below it
_GRID = 5e-3  # of the curve, which is pessimistic on any grid: on a wide one the claim is only weaker
_EPSILONS = np.concatenate((np.linspace(0, 4, 81), np.linspace(4.25, 12, 32)))


ReleaseClaim = PureClaim | GdpClaim


@functools.lru_cache(maxsize=64)
def _curve(mu: float, rate: float, truncation: tuple[int, int]) -> Floats:
    sides = one_release(1 / mu, rate, Adjacency.ZERO_OUT, truncation, _GRID)
    return np.array([max(losses.delta(epsilon) for losses in sides) for epsilon in _EPSILONS])


def composed(claim: ReleaseClaim, releases: int) -> ReleaseClaim:
    """Return the claim of several releases, none of which is amplified."""
    if releases == 1:
        return claim
    if isinstance(claim, PureClaim):
        return PureClaim(claim.value * releases)
    if claim.rate < 1 or isinstance(claim, TruncatedClaim):
        raise ValueError("several sampled releases have no trade-off in closed form")
    return GdpClaim(claim.value * releases**0.5)


def claim_for(kind: ReleaseKind, adjacency: Adjacency = Adjacency.ZERO_OUT) -> ReleaseClaim:
    """Return what the accountant states of one message of this kind; infinite where it is not DP."""
    guarantee, steps = kind.guarantee(adjacency), kind.mechanism.steps
    multiplier = guarantee.noise_multiplier
    if kind.truncation is not None and multiplier is not None:
        if steps > 1 or adjacency is not Adjacency.ZERO_OUT:
            raise ValueError("truncated batches are audited one release at a time, under zero-out adjacency")
        return TruncatedClaim(1 / multiplier, kind.drawing_rate, kind.truncation)
    if adjacency is not Adjacency.ZERO_OUT and kind.sampling_rate < 1:
        raise ValueError("sampled releases are audited under zero-out adjacency")
    if multiplier is not None:
        return composed(GdpClaim(1 / multiplier, kind.sampling_rate), steps)
    epsilon = guarantee.epsilon
    return composed(
        PureClaim(math.inf if epsilon is None else amplify_zero_out(epsilon, kind.sampling_rate)), steps
    )

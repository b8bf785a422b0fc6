"""RDP and PLD totals of Gaussian releases that are alike, upper bounds in spite of rounding.

scipy takes a while to import, and an edge without a budget never needs it, so it is imported when it is asked for.
"""

from __future__ import annotations

import functools
import importlib
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from common.errors import ConfigurationError
from common.mechanism.guarantee import Adjacency

if TYPE_CHECKING:
    from common.accounting.losses import Losses

# How far rounding in the Fourier transforms moves δ, for each release that is composed on a grid.
# Against extended precision it was 2.1·2⁻⁵² at most (rates from 1e-4 to 1, up to 1e5 releases); this is 15 times that.
_ROUNDING = 32 * 2.0**-52

# How far rounding moves the logarithm that a sampled release's Rényi divergence of order α is made from, for each unit
# of α and of the logarithm. Against 60 digits it was 45·2⁻⁵² for each unit of α at most (rates from 1e-5, z to 1e7).
_RDP_ROUNDING = 64 * 2.0**-52

_TOLERANCE = 1e-12  # of a root
_NEARLY_ONE = 1 - 1e-9


@dataclass(frozen=True, slots=True)
class GaussianReleases:
    """`count` Gaussian releases, each of them Poisson-sampled at `rate`, or not at all at 1.

    With a truncation, a batch of more than B_max of the n_k records is a random B_max of them.
    """

    noise_multiplier: float  # std over sensitivity; see `pld` for replace-one
    rate: float  # q
    count: int
    truncation: tuple[int, int] | None = None  # (B_max, n_k): a larger batch is cut down; PLD alone knows it


def _needing_scipy(module: str) -> Any:
    """Import a module that needs scipy, or one of scipy itself, or say how to get it."""
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise ConfigurationError(
            "scipy is not installed; a total ε needs it: pip install 'mapa-testbed[privacy]'"
        ) from error


# -- without sampling, in closed form (Balle and Wang 2018) ----------------------------------------------------------


def epsilon_of_one(noise_multiplier: float, delta: float) -> float:
    """Return ε at δ > 0 of one release that is not sampled; a root, which may lie either side by the tolerance."""
    log_delta = np.log(delta)
    if _log_delta(noise_multiplier, 0.0) < log_delta:
        return 0.0
    low, high = 0.0, 1.0
    while _log_delta(noise_multiplier, high) > log_delta:
        low, high = high, 10 * high
    return root_of(lambda epsilon: _log_delta(noise_multiplier, epsilon) - log_delta, low, high)


def multiplier_of_one(epsilon: float, delta: float) -> float:
    """Return the z whose release that is not sampled costs ε at δ > 0; a root, as `epsilon_of_one`."""
    low, high, log_delta = 0.1, 1.0, np.log(delta)
    while _log_delta(low, epsilon) < log_delta:
        low, high = low / 10, low
    while _log_delta(high, epsilon) > log_delta:
        low, high = high, 10 * high
    return root_of(lambda z: _log_delta(z, epsilon) - log_delta, low, high)


def _log_delta(noise_multiplier: float, epsilon: float) -> float:
    log_cdf = _needing_scipy("scipy.special").log_ndtr
    middle = epsilon * noise_multiplier + 1 / (2 * noise_multiplier)
    first, second = log_cdf(1 / noise_multiplier - middle), epsilon + log_cdf(-middle)
    with np.errstate(all="ignore"):  # log 0 = −∞ is meant
        return float(first + np.log1p(-np.exp(second - first))) if second <= first else -math.inf


def root_of(
    function: Callable[[float], float], low: float, high: float, tolerance: float = _TOLERANCE
) -> float:
    """Return where a function is 0 between two places where its signs differ, by Brent's method."""
    root: float = _needing_scipy("scipy.optimize").brentq(function, low, high, xtol=tolerance)
    return root


def _upwards(epsilon: float) -> float:
    """Move a root that may lie either side by the tolerance to the side that is safe."""
    return epsilon * (1 + 1e-9) + 1e-11 if epsilon else 0.0


# -- Rényi divergences -----------------------------------------------------------------------------------------------


@functools.lru_cache(maxsize=4096)
def rdp_curve(
    noise_multiplier: float, rate: float, orders: tuple[float, ...] | None = None
) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]]:
    """Return orders and the Rényi divergence of one release at each, zero-out adjacency; None: the usual orders."""
    renyi = _needing_scipy("common.accounting.renyi")
    alpha = np.array(renyi.ORDERS if orders is None else orders, np.float64)
    with np.errstate(all="ignore"):
        curve = np.array([renyi.divergence(noise_multiplier, rate, order) for order in alpha.tolist()])
    if rate < 1:
        # What rounding may have taken, at most the divergence without sampling. One below the rounding comes out as 0,
        # which would claim that any number of releases costs nothing.
        taken = _RDP_ROUNDING * (alpha / (alpha - 1) + curve)
        curve = np.minimum(curve + taken, alpha / (2 * noise_multiplier**2))
    return alpha, curve


def rdp(releases: GaussianReleases, delta: float) -> float:
    """Return ε at δ under zero-out adjacency by Rényi DP: one sum over orders, whatever the count."""
    assert not releases.truncation  # nothing is known of its Rényi divergence
    if delta == 0:
        return math.inf
    orders, curve = rdp_curve(releases.noise_multiplier, releases.rate)
    epsilon: float = _needing_scipy("common.accounting.renyi").epsilon(orders, releases.count * curve, delta)
    return epsilon


# -- privacy loss distributions --------------------------------------------------------------------------------------


def pld(releases: GaussianReleases, delta: float, adjacency: Adjacency) -> float:
    """Return ε at δ by privacy loss distributions, tight up to their discretisation; ∞ where δ is too small.

    On a grid losses are rounded up, but Fourier transforms round either way: with many releases and a tiny δ
    ε would be too small. So it is computed at δ less `rounding`, and not at all where that would take half of δ.

    Replace-one: the two versions of a sampled record stand at −s and +s around the release without it, so a sampled
    release's multiplier is relative to s, the zero-out sensitivity. An unsampled one's is relative to the full move.
    """
    if delta == 0:
        return math.inf
    if (
        releases.rate == 1 and not releases.truncation
    ):  # Gaussians compose to one whose precision is their sum
        together = (releases.count / releases.noise_multiplier**2) ** -0.5
        return _upwards(epsilon_of_one(together, delta))
    left = delta - rounding(releases)
    if left < delta / 2:
        return math.inf
    sides = one_release(releases.noise_multiplier, releases.rate, adjacency, releases.truncation)
    with np.errstate(all="ignore"):
        return max(losses.composed(releases.count).epsilon(left) for losses in sides)


def rounding(releases: GaussianReleases) -> float:
    """Return the δ that rounding may hide where these releases are composed on a grid."""
    return _ROUNDING * (releases.count + 1)


@functools.lru_cache(maxsize=32)
def one_release(
    noise_multiplier: float,
    rate: float,
    adjacency: Adjacency,
    truncation: tuple[int, int] | None = None,
    grid: float = 1e-4,
) -> tuple[Losses, ...]:
    """Return the losses of one release, as GaussianReleases describes it; a wider grid is quicker, and a looser bound.

    Each record that is there and then not, and the other way round, under zero-out adjacency, where that differs.
    Truncated batches: a mixture over whether enough other records were drawn to fill the batch. If not, the release is
    as sampled. If so, the record takes the place of another one, and both versions of the release lie within twice the
    sensitivity of the release without it, which is the replace-one pair for twice the sensitivity, whichever adjacency
    is asked for. docs/privacy.md has the argument for zero-out.
    """
    of_release = _needing_scipy("common.accounting.losses").of_release
    with np.errstate(all="ignore"):
        whole = ("replace",) if adjacency is Adjacency.REPLACE_ONE else ("remove",)
        both = ("remove", "add") if rate < 1 and adjacency is Adjacency.ZERO_OUT else whole
        try:
            sampled: tuple[Losses, ...] = of_release(noise_multiplier, rate, both, grid)
        except ValueError:  # a rate this close to 1 cannot be resolved; without sampling it is a bound
            if rate < _NEARLY_ONE:
                raise
            sampled = of_release(noise_multiplier, 1.0, whole, grid)
        if truncation is None:
            return sampled
        most, records = truncation
        full = _binomial_tail(most - 1, records - 1, rate)  # where the record is drawn
        if full == 0:
            return sampled
        drawn = _binomial_tail(most, records, rate) * most / full / records  # where the batch is full
        [replaced] = of_release(noise_multiplier / 2, drawn, ("replace",), grid)
        return tuple(replaced.mixed(losses, full) for losses in sampled)


def _binomial_tail(successes: int, trials: int, rate: float) -> float:
    """Return the probability of more successes than that."""
    tail = getattr(_needing_scipy("scipy.special._ufuncs"), "_binom_sf", None)
    if tail is None:  # a scipy that has it elsewhere
        tail = _needing_scipy("scipy.stats").binom.sf
    return float(np.clip(tail(successes, trials, rate), 0, 1))

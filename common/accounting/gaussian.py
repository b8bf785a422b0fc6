"""RDP and PLD totals of Gaussian releases, by Google's dp-accounting at its default settings.

The library takes two seconds to import and an edge without a budget never needs it, so it is
imported when it is asked for.
"""

from __future__ import annotations

import contextlib
import functools
import logging
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from common.errors import ConfigurationError
from common.mechanism.guarantee import Adjacency

# How far rounding in dp-accounting's Fourier transforms moves δ, for each release that is composed on a grid.
# Against extended precision it was 2.1·2⁻⁵² at most (rates from 1e-4 to 1, up to 1e5 releases); this is 15 times that.
_ROUNDING = 32 * 2.0**-52

# How far rounding moves the logarithm that a sampled release's Rényi divergence of order α is made from, for each unit
# of α and of the logarithm. Against 60 digits it was 45·2⁻⁵² for each unit of α at most (rates from 1e-5, z to 1e7).
_RDP_ROUNDING = 64 * 2.0**-52


@dataclass(frozen=True, slots=True)
class GaussianReleases:
    """`count` Gaussian releases, each of them Poisson-sampled at `rate`, or not at all at 1.

    With a truncation, a batch of more than B_max of the n_k records is a random B_max of them.
    """

    noise_multiplier: float  # std over sensitivity; see `pld` for replace-one
    rate: float  # q
    count: int
    truncation: tuple[int, int] | None = None  # (B_max, n_k): a larger batch is cut down; PLD alone knows it


def dp_accounting() -> Any:
    """Return the library, or say how to get it."""
    try:
        import dp_accounting as library
    except ImportError as error:
        raise ConfigurationError(
            "dp-accounting is not installed; a total ε needs it: pip install 'mapa-testbed[privacy]'"
        ) from error
    return library


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Keep the library from warning of each order that it leaves out, which only loosens the bound."""
    logger = logging.getLogger("absl")
    level = logger.level
    logger.setLevel(
        logging.CRITICAL
    )  # that a divergence came out negative is an error there; `_upper` fixes it
    try:
        yield
    finally:
        logger.setLevel(level)


@functools.lru_cache(maxsize=4096)
def rdp_curve(
    noise_multiplier: float, rate: float, orders: tuple[float, ...] | None = None
) -> tuple[Any, npt.NDArray[np.float64]]:
    """Return orders and the Rényi divergence of one release at each, under zero-out adjacency; None: the library's."""
    library = dp_accounting()
    accountant = library.rdp.RdpAccountant(
        orders, neighboring_relation=library.NeighboringRelation.REPLACE_SPECIAL
    )
    event = library.GaussianDpEvent(noise_multiplier)
    with _quiet():
        accountant.compose(event if rate == 1 else library.PoissonSampledDpEvent(rate, event))
    found = accountant.rdp if rate == 1 else _upper(accountant.orders, accountant.rdp, noise_multiplier)
    return accountant.orders, found


def _upper(
    orders: npt.NDArray[np.float64], curve: npt.NDArray[np.float64], noise_multiplier: float
) -> npt.NDArray[np.float64]:
    """Return a sampled release's divergences with what rounding may have taken, at most those without sampling.

    A divergence below the rounding comes out as 0, which would claim that any number of releases costs nothing.
    """
    orders = np.asarray(orders, np.float64)
    taken = _RDP_ROUNDING * (orders / (orders - 1) + curve)
    return np.minimum(curve + taken, orders / (2 * noise_multiplier**2))


def rdp(groups: Sequence[GaussianReleases], delta: float) -> float:
    """Return ε at δ under zero-out adjacency by Rényi DP: one sum over orders, whatever the count."""
    assert not any(group.truncation for group in groups)  # the library has no Rényi divergence of those
    if delta == 0:
        return math.inf
    curves = [(group.count, *rdp_curve(group.noise_multiplier, group.rate)) for group in groups]
    orders = curves[0][1]
    total = sum((count * curve for count, _, curve in curves), np.zeros_like(orders, dtype=np.float64))
    return float(dp_accounting().rdp.compute_epsilon(orders, total, delta)[0])


def pld(groups: Sequence[GaussianReleases], delta: float, adjacency: Adjacency) -> float:
    """Return ε at δ by privacy loss distributions, tight up to their discretisation; ∞ where δ is too small.

    On a grid the library rounds losses up, but its transforms round either way: with many releases and a tiny δ
    its ε was too small. So it is asked for ε at δ less `rounding`, and not at all where that would take half of δ.

    Replace-one: dp-accounting's REPLACE_ONE puts the two versions of a sampled record at −s and +s
    around the release without it, so a sampled group's multiplier is relative to s, the zero-out
    sensitivity. An unsampled group's is relative to the full move.
    Truncated batches: the library's bound, a mixture over whether enough other records were drawn to fill the batch.
    If not, the release is as sampled. If so, the record takes the place of another one, and both versions of the
    release lie within twice the sensitivity of the release without it, which is the library's replace-one pair for
    twice the sensitivity, whichever adjacency is asked for. docs/privacy.md has the argument for zero-out.
    """
    if delta == 0:
        return math.inf
    library = dp_accounting()
    loss = library.pld.privacy_loss_distribution
    plain = [group for group in groups if group.rate == 1 and not group.truncation]
    sampled = [group for group in groups if group.rate < 1 or group.truncation]
    # Gaussians compose to a Gaussian whose precision is the sum of theirs.
    combined = math.fsum(group.count / group.noise_multiplier**2 for group in plain) ** -0.5 if plain else 0.0
    with np.errstate(all="ignore"):  # log 0 = −∞ is meant in the closed form
        if not sampled:  # a Gaussian's PLD has a closed form (Balle and Wang 2018)
            return _upwards(float(library.get_epsilon_gaussian(combined, delta)))
        left = delta - rounding(groups)
        if left < delta / 2:
            return math.inf
        total = loss.identity()
        for group in sampled:
            total = total.compose(
                one_release(group.noise_multiplier, group.rate, adjacency, group.truncation).self_compose(
                    group.count
                )
            )
        if plain:
            total = total.compose(loss.from_gaussian_mechanism(combined))
        return float(total.get_epsilon_for_delta(left))


def rounding(groups: Sequence[GaussianReleases]) -> float:
    """Return the δ that rounding may hide where these releases are composed on a grid."""
    return _ROUNDING * (sum(group.count for group in groups) + len(groups))


def _upwards(epsilon: float) -> float:
    """Move a root that may lie either side by the library's tolerance of 1e-12 to the side that is safe."""
    return epsilon * (1 + 1e-9) + 1e-11 if epsilon else 0.0


_NEARLY_ONE = 1 - 1e-9


@functools.lru_cache(maxsize=32)
def one_release(
    noise_multiplier: float,
    rate: float,
    adjacency: Adjacency,
    truncation: tuple[int, int] | None = None,
    grid: float = 1e-4,
) -> Any:
    """Return the PLD of one release, as GaussianReleases describes it; a wider grid is quicker, and a looser bound."""
    library = dp_accounting()
    relations, loss = library.NeighboringRelation, library.pld.privacy_loss_distribution
    relation = relations.REPLACE_SPECIAL if adjacency is Adjacency.ZERO_OUT else relations.REPLACE_ONE
    if truncation is not None:
        most, records = truncation
        return loss.from_truncated_subsampled_gaussian_mechanism(
            dataset_size=records,
            sampling_probability=rate,
            truncated_batch_size=most,
            noise_multiplier=noise_multiplier,
            neighboring_relation=relation,
            value_discretization_interval=grid,
        )
    make = functools.partial(
        loss.from_gaussian_mechanism,
        noise_multiplier,
        neighboring_relation=relation,
        value_discretization_interval=grid,
    )
    try:
        return make(sampling_prob=rate)
    except ValueError:  # the library cannot resolve a rate this close to 1; without sampling it is a bound
        if rate < _NEARLY_ONE:
            raise
        return make(sampling_prob=1.0)

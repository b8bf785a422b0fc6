"""From a total budget to what it permits: the number of releases, or the noise multiplier."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from dataclasses import replace

from common.accounting import gaussian
from common.accounting.gaussian import GaussianReleases
from common.accounting.kept import remembered
from common.accounting.releases import Budget, ReleaseKind, Spent
from common.accounting.total import PLD_CEILING, total
from common.errors import ConfigurationError
from common.mechanism.guarantee import Adjacency
from common.mechanism.mechanism import Mechanism
from common.mechanism.work.single_step import SingleStep
from common.noise.gaussian import Gaussian
from common.noise.law import NoiseLaw
from common.noise.registry import describe_law

# No edge gets this far; it bounds the search where a release costs next to nothing.
MOST_CHARGES = 1_000_000
# From here on PLD's gain over RDP is not worth its minutes.
MANY_CHARGES = 200_000


def max_messages(budget: Budget, kind: ReleaseKind) -> int:
    """Return how many whole messages of this kind, of E releases each, the budget permits.

    With the shuffled sampler, of whole epochs, begun and ended without a restart.
    """
    return max_charges(budget, kind) * kind.batches_per_epoch // kind.mechanism.steps


@functools.lru_cache(maxsize=1024)
def max_charges(budget: Budget, kind: ReleaseKind, spent: tuple[Spent, ...] = ()) -> int:
    """Return the largest number of charges whose total ε is within the budget; 0 where nothing is."""

    def epsilon(charges: int, *, quick: bool) -> float:
        everything = (*spent, Spent(kind, charges))
        return total(everything, budget.delta, quick=quick, replace_one=False).epsilon

    def largest() -> int:
        # RDP costs a sum per question, so it finds its own number first; PLD permits a little more.
        low = _last(lambda charges: epsilon(charges, quick=True), budget.epsilon, 0, 1)
        if low >= MANY_CHARGES:
            return low
        return _last(lambda charges: epsilon(charges, quick=False), budget.epsilon, low, low + low // 8 + 1)

    def within(kept: object) -> int | None:
        """Take a number that was kept only where the budget pays for it by an account of now."""
        if type(kept) is not int or not 1 <= kept <= MOST_CHARGES:
            return None
        return kept if epsilon(kept, quick=kept >= MANY_CHARGES) <= budget.epsilon else None

    kinds = (kind, *(item.kind for item in spent))
    return remembered(largest, "max_charges", budget, kind, spent, kinds=kinds, read=within)


def _last(epsilon: Callable[[int], float], target: float, low: int, high: int) -> int:
    """Return the largest n ≥ low with epsilon(n) ≤ target, for a rising epsilon with epsilon(low) ≤ target."""
    at_low = 0.0 if low == 0 else epsilon(low)
    at_high = epsilon(high)
    while at_high <= target:
        if high >= MOST_CHARGES:
            return MOST_CHARGES
        low, at_low = high, at_high
        high = min(2 * high, MOST_CHARGES)
        at_high = epsilon(high)
    by_chord = True
    while high - low > 1:
        # A chord lands near where ε is smooth; bisection in turn bounds the number of questions.
        share = (target - at_low) / (at_high - at_low) if by_chord else 0.5
        middle = min(max(low + int(share * (high - low)), low + 1), high - 1)
        by_chord = not by_chord
        at_middle = epsilon(middle)
        if at_middle <= target:
            low, at_low = middle, at_middle
        else:
            high, at_high = middle, at_middle
    return low


def calibrate(
    budget: Budget, mechanism: Mechanism, *, releases: int, shard_size: int, law: type[NoiseLaw] = Gaussian
) -> float:
    """Return the least z whose `releases` cost at most the budget by PLD, to 1e-6 (truncated: 1e-4).

    The mechanism's own law does not count: `law` is Gaussian noise whose one parameter is z, up to a factor that its
    guarantee says. By RDP where δ is too small for PLD; either way `total` of so many releases is within the budget.
    """
    if releases < 1:
        raise ConfigurationError(f"releases = {releases}: must be at least 1")
    if budget.delta == 0:
        raise ConfigurationError("total_delta = 0: a Gaussian release needs a δ greater than 0")
    one = replace(mechanism, law=None, work=SingleStep())
    return _calibrated(budget, releases, one, shard_size, law.name)


@functools.lru_cache(maxsize=256)  # a sweep asks for the same z again and again
def _calibrated(budget: Budget, releases: int, mechanism: Mechanism, shard_size: int, name: str) -> float:
    law = describe_law(name)

    def kind(z: float) -> ReleaseKind:
        return ReleaseKind(replace(mechanism, law=law.make({str(law.made.calibrated): z})), shard_size)

    unit = kind(1.0)

    def least() -> float:
        z = _least_multiplier(budget, unit, unit.charges(releases))
        step = 1e-9 if unit.truncation is None else 1e-6
        # A root may lie either side by its tolerance, and PLD's last digits jump about; the budget may not be passed.
        while not keeps(budget, kind(z), releases):
            z *= 1 + step
            step *= 2
        return z

    def enough(kept: object) -> float | None:
        """Take a z that was kept only where it keeps the budget by an account of now."""
        if type(kept) is not float or not 0 < kept < math.inf:
            return None
        return kept if keeps(budget, kind(kept), releases) else None

    return remembered(least, "calibrated", budget, releases, unit, kinds=(unit,), read=enough)


def keeps(budget: Budget, kind: ReleaseKind, releases: int) -> bool:
    """Say whether so many releases of this kind, and nothing else, stay within the budget."""
    spent = [Spent(kind, kind.charges(releases))]
    return total(spent, budget.delta, replace_one=False).epsilon <= budget.epsilon


def _least_multiplier(budget: Budget, unit: ReleaseKind, charges: int) -> float:
    """Return the least z for so many charges, up to a tolerance; `unit` is the kind with z = 1."""
    effective = unit.guarantee(Adjacency.ZERO_OUT).noise_multiplier  # of z = 1
    assert effective is not None  # a Gaussian over all coordinates always has one
    if unit.drawing_rate < 1:
        unit_releases = GaussianReleases(1.0, unit.drawing_rate, charges, unit.truncation)
        return _least_of_sampled(budget, unit_releases) / effective
    return gaussian.multiplier_of_one(budget.epsilon, budget.delta) * math.sqrt(charges) / effective


def _least_of_sampled(budget: Budget, unit: GaussianReleases) -> float:
    truncated = unit.truncation is not None

    @functools.cache
    def by_pld(z: float) -> float:
        if by_rdp(z) > PLD_CEILING:  # where `total` leaves PLD out, too
            return by_rdp(z)
        by_grid = gaussian.pld(replace(unit, noise_multiplier=z), budget.delta, Adjacency.ZERO_OUT)
        return by_grid if truncated else min(by_grid, by_rdp(z))

    @functools.cache
    def by_rdp(z: float) -> float:  # of truncated batches a guess: what they would cost if none were
        return gaussian.rdp(replace(unit, noise_multiplier=z, truncation=None), budget.delta)

    if budget.epsilon > PLD_CEILING:  # where `total` leaves PLD out, too: it would take minutes
        if not truncated:
            bracket = _bracket(by_rdp, budget.epsilon, 0.001, 1.0)
            if bracket is None:
                raise _beyond(budget, unit)
            return _where(by_rdp, budget.epsilon, *bracket, 1e-6)
        budget = replace(budget, epsilon=PLD_CEILING)  # beyond it truncated batches have no bound at all
    # RDP is quick, and PLD permits a little less noise: starting from RDP's z, PLD is never asked far
    # from the answer, where a small z would cost it minutes.
    bracket = _bracket(by_rdp, budget.epsilon, 0.01, 1.0)
    if bracket is None:  # less than RDP can show; many releases are nearly one Gaussian
        one = gaussian.multiplier_of_one(budget.epsilon, budget.delta)
        above = unit.rate * math.sqrt(unit.count) * one
    else:
        above = _where(by_rdp, budget.epsilon, *bracket, 1e-3)
    most = 100 * above
    while by_pld(above) > budget.epsilon:
        above *= 1.05
        if above > most:
            raise _beyond(budget, unit)
    below = 0.94 * above
    while by_pld(below) <= budget.epsilon:
        above, below = below, 0.85 * below
        if by_rdp(below) > PLD_CEILING and by_pld(above) == 0:
            return above  # δ is above the chance that a record is drawn at all: any z would do
    # a PLD of truncated batches takes five times as long
    return _where(by_pld, budget.epsilon, below, above, 1e-4 if truncated else 1e-6)


def _beyond(budget: Budget, unit: GaussianReleases) -> ConfigurationError:
    return ConfigurationError(
        f"total_epsilon = {budget.epsilon:g}: no noise is shown to keep {unit.count} releases within it at"
        f" δ = {budget.delta:g}; use fewer releases, a larger ε or a larger δ"
    )


def _bracket(
    epsilon: Callable[[float], float], target: float, low: float, high: float
) -> tuple[float, float] | None:
    """Return two z with the target between their ε; None where even an enormous z costs more."""
    gap = high - low
    for _ in range(31):
        if (epsilon(low) - target) * (epsilon(high) - target) <= 0:
            return low, high
        gap *= 2
        low, high = high, high + gap
    return None


def _where(
    epsilon: Callable[[float], float], target: float, low: float, high: float, tolerance: float
) -> float:
    """Return a z with epsilon(z) = target, up to the tolerance, and at most the target where it can be told."""
    z = gaussian.root_of(lambda z: epsilon(z) - target, low, high, tolerance)
    return z + tolerance if epsilon(z) > target > epsilon(z + tolerance) else z

"""The total ε of one record's releases, by every method that applies."""

from __future__ import annotations

import functools
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from common.accounting import gaussian, pure
from common.accounting.gaussian import GaussianReleases, rdp_curve
from common.accounting.pure import PureReleases
from common.accounting.releases import (
    Costs,
    ReleaseKind,
    ShardSpent,
    Spent,
    check_delta,
    comparable,
    shard_costs,
    worst_record,
)
from common.mechanism.guarantee import Adjacency

# α. Few, since each takes its share of δ; a finer grid gains less than that costs.
ORDERS = tuple(1 + 2.0**power for power in range(-2, 11))


def odometer(gaussian: Sequence[GaussianReleases], pure: Sequence[PureReleases], delta: float) -> float:
    """Return ε at δ where the terms of later releases may depend on earlier ones: Σ ρ(α) + ln(|orders|/δ)/(α − 1).

    PLDs and KOV's bounds compose releases whose z, ε and q were fixed beforehand (Rogers, Roth, Ullman, Vadhan 2016).
    Rényi divergences add up all the same (Feldman and Zrnic 2021; Lécuyer 2021), which this uses.
    With L the privacy loss so far, exp((α − 1)(L − Σ ρ(α))) is a supermartingale that begins at 1, so it ever
    reaches |orders|/δ with probability δ/|orders| at most (Ville), and for any of the orders with δ at most.
    """
    if delta == 0:
        return math.inf
    orders = np.array(ORDERS)
    spent: npt.NDArray[np.float64] = np.zeros_like(orders)
    for group in gaussian:
        spent += group.count * rdp_curve(group.noise_multiplier, group.rate, ORDERS)[1]
    for release in pure:  # ε-DP: ρ(α) ≤ ε, and ≤ αε²/2 (Bun and Steinke 2016)
        spent += release.count * np.minimum(release.epsilon, orders * release.epsilon**2 / 2)
    return float(np.min(spent + math.log(len(ORDERS) / delta) / (orders - 1)))


# A PLD's grid widens with ε: minutes and gigabytes beyond this, for a figure that protects nobody.
PLD_CEILING = 50.0
_NO_DELTA = "a Gaussian release has no ε at δ = 0"
_TRUNCATED = "truncated batches are accounted by PLD alone"


@dataclass(frozen=True, slots=True, kw_only=True)
class Total:
    """ε at δ under zero-out adjacency; each figure is an upper bound, None where its method does not apply."""

    delta: float
    rdp: float | None = None
    pld: float | None = None
    basic: float | None = None
    advanced: float | None = None
    optimal: float | None = None  # KOV Theorem 3.3
    heterogeneous: float | None = None  # KOV Theorem 3.5
    odometer: float | None = None  # releases of different kinds: holds however they were chosen
    bound: float | None = (
        None  # for many edges at once: RDP at a rate rounded up, or the largest edge's ε if less
    )
    replace_one: float | None = None  # ε at δ under replace-one adjacency: PLD, or the best pure bound
    reason: str = ""  # why there is no finite ε, or which figure was left out

    METHODS = ("rdp", "pld", "basic", "advanced", "optimal", "heterogeneous", "odometer", "bound")

    def by_method(self) -> dict[str, float]:
        """Return the zero-out figures that apply, by method."""
        figures = ((method, getattr(self, method)) for method in self.METHODS)
        return {method: figure for method, figure in figures if figure is not None}

    @property
    def method(self) -> str:
        """Name the method that gives the least bound, or '' where there is none."""
        figures = self.by_method()
        return min(figures, key=figures.__getitem__) if figures else ""

    @property
    def epsilon(self) -> float:
        """The least of the bounds: each holds, so the least does."""
        return min(self.by_method().values(), default=math.inf)

    @property
    def is_private(self) -> bool:
        return math.isfinite(self.epsilon)


def total(spent: Sequence[Spent], delta: float, *, quick: bool = False, replace_one: bool = True) -> Total:
    """Compose everything spent on one record; `quick` leaves PLD out, and replace-one with it.

    Where kinds differ, the later ones may have been chosen after a look at the earlier releases, and nothing that is
    on record shows that they were not: only bounds that allow it are given.
    """
    check_delta(delta)
    groups: dict[ReleaseKind, int] = {}
    for item in spent:
        if item.charges:
            groups[item.kind] = groups.get(item.kind, 0) + item.charges
    merged = tuple(Spent(kind, charges) for kind, charges in groups.items())
    if not merged:
        return Total(delta=delta, basic=0.0, replace_one=0.0, reason="nothing released")
    if reason := _not_private(merged):
        return Total(delta=delta, reason=reason)
    missed = _missed(merged)
    left = delta - _spared(delta, missed)
    if len(merged) > 1:
        found = _adaptive_total(merged, left)
    else:
        found = _total(merged[0], left, quick, replace_one and not quick)
    return found if missed == 0 else _of_integers(found, delta, missed)


def delta_left(spent: Sequence[Spent], delta: float) -> float:
    """Return what of δ is left for accounting Gaussians, where integers lie a little beside them."""
    return delta - _spared(delta, _missed(spent))


def _missed(spent: Sequence[Spent]) -> float:
    """Return how far releases that are integers lie from what is accounted, in total variation."""
    grids = ((item.kind.mechanism.grid, item.charges) for item in spent)
    return sum(grid.missed(charges) for grid, charges in grids if grid is not None)


def _spared(delta: float, missed: float) -> float:
    return delta * 2.0**-10 if missed else 0.0


def _of_integers(found: Total, delta: float, missed: float) -> Total:
    """Return what was found at δ less what is spared, at δ: P ≤ e^ε·Q + δ' of Gaussians gives δ' + (1 + e^ε)·missed.

    Where that is more than was spared, nothing is claimed.
    """
    most = math.log(_spared(delta, missed) / missed - 1) if missed < delta * 2.0**-11 else -math.inf

    def kept(figure: float | None) -> float | None:
        return figure if figure is not None and figure <= most else None

    figures = {method: kept(figure) for method, figure in found.by_method().items()}
    reason = found.reason
    if found.is_private and not any(figure is not None for figure in figures.values()):
        reason = "ε is too large for what integers may differ from Gaussian noise"
    return replace(found, delta=delta, replace_one=kept(found.replace_one), reason=reason, **figures)


def total_of_records(spent: Iterable[ShardSpent], delta: float) -> Total:
    """Return the largest total that any record can have.

    One cut may be looked at shard by shard, with the other cuts at their worst. That is a bound whichever cut
    it is, so the least of them is stated.
    """
    everything = [item for item in spent if item.spent.charges]
    bounds = []
    for anchor, shards in shard_costs(everything).items():
        others = worst_record(item for item in everything if item.cut != anchor)
        figures = [total((*others, *shard), delta) for shard in _largest(shards)]
        bounds.append(max(figures, key=lambda figure: figure.epsilon))
    return min(bounds, key=lambda figure: figure.epsilon, default=total((), delta))


def _largest(shards: Iterable[Costs]) -> list[Costs]:
    """Leave out the shards that cost no more than another one does, kind by kind: each figure may take seconds."""
    kept: list[Costs] = []
    for shard in sorted(set(shards), key=lambda one: -sum(spent.charges for spent in one)):
        if not any(_covers(other, shard) for other in kept):
            kept.append(shard)
    return kept


def _covers(one: Costs, other: Costs) -> bool:
    by_key = {comparable(spent): spent for spent in one}
    return all(
        (more := by_key.get(comparable(spent))) is not None
        and more.charges >= spent.charges
        and more.kind.shard_size <= spent.kind.shard_size
        for spent in other
    )


@functools.lru_cache(maxsize=4096)
def _total(spent: Spent, delta: float, quick: bool, replace_one: bool) -> Total:
    if _all_pure([spent]):
        return _pure_total(spent, delta)
    return _gaussian_total(spent, delta, quick, replace_one)


@functools.lru_cache(maxsize=4096)
def _adaptive_total(spent: tuple[Spent, ...], delta: float) -> Total:
    pure_groups = _pure_groups(spent, Adjacency.ZERO_OUT)
    if _all_pure(spent):
        replaced = _pure_groups(spent, Adjacency.REPLACE_ONE)
        return Total(
            delta=delta,
            basic=pure.basic(pure_groups),
            odometer=odometer((), pure_groups, delta) if delta else None,
            replace_one=min(pure.basic(replaced), odometer((), replaced, delta)),
        )
    if delta == 0:
        return Total(delta=delta, reason=_NO_DELTA)
    groups = _gaussian_groups(spent, Adjacency.ZERO_OUT)
    if any(group.truncation for group in groups):
        reason = f"{_TRUNCATED}, and so have no bound together with runs of another kind"
        return Total(delta=delta, reason=reason)
    return Total(delta=delta, odometer=odometer(groups, pure_groups, delta))


def _not_private(spent: Sequence[Spent]) -> str:
    """Say why there is no finite ε; '' where there is."""
    guarantees = (item.kind.guarantee(Adjacency.ZERO_OUT) for item in spent)
    return next(
        (guarantee.reason or "no guarantee" for guarantee in guarantees if not guarantee.is_private), ""
    )


def _all_pure(spent: Sequence[Spent]) -> bool:
    return all(item.kind.guarantee(Adjacency.ZERO_OUT).epsilon is not None for item in spent)


def _pure_total(spent: Spent, delta: float) -> Total:
    groups = _pure_groups([spent], Adjacency.ZERO_OUT)
    replaced = _pure_groups([spent], Adjacency.REPLACE_ONE)
    bounds = (_optimal(replaced[0], delta), pure.heterogeneous(replaced, delta))
    return Total(
        delta=delta,
        basic=pure.basic(groups),
        advanced=pure.advanced(groups, delta) if delta else None,
        optimal=_optimal(groups[0], delta),
        heterogeneous=pure.heterogeneous(groups, delta) if delta else None,
        replace_one=min(filter(None, bounds), default=None),
    )


def _optimal(group: PureReleases, delta: float) -> float | None:
    return None if group.count > pure.EXACT_RELEASES else pure.optimal(group.epsilon, group.count, delta)


def _pure_groups(spent: Sequence[Spent], adjacency: Adjacency) -> list[PureReleases]:
    groups = []
    for item in spent:
        zero_out = item.kind.guarantee(Adjacency.ZERO_OUT).epsilon
        replace_one = item.kind.guarantee(Adjacency.REPLACE_ONE).epsilon
        if zero_out is None or replace_one is None:
            continue
        rate = item.kind.sampling_rate
        epsilon = pure.amplify_zero_out(zero_out, rate)
        if adjacency is Adjacency.REPLACE_ONE:
            epsilon = pure.amplify_replace_one(zero_out, replace_one, rate)
        groups.append(PureReleases(epsilon, item.charges))
    return groups


def _gaussian_total(spent: Spent, delta: float, quick: bool, replace_one: bool) -> Total:
    """Return RDP's figure and PLD's; of truncated batches PLD's or none at all, since no other method has a bound."""
    if delta == 0:
        return Total(delta=delta, reason=_NO_DELTA)
    [group] = _gaussian_groups([spent], Adjacency.ZERO_OUT)
    by_rdp = gaussian.rdp(replace(group, truncation=None), delta)
    stated = Total(delta=delta, rdp=None if group.truncation else by_rdp)
    by_pld = math.inf
    if quick:
        why = "for speed"
    elif (group.rate < 1 or group.truncation) and by_rdp > PLD_CEILING:
        why = f"ε is beyond {PLD_CEILING:g}"
    else:
        why = f"with so many releases, δ = {delta:g} is too small for its arithmetic"
        by_pld = gaussian.pld(group, delta, Adjacency.ZERO_OUT)
    if math.isinf(by_pld):
        left_out = f"left out {why}" if quick else f"left out: {why}"
        return replace(
            stated,
            reason=f"{_TRUNCATED}, which was {left_out}" if group.truncation else f"PLD was {left_out}",
        )
    if not replace_one:
        return replace(stated, pld=by_pld)
    [replaced] = _gaussian_groups([spent], Adjacency.REPLACE_ONE)
    other = gaussian.pld(replaced, delta, Adjacency.REPLACE_ONE)
    return replace(stated, pld=by_pld, replace_one=other if math.isfinite(other) else None)


def _gaussian_groups(spent: Sequence[Spent], adjacency: Adjacency) -> list[GaussianReleases]:
    groups = []
    for item in spent:
        rate, truncation = item.kind.drawing_rate, item.kind.truncation
        # A sampled group keeps its zero-out multiplier: gaussian.pld says why.
        relative_to = Adjacency.ZERO_OUT if rate < 1 else adjacency
        multiplier = item.kind.guarantee(relative_to).noise_multiplier
        if multiplier is not None:
            groups.append(GaussianReleases(multiplier, rate, item.charges, truncation))
    return groups

"""The total ε of one record's releases, by every method that applies."""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from common.accounting import gaussian, pure
from common.accounting.gaussian import GaussianReleases, rdp_curve
from common.accounting.kept import remembered
from common.accounting.pure import PureReleases
from common.accounting.releases import ReleaseKind, Spent, check_delta
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
        spent += group.count * rdp_curve(group.noise_multiplier, group.rate, ORDERS)
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
    if len(merged) > 1:
        return _adaptive_total(merged, delta)
    return _total(merged[0], delta, quick, replace_one and not quick)


@functools.lru_cache(maxsize=4096)
def _total(spent: Spent, delta: float, quick: bool, replace_one: bool) -> Total:
    if _all_pure([spent]):
        return _pure_total(spent, delta)
    if not replace_one:  # what a budget is held against is accounted there and then
        return _gaussian_total(spent, delta, quick, replace_one)
    return remembered(
        lambda: _gaussian_total(spent, delta, quick, replace_one),
        *("total", spent, delta, quick, replace_one),
        kinds=(spent.kind,),
        read=lambda kept: _read_total(kept, spent, delta),
        plain=asdict,
    )


def _read_total(kept: dict[str, Any], spent: Spent, delta: float) -> Total | None:
    """Return a total that was kept; None where it cannot be one of these releases: RDP's figure is quick to compute."""
    found = Total(**kept)
    figures = [*found.by_method().values(), *((found.replace_one,) if found.replace_one is not None else ())]
    if (
        found.delta != delta
        or not isinstance(found.reason, str)
        or not all(_positive(one) for one in figures)
    ):
        return None
    groups = _gaussian_groups([spent], Adjacency.ZERO_OUT)
    if any(group.truncation for group in groups):
        return found if found.rdp is None else None
    return found if found.rdp == gaussian.rdp(groups, delta) else None


def _positive(value: object) -> bool:
    return type(value) is float and value >= 0  # NaN fails


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
    return Total(
        delta=delta,
        basic=pure.basic(groups),
        advanced=pure.advanced(groups, delta) if delta else None,
        optimal=_optimal(groups[0], delta),
        heterogeneous=pure.heterogeneous(groups, delta) if delta else None,
        replace_one=min(
            filter(None, (_optimal(replaced[0], delta), pure.heterogeneous(replaced, delta))), default=None
        ),
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
        epsilon = (
            pure.amplify_zero_out(zero_out, rate)
            if adjacency is Adjacency.ZERO_OUT
            else pure.amplify_replace_one(zero_out, replace_one, rate)
        )
        groups.append(PureReleases(epsilon, item.charges))
    return groups


def _gaussian_total(spent: Spent, delta: float, quick: bool, replace_one: bool) -> Total:
    if delta == 0:
        return Total(delta=delta, reason=_NO_DELTA)
    groups = _gaussian_groups([spent], Adjacency.ZERO_OUT)
    if any(group.truncation for group in groups):
        return _truncated_total(spent, groups, delta, quick, replace_one)
    by_rdp = gaussian.rdp(groups, delta)
    if quick:
        return Total(delta=delta, rdp=by_rdp, reason="PLD was left out for speed")
    if any(group.rate < 1 for group in groups) and by_rdp > PLD_CEILING:
        return Total(delta=delta, rdp=by_rdp, reason=f"PLD was left out: ε is beyond {PLD_CEILING:g}")
    by_pld = gaussian.pld(groups, delta, Adjacency.ZERO_OUT)
    if math.isinf(by_pld):
        reason = f"PLD was left out: with so many releases, δ = {delta:g} is too small for its arithmetic"
        return Total(delta=delta, rdp=by_rdp, reason=reason)
    return Total(
        delta=delta,
        rdp=by_rdp,
        pld=by_pld,
        replace_one=_replace_one_by_pld(spent, delta) if replace_one else None,
    )


def _truncated_total(
    spent: Spent, groups: Sequence[GaussianReleases], delta: float, quick: bool, replace_one: bool
) -> Total:
    """Return PLD's figure or none at all: no other method has a bound for truncated batches."""
    if quick:
        return Total(delta=delta, reason=f"{_TRUNCATED}, which was left out for speed")
    if gaussian.rdp([replace(group, truncation=None) for group in groups], delta) > PLD_CEILING:
        return Total(delta=delta, reason=f"{_TRUNCATED}, which was left out: ε is beyond {PLD_CEILING:g}")
    by_pld = gaussian.pld(groups, delta, Adjacency.ZERO_OUT)
    if math.isinf(by_pld):
        reason = f"{_TRUNCATED}: with so many releases, δ = {delta:g} is too small for its arithmetic"
        return Total(delta=delta, reason=reason)
    return Total(
        delta=delta,
        pld=by_pld,
        replace_one=_replace_one_by_pld(spent, delta) if replace_one else None,
    )


def _replace_one_by_pld(spent: Spent, delta: float) -> float | None:
    groups = _gaussian_groups([spent], Adjacency.REPLACE_ONE)
    by_pld = gaussian.pld(groups, delta, Adjacency.REPLACE_ONE)
    return by_pld if math.isfinite(by_pld) else None


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

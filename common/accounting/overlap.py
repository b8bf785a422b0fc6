"""What the releases of several shards and cuts cost one record: a bound that holds whichever record it is.

A record lies in one shard at most of a disjoint cut, so a cut costs it what its worst shard cost; which shards
of two different cuts share a record is not known here, so the cuts' worst shards add up.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from common.accounting.releases import ReleaseKind, Spent
from common.mechanism.mechanism import Mechanism

if TYPE_CHECKING:
    from common.accounting.total import Total


@dataclass(frozen=True, slots=True)
class ShardSpent:
    """What one ledger spent in one run on a shard."""

    cut: str  # all that fixes the cut, the data set's checksum included
    shard: int | None  # None: shards of this cut share records
    spent: Spent


def worst_record(spent: Iterable[ShardSpent]) -> tuple[Spent, ...]:
    """Return what no record can have paid more than."""
    return tuple(item for cut in _by_cut(spent).values() for item in _worst_shard(cut))


def total_of_records(spent: Iterable[ShardSpent], delta: float, *, quick: bool = False) -> Total:
    """Return the largest total that any record can have.

    One cut may be looked at shard by shard, with the other cuts at their worst. That is a bound whichever cut
    it is, so the least of them is stated.
    """
    from common.accounting.total import total  # an edge without a budget needs no accountant

    everything = [item for item in spent if item.spent.charges]
    cuts = _by_cut(everything)
    bounds = []
    for anchor, own in cuts.items():
        others = worst_record(item for item in everything if item.cut != anchor)
        figures = [total((*others, *shard), delta, quick=quick) for shard in _largest(_costs(own))]
        bounds.append(max(figures, key=lambda figure: figure.epsilon))
    return min(bounds, key=lambda figure: figure.epsilon, default=total((), delta))


def _by_cut(spent: Iterable[ShardSpent]) -> dict[str, list[ShardSpent]]:
    cuts: dict[str, list[ShardSpent]] = {}
    for item in spent:
        cuts.setdefault(item.cut, []).append(item)
    return cuts


def _by_shard(cut: list[ShardSpent]) -> list[list[ShardSpent]]:
    """Return what was spent on each shard; all of it together where shards share records."""
    if any(item.shard is None for item in cut):
        return [cut]
    shards: dict[int | None, list[ShardSpent]] = {}
    for item in cut:
        shards.setdefault(item.shard, []).append(item)
    return list(shards.values())


def _worst_shard(cut: list[ShardSpent]) -> list[Spent]:
    """Return, for each mechanism, the most charges of any shard.

    Kinds that differ in n_k alone are taken for the smallest n_k, whose sampling rate is the largest: ε rises
    with the rate. Other kinds are not compared: each counts with its own worst shard.
    """
    costs = _costs(cut)
    if len(costs) == 1:
        return list(costs[0])
    worst: dict[_Key, Spent] = {}
    for shard in costs:
        for spent in shard:
            worst[_key(spent)] = _joined(worst.get(_key(spent)), spent, plus=False)
    return list(worst.values())


def _costs(cut: list[ShardSpent]) -> list[tuple[Spent, ...]]:
    """Return what each shard's releases come to; of a single one kind by kind, since there is nothing to compare.

    Records of one's own may change in number from run to run, after a look at the earlier releases: each n_k stays
    a kind of its own then, and the odometer composes them.
    """
    shards = _by_shard(cut)
    return [_exactly(shards[0])] if len(shards) == 1 else [_sums(shard) for shard in shards]


def _exactly(shard: list[ShardSpent]) -> tuple[Spent, ...]:
    """Return what a shard's releases come to, for each kind."""
    charges: dict[ReleaseKind, int] = {}
    for item in shard:
        charges[item.spent.kind] = charges.get(item.spent.kind, 0) + item.spent.charges
    return tuple(Spent(kind, count) for kind, count in charges.items())


_Key = tuple[Mechanism, int]


def _key(spent: Spent) -> _Key:
    """Name what may be compared: kinds that differ in n_k alone, but not with truncated batches.

    How often a batch is truncated does not rise with the rate.
    """
    kind = spent.kind
    return kind.mechanism, 0 if kind.mechanism.amplification.largest is None else kind.shard_size


def _sums(shard: list[ShardSpent]) -> tuple[Spent, ...]:
    """Return what a shard's releases come to, for each mechanism."""
    sums: dict[_Key, Spent] = {}
    for item in shard:
        key = _key(item.spent)
        sums[key] = _joined(sums.get(key), item.spent, plus=True)
    return tuple(sums.values())


def _largest(shards: list[tuple[Spent, ...]]) -> list[tuple[Spent, ...]]:
    """Leave out the shards that cost no more than another one does, kind by kind: each figure may take seconds."""
    kept: list[tuple[Spent, ...]] = []
    for shard in sorted(set(shards), key=lambda one: -sum(spent.charges for spent in one)):
        if not any(_covers(other, shard) for other in kept):
            kept.append(shard)
    return kept


def _covers(one: tuple[Spent, ...], other: tuple[Spent, ...]) -> bool:
    by_key = {_key(spent): spent for spent in one}
    return all(
        (more := by_key.get(_key(spent))) is not None
        and more.charges >= spent.charges
        and more.kind.shard_size <= spent.kind.shard_size
        for spent in other
    )


def _joined(one: Spent | None, other: Spent, *, plus: bool) -> Spent:
    if one is None:
        return other
    size = min(one.kind.shard_size, other.kind.shard_size)
    charges = one.charges + other.charges if plus else max(one.charges, other.charges)
    return Spent(replace(one.kind, shard_size=size), charges)

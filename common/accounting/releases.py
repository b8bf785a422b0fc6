"""What an accountant needs to know of the releases that touched one record, and nothing else.

Of several shards and cuts: a record lies in one shard at most of a disjoint cut, so a cut costs it what its worst
shard cost; which shards of two different cuts share a record is not known here, so the cuts' worst shards add up.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Hashable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Self

from common.errors import ConfigurationError
from common.mechanism.guarantee import LARGEST_COST, Adjacency, Guarantee
from common.mechanism.mechanism import Mechanism
from common.noise.law import NoiseLaw
from common.own_code import asking


@dataclass(frozen=True, slots=True)
class ReleaseKind:
    """One way of releasing gradients of one shard; releases of one kind compose homogeneously.

    ΔS is no part of it: noise scales with ΔS, so a new stage changes neither z nor ε.
    """

    mechanism: Mechanism
    shard_size: int  # n_k, public
    batches_per_epoch: int = field(init=False, compare=False, repr=False)  # disjoint ones; without epochs 1

    def __post_init__(self) -> None:
        mechanism, n = self.mechanism, self.shard_size
        if n < 1:
            raise ConfigurationError(f"shard_size = {n}: must be at least 1")
        if n >= 1 << 63:
            raise ConfigurationError("shard_size: must be less than 2^63")
        if n < mechanism.sampler.least_records(mechanism.batch_size):
            raise ConfigurationError(
                f"batch_size = {mechanism.batch_size}: must be at most the shard's {n} records"
                f" with the {mechanism.sampler.name} sampler"
            )
        with asking(f"data.sampler = {mechanism.sampler.name!r}: does not state its cost"):
            epoch = mechanism.sampler.batches_per_epoch(n, mechanism.batch_size)
        most = n // mechanism.batch_size if mechanism.sampler.by_epoch else 1
        if type(epoch) is not int or not 1 <= epoch <= max(most, 1):
            raise ConfigurationError(
                f"data.sampler = {mechanism.sampler.name!r}: batches_per_epoch = {epoch!r}: must be a whole number"
                f" from 1 to {max(most, 1)}: as many disjoint batches of {mechanism.batch_size} as {n} records make,"
                " and 1 without by_epoch"
            )
        object.__setattr__(self, "batches_per_epoch", epoch)

    @property
    def law(self) -> NoiseLaw | None:
        """How it noises; None: not at all."""
        return self.mechanism.law

    def fields(self) -> dict[str, Any]:
        """Return it as plain values, for a ledger or a line of JSON."""
        return {**self.mechanism.fields(), "shard_size": self.shard_size}

    @classmethod
    def of_fields(cls, fields: Mapping[str, Any]) -> Self:
        """Read what `fields` has written."""
        return cls(Mechanism.of_fields(fields), fields["shard_size"])

    @property
    def drawing_rate(self) -> float:
        """q = b/n_k with which a record is drawn, before a batch is truncated; 1 where it may not be counted."""
        sampled = self.mechanism.amplification.sampled
        return self.mechanism.batch_size / self.shard_size if sampled else 1.0

    @property
    def sampling_rate(self) -> float:
        """q = b/n_k where it may be counted, else 1; `truncation` says what may be counted of truncated batches."""
        return self.drawing_rate if self.mechanism.amplification.largest is None else 1.0

    @property
    def truncation(self) -> tuple[int, int] | None:
        """(B_max, n_k) where a batch may be truncated; None: never."""
        most = self.mechanism.amplification.largest
        return None if most is None or most >= self.shard_size else (most, self.shard_size)

    def charges(self, messages: int) -> int:
        """Return how often one record can have been used in `messages` consecutive messages of E releases each.

        An epoch's batches are disjoint, so an epoch begun charges once, whatever was released of it.
        """
        return self.charges_between(0, messages)

    def charges_between(self, before: int, last: int) -> int:
        """Return what the messages before + 1 … last charge where none of their epochs is paid for."""
        if last <= before:
            return 0
        return self.epoch_of(last, ends=True) - self.epoch_of(before + 1) + 1

    def epoch_of(self, message: int, *, ends: bool = False) -> int:
        """Return the epoch that a message's first release lies in, or its last; without epochs each release is one."""
        steps = self.mechanism.steps
        release = message * steps if ends else (message - 1) * steps + 1
        return (release - 1) // self.batches_per_epoch

    def guarantee(self, adjacency: Adjacency) -> Guarantee:
        """State what one release guarantees, before amplification."""
        return self.mechanism.guarantee(adjacency)

    @property
    def is_summed(self) -> bool:
        """Whether a release is seen in sums of several edges' alone."""
        grid = self.mechanism.grid
        return grid is not None and grid.members > 1

    @property
    def in_sums(self) -> Self:
        """As the cloud sees it where it sees sums alone; the same where no release is summed."""
        return replace(self, mechanism=self.mechanism.in_sums())


def check_together(run: str, kind: ReleaseKind, earlier: Iterable[Spent]) -> None:
    """Refuse a run whose releases have no bound together with earlier ones of the same records.

    Truncated batches are accounted by PLD alone, which holds for terms that were fixed beforehand. The odometer that
    composes runs of different kinds needs Rényi divergences, and none are proven for them.
    """
    for spent in earlier:
        kinds = (spent.kind, kind)
        if spent.charges and spent.kind != kind and any(one.truncation for one in kinds):
            raise ConfigurationError(
                f"run {run}: would release these records by {_named(kind)}, and they were released by"
                f" {_named(spent.kind)} before; truncated batches have no bound together with any other kind of"
                " release. Take part in runs of the same kind, or with other records"
            )


def _named(kind: ReleaseKind) -> str:
    mechanism, law = kind.mechanism, kind.law
    options = "".join(f", {key} = {value}" for key, value in mechanism.options.items())
    noise = "no noise" if law is None else f"{law.name} noise, {law.strength}"
    return (
        f"sampler = {mechanism.sampler.name!r} (batch_size = {mechanism.batch_size}{options}, n_k ="
        f" {kind.shard_size}, {noise})"
    )


@dataclass(frozen=True, slots=True)
class Spent:
    """So many charges of one kind against one record."""

    kind: ReleaseKind
    charges: int

    def __post_init__(self) -> None:
        if self.charges < 0:
            raise ConfigurationError(f"charges = {self.charges}: must be at least 0")


@dataclass(frozen=True, slots=True)
class Budget:
    """The (ε, δ) that one record's releases may cost together, under zero-out adjacency."""

    epsilon: float  # total ε
    delta: float  # total δ; Theorem 3's δ is another
    in_sums: bool = False  # of what the cloud sees where it sees sums; else of each release on its own

    def __post_init__(self) -> None:
        if not (math.isfinite(self.epsilon) and self.epsilon > 0):
            raise ConfigurationError(f"total_epsilon = {self.epsilon}: must be finite and greater than 0")
        if self.epsilon > LARGEST_COST:
            raise ConfigurationError(f"total_epsilon = {self.epsilon}: must be at most {LARGEST_COST:g}")
        check_delta(self.delta)


def as_seen(
    budget: Budget, kind: ReleaseKind, spent: Iterable[Spent]
) -> tuple[ReleaseKind, tuple[Spent, ...]]:
    """Return releases as the budget counts them."""
    if not budget.in_sums:
        return kind, tuple(spent)
    return kind.in_sums, tuple(replace(one, kind=one.kind.in_sums) for one in spent)


def check_delta(delta: float) -> None:
    """Refuse a δ that is no probability; 0 asks for pure DP."""
    if not 0 <= delta < 1:
        raise ConfigurationError(f"total_delta = {delta}: must be at least 0 and less than 1")


@dataclass(frozen=True, slots=True)
class ShardSpent:
    """What one ledger spent in one run on a shard."""

    cut: str  # all that fixes the cut, the data set's checksum included
    shard: int | None  # None: shards of this cut share records
    spent: Spent


Costs = tuple[Spent, ...]


def worst_record(spent: Iterable[ShardSpent]) -> Costs:
    """Return what no record can have paid more than: of each cut, for each mechanism, the most charges of any shard.

    Kinds that differ in n_k alone are taken for the smallest n_k, whose sampling rate is the largest: ε rises
    with the rate. Other kinds are not compared: each counts with its own worst shard.
    """
    worst: list[Spent] = []
    for shards in shard_costs(spent).values():
        together = [item for shard in shards for item in shard]
        worst += together if len(shards) == 1 else _merged(together, comparable, max)
    return tuple(worst)


def shard_costs(spent: Iterable[ShardSpent]) -> dict[str, list[Costs]]:
    """Return for each cut what each shard's releases come to; all of them together where shards share records.

    Of a single shard kind by kind, since there is nothing to compare. A user's own records may change in number from
    run to run, after a look at the earlier releases: each n_k stays a kind of its own then, and the odometer composes
    them.
    """
    cuts: dict[str, dict[int | None, list[Spent]]] = {}
    for item in spent:
        cuts.setdefault(item.cut, {}).setdefault(item.shard, []).append(item.spent)
    costs = {}
    for cut, by_shard in cuts.items():
        shards = list(by_shard.values())
        if None in by_shard:
            shards = [[item for shard in shards for item in shard]]
        key = comparable if len(shards) > 1 else _kind
        costs[cut] = [_merged(shard, key, operator.add) for shard in shards]
    return costs


def comparable(spent: Spent) -> Hashable:
    """Name what may be compared: kinds that differ in n_k alone, but not with truncated batches.

    How often a batch is truncated does not rise with the rate.
    """
    kind = spent.kind
    return kind.mechanism, 0 if kind.mechanism.amplification.largest is None else kind.shard_size


def _kind(spent: Spent) -> Hashable:
    return spent.kind


def _merged(
    items: Iterable[Spent], key: Callable[[Spent], Hashable], join: Callable[[int, int], int]
) -> Costs:
    """Join the charges of each key, at its smallest n_k."""
    merged: dict[Hashable, Spent] = {}
    for item in items:
        known = merged.get(key(item))
        if known is not None:
            size = min(known.kind.shard_size, item.kind.shard_size)
            item = Spent(replace(item.kind, shard_size=size), join(known.charges, item.charges))
        merged[key(item)] = item
    return tuple(merged.values())

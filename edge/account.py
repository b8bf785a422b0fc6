"""The terms under which an edge takes part in a run: records, noise, budget; and what it has spent there."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from common.accounting.overlap import ShardSpent
from common.accounting.releases import Budget, ReleaseKind, Spent
from common.datasets.catalogue import records_of
from common.errors import ConfigurationError
from common.quantities import EdgeId, RunId


@dataclass(frozen=True, slots=True)
class ShardIdentity:
    """The records that an account belongs to."""

    dataset: str  # checksum of the data set
    partition: str  # all that fixes the cut: its kind, K, α and seed
    index: int  # k
    disjoint: bool = True  # False: shards of this partition share records

    def overlaps(self, other: ShardIdentity) -> bool:
        """Tell whether a record may lie in both. Two different cuts of one data set always may."""
        return records_of(self.dataset) == records_of(other.dataset) and not self.is_beside(other)

    @property
    def cut(self) -> str:
        """Name the cut that this is a shard of."""
        return f"{self.partition} of {self.dataset}"

    def is_beside(self, other: ShardIdentity) -> bool:
        """Tell whether both are shards of one cut, and different ones, so that no record lies in both."""
        same_cut = (self.dataset, self.partition) == (other.dataset, other.partition)
        return same_cut and self.disjoint and self.index != other.index


@dataclass(frozen=True, slots=True, kw_only=True)
class Account:
    """The terms under which this edge takes part in a run."""

    run: RunId
    shard: ShardIdentity
    kind: ReleaseKind  # law, mechanism, n_k
    budget: Budget | None = None  # None: count, never refuse
    own_budget: bool = True  # of this edge's operator; False: of the run's scenario
    reproducible: bool = False  # seeded noise: counted, but not private
    most_releases: int | None = (
        None  # R_k, in messages, of a run with a pace of its own; None: as budgets permit
    )

    @property
    def operator_budget(self) -> Budget | None:
        """The budget, where this edge's operator set it."""
        return self.budget if self.own_budget else None


@dataclass(frozen=True, slots=True)
class Standing:
    """An account and what was spent of it."""

    edge_id: EdgeId
    account: Account
    releases: int  # sequences 1 … releases were debited; each is a message of E releases
    charges: int  # what composes: E for each sequence, or epochs begun where the sampler has them
    cap: int | None  # charges that the budgets permit in this run; None: no budget
    exhausted: bool  # the next release would be refused

    @property
    def spent(self) -> Spent:
        return Spent(self.account.kind, self.charges)

    @property
    def of_shard(self) -> ShardSpent:
        """What was spent, and on which shard."""
        shard = self.account.shard
        index = shard.index if shard.disjoint else None
        return ShardSpent(shard.cut, index, self.spent)


@dataclass(slots=True)
class Entry:
    """One run in the book."""

    edge_id: EdgeId
    account: Account
    last_sequence: int = 0
    charges: int = 0
    outbox: dict[int, bytes] = field(default_factory=dict)
    acknowledged: int = 0
    # The epoch paid for since the run was opened.
    epoch: int | None = None
    cap: int | None = None

    @property
    def key(self) -> tuple[EdgeId, RunId]:
        return self.edge_id, self.account.run

    def charge_of(self, sequence: int) -> int:
        """Return what the E releases of a message cost; an epoch that is paid for is free."""
        kind = self.account.kind
        return kind.charges_between(sequence - 1, sequence) - (self.epoch == kind.epoch_of(sequence))

    def would_pass_the_cap(self, sequence: int) -> bool:
        most = self.account.most_releases
        if most is not None and sequence > most:
            return True
        return self.cap is not None and self.charges + self.charge_of(sequence) > self.cap

    def standing(self) -> Standing:
        exhausted = self.would_pass_the_cap(self.last_sequence + 1)
        return Standing(self.edge_id, self.account, self.last_sequence, self.charges, self.cap, exhausted)


def resumed(known: Account, asked: Account, *, replace_budget: bool) -> Account:
    """Return the terms of a run that is opened again: it keeps them, and a seeded session stays on record."""
    if replace_budget or known.budget is None:
        budget, own = asked.budget, asked.own_budget
    else:
        budget = asked.budget or known.budget
        own = known.own_budget or (asked.budget is not None and asked.own_budget)
    fixed = ("shard", "kind", "most_releases")
    keys = fixed if replace_budget or known.budget is None else (*fixed, "budget")
    seeded = asked.reproducible or known.reproducible
    resumed = replace(asked, budget=budget, own_budget=own, reproducible=seeded)
    for key in keys:
        before, now = getattr(known, key), getattr(resumed, key)
        if before != now:
            raise ConfigurationError(
                f"run {asked.run}: its account was opened with {key} = {before}, not {now}; a run keeps its terms"
            )
    return resumed

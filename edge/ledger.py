"""The edge's account of what its releases cost, and the outbox that makes a resend free.

A debit and the bytes it pays for are kept together before those bytes leave. The account belongs to
the data: releases of other runs that may have touched the same records count against it too.
`Ledger` holds the rules, in memory; `edge/sqlite_ledger.py` and `edge/journal.py` make them durable.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, NamedTuple

from common.accounting.releases import (
    Budget,
    ReleaseKind,
    ShardSpent,
    Spent,
    as_seen,
    check_together,
    worst_record,
)
from common.datasets.catalogue import records_of
from common.errors import (
    ConfigurationError,
    LedgerUnavailableError,
    LocalProtocolError,
    MapaError,
    RemoteProtocolError,
)
from common.mechanism.guarantee import Adjacency
from common.quantities import EdgeId, RunId

if TYPE_CHECKING:
    from edge.state_directory import Slot


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
    sum_budget: Budget | None = None  # of the run's scenario, for what sums tell of the records
    reproducible: bool = False  # seeded noise: counted, but not private
    most_releases: int | None = None  # R_k, in messages, of a run with a pace of its own

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
class AccountEntry:
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
    saved: bool = True  # with the accounts; False: the keeper of debits has what was spent since

    @property
    def key(self) -> tuple[EdgeId, RunId]:
        return self.edge_id, self.account.run

    def charge_of(self, sequence: int) -> int:
        """Return what the E releases of a message cost; an epoch that is paid for is free."""
        kind = self.account.kind
        if kind.batches_per_epoch == 1:
            return kind.mechanism.steps
        return kind.charges_between(sequence - 1, sequence) - (self.epoch == kind.epoch_of(sequence))

    def would_pass_the_cap(self, sequence: int) -> bool:
        most = self.account.most_releases
        if most is not None and sequence > most:
            return True
        return self.cap is not None and self.charges + self.charge_of(sequence) > self.cap

    def standing(self) -> Standing:
        exhausted = self.would_pass_the_cap(self.last_sequence + 1)
        return Standing(self.edge_id, self.account, self.last_sequence, self.charges, self.cap, exhausted)


@dataclass(frozen=True, slots=True)
class Neighbours:
    """What the other ledgers of a state directory say of the records of a shard."""

    budgets: frozenset[Budget] = frozenset()  # that the operator set for them
    spent: tuple[ShardSpent, ...] = ()  # known where a budget of the operator is in force


def _resumed(known: Account, asked: Account, *, replace_budget: bool) -> Account:
    """Return the terms of a run that is opened again: it keeps them, and a seeded session stays on record."""
    if replace_budget or known.budget is None:
        budget, own = asked.budget, asked.own_budget
    else:
        budget = asked.budget or known.budget
        own = known.own_budget or (asked.budget is not None and asked.own_budget)
    seeded = asked.reproducible or known.reproducible
    resumed = replace(asked, budget=budget, own_budget=own, reproducible=seeded)
    fixed = ["shard", "kind", "most_releases"]
    if not replace_budget and known.budget is not None:
        fixed.append("budget")
    if known.sum_budget is not None:
        fixed.append("sum_budget")
    for key in fixed:
        before, now = getattr(known, key), getattr(resumed, key)
        if before != now:
            raise ConfigurationError(
                f"run {asked.run}: its account was opened with {key} = {before}, not {now}; a run keeps its terms"
            )
    return resumed


class Debit(NamedTuple):
    """What an account has spent with a message, and the bytes of that message. A tuple: one is made for each."""

    edge_id: EdgeId
    run: RunId
    sequence: int
    charges: int
    acknowledged: int
    payload: bytes

    @property
    def key(self) -> tuple[EdgeId, RunId]:
        return self.edge_id, self.run


Done = Callable[[LedgerUnavailableError | None], None]  # told when a debit is durable, or why it cannot be


Keep = Callable[[Debit, Done], None]  # makes a debit durable, now or soon, and then says so


def raise_failure(failure: LedgerUnavailableError | None) -> None:
    if failure is not None:
        raise failure


# Says how many charges of a kind a budget permits beside what was spent.
Accountant = Callable[[Budget, ReleaseKind, tuple[Spent, ...]], int]
MOST_RELEASES = 10**9  # of one run; privacy.releases has the same limit


class BudgetExhausted(MapaError):
    """The next release would pass the budget; the edge leaves with reason `budget`."""


class OtherShardError(ConfigurationError):
    """The ledger belongs to another shard of the same cut than the one that was assigned."""

    def __init__(self, run: RunId, held: ShardIdentity, assigned: ShardIdentity) -> None:
        self.held = held.index
        super().__init__(
            f"run {run}: shard {assigned.index} ({assigned.partition}) was assigned, and this ledger holds"
            f" shard {held.index} of the same cut; what others have released of shard {assigned.index}"
            " it does not know."
            f" Take part with the ledger of shard {assigned.index}, or while shard {held.index} is free"
        )


class Ledger:
    """The rules of a ledger; one caller at a time. In memory, for tests and for the simulator."""

    def __init__(
        self,
        edge_id: EdgeId | None = None,
        *,
        accountant: Accountant | None = None,
        slot: Slot | None = None,  # with other ledgers beside, whose releases count under a budget
    ) -> None:
        self._edge_id = edge_id or new_edge_id()
        self._accountant = accountant or _ask_here
        self._slot = slot
        self._entries: dict[tuple[EdgeId, RunId], AccountEntry] = {}
        self._active: RunId | None = None
        self._keep: Keep | None = None  # from the first debit on

    @property
    def edge_id(self) -> EdgeId:
        return self._edge_id

    def open(self, account: Account, *, replace_budget: bool = False) -> Standing:
        """Begin or resume a run; the ledger debits this run until another is opened.

        Open once for each set of random streams: with the shuffled sampler a new key begins a new epoch.
        A budget binds every later run on the same records, whatever that run asks for: the operator's once
        set, a scenario's once something was released under it, so that no cloud can stop others for nothing.
        `replace_budget` is the word of the owner of the data that this one shall bind instead.
        A ledger that has charged one shard of a cut takes no other of it: OtherShardError. Under a budget of
        the operator, what the siblings spent on the same records counts, and none may spend at the same time.
        """
        known = self._find(account.run)
        if known is not None:
            account = _resumed(known.account, account, replace_budget=replace_budget)
        for entry in reversed(self._entries.values()):
            if entry.charges and entry.account.shard.is_beside(account.shard):
                raise OtherShardError(account.run, entry.account.shard, account.shard)
        touching = [
            entry
            for entry in self._entries.values()
            if entry is not known and entry.account.shard.overlaps(account.shard)
        ]
        if replace_budget:
            touching = [
                replace(e, account=replace(e.account, budget=account.budget, own_budget=account.own_budget))
                for e in touching
            ]
        beside = Neighbours()
        if self._slot is not None:
            accounts = (account, *(e.account for e in touching))
            budgeted = any(one.operator_budget is not None for one in accounts)
            beside = self._slot.claim(account, budgeted=budgeted, replace_budget=replace_budget)
        cap = _cap(account, [entry.standing() for entry in touching], beside, self._accountant)
        entry = AccountEntry(self._edge_id, account) if known is None else replace(known, account=account)
        entry.cap = cap
        if self._slot is not None:
            self._slot.confirm()
        entry.epoch = None  # a new key, and with it a new shuffle
        self._save_terms([entry, *touching])
        self._entries |= {changed.key: changed for changed in (entry, *touching)}
        self._active = account.run
        return self.standing(account.run)

    def renew_identity(self) -> EdgeId:
        """Continue as a newcomer under a new id; what was spent on the records stays on the books."""
        edge_id = new_edge_id()
        self._save_identity(edge_id)
        self._edge_id, self._active = edge_id, None
        for entry in self._entries.values():
            entry.outbox.clear()  # nobody awaits the old id's bytes
        return edge_id

    def account(self, run: RunId) -> Account | None:
        """Return the terms of a run that was opened under this id."""
        entry = self._find(run)
        return None if entry is None else entry.account

    def last_sequence(self, run: RunId) -> int:
        """Return the highest sequence debited in the run; 0: none."""
        entry = self._find(run)
        return entry.last_sequence if entry is not None else 0

    def debit(self, run: RunId, sequence: int, payload: bytes, done: Done = raise_failure) -> None:
        """Charge the releases of one message; once that is durable, keep its bytes for sending, and call `done`."""
        entry = self._active_entry(run)
        if sequence != entry.last_sequence + 1:
            raise LocalProtocolError(
                f"sequence {sequence} of run {run}: the next is {entry.last_sequence + 1}; none is ever used twice"
            )
        if entry.would_pass_the_cap(sequence):
            raise BudgetExhausted(
                f"run {run}: release {sequence} would pass the budget ({entry.charges} charges of {entry.cap} spent)"
            )
        if self._keep is None:
            self._keep = self._keep_debits()
        kind = entry.account.kind
        entry.charges += entry.charge_of(sequence)
        entry.epoch = kind.epoch_of(sequence, ends=True) if kind.batches_per_epoch > 1 else None
        entry.last_sequence, entry.saved = sequence, False

        def settled(failure: LedgerUnavailableError | None) -> None:
            if failure is None:
                entry.outbox[sequence] = payload
            else:
                self._give_up()
            done(failure)

        self._keep(Debit(*entry.key, sequence, entry.charges, entry.acknowledged, payload), settled)

    def charge(self, run: RunId, through: int) -> Standing:
        """Debit all sequences up to this one without their bytes: others have released them. The operator's word.

        In full, past the budget too. With the shuffled sampler that is the most that each can have cost: it may have
        begun an epoch.
        """
        entry = self._active_entry(run)
        if through <= entry.last_sequence:
            raise ConfigurationError(
                f"through = {through}: must be above {entry.last_sequence}, which run {run} has charged already"
            )
        missing = through - entry.last_sequence
        charges = entry.charges + missing * entry.account.kind.mechanism.steps
        self._save_charge(entry, through, charges)
        entry.last_sequence, entry.charges, entry.acknowledged = through, charges, through
        entry.epoch = None
        entry.outbox.clear()  # what it holds was sent by the others, or is covered by what they sent since
        return entry.standing()

    def acknowledge(self, run: RunId, sequence: int) -> None:
        """Drop the bytes of all sequences up to this one; a crash may bring them back, which is harmless."""
        entry = self._entry(run)
        if sequence > entry.last_sequence:
            raise RemoteProtocolError(
                f"run {run}: {sequence} acknowledged, {entry.last_sequence} debited; catch up first"
            )
        entry.acknowledged = max(entry.acknowledged, sequence)
        for old in [number for number in entry.outbox if number <= sequence]:
            del entry.outbox[old]

    def pending(self, run: RunId) -> list[tuple[int, bytes]]:
        """Return the (sequence, bytes) not acknowledged, oldest first: resend those very bytes, free."""
        entry = self._find(run)
        return sorted(entry.outbox.items()) if entry is not None else []

    def kept(self, run: RunId, sequence: int) -> bytes | None:
        """Return the bytes of a sequence that is not acknowledged; None: they are no longer kept."""
        entry = self._find(run)
        return None if entry is None else entry.outbox.get(sequence)

    def standing(self, run: RunId) -> Standing:
        """Return what the run has spent."""
        return self._entry(run).standing()

    def standings(self) -> list[Standing]:
        """Return every run's, oldest first."""
        return [entry.standing() for entry in self._entries.values()]

    def keeps_budget(self, shard: ShardIdentity) -> bool:
        """Tell whether the operator set a budget for these records, here or beside, in a run without a seed."""
        accounts = (entry.account for entry in self._entries.values())
        kept = (one for one in accounts if one.operator_budget is not None and not one.reproducible)
        if any(one.shard.overlaps(shard) for one in kept):
            return True
        return self._slot is not None and self._slot.keeps_budget(shard)

    def close(self) -> None:
        """Let the ledger go, and the shard that it holds."""
        self._active = None
        if self._slot is not None:
            self._slot.release()

    def _find(self, run: RunId) -> AccountEntry | None:
        return self._entries.get((self._edge_id, run))

    def _entry(self, run: RunId) -> AccountEntry:
        entry = self._find(run)
        if entry is None:
            raise LocalProtocolError(f"run {run}: {self._edge_id} has opened no account for it")
        return entry

    def _active_entry(self, run: RunId) -> AccountEntry:
        # Two runs at once could each spend what the other's cap was computed without.
        if run != self._active:
            raise LocalProtocolError(f"run {run}: not the open one ({self._active})")
        return self._entry(run)

    # What makes it durable.

    def _save_identity(self, edge_id: EdgeId) -> None: ...
    def _save_terms(self, entries: list[AccountEntry]) -> None: ...
    def _save_charge(self, entry: AccountEntry, through: int, charges: int) -> None: ...
    def _give_up(self) -> None: ...
    def _keep_debits(self) -> Keep:
        return lambda _, done: done(None)


def new_edge_id() -> EdgeId:
    """Make up an id that no other edge has."""
    return EdgeId(f"edge-{secrets.token_hex(6)}")


@dataclass(frozen=True, slots=True)
class Remainder:
    """The budget that binds an account, and the releases that it permits beyond what was spent."""

    budget: Budget
    releases: int  # on the terms of this account, as messages; whole epochs with the shuffled sampler

    @classmethod
    def of(cls, now: Standing, ledger: Iterable[Standing], others: Iterable[Standing]) -> Remainder | None:
        """Find what `open` would permit; None: no budget is in force. `others` are the standings of sibling ledgers."""
        shard, kind = now.account.shard, now.account.kind
        touching = [one for one in ledger if one != now and one.account.shard.overlaps(shard)]
        near = [one for one in others if one.account.shard.overlaps(shard)]
        kept = frozenset(b for one in near if (b := one.account.operator_budget) is not None)
        budgeted = bool(kept) or any(one.account.operator_budget for one in (now, *touching))
        beside = Neighbours(kept, tuple(one.of_shard for one in near if one.charges) if budgeted else ())
        budgets = _in_force(now.account, touching, beside)
        if not budgets:
            return None
        try:
            cap = _cap(now.account, touching, beside, _ask_here) or 0
        except ConfigurationError:  # nothing more can be released on such terms
            cap = 0
        left = max(cap - now.charges, 0) * kind.batches_per_epoch // kind.mechanism.steps
        if (most := now.account.most_releases) is not None:
            left = max(min(left, most - now.releases), 0)
        return cls(min(budgets, key=lambda budget: budget.epsilon), left)


def _in_force(account: Account, touching: Iterable[Standing], beside: Neighbours) -> set[Budget]:
    """Return the budgets that bind a run: its own, the operator's, and those that something was charged under.

    A welcome alone binds no other run.
    """
    earlier = list(touching)
    kept = (one.account.budget for one in earlier if one.charges or one.account.own_budget)
    sums = (one.account.sum_budget for one in earlier if one.charges)
    every = (account.budget, account.sum_budget, *kept, *sums, *beside.budgets)
    return {budget for budget in every if budget is not None}


def _cap(
    account: Account, touching: list[Standing], beside: Neighbours, accountant: Accountant
) -> int | None:
    """Return the charges that every budget permits in this run, beside what was spent on the same records."""
    ledgers = (*(one.spent for one in touching), *(one.spent for one in beside.spent))
    check_together(account.run, account.kind, ledgers)
    in_force = _in_force(account, touching, beside)
    if not in_force:
        return None
    guarantee = account.kind.guarantee(Adjacency.ZERO_OUT)
    if not guarantee.is_private:
        raise ConfigurationError(
            f"run {account.run}: total_epsilon = {min(b.epsilon for b in in_force)} cannot be kept: {guarantee.reason}"
        )
    spent = worst_record([*(one.of_shard for one in touching if one.charges), *beside.spent])
    return min(accountant(budget, *as_seen(budget, account.kind, spent)) for budget in in_force)


def _ask_here(budget: Budget, kind: ReleaseKind, spent: tuple[Spent, ...]) -> int:
    from common.accounting.budget import max_charges  # a ledger without a budget needs no accountant

    return max_charges(budget, kind, spent)

"""What a ledger asks about the other ledgers of its state directory; edge/state_directory.py answers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from common.accounting.overlap import ShardSpent
from common.accounting.releases import Budget
from edge.account import Account, ShardIdentity


@dataclass(frozen=True, slots=True)
class Neighbours:
    """What the other ledgers of a state directory say of the records of a shard."""

    budgets: frozenset[Budget] = frozenset()  # that the operator set for them
    spent: tuple[ShardSpent, ...] = ()  # known where a budget of the operator is in force


class Siblings(Protocol):
    """The other ledgers of a state directory: a budget is a ceiling on the records, whichever of them releases."""

    def claim(self, account: Account, *, budgeted: bool, replace_budget: bool) -> Neighbours:
        """Hold the shard until `release`; `budgeted`: this ledger has an operator's budget for it.

        PolicyError where a living sibling holds records of it and either of the two has a budget.
        """

    def confirm(self) -> None:
        """Raise ConfigurationError where the claim no longer stands: the accountant may have taken long."""

    def keeps_budget(self, shard: ShardIdentity) -> bool:
        """Tell whether the operator set a budget for these records in another ledger, in a run without a seed."""

    def release(self) -> None:
        """Let the shard go; nothing more is debited until the next claim."""


class NoSiblings:
    """A ledger on its own."""

    def claim(self, account: Account, *, budgeted: bool, replace_budget: bool) -> Neighbours:  # noqa: ARG002
        return Neighbours()

    def confirm(self) -> None:
        pass

    def keeps_budget(self, shard: ShardIdentity) -> bool:  # noqa: ARG002
        return False

    def release(self) -> None:
        pass

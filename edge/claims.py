"""Which edge of a state directory holds which shard, so that a budget is a ceiling on the records.

One small SQLite file beside the slots. A claim counts while its slot is held by a living process: whatever a
killed edge left behind, it can debit nothing before it claims again. The book also remembers which ledger was
ever opened on which shard, so that a new claim need not read them all. It holds nothing that the
ledgers do not, save budgets that were replaced: without it, it is made anew from them.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from common.accounting.overlap import ShardSpent
from common.accounting.releases import Budget
from common.errors import ConfigurationError
from edge.account import Account, ShardIdentity
from edge.policy import Claim, check_claims
from edge.siblings import Neighbours
from edge.slots import is_held
from edge.sqlite_ledger import FILE_NAME, ledger_snapshot

BOOK = "claims.sqlite3"
_PATIENCE = 60.0  # seconds for the others' transactions, each of them short
_SHARD = "dataset TEXT NOT NULL, partition TEXT NOT NULL, shard INTEGER NOT NULL, disjoint INTEGER NOT NULL"
_VERSION = 1
_SCHEMA = f"""
CREATE TABLE slot (name TEXT PRIMARY KEY) STRICT;
CREATE TABLE claim (slot TEXT PRIMARY KEY, {_SHARD}, budgeted INTEGER NOT NULL) STRICT;
CREATE TABLE opened (slot TEXT NOT NULL, {_SHARD}, PRIMARY KEY (slot, dataset, partition, shard)) STRICT;
CREATE TABLE budget (
  slot TEXT NOT NULL, {_SHARD}, total_epsilon REAL NOT NULL, total_delta REAL NOT NULL, seeded INTEGER NOT NULL,
  PRIMARY KEY (slot, dataset, partition, shard, total_epsilon, total_delta, seeded)
) STRICT;
PRAGMA user_version = {_VERSION};
"""
_COLUMNS = "dataset, partition, shard, disjoint"
# All but the shards that are surely beside ours: different ones of the same disjoint cut.
_NOT_BESIDE = "slot != ? AND NOT (dataset = ? AND partition = ? AND disjoint AND shard != ?)"


class ClaimsBook:
    """The claims of one state directory; any number of processes may have it open."""

    def __init__(self, state_dir: Path) -> None:
        self.state_dir = state_dir
        self.path = state_dir / BOOK
        try:
            state_dir.mkdir(parents=True, exist_ok=True)
            self._connection = sqlite3.connect(
                self.path, timeout=_PATIENCE, isolation_level=None, check_same_thread=False
            )
            made = self.path.stat()
            self._file = made.st_dev, made.st_ino
        except (OSError, sqlite3.Error) as error:
            raise ConfigurationError(f"claims book {self.path}: cannot be opened: {error}") from error
        try:
            self._prepare()
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        self._connection.close()

    def of(self, slot: str) -> SlotClaims:
        """Return the view of the ledger in this slot, for whoever holds the slot: an earlier life's claim ends."""
        claims = SlotClaims(self, slot, held=True)
        claims.withdraw()
        return claims

    @contextmanager
    def transaction(self) -> Iterator[sqlite3.Connection]:
        """Let nobody else read or write in between; nothing is kept where it ends with an error."""
        connection = self._connection
        self._check_file()
        try:
            connection.execute("BEGIN IMMEDIATE")
            try:
                yield connection
                connection.execute("COMMIT")
            finally:
                if connection.in_transaction:
                    connection.execute("ROLLBACK")
        except sqlite3.Error as error:
            raise ConfigurationError(
                f"claims book {self.path}: {error}. It can be made anew: end all edges of this state directory and"
                " remove the file, never a ledger"
            ) from error

    def _check_file(self) -> None:
        """Refuse to go on with a file that others no longer find under its name: they would have another book."""
        try:
            found = self.path.stat()
        except OSError as error:
            raise ConfigurationError(f"claims book {self.path}: {error}; end all edges first") from error
        if (found.st_dev, found.st_ino) != self._file:
            raise ConfigurationError(
                f"claims book {self.path}: replaced while this process used it; end all edges of this state directory"
            )

    def _prepare(self) -> None:
        """Make the tables, and enter the ledgers that the book does not know."""
        try:
            self.path.chmod(0o600)
            self._connection.execute("PRAGMA journal_mode = WAL")
            self._connection.execute("PRAGMA synchronous = FULL")
            self._connection.execute("PRAGMA fullfsync = ON")
        except (OSError, sqlite3.Error) as error:
            raise ConfigurationError(f"claims book {self.path}: {error}") from error
        with self.transaction() as connection:
            [(version,)] = connection.execute("PRAGMA user_version")
            if version not in (0, _VERSION):
                raise ConfigurationError(
                    f"claims book {self.path}: version {version}, and this program reads version {_VERSION}; update it"
                )
            if version == 0:
                for statement in _SCHEMA.strip().split(";\n"):
                    connection.execute(statement)
            known = {name for (name,) in connection.execute("SELECT name FROM slot")}
            for path in sorted(self.state_dir.glob(f"*/{FILE_NAME}")):
                if path.parent.name not in known:
                    self._enter(connection, path.parent)

    def _enter(self, connection: sqlite3.Connection, directory: Path) -> None:
        """Write down what a ledger of unknown history has opened; where its edge lives, it holds the last of it."""
        connection.execute("INSERT INTO slot VALUES (?)", (directory.name,))
        with ledger_snapshot(directory) as ledger:
            for standing in ledger.standings():
                write_opened(connection, directory.name, standing.account)
                write_claim(connection, directory.name, standing.account, budgeted=True)


@dataclass(slots=True)
class SlotClaims:
    """The siblings of the ledger in one slot (edge.siblings.Siblings)."""

    book: ClaimsBook
    slot: str
    held: bool = False  # there may be a claim of this slot

    def claim(self, account: Account, *, budgeted: bool, replace_budget: bool) -> Neighbours:
        """Hold the account's shard; refuse where a living sibling could pass the budget together with it."""
        shard = account.shard
        with self.book.transaction() as connection:
            connection.execute("INSERT OR IGNORE INTO slot VALUES (?)", (self.slot,))
            if replace_budget:
                self._replace_budgets(connection, account)
            budgets = frozenset(budget for budget, _ in self._budgets(connection, shard))
            mine = Claim(self.slot, shard, budgeted or bool(budgets))
            check_claims(mine, self._living(connection, mine))
            write_claim(connection, self.slot, account, budgeted=mine.budgeted)
            write_opened(connection, self.slot, account)
            self.held = True
        # Under a budget nobody else may debit what overlaps from here on, until the release.
        return Neighbours(budgets, tuple(self._spent(shard)) if mine.budgeted else ())

    def confirm(self) -> None:
        """Raise ConfigurationError where the claim is no longer in the book that others read."""
        with self.book.transaction() as connection:
            if not connection.execute("SELECT 1 FROM claim WHERE slot = ?", (self.slot,)).fetchall():
                raise ConfigurationError(
                    f"claims book {self.book.path}: the claim of slot {self.slot!r} is gone; end all edges of this"
                    " state directory and start again"
                )

    def keeps_budget(self, shard: ShardIdentity) -> bool:
        with self.book.transaction() as connection:
            return any(not seeded for _, seeded in self._budgets(connection, shard))

    def release(self) -> None:
        with suppress(ConfigurationError):  # then the claim ends with this process, which holds the slot
            self.withdraw()

    def withdraw(self) -> None:
        """Strike the claim out of the book."""
        if self.held:
            with self.book.transaction() as connection:
                connection.execute("DELETE FROM claim WHERE slot = ?", (self.slot,))
            self.held = False

    def _beside(self, shard: ShardIdentity) -> tuple[str, str, str, int]:
        """Return the parameters of _NOT_BESIDE."""
        return self.slot, shard.dataset, shard.partition, shard.index

    def _budgets(self, connection: sqlite3.Connection, shard: ShardIdentity) -> Iterator[tuple[Budget, bool]]:
        rows = connection.execute(
            f"SELECT {_COLUMNS}, total_epsilon, total_delta, seeded FROM budget WHERE {_NOT_BESIDE}",
            self._beside(shard),
        )
        for *columns, epsilon, delta, seeded in rows:
            if read_shard(columns).overlaps(shard):
                yield Budget(epsilon, delta), bool(seeded)

    def _living(self, connection: sqlite3.Connection, mine: Claim) -> Iterator[Claim]:
        rows = connection.execute(
            f"SELECT slot, {_COLUMNS}, budgeted FROM claim WHERE (budgeted OR ?) AND {_NOT_BESIDE}",
            (int(mine.budgeted), *self._beside(mine.shard)),
        ).fetchall()
        for slot, *columns, budgeted in rows:
            if is_held(self.book.state_dir / slot):
                yield Claim(slot, read_shard(columns), bool(budgeted))

    def _spent(self, shard: ShardIdentity) -> Iterator[ShardSpent]:
        """Read what the siblings spent on records of the shard, in their ledgers."""
        with self.book.transaction() as connection:
            rows = connection.execute(
                f"SELECT slot, {_COLUMNS} FROM opened WHERE {_NOT_BESIDE}", self._beside(shard)
            ).fetchall()
        slots = {slot for slot, *columns in rows if read_shard(columns).overlaps(shard)}
        for slot in sorted(slots):
            directory = self.book.state_dir / slot
            if not (directory / FILE_NAME).exists():
                raise ConfigurationError(
                    f"ledger {directory / FILE_NAME}: missing, and it was opened on records of this run; restore it."
                    " Under --total-epsilon what it spent must be known"
                )
            with ledger_snapshot(directory) as ledger:
                for standing in ledger.standings():
                    if standing.charges and standing.account.shard.overlaps(shard):
                        yield standing.of_shard

    def _replace_budgets(self, connection: sqlite3.Connection, account: Account) -> None:
        """Put the new budget in the place of all that were set for these records, whichever ledger has them."""
        rows = connection.execute(f"SELECT DISTINCT slot, {_COLUMNS} FROM budget").fetchall()
        for slot, *columns in rows:
            shard = read_shard(columns)
            if shard.overlaps(account.shard):
                connection.execute(
                    "DELETE FROM budget WHERE slot = ? AND dataset = ? AND partition = ? AND shard = ?",
                    (slot, shard.dataset, shard.partition, shard.index),
                )
                write_budget(connection, slot, replace(account, shard=shard))


def write_claim(connection: sqlite3.Connection, slot: str, account: Account, *, budgeted: bool) -> None:
    values = (slot, *_shard(account.shard), int(budgeted))
    connection.execute("INSERT OR REPLACE INTO claim VALUES (?, ?, ?, ?, ?, ?)", values)


def write_opened(connection: sqlite3.Connection, slot: str, account: Account) -> None:
    values = (slot, *_shard(account.shard))
    connection.execute("INSERT OR IGNORE INTO opened VALUES (?, ?, ?, ?, ?)", values)
    write_budget(connection, slot, account)


def write_budget(connection: sqlite3.Connection, slot: str, account: Account) -> None:
    if (budget := account.operator_budget) is not None:
        values = (slot, *_shard(account.shard), budget.epsilon, budget.delta, int(account.reproducible))
        connection.execute("INSERT OR IGNORE INTO budget VALUES (?, ?, ?, ?, ?, ?, ?, ?)", values)


def read_shard(columns: list[Any]) -> ShardIdentity:
    dataset, partition, shard, disjoint = columns
    return ShardIdentity(dataset, partition, shard, bool(disjoint))


def _shard(shard: ShardIdentity) -> tuple[str, str, int, int]:
    return shard.dataset, shard.partition, shard.index, int(shard.disjoint)

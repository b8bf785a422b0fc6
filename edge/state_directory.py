"""A state directory: one slot with a ledger for each edge, and one SQLite file that they share.

A budget is a ceiling on the records, whichever edges of the directory release them. So each edge claims its shard in
the shared file before it opens its ledger; a claim counts while a living process holds the slot. The file remembers
which ledger was opened on which shard, so that a claim need not read all ledgers, and the schemas of the owner's
records. Without the file the claims are made again from the ledgers.
"""

from __future__ import annotations

import fcntl
import os
import secrets
import sqlite3
import threading
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import astuple, dataclass
from pathlib import Path
from typing import Any

from common.accounting.releases import Budget, ShardSpent
from common.errors import ConfigurationError
from common.records.regular import open_regular, regular_bytes, sync_path
from edge.ledger import Account, Neighbours, ShardIdentity
from edge.policy import Claim, check_claims
from edge.sqlite_ledger import FILE_NAME, ledger_snapshot

STATE_FILE = "state.sqlite3"
FORMER_FILES = ("claims.sqlite3", "local-data.sqlite3")
TIMEOUT = 60.0  # seconds for the transactions of other processes, each of them short
_MOST_SLOTS = 10_000
_SECRET = 32  # bytes
_VERSION = 1
_SHARD = "dataset, partition, shard, disjoint"
# In `held`, dataset is NULL where a slot has no claim; in `opened`, epsilon is 0 where an account has no budget.
_SCHEMA = f"""
CREATE TABLE directory (id TEXT NOT NULL) STRICT;
INSERT INTO directory VALUES (lower(hex(randomblob(16))));
CREATE TABLE schema (name TEXT PRIMARY KEY, text TEXT NOT NULL) STRICT;
CREATE TABLE held (
  slot TEXT PRIMARY KEY, dataset TEXT, partition TEXT, shard INTEGER, disjoint INTEGER, budgeted INTEGER
) STRICT;
CREATE TABLE opened (
  slot TEXT NOT NULL, dataset TEXT NOT NULL, partition TEXT NOT NULL, shard INTEGER NOT NULL,
  disjoint INTEGER NOT NULL, epsilon REAL NOT NULL, delta REAL NOT NULL, seeded INTEGER NOT NULL,
  PRIMARY KEY (slot, dataset, partition, shard, epsilon, delta, seeded)
) STRICT;
PRAGMA user_version = {_VERSION};
"""


def is_held(directory: Path) -> bool:
    """Tell whether a living process holds this slot; one that cannot be looked at counts as held."""
    if not directory.is_dir():
        return False
    try:
        with _only_one_looks(directory.parent):
            descriptor = _lock(directory)
    except OSError:
        return True
    if descriptor is not None:
        os.close(descriptor)
    return descriptor is None


def _lock(directory: Path) -> int | None:
    """Take the slot's lock; None if another process has it."""
    descriptor = open_regular(directory / "lock", os.O_RDWR | os.O_CREAT, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(descriptor)
        return None
    return descriptor


@contextmanager
def _only_one_looks(state_dir: Path) -> Iterator[None]:
    """Let one process look at a time: a slot that is tried for a moment must not pass for a taken one."""
    state_dir.mkdir(parents=True, exist_ok=True)
    descriptor = open_regular(state_dir / ".lock", os.O_RDWR | os.O_CREAT, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


class StateDirectory:
    """The file that all edges of a state directory share; any number of processes may have it open."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.path = folder / STATE_FILE
        self._turn = threading.Lock()  # an edge may end while another one opens its ledger in the background
        for name in FORMER_FILES:
            if (folder / name).exists():
                raise ConfigurationError(
                    f"state directory {str(folder)!r}: {name} was written by an earlier version of this program, whose"
                    " accounts this one does not read; go on with that version, or use a new --state-dir"
                )
        try:
            folder.mkdir(parents=True, exist_ok=True)
            self._connection = sqlite3.connect(
                self.path, timeout=TIMEOUT, isolation_level=None, check_same_thread=False
            )
            self.path.chmod(0o600)
            opened = self.path.stat()
            self._file = opened.st_dev, opened.st_ino
        except (OSError, sqlite3.Error) as error:
            raise ConfigurationError(f"state file {self.path}: cannot be opened: {error}") from error
        try:
            self._prepare()
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        self._connection.close()

    def take(self, names: Sequence[str] | None = None) -> Slot:
        """Take the first free slot of 0, 1, … or of the names: a restarted edge finds its ledger.

        A claim of an earlier process ends.
        """
        slot = self._first_free([str(number) for number in range(_MOST_SLOTS)] if names is None else names)
        slot.withdraw()  # not while others wait to look at a slot, in transactions of theirs
        return slot

    def _first_free(self, names: Sequence[str]) -> Slot:
        try:
            with _only_one_looks(self.folder):
                for name in names:
                    directory = self.folder / name
                    directory.mkdir(parents=True, exist_ok=True)
                    if (descriptor := _lock(directory)) is not None:
                        return Slot(self, directory, descriptor)
        except OSError as error:
            raise ConfigurationError(f"state directory {str(self.folder)!r}: {error}") from error
        raise ConfigurationError(f"state directory {str(self.folder)!r}: all {len(names)} places are taken")

    def identity(self) -> str:
        """Return the directory's id, which moves with it."""
        with self.transaction() as connection:
            [(identity,)] = connection.execute("SELECT id FROM directory")
        return str(identity)

    def keep_schema(self, name: str, text: str, *, replace: bool) -> str:
        """Return the schema that is kept for data of this name: the first one, or this one if it replaces it."""
        with self.transaction() as connection:
            conflict = "REPLACE" if replace else "IGNORE"
            connection.execute(f"INSERT OR {conflict} INTO schema VALUES (?, ?)", (name, text))
            [(kept,)] = connection.execute("SELECT text FROM schema WHERE name = ?", (name,))
        return str(kept)

    @contextmanager
    def transaction(self) -> Iterator[sqlite3.Connection]:
        """Keep all other threads and processes from reading and writing; roll back after an error."""
        connection = self._connection
        self._check_file()
        try:
            with self._turn:
                connection.execute("BEGIN IMMEDIATE")
                try:
                    yield connection
                    connection.execute("COMMIT")
                finally:
                    if connection.in_transaction:
                        connection.execute("ROLLBACK")
        except sqlite3.Error as error:
            raise ConfigurationError(
                f"state file {self.path}: {error}. It can be made again: end all edges of this state directory and"
                " remove the file, never a ledger; data of your own then need --take-data once"
            ) from error

    def _check_file(self) -> None:
        """Refuse a file that others no longer find under its name: they would use another one."""
        try:
            now = self.path.stat()
        except OSError as error:
            raise ConfigurationError(f"state file {self.path}: {error}; end all edges first") from error
        if (now.st_dev, now.st_ino) != self._file:
            raise ConfigurationError(
                f"state file {self.path}: replaced while this process used it; end all edges of this state directory"
            )

    def _prepare(self) -> None:
        """Create the tables, and enter the ledgers that the file does not know."""
        with self.transaction() as connection:
            connection.execute("PRAGMA fullfsync = ON")
            [(version,)] = connection.execute("PRAGMA user_version")
            if version not in (0, _VERSION):
                raise ConfigurationError(
                    f"state file {self.path}: version {version}, and this program reads version {_VERSION}; update it"
                )
            if version == 0:
                for statement in _SCHEMA.strip().split(";\n"):
                    connection.execute(statement)
            known = {slot for (slot,) in connection.execute("SELECT slot FROM held")}
            for path in sorted(self.folder.glob(f"*/{FILE_NAME}")):
                if path.parent.name not in known:
                    _enter(connection, path.parent)


def directory_id(folder: Path) -> str | None:
    """Return the id of a state directory; None if there is no such directory any more."""
    try:
        # to be written: an edge that was killed in a transaction left it to the next reader to roll back
        uri = f"{(folder / STATE_FILE).as_uri()}?mode=rw"
        with closing(sqlite3.connect(uri, uri=True, timeout=TIMEOUT)) as connection:
            [(identity,)] = connection.execute("SELECT id FROM directory")
    except (OSError, sqlite3.Error, ValueError):
        return None
    return str(identity)


@dataclass(slots=True)
class Slot:
    """One edge's own directory, held by a lock until closed or until the process ends; and the claims of its ledger."""

    state: StateDirectory
    directory: Path
    _descriptor: int

    @property
    def name(self) -> str:
        return self.directory.name

    def close(self) -> None:
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1

    def secret(self, name: str) -> bytes:
        """Return 32 random bytes that this edge keeps, made where there are none; on disk before they are used."""
        path = self.directory / name
        with suppress(FileNotFoundError):
            found = regular_bytes(path, _SECRET)
            if len(found) == _SECRET:
                return found
        made, beside = secrets.token_bytes(_SECRET), path.with_name(f"{name}.new")
        descriptor = os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
        try:
            os.write(descriptor, made)
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
        beside.replace(path)
        sync_path(self.directory)
        return made

    def claim(self, account: Account, *, budgeted: bool, replace_budget: bool) -> Neighbours:
        """Hold the account's shard until `release`; `budgeted`: this ledger has an operator's budget for it.

        PolicyError where a living sibling holds records of it and either of the two has a budget.
        """
        shard = account.shard
        with self.state.transaction() as connection:
            if replace_budget:
                _replace_budgets(connection, account)
            budgets = frozenset(budget for budget, _ in self._budgets(connection, shard))
            mine = Claim(self.name, shard, budgeted or bool(budgets))
            check_claims(mine, self._living(connection, mine))
            _write_claim(connection, mine)
            _write_opened(connection, self.name, account)
        # Under a budget no sibling may debit what overlaps from here on, until the release.
        return Neighbours(budgets, tuple(self._spent(shard)) if mine.budgeted else ())

    def confirm(self) -> None:
        """Raise ConfigurationError if the claim no longer stands: the accountant may have taken long."""
        query = "SELECT 1 FROM held WHERE slot = ? AND dataset IS NOT NULL"
        with self.state.transaction() as connection:
            if not connection.execute(query, (self.name,)).fetchall():
                raise ConfigurationError(
                    f"state file {self.state.path}: the claim of slot {self.name!r} is gone; end all edges of this"
                    " state directory and start again"
                )

    def keeps_budget(self, shard: ShardIdentity) -> bool:
        """Tell whether the operator set a budget for these records in another ledger, in a run without a seed."""
        with self.state.transaction() as connection:
            return any(not seeded for _, seeded in self._budgets(connection, shard))

    def release(self) -> None:
        """Let the shard go; nothing more is debited until the next claim."""
        with suppress(ConfigurationError):  # then the claim ends with this process, which holds the slot
            self.withdraw()

    def withdraw(self) -> None:
        with self.state.transaction() as connection:
            connection.execute("UPDATE held SET dataset = NULL WHERE slot = ?", (self.name,))

    def _budgets(self, connection: sqlite3.Connection, shard: ShardIdentity) -> Iterator[tuple[Budget, bool]]:
        near = self._near(connection, shard, "opened", "epsilon, delta, seeded", "epsilon > 0")
        for _, (epsilon, delta, seeded) in near:
            yield Budget(epsilon, delta), bool(seeded)

    def _living(self, connection: sqlite3.Connection, mine: Claim) -> Iterator[Claim]:
        held = "dataset IS NOT NULL" if mine.budgeted else "dataset IS NOT NULL AND budgeted"
        for shard, (slot, budgeted) in self._near(connection, mine.shard, "held", "slot, budgeted", held):
            if is_held(self.state.folder / slot):
                yield Claim(slot, shard, bool(budgeted))

    def _spent(self, shard: ShardIdentity) -> Iterator[ShardSpent]:
        """Read what the siblings spent on records of the shard, in their ledgers."""
        with self.state.transaction() as connection:
            slots = {slot for _, (slot,) in self._near(connection, shard, "opened", "slot", "TRUE")}
        for slot in sorted(slots):
            directory = self.state.folder / slot
            if not (directory / FILE_NAME).exists():
                raise ConfigurationError(
                    f"ledger {directory / FILE_NAME}: missing, and it was opened on records of this run; restore it."
                    " Under --total-epsilon what it spent must be known"
                )
            with ledger_snapshot(directory) as ledger:
                for standing in ledger.standings():
                    if standing.charges and standing.account.shard.overlaps(shard):
                        yield standing.of_shard

    def _near(
        self, connection: sqlite3.Connection, shard: ShardIdentity, table: str, columns: str, condition: str
    ) -> Iterator[tuple[ShardIdentity, list[Any]]]:
        """Yield what other slots have noted of shards that may share records with this one.

        The query leaves out those that are surely beside it: different ones of the same disjoint cut.
        """
        rows = connection.execute(
            f"SELECT DISTINCT {_SHARD}, {columns} FROM {table} WHERE {condition} AND slot != ?"
            " AND NOT (dataset = ? AND partition = ? AND disjoint AND shard != ?)",
            (self.name, shard.dataset, shard.partition, shard.index),
        ).fetchall()
        for dataset, partition, index, disjoint, *values in rows:
            other = ShardIdentity(dataset, partition, index, bool(disjoint))
            if other.overlaps(shard):
                yield other, values


def _enter(connection: sqlite3.Connection, directory: Path) -> None:
    """Write down what a ledger of unknown history has opened; if its edge lives, it holds the last of it."""
    slot = directory.name
    connection.execute("INSERT INTO held (slot) VALUES (?)", (slot,))
    with ledger_snapshot(directory) as ledger:
        for standing in ledger.standings():
            _write_opened(connection, slot, standing.account)
            _write_claim(connection, Claim(slot, standing.account.shard, budgeted=True))


def _write_claim(connection: sqlite3.Connection, claim: Claim) -> None:
    values = (claim.slot, *astuple(claim.shard), int(claim.budgeted))
    connection.execute("INSERT OR REPLACE INTO held VALUES (?, ?, ?, ?, ?, ?)", values)


def _write_opened(connection: sqlite3.Connection, slot: str, account: Account) -> None:
    values = (slot, *astuple(account.shard), *_terms(account))
    connection.execute("INSERT OR IGNORE INTO opened VALUES (?, ?, ?, ?, ?, ?, ?, ?)", values)


def _replace_budgets(connection: sqlite3.Connection, account: Account) -> None:
    """Put the new budget in the place of all that were set for these records, whichever ledger has them."""
    rows = connection.execute(f"SELECT DISTINCT slot, {_SHARD} FROM opened WHERE epsilon > 0").fetchall()
    for slot, *columns in rows:
        shard = ShardIdentity(*columns)
        if shard.overlaps(account.shard):
            connection.execute(
                "UPDATE OR REPLACE opened SET epsilon = ?, delta = ?, seeded = ?"
                " WHERE epsilon > 0 AND slot = ? AND dataset = ? AND partition = ? AND shard = ?",
                (*_terms(account), slot, shard.dataset, shard.partition, shard.index),
            )


def _terms(account: Account) -> tuple[float, float, int]:
    """Return the operator's budget and whether the run is seeded; ε = 0: the operator set no budget."""
    budget = account.operator_budget
    return (0.0, 0.0, 0) if budget is None else (budget.epsilon, budget.delta, int(account.reproducible))

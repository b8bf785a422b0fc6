"""A ledger on disk: accounts in SQLite, later debits in a journal; and a read-only copy of one in use.

SQLite names the journal and this ledger's part in it before the first debit. Every later write there takes over what
the journal has of this ledger and ends its part, in one transaction: a debit counts in one of the two, never in none.
"""

from __future__ import annotations

import contextlib
import errno
import itertools
import json
import os
import re
import secrets
import shutil
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any, Self
from urllib.parse import quote

from common.accounting.releases import Budget, ReleaseKind
from common.errors import ConfigurationError, LedgerUnavailableError
from common.quantities import EdgeId, RunId
from common.records.regular import open_below, sync_path
from edge.journal import FILES, DebitJournal, Journals, read_debits
from edge.ledger import Account, Accountant, AccountEntry, Keep, Ledger, ShardIdentity, new_edge_id

if TYPE_CHECKING:
    from edge.state_directory import Slot

FILE_NAME = "ledger.sqlite3"
_APPLICATION = 0x4D415041  # "MAPA"
_VERSION = 7
_STEP, _MOST_STEPS = 10_000, 2_000  # instructions of SQLite, in which a ledger of 100,000 runs is opened

_SCHEMA = f"""
PRAGMA page_size = 8192;
PRAGMA journal_mode = WAL;
PRAGMA application_id = {_APPLICATION};
PRAGMA user_version = {_VERSION};
CREATE TABLE edge (id TEXT NOT NULL);
CREATE TABLE account (
  position INTEGER PRIMARY KEY,
  edge_id TEXT NOT NULL, run TEXT NOT NULL,
  dataset TEXT NOT NULL, partition TEXT NOT NULL, shard INTEGER NOT NULL, disjoint INTEGER NOT NULL,
  mechanism TEXT NOT NULL,
  total_epsilon REAL, total_delta REAL, own_budget INTEGER NOT NULL, reproducible INTEGER NOT NULL,
  most_releases INTEGER, sum_epsilon REAL, sum_delta REAL,
  last_sequence INTEGER NOT NULL DEFAULT 0, charges INTEGER NOT NULL DEFAULT 0,
  UNIQUE (edge_id, run)
) STRICT;
CREATE TABLE outbox (
  edge_id TEXT NOT NULL, run TEXT NOT NULL, sequence INTEGER NOT NULL, payload BLOB NOT NULL,
  PRIMARY KEY (edge_id, run, sequence)
) STRICT;
CREATE TABLE journal (id BLOB NOT NULL, member BLOB NOT NULL) STRICT;
"""
_LONGEST = 1 << 16  # characters of a text in an account
_COMPUTES = re.compile(r"\b(as|check|generated|virtual)\b", re.IGNORECASE)  # in what makes a table
# the columns of an account's terms
TERMS = (
    *("edge_id", "run", "dataset", "partition", "shard", "disjoint", "mechanism"),
    *("total_epsilon", "total_delta", "own_budget", "reproducible", "most_releases"),
    *("sum_epsilon", "sum_delta"),
)
_KEPT = (*TERMS, "last_sequence", "charges")
_UPSERT = (
    f"INSERT INTO account ({', '.join(TERMS)}) VALUES ({', '.join(':' + term for term in TERMS)})"
    " ON CONFLICT (edge_id, run) DO UPDATE SET total_epsilon = excluded.total_epsilon,"
    " total_delta = excluded.total_delta, own_budget = excluded.own_budget, reproducible = excluded.reproducible,"
    " sum_epsilon = excluded.sum_epsilon, sum_delta = excluded.sum_delta"
)
_DEBIT = "UPDATE account SET last_sequence = ?, charges = ? WHERE edge_id = ? AND run = ?"
_DROP = "DELETE FROM outbox WHERE edge_id = ? AND run = ? AND sequence <= ?"
_KEEP = "INSERT OR REPLACE INTO outbox VALUES (?, ?, ?, ?)"
# what parsing a file of unknown origin may raise
_FAULTS = (
    *(sqlite3.Error, ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError),
    ConfigurationError,
)


class SqliteLedger(Ledger):
    """The files of one slot of a state directory, held by one process at a time, readable by their owner only."""

    def __init__(
        self,
        directory: Path,
        edge_id: EdgeId | None = None,
        *,
        accountant: Accountant | None = None,
        slot: Slot | None = None,
        journals: Journals | None = None,
    ) -> None:
        """Open the ledger of this directory; create it where there is none, with this id or a new one.

        Ledgers with the same `journals` are synced together; without, every debit is durable when `debit` returns.
        """
        self.path = directory / FILE_NAME
        self._journals = Journals() if journals is None else journals
        self._journal: tuple[DebitJournal, bytes] | None = (
            None  # where debits go, and this ledger's name there
        )
        super().__init__(accountant=accountant, slot=slot)
        if not self.path.exists():
            _create(self.path, edge_id or new_edge_id())
        connection = _connect(self.path)
        self._connection: sqlite3.Connection | None = connection
        try:
            version = _check(connection)
            if version == _VERSION:
                self._load(connection)
        except _FAULTS as error:
            connection.close()
            if getattr(error, "sqlite_errorcode", 0) & 0xFF == sqlite3.SQLITE_BUSY:
                problem = "another process holds it; one ledger serves one edge at a time"
            else:
                what = "nested too deeply" if isinstance(error, RecursionError) else error
                problem = (
                    f"damaged ({what}); restore it from a copy. A new one would forget what was spent on this edge's"
                    " records"
                )
            raise ConfigurationError(f"ledger {self.path}: {problem}") from error
        wrong = ""
        if version > _VERSION:
            wrong = f"version {version}, and this program reads version {_VERSION}; update it"
        elif version < _VERSION:
            wrong = (
                f"version {version} of an earlier release, and this one reads version {_VERSION}. What was spent stays"
                " spent: continue with the release that wrote it, or let these records rest and take part with others"
                " (--state-dir). A new ledger would forget what was spent on this edge's records"
            )
        elif edge_id is not None and self._edge_id != edge_id:
            wrong = f"of edge {self._edge_id!r}, not of {edge_id!r}"
        if wrong:
            connection.close()
            raise ConfigurationError(f"ledger {self.path}: {wrong}")

    def close(self) -> None:
        """Write down what the journal has; release the file, and then the shard."""
        try:
            if self._connection is not None and self._journal is not None:
                self._commit([])
        except LedgerUnavailableError:
            pass  # the journal stays, and says it to the next who opens this ledger
        finally:
            self._give_up()
            super().close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _save_identity(self, edge_id: EdgeId) -> None:
        self._commit([("UPDATE edge SET id = ?", (edge_id,)), ("DELETE FROM outbox", ())])

    def _save_terms(self, entries: list[AccountEntry]) -> None:
        self._commit([(_UPSERT, {"edge_id": entry.edge_id, **_row_of(entry.account)}) for entry in entries])

    def _save_charge(self, entry: AccountEntry, through: int, charges: int) -> None:
        self._commit([(_DEBIT, (through, charges, *entry.key)), (_DROP, (*entry.key, through))])

    def _keep_debits(self) -> Keep:
        """Take part in a journal, and write that down before anything is debited there."""
        self._usable()
        try:
            journal, member = self._journals.join(self.path.parent)
        except OSError as error:
            raise self._unavailable(error.strerror or error) from error
        self._execute([("INSERT INTO journal VALUES (?, ?)", (journal.id, member))])
        self._journal = journal, member
        return partial(journal.append, member)

    def _commit(self, statements: list[tuple[str, Any]]) -> None:
        """Take over what the journal has, end this ledger's part in it, and make these changes: all or nothing."""
        if self._journal is not None:
            self._journal[0].commit()
        taken: list[tuple[str, Any]] = [("DELETE FROM journal", ())]
        debited = [entry for entry in self._entries.values() if not entry.saved]
        for entry in debited:
            taken.append((_DEBIT, (entry.last_sequence, entry.charges, *entry.key)))
            taken.append((_DROP, (*entry.key, entry.acknowledged)))
            taken += ((_KEEP, (*entry.key, *item)) for item in entry.outbox.items())
        self._execute([*taken, *statements])
        for entry in debited:
            entry.saved = True
        if self._journal is not None:
            journal, member = self._journal
            journal.leave(member)
            self._journal = self._keep = None

    def _execute(self, statements: list[tuple[str, Any]]) -> None:
        connection = self._usable()
        try:
            connection.execute("BEGIN IMMEDIATE")
            for statement, values in statements:
                connection.execute(statement, values)
            connection.execute("COMMIT")
        except sqlite3.Error as error:
            self._give_up()
            raise self._unavailable(error) from error

    def _usable(self) -> sqlite3.Connection:
        if self._connection is None:
            raise ConfigurationError(f"ledger {self.path}: closed")
        return self._connection

    def _unavailable(self, problem: object) -> LedgerUnavailableError:
        return LedgerUnavailableError(f"ledger {self.path}: {problem}; nothing more is released")

    def _give_up(self) -> None:
        """Whether a write reached the disk is unknown: only a fresh look at the files may go on."""
        connection, self._connection = self._connection, None
        self._keep = None
        if connection is not None:
            connection.close()

    def _load(self, connection: sqlite3.Connection) -> None:
        [(self._edge_id,)] = connection.execute("SELECT id FROM edge LIMIT 2").fetchall()
        for values in connection.execute(f"SELECT {', '.join(_KEPT)} FROM account ORDER BY position"):
            row = dict(zip(_KEPT, values, strict=True))
            entry = AccountEntry(row["edge_id"], _account_of(row), row["last_sequence"], row["charges"])
            self._entries[entry.key] = entry
        for edge_id, run, sequence, payload in connection.execute(
            "SELECT edge_id, run, sequence, payload FROM outbox"
        ):
            self._entries[edge_id, run].outbox[sequence] = payload
        for journal, member in connection.execute("SELECT id, member FROM journal LIMIT 1"):
            self._replay(journal, member)
        connection.set_progress_handler(None, 0)  # it may work for as long as its edge lives

    def _replay(self, journal: bytes, member: bytes) -> None:
        """Continue with what a process that did not end in good order has debited."""
        known = {key: entry.last_sequence for key, entry in self._entries.items()}
        try:
            debits = read_debits(self.path.parent, journal, member)
        except OSError as error:
            raise ValueError(
                f"its last debits are in {' and '.join(FILES)} beside it, which cannot be read: {error.strerror}"
            ) from error
        for debit in sorted(debits, key=lambda debit: debit.sequence):
            entry = self._entries[debit.key]
            if debit.sequence > known[debit.key]:
                entry.last_sequence, entry.charges = debit.sequence, debit.charges
                entry.outbox[debit.sequence] = debit.payload
                entry.acknowledged = max(entry.acknowledged, debit.acknowledged)
                entry.saved = False
        for entry in self._entries.values():
            entry.outbox = {n: kept for n, kept in entry.outbox.items() if n > entry.acknowledged}


def _create(path: Path, edge_id: EdgeId) -> None:
    """Put a whole new ledger in its place at once: a half-made one is never taken for an empty one."""
    path.parent.mkdir(parents=True, exist_ok=True)
    draft = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
    try:
        os.close(os.open(draft, os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o600))
        with contextlib.closing(sqlite3.connect(draft, isolation_level=None)) as connection:
            connection.executescript(_SCHEMA)
            connection.execute("INSERT INTO edge VALUES (?)", (edge_id,))
        sync_path(draft)  # the last to close has folded the WAL into the file
        os.link(draft, path)
        sync_path(path.parent)
    except FileExistsError:
        pass  # another process was first; the lock decides
    except (OSError, sqlite3.Error) as error:
        raise ConfigurationError(f"ledger {path}: cannot be created: {error}") from error
    finally:
        for suffix in ("", "-wal", "-shm"):  # a full disk keeps the WAL from being folded in
            Path(f"{draft}{suffix}").unlink(missing_ok=True)


def _connect(path: Path) -> sqlite3.Connection:
    uri = f"file:{quote(str(path.absolute()))}?mode=rw"
    try:
        path.chmod(0o600)
        return sqlite3.connect(uri, uri=True, timeout=0, isolation_level=None, check_same_thread=False)
    except (OSError, sqlite3.Error) as error:
        raise ConfigurationError(f"ledger {path}: cannot be opened: {error}") from error


def _check(connection: sqlite3.Connection) -> int:
    """Take the file, and return its version; raise sqlite3.Error if it is held, or is no ledger.

    A file of unknown origin may ask for work without end: what takes longer than a ledger can is ended. It may hold
    views, triggers, virtual tables and columns, which compute, without end or of any size: no ledger has them.
    """
    connection.execute("PRAGMA locking_mode = EXCLUSIVE")  # before the first read: held until closed
    connection.execute("PRAGMA synchronous = FULL")
    connection.execute("PRAGMA wal_autocheckpoint = 256")  # 2 MB: one machine may hold hundreds of ledgers
    connection.execute("PRAGMA fullfsync = ON")  # macOS: fsync alone does not reach the disk there
    steps = itertools.count()
    connection.set_progress_handler(lambda: int(next(steps) >= _MOST_STEPS), _STEP)
    [(application,)] = connection.execute("PRAGMA application_id")
    [(version,)] = connection.execute("PRAGMA user_version")
    if application != _APPLICATION:
        raise sqlite3.DatabaseError("not a ledger of this program")
    if version != _VERSION:
        return int(version)
    connection.execute("PRAGMA trusted_schema = OFF")
    for kind, name, made in connection.execute("SELECT type, name, sql FROM sqlite_master"):
        plain = made is None if kind == "index" else kind == "table" and not _COMPUTES.search(made or "")
        if not plain:
            raise sqlite3.DatabaseError(f"{kind} {name!r:.40}: a ledger has plain tables alone")
    connection.execute("BEGIN IMMEDIATE")  # refused where another process holds the file
    connection.execute("COMMIT")
    [(verdict, *_)] = connection.execute("PRAGMA quick_check(1)")
    if verdict != "ok":
        raise sqlite3.DatabaseError(verdict)
    return _VERSION


def _row_of(account: Account) -> dict[str, object]:
    budget, sums, shard = account.budget, account.sum_budget, account.shard
    return {
        "run": account.run,
        "dataset": shard.dataset,
        "partition": shard.partition,
        "shard": shard.index,
        "disjoint": shard.disjoint,
        "mechanism": json.dumps(account.kind.fields(), sort_keys=True, separators=(",", ":")),
        "total_epsilon": None if budget is None else budget.epsilon,
        "total_delta": None if budget is None else budget.delta,
        "own_budget": account.own_budget,
        "reproducible": account.reproducible,
        "most_releases": account.most_releases,
        "sum_epsilon": None if sums is None else sums.epsilon,
        "sum_delta": None if sums is None else sums.delta,
    }


def _account_of(row: dict[str, Any]) -> Account:
    """Return what a row says; raise one of _FAULTS where it is none."""
    if any(isinstance(value, str) and len(value) > _LONGEST for value in row.values()):
        raise ValueError(f"a text of more than {_LONGEST} characters")
    budget = None if row["total_epsilon"] is None else Budget(row["total_epsilon"], row["total_delta"])
    sums = None if row["sum_epsilon"] is None else Budget(row["sum_epsilon"], row["sum_delta"], in_sums=True)
    return Account(
        run=RunId(row["run"]),
        shard=ShardIdentity(row["dataset"], row["partition"], row["shard"], bool(row["disjoint"])),
        kind=ReleaseKind.of_fields(json.loads(row["mechanism"])),
        budget=budget,
        own_budget=bool(row["own_budget"]),
        reproducible=bool(row["reproducible"]),
        most_releases=row["most_releases"],
        sum_budget=sums,
    )


_TRIES = 20
_MOST = 1 << 29  # bytes of a ledger, or of its WAL: gradients of 256 MB wait in it at most
_HEADER = 128  # bytes of a WAL and of a journal that change whenever it begins anew


@contextmanager
def ledger_snapshot(directory: Path, below: Path | None = None) -> Iterator[SqliteLedger]:
    """Open a copy of this directory's ledger; nothing there is locked or written.

    No symbolic link is followed from `below` on, by default from the directory on.
    """
    folder = below or directory
    with TemporaryDirectory(prefix="mapa-ledger-") as place:
        _copy(folder, str((directory / FILE_NAME).relative_to(folder)), Path(place) / FILE_NAME)
        try:
            ledger = SqliteLedger(Path(place))
        except ConfigurationError as error:
            raise ConfigurationError(str(error).replace(place, str(directory))) from error
        with ledger:
            yield ledger


def _copy(folder: Path, name: str, to: Path) -> None:
    """Copy the database, its WAL and its journal so that they belong together.

    The database first: whatever a checkpoint changes in it meanwhile, torn pages included, the WAL has as
    well, until it begins anew. Then they are of different times, as where a file of the journal begins anew, and the
    copy is made again.
    """
    place = name.removesuffix(FILE_NAME)
    logs = {f"{name}-wal": Path(f"{to}-wal")} | {place + file: to.with_name(file) for file in FILES}
    try:
        for _ in range(_TRIES):
            before = [_head(folder, log) for log in logs]
            _write(folder, name, to)
            for log, log_to in logs.items():
                with contextlib.suppress(FileNotFoundError):
                    _write(folder, log, log_to)
            copied = [_head(log_to.parent, log_to.name) for log_to in logs.values()]
            if copied == before == [_head(folder, log) for log in logs]:
                return
            for log_to in logs.values():
                log_to.unlink(missing_ok=True)
    except OSError as error:
        raise ConfigurationError(
            f"ledger {folder / name}: cannot be read: {error.strerror or error}"
        ) from error
    raise ConfigurationError(f"ledger {folder / name}: changes faster than it can be copied; try again")


def _write(folder: Path, name: str, to: Path) -> None:
    with os.fdopen(open_below(folder, name), "rb") as stream:
        if os.fstat(stream.fileno()).st_size > _MOST:
            raise OSError(errno.EFBIG, f"more than {_MOST} bytes", str(folder / name))
        with to.open("wb") as copy:
            shutil.copyfileobj(stream, copy)


def _head(folder: Path, name: str) -> bytes:
    try:
        with os.fdopen(open_below(folder, name), "rb") as stream:
            return stream.read(_HEADER)
    except FileNotFoundError:
        return b""

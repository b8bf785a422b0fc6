"""A ledger on disk: SQLite in WAL mode, synced before a debit returns; and a read-only copy of one in use."""

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
from pathlib import Path
from tempfile import TemporaryDirectory
from types import TracebackType
from typing import Any, Self
from urllib.parse import quote

from common.accounting.releases import Budget, ReleaseKind
from common.errors import ConfigurationError, LedgerUnavailableError
from common.quantities import EdgeId, RunId
from common.records.regular import open_below, sync_path
from edge.ledger import Account, Accountant, Entry, MemoryLedger, ShardIdentity, Siblings, new_edge_id

FILE_NAME = "ledger.sqlite3"
_APPLICATION = 0x4D415041  # "MAPA"
_VERSION = 5
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
  most_releases INTEGER,
  last_sequence INTEGER NOT NULL DEFAULT 0, charges INTEGER NOT NULL DEFAULT 0,
  UNIQUE (edge_id, run)
) STRICT;
CREATE TABLE outbox (
  edge_id TEXT NOT NULL, run TEXT NOT NULL, sequence INTEGER NOT NULL, payload BLOB NOT NULL,
  PRIMARY KEY (edge_id, run, sequence)
) STRICT;
"""
_LONGEST = 1 << 16  # characters of a text in an account
_COMPUTES = re.compile(r"\b(as|check|generated|virtual)\b", re.IGNORECASE)  # in what makes a table
# the columns of an account's terms
TERMS = (
    *("edge_id", "run", "dataset", "partition", "shard", "disjoint", "mechanism"),
    *("total_epsilon", "total_delta", "own_budget", "reproducible", "most_releases"),
)


def create(path: Path, edge_id: EdgeId) -> None:
    """Put a whole new ledger in its place at once: a half-made one is never taken for an empty one."""
    path.parent.mkdir(parents=True, exist_ok=True)
    draft = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
    try:
        os.close(os.open(draft, os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o600))
        connection = sqlite3.connect(draft, isolation_level=None)
        try:
            connection.executescript(_SCHEMA)
            connection.execute("INSERT INTO edge VALUES (?)", (edge_id,))
        finally:
            connection.close()  # the last to close folds the WAL into the file
        sync_path(draft)
        os.link(draft, path)
        sync_path(path.parent)
    except FileExistsError:
        pass  # another process was first; the lock decides
    except (OSError, sqlite3.Error) as error:
        raise ConfigurationError(f"ledger {path}: cannot be created: {error}") from error
    finally:
        for suffix in ("", "-wal", "-shm"):  # a full disk keeps the WAL from being folded in
            Path(f"{draft}{suffix}").unlink(missing_ok=True)


def connect(path: Path) -> sqlite3.Connection:
    try:
        path.chmod(0o600)
        connection = sqlite3.connect(
            f"file:{quote(str(path.absolute()))}?mode=rw",
            uri=True,
            timeout=0,
            isolation_level=None,
            check_same_thread=False,
        )
    except (OSError, sqlite3.Error) as error:
        raise ConfigurationError(f"ledger {path}: cannot be opened: {error}") from error
    try:
        connection.execute("PRAGMA locking_mode = EXCLUSIVE")  # before the first read: held until closed
        connection.execute("PRAGMA synchronous = FULL")
        connection.execute(
            "PRAGMA wal_autocheckpoint = 256"
        )  # 2 MB: one machine may hold hundreds of ledgers
        connection.execute("PRAGMA fullfsync = ON")  # macOS: fsync alone does not reach the disk there
        _bound(connection)
        [(application,)] = connection.execute("PRAGMA application_id")
        [(version,)] = connection.execute("PRAGMA user_version")
        if application != _APPLICATION:
            raise sqlite3.DatabaseError("not a ledger of this program")
        if version != _VERSION:
            raise ConfigurationError(_of_another_version(path, version))
        _check_tables(connection)
        connection.execute("BEGIN IMMEDIATE")  # refused where another process holds the file
        connection.execute("COMMIT")
        [(verdict, *_)] = connection.execute("PRAGMA quick_check(1)")
        if verdict != "ok":
            raise sqlite3.DatabaseError(verdict)
    except sqlite3.Error as error:
        connection.close()
        if getattr(error, "sqlite_errorcode", 0) & 0xFF == sqlite3.SQLITE_BUSY:
            raise ConfigurationError(
                f"ledger {path}: another process holds it; one ledger serves one edge at a time"
            ) from error
        raise damaged(path, error) from error
    except UnicodeDecodeError as error:  # sqlite3 quotes the file in its own error
        connection.close()
        raise damaged(path, error) from error
    except ConfigurationError:
        connection.close()
        raise
    return connection


def _bound(connection: sqlite3.Connection) -> None:
    """End whatever takes longer than a ledger can: a file of somebody else's making may ask for work without end."""
    steps = itertools.count()
    connection.set_progress_handler(lambda: int(next(steps) >= _MOST_STEPS), _STEP)


def unbound(connection: sqlite3.Connection) -> None:
    """Let a ledger that was opened work for as long as its edge lives."""
    connection.set_progress_handler(None, 0)


def _check_tables(connection: sqlite3.Connection) -> None:
    """Refuse what no ledger has: views, triggers, virtual tables and columns compute, without end or of any size."""
    connection.execute("PRAGMA trusted_schema = OFF")
    for kind, name, made in connection.execute("SELECT type, name, sql FROM sqlite_master"):
        plain = made is None if kind == "index" else kind == "table" and not _COMPUTES.search(made or "")
        if not plain:
            raise sqlite3.DatabaseError(f"{kind} {name!r:.40}: a ledger has plain tables alone")


def _of_another_version(path: Path, version: int) -> str:
    if version > _VERSION:
        return f"ledger {path}: version {version}, and this program reads version {_VERSION}; update it"
    return (
        f"ledger {path}: version {version} of an earlier release, and this one reads version {_VERSION}. What was spent"
        " stays spent: go on with the release that wrote it, or let these records rest and take part with others"
        " (--state-dir). A new ledger would forget what was spent on this edge's records"
    )


def damaged(path: Path, error: Exception) -> ConfigurationError:
    return ConfigurationError(
        f"ledger {path}: damaged ({error}); restore it from a copy."
        " A new one would forget what was spent on this edge's records"
    )


def row_of(account: Account) -> dict[str, object]:
    budget = account.budget
    return {
        "run": account.run,
        "dataset": account.shard.dataset,
        "partition": account.shard.partition,
        "shard": account.shard.index,
        "disjoint": int(account.shard.disjoint),
        "mechanism": json.dumps(account.kind.fields(), sort_keys=True, separators=(",", ":")),
        "total_epsilon": None if budget is None else budget.epsilon,
        "total_delta": None if budget is None else budget.delta,
        "own_budget": int(account.own_budget),
        "reproducible": int(account.reproducible),
        "most_releases": account.most_releases,
    }


def account_of(row: dict[str, Any]) -> Account:
    """Return what a row says; ValueError and others where it is none."""
    if any(isinstance(value, str) and len(value) > _LONGEST for value in row.values()):
        raise ValueError(f"a text of more than {_LONGEST} characters")
    budget = None if row["total_epsilon"] is None else Budget(row["total_epsilon"], row["total_delta"])
    return Account(
        run=RunId(row["run"]),
        shard=ShardIdentity(row["dataset"], row["partition"], row["shard"], bool(row["disjoint"])),
        kind=ReleaseKind.of_fields(json.loads(row["mechanism"])),
        budget=budget,
        own_budget=bool(row["own_budget"]),
        reproducible=bool(row["reproducible"]),
        most_releases=row["most_releases"],
    )


_UPSERT = (
    f"INSERT INTO account ({', '.join(TERMS)}) VALUES ({', '.join(':' + term for term in TERMS)})"
    " ON CONFLICT (edge_id, run) DO UPDATE SET total_epsilon = excluded.total_epsilon,"
    " total_delta = excluded.total_delta, own_budget = excluded.own_budget, reproducible = excluded.reproducible"
)
_DEBIT = "UPDATE account SET last_sequence = ?, charges = ? WHERE edge_id = ? AND run = ?"
_DROP = "DELETE FROM outbox WHERE edge_id = ? AND run = ? AND sequence <= ?"


class SqliteLedger(MemoryLedger):
    """One file in the edge's state directory, held by one process at a time, readable by its owner only."""

    def __init__(
        self,
        directory: Path,
        edge_id: EdgeId | None = None,
        *,
        accountant: Accountant | None = None,
        siblings: Siblings | None = None,
    ) -> None:
        """Open the ledger of this directory; create it where there is none, with this id or a new one."""
        self.path = directory / FILE_NAME
        super().__init__(accountant=accountant, siblings=siblings)
        if not self.path.exists():
            create(self.path, edge_id or new_edge_id())
        self._connection: sqlite3.Connection | None = connect(self.path)
        try:
            [(known,)] = self._connection.execute("SELECT id FROM edge LIMIT 2").fetchall()
            self._edge_id = EdgeId(known)
            self._load(self._connection)
            unbound(self._connection)
        except RecursionError as error:
            self.close()
            raise damaged(self.path, ValueError("nested too deeply")) from error
        except (
            *(sqlite3.Error, ValueError, KeyError, TypeError, AttributeError, OverflowError),
            ConfigurationError,
        ) as error:
            self.close()
            raise damaged(self.path, error) from error
        if edge_id is not None and known != edge_id:
            self.close()
            raise ConfigurationError(f"ledger {self.path}: of edge {known!r}, not of {edge_id!r}")

    def close(self) -> None:
        """Write down what was acknowledged; release the file, and then the shard."""
        connection, self._connection = self._connection, None
        if connection is None:
            super().close()
            return
        try:
            if acknowledged := [(*key, e.acknowledged) for key, e in self._entries.items()]:
                connection.execute("BEGIN IMMEDIATE")
                connection.executemany(_DROP, acknowledged)
                connection.execute("COMMIT")
        except sqlite3.Error:
            pass  # what stays in the outbox is sent again, which is free
        finally:
            connection.close()
            super().close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _save_identity(self, edge_id: EdgeId) -> None:
        self._commit([("UPDATE edge SET id = ?", (edge_id,)), ("DELETE FROM outbox", ())])

    def _save_terms(self, entries: list[Entry]) -> None:
        self._commit([(_UPSERT, {"edge_id": entry.edge_id, **row_of(entry.account)}) for entry in entries])

    def _save_debit(self, entry: Entry, sequence: int, charges: int, payload: bytes) -> None:
        self._commit(
            [
                (_DEBIT, (sequence, charges, *entry.key)),
                (_DROP, (*entry.key, entry.acknowledged)),  # an acknowledgement needs no sync of its own
                ("INSERT INTO outbox VALUES (?, ?, ?, ?)", (*entry.key, sequence, payload)),
            ]
        )

    def _save_charge(self, entry: Entry, through: int, charges: int) -> None:
        self._commit([(_DEBIT, (through, charges, *entry.key)), (_DROP, (*entry.key, through))])

    def _commit(self, statements: list[tuple[str, Any]]) -> None:
        connection = self._connection
        if connection is None:
            raise ConfigurationError(f"ledger {self.path}: closed")
        try:
            connection.execute("BEGIN IMMEDIATE")
            for statement, values in statements:
                connection.execute(statement, values)
            connection.execute("COMMIT")
        except sqlite3.Error as error:
            # Whether it reached the disk is unknown: only a fresh look at the file may go on.
            self._connection = None
            connection.close()
            raise LedgerUnavailableError(f"ledger {self.path}: {error}; nothing more is released") from error

    def _load(self, connection: sqlite3.Connection) -> None:
        columns = (*TERMS, "last_sequence", "charges")
        for row in connection.execute(f"SELECT {', '.join(columns)} FROM account ORDER BY position"):
            fields = dict(zip(columns, row, strict=True))
            entry = Entry(
                EdgeId(fields["edge_id"]), account_of(fields), fields["last_sequence"], fields["charges"]
            )
            self._entries[entry.key] = entry
        for edge_id, run, sequence, payload in connection.execute(
            "SELECT edge_id, run, sequence, payload FROM outbox"
        ):
            self._entries[edge_id, run].outbox[sequence] = payload


_TRIES = 20
_MOST = 1 << 29  # bytes of a ledger, or of its WAL: gradients of 256 MB wait in it at most
_HEADER = 32  # bytes of a WAL that change whenever it begins anew


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
    """Copy file and WAL so that they belong together.

    The file first: whatever a checkpoint changes in it meanwhile, torn pages included, the WAL has as
    well, until it begins anew. Then the two are of different times, and the copy is made again.
    """
    log, log_to = f"{name}-wal", Path(f"{to}-wal")
    try:
        for _ in range(_TRIES):
            before = _head(folder, log)
            _write(folder, name, to)
            with contextlib.suppress(FileNotFoundError):
                _write(folder, log, log_to)
            if _head(log_to.parent, log_to.name) == before == _head(folder, log):
                return
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

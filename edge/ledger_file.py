"""The file of a durable ledger: its tables, how it is made, opened and brought up to date, and a row's meaning."""

from __future__ import annotations

import itertools
import json
import os
import re
import secrets
import sqlite3
from pathlib import Path
from typing import Any
from urllib.parse import quote

from common.accounting.releases import Budget, ReleaseKind
from common.errors import ConfigurationError
from common.quantities import EdgeId, RunId
from common.records.regular import sync_path
from edge.account import Account, ShardIdentity

FILE_NAME = "ledger.sqlite3"
_APPLICATION = 0x4D415041  # "MAPA"
_VERSION = 4
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
  noise TEXT, parameters TEXT NOT NULL,
  clipping TEXT NOT NULL, scope TEXT NOT NULL, sampling TEXT NOT NULL,
  batch_size INTEGER NOT NULL, shard_size INTEGER NOT NULL, steps INTEGER NOT NULL, largest_batch INTEGER,
  total_epsilon REAL, total_delta REAL, own_budget INTEGER NOT NULL, reproducible INTEGER NOT NULL,
  last_sequence INTEGER NOT NULL DEFAULT 0, charges INTEGER NOT NULL DEFAULT 0,
  UNIQUE (edge_id, run)
) STRICT;
CREATE TABLE outbox (
  edge_id TEXT NOT NULL, run TEXT NOT NULL, sequence INTEGER NOT NULL, payload BLOB NOT NULL,
  PRIMARY KEY (edge_id, run, sequence)
) STRICT;
"""
# R_k of runs with a pace of its own, beside the accounts: whatever does not know it keeps the budget all the same.
_CAPS = """
CREATE TABLE IF NOT EXISTS release_cap (
  edge_id TEXT NOT NULL, run TEXT NOT NULL, most_releases INTEGER NOT NULL,
  PRIMARY KEY (edge_id, run)
) STRICT
"""
# Version 1 did not say whose a budget was, and each one bound at once: so it stays.
_FROM_VERSION_1 = "ALTER TABLE account ADD COLUMN own_budget INTEGER NOT NULL DEFAULT 1"
# Version 2 had a column for each parameter that a noise law could have.
_FORMER_PARAMETERS = ("epsilon", "noise_multiplier")
# Version 3 knew messages of one release, and no truncated batches.
_FROM_VERSION_3 = (
    "ALTER TABLE account ADD COLUMN steps INTEGER NOT NULL DEFAULT 1",
    "ALTER TABLE account ADD COLUMN largest_batch INTEGER",
)
_LONGEST = 1 << 16  # characters of a text in an account
_COMPUTES = re.compile(r"\b(as|check|generated|virtual)\b", re.IGNORECASE)  # in what makes a table
# the columns of an account's terms
TERMS = (
    *("edge_id", "run", "dataset", "partition", "shard", "disjoint", "noise", "parameters"),
    *("clipping", "scope", "sampling", "batch_size", "shard_size", "steps", "largest_batch"),
    *("total_epsilon", "total_delta", "own_budget", "reproducible"),
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
        if not 1 <= version <= _VERSION:
            raise ConfigurationError(
                f"ledger {path}: version {version}, and this program reads versions 1 to {_VERSION}; update it"
            )
        _check_tables(connection)
        connection.execute("BEGIN IMMEDIATE")
        _migrate(connection, version)
        connection.execute(_CAPS)
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


def _migrate(connection: sqlite3.Connection, version: int) -> None:
    """Bring the tables of an earlier version into today's form, within the transaction that is open."""
    if version == 1:
        connection.execute(_FROM_VERSION_1)
    if version < 3:
        _fold_parameters(connection)
    if version < _VERSION:
        for statement in _FROM_VERSION_3:
            connection.execute(statement)
        connection.execute(f"PRAGMA user_version = {_VERSION}")


def _fold_parameters(connection: sqlite3.Connection) -> None:
    """Write the parameters of a noise law, a column each before version 3, into one."""
    connection.execute("ALTER TABLE account ADD COLUMN parameters TEXT NOT NULL DEFAULT '{}'")
    rows = connection.execute(f"SELECT position, {', '.join(_FORMER_PARAMETERS)} FROM account").fetchall()
    for position, *values in rows:  # here, not by SQLite's JSON functions: those may round a number
        given = zip(_FORMER_PARAMETERS, values, strict=True)
        parameters = json.dumps({key: value for key, value in given if value is not None})
        connection.execute("UPDATE account SET parameters = ? WHERE position = ?", (parameters, position))
    for key in _FORMER_PARAMETERS:
        connection.execute(f"ALTER TABLE account DROP COLUMN {key}")


def damaged(path: Path, error: Exception) -> ConfigurationError:
    return ConfigurationError(
        f"ledger {path}: damaged ({error}); restore it from a copy."
        " A new one would forget what was spent on this edge's records"
    )


def row_of(account: Account) -> dict[str, object]:
    budget, kind = account.budget, account.kind.fields()
    return {
        "run": account.run,
        "dataset": account.shard.dataset,
        "partition": account.shard.partition,
        "shard": account.shard.index,
        "disjoint": int(account.shard.disjoint),
        "steps": 1,
        "largest_batch": None,
        **kind,
        "parameters": json.dumps(kind["parameters"]),
        "total_epsilon": None if budget is None else budget.epsilon,
        "total_delta": None if budget is None else budget.delta,
        "own_budget": int(account.own_budget),
        "reproducible": int(account.reproducible),
    }


def account_of(row: dict[str, Any]) -> Account:
    """Return what a row says; ValueError and others where it is none."""
    if any(isinstance(value, str) and len(value) > _LONGEST for value in row.values()):
        raise ValueError(f"a text of more than {_LONGEST} characters")
    budget = None if row["total_epsilon"] is None else Budget(row["total_epsilon"], row["total_delta"])
    return Account(
        run=RunId(row["run"]),
        shard=ShardIdentity(row["dataset"], row["partition"], row["shard"], bool(row["disjoint"])),
        kind=ReleaseKind.of_fields(row | {"parameters": json.loads(row["parameters"])}),
        budget=budget,
        own_budget=bool(row["own_budget"]),
        reproducible=bool(row["reproducible"]),
    )

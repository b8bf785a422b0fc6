"""A ledger that survives: SQLite in WAL mode, synced to the disk before a debit returns."""

from __future__ import annotations

import sqlite3
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from common.errors import ConfigurationError, LedgerUnavailableError
from common.quantities import EdgeId
from edge.account import Entry
from edge.ledger import Accountant, MemoryLedger, new_edge_id
from edge.ledger_file import FILE_NAME, TERMS, account_of, connect, create, damaged, row_of, unbound
from edge.siblings import Siblings

_KEEP_CAP = "INSERT INTO release_cap VALUES (?, ?, ?) ON CONFLICT (edge_id, run) DO NOTHING"
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
        caps = [(*e.key, e.account.most_releases) for e in entries if e.account.most_releases is not None]
        self._commit(
            [
                *((_UPSERT, {"edge_id": entry.edge_id, **row_of(entry.account)}) for entry in entries),
                *((_KEEP_CAP, cap) for cap in caps),
            ]
        )

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
        caps = {(e, run): most for e, run, most in connection.execute("SELECT * FROM release_cap")}
        columns = (*TERMS, "last_sequence", "charges")
        for row in connection.execute(f"SELECT {', '.join(columns)} FROM account ORDER BY position"):
            fields = dict(zip(columns, row, strict=True))
            account = replace(account_of(fields), most_releases=caps.get((fields["edge_id"], fields["run"])))
            entry = Entry(EdgeId(fields["edge_id"]), account, fields["last_sequence"], fields["charges"])
            self._entries[entry.key] = entry
        for edge_id, run, sequence, payload in connection.execute(
            "SELECT edge_id, run, sequence, payload FROM outbox"
        ):
            self._entries[edge_id, run].outbox[sequence] = payload

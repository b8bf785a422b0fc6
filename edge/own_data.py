"""The records that an edge brings itself: read where they lie, and never described to anybody.

What is kept of them in the state directory is its id, by which the registry knows it, and the schema that the
data were first read by, with the number of records that was asked for. A run with another one could learn from a
refusal what the records hold (does every value lie in this range, are there a thousand?), so it needs the owner's word.
"""

from __future__ import annotations

import json
import re
import secrets
import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path

from common.datasets.dataset import Samples
from common.datasets.schema import DataSchema, at_most
from common.datasets.source import read_samples
from common.errors import ConfigurationError
from edge.memory import memory_limit
from edge.owners import ID_FILE, Account, Source, register

DEFAULT_NAME = "default"
_NAME = r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}"
_PATIENCE = 60.0  # seconds
_TABLES = """
CREATE TABLE IF NOT EXISTS directory (id TEXT NOT NULL) STRICT;
CREATE TABLE IF NOT EXISTS schema (name TEXT PRIMARY KEY, text TEXT NOT NULL) STRICT;
"""


def check_name(name: str) -> str:
    """Return the name of the data where it is one."""
    if not re.fullmatch(_NAME, name):
        raise ConfigurationError(
            f"--data-name {name!r}: must be 1 to 64 letters, digits, '.', '_' or '-', the first a letter or digit"
        )
    return name


@dataclass(slots=True)
class OwnData:
    """A file or folder, and the account that it belongs to."""

    path: Path
    state_dir: Path
    name: str = DEFAULT_NAME
    take: bool = False  # this state directory is its account from now on
    forget: tuple[str, ...] = ()  # names of accounts that it is no longer part of
    new_schema: bool = False  # the next schema may differ from the one kept
    edges: int = 1  # of this process, which read the same records
    _kept: tuple[DataSchema, Samples] | None = field(default=None, init=False)  # until all have read them
    _reads: int = field(default=0, init=False)
    _claimed: bool = field(default=False, init=False)

    def __post_init__(self) -> None:
        check_name(self.name)

    def check(self) -> None:
        """Raise ConfigurationError where the data cannot be had, or belong to another account."""
        self._register(keep=False)

    def read(self, schema: DataSchema, least: int) -> Samples:
        """Return the records, once for all edges of this process, for a run that asks for at least `least` of them."""
        self._accept(schema, least)
        if self._kept is not None and self._kept[0] == schema:
            samples = self._kept[1]
        else:
            with at_most(memory_limit()):  # the cloud declares how wide a record becomes
                samples = read_samples(self.path, schema)
        self._reads += 1
        self._kept = (schema, samples) if self._reads < self.edges else None
        return samples

    def claim(self) -> None:
        """Note that the records' account is this one: once a ledger is open for them, and before a release."""
        if not self._claimed:
            self._register(keep=True)
            self._claimed = True

    def _register(self, *, keep: bool) -> None:
        register(Source.of(self.path), self._account(), take=self.take, forget=self.forget, keep=keep)

    def _account(self) -> Account:
        with self._book() as connection:
            connection.execute(
                "INSERT INTO directory SELECT ? WHERE NOT EXISTS (SELECT 1 FROM directory)",
                (secrets.token_hex(16),),
            )
            [(owner,)] = connection.execute("SELECT id FROM directory").fetchall()
        return Account(owner, self.state_dir.resolve(), self.name)

    def _accept(self, schema: DataSchema, least: int) -> None:
        """Keep the first schema, before anything is read by it; refuse another one unless the owner says so."""
        text = described(schema, least)
        with self._book() as connection:
            if self.new_schema:
                connection.execute("INSERT OR REPLACE INTO schema VALUES (?, ?)", (self.name, text))
                self.new_schema = False  # one word, one schema
            connection.execute("INSERT OR IGNORE INTO schema VALUES (?, ?)", (self.name, text))
            [(kept,)] = connection.execute("SELECT text FROM schema WHERE name = ?", (self.name,)).fetchall()
        if kept != text:
            raise ConfigurationError(
                f"data.schema: this run describes the records of --data otherwise than the runs before it ({kept}), and"
                f" whether they fit would tell the cloud about them. Take part with --new-schema if you want to"
                f" follow this one: {text} (records_at_least is the larger of the schema's and batch_size)"
            )

    @contextmanager
    def _book(self) -> Iterator[sqlite3.Connection]:
        path = self.state_dir / ID_FILE
        try:
            self.state_dir.mkdir(parents=True, exist_ok=True)
            with closing(sqlite3.connect(path, timeout=_PATIENCE, isolation_level=None)) as connection:
                path.chmod(0o600)
                connection.execute("BEGIN IMMEDIATE")
                for statement in _TABLES.strip().split(";\n"):
                    connection.execute(statement.removesuffix(";"))
                yield connection
                connection.execute("COMMIT")
        except (OSError, sqlite3.Error) as error:
            raise ConfigurationError(
                f"state directory {str(self.state_dir)!r}: {ID_FILE}: {error}"
            ) from error


def described(schema: DataSchema, least: int) -> str:
    """Return all that a welcome asks of the records, in one form."""
    return json.dumps(asdict(replace(schema, records_at_least=least)), sort_keys=True)

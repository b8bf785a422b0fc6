"""Which state directory and data name keep the account of which file: one book for all edges of a user on a machine.

Two accounts do not know of each other, so the same records in both would be paid for twice. A file is
known again by its path, by its place on the disk (a hard link, a bind mount, another name), or by its content (a
copy). Containers and users with books of their own are not covered: docs/privacy.md says so.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import secrets
import sqlite3
from collections.abc import Collection, Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path

from common.datasets.dataset import Samples
from common.datasets.faults import at_most
from common.datasets.reading import read_samples
from common.datasets.schema import DataSchema
from common.errors import ConfigurationError

BOOK_VARIABLE = "MAPA_DATA_REGISTRY"
ID_FILE = "local-data.sqlite3"  # in a state directory: its id, and the schemas of its data
_PATIENCE = 60.0  # seconds for the others' transactions, each of them short
_NOTHING = hashlib.sha256().hexdigest()
_VERSION = 1
_SCHEMA = """
CREATE TABLE IF NOT EXISTS owned (
  path TEXT NOT NULL, device INTEGER NOT NULL, inode INTEGER NOT NULL, digest TEXT NOT NULL,
  owner TEXT NOT NULL, directory TEXT NOT NULL, name TEXT NOT NULL,
  PRIMARY KEY (path, device, inode, digest)
) STRICT
"""


@dataclass(frozen=True, slots=True)
class Source:
    """A file or folder of records, as it can be known again."""

    path: Path  # resolved: no symbolic link is left in it
    device: int
    inode: int
    digest: str  # of its bytes

    @classmethod
    def of(cls, path: Path) -> Source:
        """Look at what is there; ConfigurationError where it cannot be read."""
        try:
            resolved = path.resolve(strict=True)
            found = resolved.stat()
            if not (resolved.is_file() or resolved.is_dir()):
                raise ConfigurationError(f"--data {str(path)!r}: must be a file or a folder")
            digest = digest_of(resolved)
        except OSError as error:
            raise ConfigurationError(
                f"--data {str(path)!r}: cannot be read: {error.strerror or error}"
            ) from error
        if digest == _NOTHING:
            raise ConfigurationError(f"--data {str(path)!r}: is empty")
        return cls(resolved, found.st_dev, found.st_ino, digest)


@dataclass(frozen=True, slots=True)
class Account:
    """Where the privacy spent on a source is kept."""

    owner: str  # id of the state directory, which moves with it
    directory: Path
    name: str  # of the data


@dataclass(frozen=True, slots=True)
class Known:
    """A source that was claimed before, and how it is known again."""

    source: Source
    account: Account
    by: str  # "path", "place" or "content"


def book_path(environ: Mapping[str, str] = os.environ) -> Path:
    """Return where the book is: MAPA_DATA_REGISTRY, else under XDG_STATE_HOME, else under ~/.local/state."""
    if chosen := environ.get(BOOK_VARIABLE, "").strip():
        return Path(chosen).expanduser()
    home = environ.get("XDG_STATE_HOME", "").strip()
    root = Path(home) if home and Path(home).is_absolute() else Path.home() / ".local" / "state"
    return root / "mapa" / "local-data.sqlite3"


def register(
    source: Source,
    account: Account,
    *,
    take: bool = False,
    forget: Collection[str] = (),
    keep: bool = True,
    book: Path | None = None,
) -> None:
    """Note that this account is kept for the source; ConfigurationError where another one is.

    `take` is the owner's word that this state directory is its account from now on, `forget` names accounts in this
    state directory that it is no longer part of. Without `keep` it is only asked.
    """
    path = book_path() if book is None else book
    try:
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        with closing(sqlite3.connect(path, timeout=_PATIENCE, isolation_level=None)) as connection:
            path.chmod(0o600)
            connection.execute("PRAGMA synchronous = FULL")
            connection.execute("BEGIN IMMEDIATE")
            _prepare(connection, path)
            if not take:
                _refuse_copy(connection, account)
            for known in _known(connection, source):
                other = known.account
                if (other.owner, other.name) == (account.owner, account.name):
                    continue
                if not (other.name in forget if other.owner == account.owner else take):
                    raise _refusal(source, account, known)
                _move(connection, known.source, account)
            connection.execute(
                "INSERT OR REPLACE INTO owned VALUES (?, ?, ?, ?, ?, ?, ?)",
                (*_columns(source), account.owner, str(account.directory), account.name),
            )
            connection.execute(  # where it is now: at another place it has moved, or one of the two is a copy
                "UPDATE owned SET directory = ? WHERE owner = ?", (str(account.directory), account.owner)
            )
            if keep:  # an error, too, ends with the connection: nothing is written then
                connection.execute("COMMIT")
    except (OSError, sqlite3.Error) as error:
        raise ConfigurationError(
            f"registry of local data {path}: {error}; name a file that can be written by {BOOK_VARIABLE}"
        ) from error


def directory_id(directory: Path) -> str | None:
    """Return the id of a state directory; None where there is none, or no such directory any more."""
    try:
        uri = f"{(directory / ID_FILE).as_uri()}?mode=ro"
        with closing(sqlite3.connect(uri, uri=True, timeout=_PATIENCE)) as connection:
            rows = connection.execute("SELECT id FROM directory").fetchall()
    except (OSError, sqlite3.Error):
        return None
    return str(rows[0][0]) if rows else None


def digest_of(path: Path) -> str:
    """Return the SHA-256 of a file's bytes, or of a folder's files and their names."""
    if path.is_file():
        return _file_digest(path)
    whole = hashlib.sha256()
    for one in sorted(file for file in path.rglob("*") if file.is_file()):
        whole.update(f"{one.relative_to(path).as_posix()}\0{_file_digest(one)}\n".encode())
    return whole.hexdigest()


def _file_digest(path: Path) -> str:
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def _prepare(connection: sqlite3.Connection, path: Path) -> None:
    [(version,)] = connection.execute("PRAGMA user_version")
    if version not in (0, _VERSION):
        raise ConfigurationError(
            f"registry of local data {path}: version {version}, and this program reads version {_VERSION}; update it"
        )
    connection.execute(_SCHEMA)
    connection.execute(f"PRAGMA user_version = {_VERSION}")


def _known(connection: sqlite3.Connection, source: Source) -> Iterator[Known]:
    """Yield every claim of what may be the same records."""
    for path, device, inode, digest, owner, directory, name in connection.execute(
        "SELECT * FROM owned"
    ).fetchall():
        claimed = Source(Path(path), device, inode, digest)
        if how := same_records(source, claimed):
            yield Known(claimed, Account(owner, Path(directory), name), how)


def same_records(now: Source, claimed: Source) -> str:
    """Say how a source is known again; '' where it is not.

    A place on the disk is used again after its file is gone. It counts while the claimed path still leads there (a
    hard link, a bind mount), and where that path leads nowhere: the file may have been renamed.
    """
    if now.path == claimed.path or now.path in claimed.path.parents or claimed.path in now.path.parents:
        return "path"
    if now.digest == claimed.digest:
        return "content"
    if (now.device, now.inode) == (claimed.device, claimed.inode):
        try:
            found = claimed.path.stat()
        except OSError:
            return "place"
        return "place" if (found.st_dev, found.st_ino) == (claimed.device, claimed.inode) else ""
    return ""


def _refuse_copy(connection: sqlite3.Connection, account: Account) -> None:
    """Refuse a state directory whose original is still where it was: neither knows what the other spends."""
    for (known,) in connection.execute(
        "SELECT DISTINCT directory FROM owned WHERE owner = ?", (account.owner,)
    ).fetchall():
        other = Path(known)
        if other == account.directory or directory_id(other) != account.owner:
            continue
        if not other.samefile(account.directory):
            raise ConfigurationError(
                f"--state-dir {str(account.directory)!r}: is a copy of state directory {known!r}, which is still"
                f" there: neither knows what is spent in the other; use --state-dir {known}, or, where this one has"
                " the newer ledgers, take the account over once with --take-data"
            )


def _refusal(source: Source, account: Account, known: Known) -> ConfigurationError:
    other, how = known.account, {"path": "", "place": " by another name", "content": " with the same content"}
    told = (
        f"--data {str(source.path)!r}: known{how[known.by]} as {str(known.source.path)!r}, whose privacy is"
    )
    if other.owner != account.owner:
        return ConfigurationError(
            f"{told} accounted in state directory {str(other.directory)!r} (data name {other.name!r}); use"
            f" --state-dir {other.directory} --data-name {other.name}, or, where nothing was released of these records"
            " there or its ledgers were moved here, take the account over once with --take-data"
        )
    return ConfigurationError(
        f"{told} accounted in this state directory under --data-name {other.name}, not {account.name}: one file is"
        f" one account, whatever is changed in it; use --data-name {other.name}. Only where these are other records"
        f" now, add --forget-account {other.name} once: what was spent under {other.name} then no longer counts for"
        " them, and a record that is in both pays both totals"
    )


def _move(connection: sqlite3.Connection, source: Source, account: Account) -> None:
    """Give a source to another account; it stays known by all that it was known by."""
    connection.execute(
        "UPDATE owned SET owner = ?, directory = ?, name = ?"
        " WHERE path = ? AND device = ? AND inode = ? AND digest = ?",
        (account.owner, str(account.directory), account.name, *_columns(source)),
    )


def _columns(source: Source) -> tuple[str, int, int, str]:
    return str(source.path), source.device, source.inode, source.digest


DEFAULT_NAME = "default"
_NAME = r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}"

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

    def read(self, schema: DataSchema, least: int, memory: int) -> Samples:
        """Return the records, once for all edges of this process, for a run that asks for at least `least` of them."""
        self._accept(schema, least)
        if self._kept is not None and self._kept[0] == schema:
            samples = self._kept[1]
        else:
            with at_most(memory):  # the cloud declares how wide a record becomes
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

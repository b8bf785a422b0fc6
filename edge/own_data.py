"""Records that an edge brings itself (--data): read where they lie, described to no one, accounted once.

A registry, one for all edges of a user on a machine, notes which state directory and data name keep the account of
which file, recognised by its path, its place on the disk or its content: two accounts do not know of each other.
Containers and users with registries of their own are not covered: docs/privacy.md says so.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import sqlite3
from collections.abc import Collection, Iterable, Mapping
from contextlib import closing
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Self

from common.datasets.dataset import Samples
from common.datasets.schema import DataSchema, at_most
from common.datasets.source import read_samples
from common.errors import ConfigurationError
from edge.state_directory import TIMEOUT, StateDirectory, directory_id

REGISTRY_VARIABLE = "MAPA_DATA_REGISTRY"
DEFAULT_NAME = "default"
_NAME = r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}"
_NO_BYTES = hashlib.sha256().hexdigest()
_VERSION = 1
_SCHEMA = """
CREATE TABLE IF NOT EXISTS owned (
  path TEXT NOT NULL, device INTEGER NOT NULL, inode INTEGER NOT NULL, digest TEXT NOT NULL,
  owner TEXT NOT NULL, directory TEXT NOT NULL, name TEXT NOT NULL,
  PRIMARY KEY (path, device, inode, digest)
) STRICT
"""


@dataclass(frozen=True, slots=True)
class RecordFile:
    """A file or folder of records, by all that it can be recognised by."""

    path: Path  # resolved: no symbolic link is left in it
    device: int
    inode: int
    digest: str  # of its bytes

    @classmethod
    def at(cls, path: Path) -> Self:
        """Look at what is there; raise ConfigurationError if it cannot be read."""
        try:
            resolved = path.resolve(strict=True)
            status = resolved.stat()
            if not (resolved.is_file() or resolved.is_dir()):
                raise ConfigurationError(f"--data {str(path)!r}: must be a file or a folder")
            digest = _digest(resolved)
        except OSError as error:
            raise ConfigurationError(
                f"--data {str(path)!r}: cannot be read: {error.strerror or error}"
            ) from error
        if digest == _NO_BYTES:
            raise ConfigurationError(f"--data {str(path)!r}: is empty")
        return cls(resolved, status.st_dev, status.st_ino, digest)

    def recognised_by(self, known: RecordFile) -> str | None:
        """Say how this is a registered file, behind "known"; None if it is another one.

        A place on the disk is used again after its file is gone. It counts while the registered path still leads
        there (a hard link, a bind mount), and if that path leads nowhere: the file may have been renamed.
        """
        if self.path == known.path or self.path in known.path.parents or known.path in self.path.parents:
            return ""
        if self.digest == known.digest:
            return " with the same content"
        place = known.device, known.inode
        if (self.device, self.inode) != place:
            return None
        try:
            status = known.path.stat()
        except OSError:
            return " by another name"
        return " by another name" if (status.st_dev, status.st_ino) == place else None

    @property
    def key(self) -> tuple[str, int, int, str]:
        return str(self.path), self.device, self.inode, self.digest


@dataclass(frozen=True, slots=True)
class DataAccount:
    """Where the privacy spent on a file is kept."""

    owner: str  # id of the state directory, which moves with it
    directory: Path
    name: str  # of the data


def registry_path(environ: Mapping[str, str] = os.environ) -> Path:
    """Return MAPA_DATA_REGISTRY, else a file under XDG_STATE_HOME, else under ~/.local/state."""
    if chosen := environ.get(REGISTRY_VARIABLE, "").strip():
        return Path(chosen).expanduser()
    home = environ.get("XDG_STATE_HOME", "").strip()
    root = Path(home) if home and Path(home).is_absolute() else Path.home() / ".local" / "state"
    return root / "mapa" / "local-data.sqlite3"


def register(
    file: RecordFile,
    account: DataAccount,
    *,
    take: bool = False,
    forget: Collection[str] = (),
    keep: bool = True,
    registry: Path | None = None,
) -> None:
    """Note that the file belongs to this account; raise ConfigurationError if it belongs to another.

    `take` is the owner's word that this state directory is its account from now on, `forget` names accounts in this
    state directory that it is no longer part of. Without `keep` nothing is written.
    """
    path = registry_path() if registry is None else registry
    mine = account.owner, str(account.directory), account.name
    try:
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        with closing(sqlite3.connect(path, timeout=TIMEOUT, isolation_level=None)) as connection:
            path.chmod(0o600)
            connection.execute("PRAGMA synchronous = FULL")
            connection.execute("BEGIN IMMEDIATE")
            [(version,)] = connection.execute("PRAGMA user_version")
            if version not in (0, _VERSION):
                raise ConfigurationError(
                    f"registry of local data {path}: version {version}, and this program reads version {_VERSION};"
                    " update it"
                )
            connection.execute(_SCHEMA)
            connection.execute(f"PRAGMA user_version = {_VERSION}")
            owned = connection.execute("SELECT * FROM owned").fetchall()
            if not take:
                _refuse_copied_directory({Path(row[5]) for row in owned if row[4] == account.owner}, account)
            for place, device, inode, digest, owner, directory, name in owned:
                known, other = (
                    RecordFile(Path(place), device, inode, digest),
                    DataAccount(owner, Path(directory), name),
                )
                how = file.recognised_by(known)
                if how is None or (owner, name) == (account.owner, account.name):
                    continue
                if not (name in forget if owner == account.owner else take):
                    told = f"--data {str(file.path)!r}: known{how} as {str(known.path)!r}, whose privacy is accounted"
                    raise ConfigurationError(f"{told} in {_remedy(account, other)}")
                connection.execute(  # it stays known by all that it was known by
                    "UPDATE owned SET owner = ?, directory = ?, name = ?"
                    " WHERE path = ? AND device = ? AND inode = ? AND digest = ?",
                    (*mine, *known.key),
                )
            connection.execute(
                "INSERT OR REPLACE INTO owned VALUES (?, ?, ?, ?, ?, ?, ?)", (*file.key, *mine)
            )
            connection.execute(  # where it is now: at another place it has moved, or one of the two is a copy
                "UPDATE owned SET directory = ? WHERE owner = ?", (str(account.directory), account.owner)
            )
            if keep:  # an error, too, ends with the connection: nothing is written then
                connection.execute("COMMIT")
    except (OSError, sqlite3.Error) as error:
        raise ConfigurationError(
            f"registry of local data {path}: {error}; name a file that can be written by {REGISTRY_VARIABLE}"
        ) from error


def _refuse_copied_directory(others: Iterable[Path], account: DataAccount) -> None:
    """Refuse a state directory whose original is still where it was: neither knows what the other spends."""
    mine = account.directory
    for other in others:
        if other != mine and directory_id(other) == account.owner and not other.samefile(mine):
            raise ConfigurationError(
                f"--state-dir {str(mine)!r}: is a copy of state directory {str(other)!r}, which is still"
                f" there: neither knows what is spent in the other; use --state-dir {other}, or, where this one has"
                " the newer ledgers, take the account over once with --take-data"
            )


def _remedy(account: DataAccount, other: DataAccount) -> str:
    if other.owner != account.owner:
        return (
            f"state directory {str(other.directory)!r} (data name {other.name!r}); use"
            f" --state-dir {other.directory} --data-name {other.name}, or, where nothing was released of these records"
            " there or its ledgers were moved here, take the account over once with --take-data"
        )
    return (
        f"this state directory under --data-name {other.name}, not {account.name}: one file is"
        f" one account, whatever is changed in it; use --data-name {other.name}. Only where these are other records"
        f" now, add --forget-account {other.name} once: what was spent under {other.name} then no longer counts for"
        " them, and a record that is in both pays both totals"
    )


def _digest(path: Path) -> str:
    """Return the SHA-256 of a file's bytes, or of a folder's files and their names."""
    if path.is_file():
        with path.open("rb") as stream:
            return hashlib.file_digest(stream, "sha256").hexdigest()
    whole = hashlib.sha256()
    for file in sorted(file for file in path.rglob("*") if file.is_file()):
        whole.update(f"{file.relative_to(path).as_posix()}\0{_digest(file)}\n".encode())
    return whole.hexdigest()


@dataclass(slots=True)
class OwnData:
    """A file or folder of records, and the account that it belongs to."""

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
        allowed = "1 to 64 letters, digits, '.', '_' or '-', the first a letter or digit"
        if not re.fullmatch(_NAME, self.name):
            raise ConfigurationError(f"--data-name {self.name!r}: must be {allowed}")

    def check(self) -> None:
        """Raise ConfigurationError if the data cannot be read, or belong to another account."""
        self._register(keep=False)

    def read(self, schema: DataSchema, least: int, memory: int) -> Samples:
        """Return the records, read once for all edges of this process, for a run that asks for at least `least`.

        Reading takes at most `memory` bytes: the cloud declares how wide a record becomes.
        """
        self._accept(schema, least)
        if self._kept is None or self._kept[0] != schema:
            with at_most(memory):
                self._kept = schema, read_samples(self.path, schema)
        samples = self._kept[1]
        self._reads += 1
        if self._reads >= self.edges:
            self._kept = None
        return samples

    def claim(self) -> None:
        """Note that the records' account is this one: once a ledger is open for them, and before a release."""
        if not self._claimed:
            self._register(keep=True)
            self._claimed = True

    def _register(self, *, keep: bool) -> None:
        file = RecordFile.at(self.path)
        with closing(StateDirectory(self.state_dir)) as state:
            owner = state.identity()
        account = DataAccount(owner, self.state_dir.resolve(), self.name)
        register(file, account, take=self.take, forget=self.forget, keep=keep)

    def _accept(self, schema: DataSchema, least: int) -> None:
        """Keep the first schema, before anything is read by it; refuse another one unless the owner says so.

        A run with another one could learn from a refusal what the records hold: does every value lie in this range,
        are there a thousand?
        """
        text = json.dumps(asdict(replace(schema, records_at_least=least)), sort_keys=True)
        with closing(StateDirectory(self.state_dir)) as state:
            kept = state.keep_schema(self.name, text, replace=self.new_schema)
        self.new_schema = False  # one word, one schema
        if kept != text:
            raise ConfigurationError(
                f"data.schema: this run describes the records of --data otherwise than the runs before it ({kept}), and"
                f" whether they fit would tell the cloud about them. Take part with --new-schema if you want to"
                f" follow this one: {text} (records_at_least is the larger of the schema's and batch_size)"
            )

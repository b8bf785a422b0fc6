"""Whether a run may be removed, and its removal. Closed by default: what may be an account of privacy stays.

Two things below runs/<id>/ are accounts. `mapa run` keeps its edges' ledgers there (state/), and a ledger is the
only memory of what was spent on a shard. And where the records are not a public data set's, the run's own events and
summary may be the last proof of what was released of them.
"""

from __future__ import annotations

import fcntl
import os
import re
import secrets
import shutil
from dataclasses import dataclass
from pathlib import Path

from common.errors import ConfigurationError, MapaError, RecordsError
from common.records.regular import open_regular, table
from edge.state_directory import is_held
from mapa.output import printable
from mapa.runs import ENDING, LEAVING, RUNNING, files_of, is_run, read_object, state_of

_SQLITE = b"SQLite format 3\0"
_RECORDS = re.compile(  # what a run writes; another file is not removed with it
    r"(manifest|summary|audit|resume)\.json|events\.jsonl|model\.safetensors|\.[a-z.]+\.tmp|edges-\d+\.log"
    r"|(log|checkpoints|broker)/.+"
)


class RemovalRefusedError(MapaError):
    """A run that must stay, and why. Exit code 1."""

    def __init__(self, path: Path, why: str) -> None:
        super().__init__(f"{printable(path.name)}: {why}")


@dataclass(frozen=True, slots=True)
class Removal:
    """What removing a run would take away."""

    path: Path
    bytes: int
    accounts: tuple[str, ...]  # what would be forgotten; none: nothing


def named(name: str, runs: Path) -> Path:
    """Return a run by its whole id, or by its path in the folder; no beginning of an id, and no link."""
    given = Path(name)
    if len(given.parts) > 1:
        if given.is_symlink() or given.parent.resolve() != runs.resolve():
            raise ConfigurationError(f"run = {name!r}: not in {runs}; runs are removed from --runs-dir alone")
        name = given.name
    path = runs / name
    # a name that the folder itself lists has no `..` and no slash
    listed = runs.is_dir() and name in os.listdir(runs)  # noqa: PTH208
    if not listed or path.is_symlink() or not is_run(path):
        raise ConfigurationError(f"run = {name!r}: no run in {runs} has this id; `mapa runs list` shows them")
    return path


def considered(path: Path, *, forget: bool = False) -> Removal:
    """Return what removing it would take away; RemovalRefusedError where it must stay."""
    state = state_of(path)
    if state in (RUNNING, ENDING):
        raise RemovalRefusedError(path, f"is {state}; stop it first")
    found = {file.relative_to(path).as_posix(): (file, size) for file, size in files_of(path)}
    ledgers = sorted(name for name, (file, _) in found.items() if _is_account(file, name))
    strange = sorted(name for name in found.keys() - {*ledgers} if not _RECORDS.fullmatch(name))
    if strange:
        shown = ", ".join(map(printable, strange[:3])) + (" …" if len(strange) > 3 else "")
        raise RemovalRefusedError(
            path, f"holds files that no run writes ({shown}); move or delete them first"
        )
    if any(
        is_held(file.parent) for file, _ in found.values() if file.name == "lock" and not file.is_symlink()
    ):
        raise RemovalRefusedError(path, "an edge of it is still running; stop it first")
    books = [name for name in ledgers if name.endswith(".sqlite3")] or ledgers
    accounts = (*(f"ledger {printable(name)}" for name in books), *_releases(path))
    if accounts and not forget:
        shown = "; ".join(accounts[:3]) + (" …" if len(accounts) > 3 else "")
        raise RemovalRefusedError(
            path,
            f"holds an account of the privacy spent ({shown}); without it nobody can tell what was spent."
            " Keep it, or give --forget-account",
        )
    return Removal(path, sum(size for _, size in found.values()), accounts)


def remove(path: Path, *, forget: bool = False) -> bool:
    """Remove a run for good, unless it must stay; False: it has gone meanwhile.

    Its lock is held, so that no cloud resumes it; it leaves the list at once, so that no reader finds half of it.
    """
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
        try:
            considered(path, forget=forget)  # again: it may have begun to run while the user was asked
            _lock(descriptor, path)
            leaving = path.with_name(f"{LEAVING}{secrets.token_hex(8)}")
            path.rename(leaving)
            shutil.rmtree(leaving)
        finally:
            os.close(descriptor)
    except FileNotFoundError:
        return False
    except OSError as error:
        raise RecordsError(f"{printable(path.name)}: not removed: {error.strerror or error}") from error
    return True


def _lock(descriptor: int, path: Path) -> None:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise RemovalRefusedError(path, "another program has just opened it") from None
    except OSError:
        pass  # a disk without locks


def _is_account(file: Path, relative: str) -> bool:
    """Tell whether a file belongs to an edge's state; one that cannot be read, or is no file, may."""
    if relative.startswith("state/") or "/state/" in relative or re.search(r"\.sqlite3?(-|$)", relative):
        return True
    if file.is_symlink():
        return False
    try:
        with open(file, "rb", opener=open_regular) as stream:
            return stream.read(len(_SQLITE)) == _SQLITE
    except OSError:
        return True


def _releases(path: Path) -> tuple[str, ...]:
    """Return why the records themselves are an account; nothing where the data set is public."""
    from common.datasets.catalogue import DATA_SETS

    name = table(table(read_object(path / "manifest.json"), "scenario"), "data").get("set")
    if isinstance(name, str) and name in DATA_SETS:
        return ()
    told = f"data.set = {name!r}" if isinstance(name, str) else "its manifest names no data set"
    return (f"releases of records that are no public data set's: {printable(told)}",)

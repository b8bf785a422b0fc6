"""A look at a ledger while its edge trains: a copy, since the edge holds the file itself for as long as it lives."""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

from common.errors import ConfigurationError
from common.records.regular import open_below
from edge.ledger_file import FILE_NAME
from edge.sqlite_ledger import SqliteLedger

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

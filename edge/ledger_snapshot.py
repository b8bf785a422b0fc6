"""A look at a ledger while its edge trains: a copy, since the edge holds the file itself for as long as it lives."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

from common.errors import ConfigurationError
from common.records.regular import regular_bytes
from edge.ledger_file import FILE_NAME
from edge.sqlite_ledger import SqliteLedger

_TRIES = 20
_MOST = 1 << 29  # bytes of a ledger, or of its WAL: gradients of 256 MB wait in it at most
_HEADER = 32  # bytes of a WAL that change whenever it begins anew


@contextmanager
def ledger_snapshot(directory: Path) -> Iterator[SqliteLedger]:
    """Open a copy of this directory's ledger; nothing there is locked or written."""
    with TemporaryDirectory(prefix="mapa-ledger-") as place:
        _copy(directory / FILE_NAME, Path(place) / FILE_NAME)
        try:
            ledger = SqliteLedger(Path(place))
        except ConfigurationError as error:
            raise ConfigurationError(str(error).replace(place, str(directory))) from error
        with ledger:
            yield ledger


def _copy(path: Path, to: Path) -> None:
    """Copy file and WAL so that they belong together.

    The file first: whatever a checkpoint changes in it meanwhile, torn pages included, the WAL has as
    well, until it begins anew. Then the two are of different times, and the copy is made again.
    """
    wal = Path(f"{path}-wal")
    try:
        for _ in range(_TRIES):
            before = _read(wal)[:_HEADER]
            content, log = regular_bytes(path, _MOST), _read(wal)
            if log[:_HEADER] == before == _read(wal)[:_HEADER]:
                to.write_bytes(content)
                if log:
                    Path(f"{to}-wal").write_bytes(log)
                return
    except OSError as error:
        raise ConfigurationError(f"ledger {path}: cannot be read: {error.strerror or error}") from error
    raise ConfigurationError(f"ledger {path}: changes faster than it can be copied; try again")


def _read(path: Path) -> bytes:
    try:
        return regular_bytes(path, _MOST)
    except FileNotFoundError:
        return b""

"""What is wrong with a file of samples, and how much of one is read at all."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path

from common.errors import DataFaultError

MOST_RECORDS = 50_000_000
MOST_BYTES = 4 << 30  # of the samples of one file
_most_bytes = ContextVar("most_bytes", default=MOST_BYTES)
_MOST_CHARACTERS = 60  # of a cell, in a message


def fault(
    path: Path, reason: str, *, row: int | None = None, column: str | int | None = None
) -> DataFaultError:
    """Return the error for a file; rows count from 1, as the samples do, a header not being one."""
    place = "" if row is None else f", row {row}"
    if column is not None:
        place += f", column {column!r}" if isinstance(column, str) else f", value {column}"
    return DataFaultError(f"{path}{place}: {reason}")


def shown(cell: object) -> str:
    """Return a cell as a message shows it."""
    text = repr(cell)
    return text if len(text) <= _MOST_CHARACTERS else text[:_MOST_CHARACTERS] + "…"


@contextmanager
def at_most(count: int) -> Iterator[None]:
    """Read no more than so many bytes of samples: whoever declares how they look may be a peer."""
    before = _most_bytes.set(min(count, MOST_BYTES))
    try:
        yield
    finally:
        _most_bytes.reset(before)


def check_extent(path: Path, records: int, width: int) -> None:
    """Refuse no records, and more than may be taken into memory, before they are."""
    if records < 1:
        raise fault(path, "has no records; needs at least one")
    most = _most_bytes.get()
    if records > MOST_RECORDS or records * width * 4 > most:
        raise fault(
            path,
            f"{records:,} records of {width:,} values: at most {MOST_RECORDS:,} records and {most >> 20:,} MB",
        )

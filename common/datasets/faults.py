"""What is wrong with a file of samples, and how much of one is read at all."""

from __future__ import annotations

from pathlib import Path

from common.errors import DataFaultError

MOST_RECORDS = 50_000_000
MOST_BYTES = 4 << 30  # of the samples of one file
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


def check_extent(path: Path, records: int, width: int) -> None:
    """Refuse no records, and more than may be taken into memory, before they are."""
    if records < 1:
        raise fault(path, "has no records; needs at least one")
    if records > MOST_RECORDS or records * width * 4 > MOST_BYTES:
        raise fault(
            path,
            f"{records:,} records of {width:,} values: at most {MOST_RECORDS:,} records and {MOST_BYTES >> 20:,} MB",
        )

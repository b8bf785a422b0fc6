"""Tables -> samples: numbers clipped to their declared range and scaled, categories as one value each."""

from __future__ import annotations

import contextlib
import csv
import itertools
import math
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from common.datasets.dataset import Labels, Samples
from common.datasets.schema import Column, DataSchema, check_extent, fault, need, shown
from common.errors import MapaError

Cells = Sequence[object]  # of one column
Matrix = npt.NDArray[np.float32]
BLOCK = 4096  # records at a time: text takes far more room than its values
_ABSENT = (None, "")


def read_csv(path: Path, schema: DataSchema) -> Samples:
    """Return the samples of a CSV file in UTF-8 with a header."""
    try:
        with path.open(encoding="utf-8-sig", newline="") as stream:
            reader = csv.reader(stream, strict=True)
            header = [name.strip() for name in next(reader, [])]
            places = declared_columns(path, schema, header)
            return samples_from(path, schema, _blocks(path, reader, places, len(header)))
    except UnicodeDecodeError as error:
        raise fault(path, f"is not text in UTF-8 ({error.reason} at byte {error.start})") from error
    except csv.Error as error:
        raise fault(path, f"line {reader.line_num}: is not CSV ({error})") from error
    except OSError as error:
        raise fault(path, f"cannot be read ({error.strerror})") from error


def declared_columns(path: Path, schema: DataSchema, header: Sequence[str]) -> dict[str, int]:
    """Return where each column that is read stands; an undeclared, missing or repeated one is an error."""
    wanted = [column.name for column in schema.columns] + [schema.label]
    if schema.group is not None and schema.group not in wanted:
        wanted.append(schema.group)
    allowed = {*wanted, *schema.ignore}
    for name in header:
        if name not in allowed:
            raise fault(path, f"column {shown(name)} is not declared; name it in columns or in ignore")
        if header.count(name) > 1:
            raise fault(path, f"column {shown(name)} stands twice")
    for name in wanted:
        if name not in header:
            raise fault(path, f"column {name!r} is missing")
    return {name: header.index(name) for name in wanted}


def samples_from(path: Path, schema: DataSchema, blocks: Iterable[dict[str, Cells]]) -> Samples:
    """Return the samples of a table that comes a block of columns at a time."""
    inputs: list[Matrix] = []
    labels: list[npt.NDArray[np.float64]] = []
    groups: list[str] = []
    records = 0
    for block in blocks:
        first = records + 1
        records += len(block[schema.label])
        check_extent(path, records, schema.width)
        inputs.append(
            np.concatenate([_values(path, c, block[c.name], first) for c in schema.columns], axis=1)
        )
        labels.append(_labels(path, schema, block[schema.label], first))
        if schema.group is not None:
            groups += _groups(path, schema.group, block[schema.group], first)
    check_extent(path, records, schema.width)
    joined = np.concatenate(labels)
    found: Labels = joined.astype(np.float32) if schema.target_range else joined.astype(np.int64)
    whose = np.unique(groups, return_inverse=True)[1].astype(np.int64) if groups else None
    return Samples(np.concatenate(inputs), found, whose)


def _blocks(
    path: Path, reader: Iterable[list[str]], places: dict[str, int], width: int
) -> Iterator[dict[str, Cells]]:
    rows, before = iter(reader), 0
    while block := list(itertools.islice(rows, BLOCK)):
        for row, cells in enumerate(block, before + 1):
            if len(cells) != width:
                raise fault(path, f"has {len(cells)} cells, the header {width}", row=row)
        before += len(block)
        yield {name: [cells[place].strip() for cells in block] for name, place in places.items()}


def _values(path: Path, column: Column, cells: Cells, first: int) -> Matrix:
    """Return n × width values of a column."""
    if column.range is not None:
        low, high = column.range
        numbers = np.array([_number(path, column, cell, row) for row, cell in enumerate(cells, first)])
        scaled: Matrix = ((np.clip(numbers, low, high) - low) / (high - low)).astype(np.float32)
        return scaled[:, None]
    places = {name: place for place, name in enumerate(column.categories)}
    ones = [_place(path, column, places, cell, row) for row, cell in enumerate(cells, first)]
    values = np.zeros((len(cells), column.width), np.float32)
    values[np.arange(len(cells)), ones] = 1
    return values


def _number(path: Path, column: Column, cell: object, row: int) -> float:
    if cell in _ABSENT:
        if column.fill is None:
            raise fault(path, "is empty, and no fill is declared", row=row, column=column.name)
        return float(column.fill)
    return finite(path, column.name, cell, row)


def finite(path: Path, column: str, cell: object, row: int) -> float:
    """Return the number in a cell."""
    number = math.nan
    if isinstance(cell, int | float) or (isinstance(cell, str) and "_" not in cell):
        with contextlib.suppress(ValueError, OverflowError):
            number = float(cell)
    if not math.isfinite(number):
        raise fault(path, f"{shown(cell)} is not a finite number", row=row, column=column)
    return number


def text_of(path: Path, column: str, cell: object, row: int) -> str:
    """Return the text in a cell; whole numbers count as their digits."""
    if isinstance(cell, str):
        return cell
    if isinstance(cell, int) and not isinstance(cell, bool):
        return str(cell)
    raise fault(path, f"{shown(cell)} is not a text or a whole number", row=row, column=column)


def _place(path: Path, column: Column, places: dict[str, int], cell: object, row: int) -> int:
    if cell in _ABSENT:
        if column.fill is None:
            raise fault(path, "is empty, and no fill is declared", row=row, column=column.name)
        return places[str(column.fill)]
    text = text_of(path, column.name, cell, row)
    if text not in places and not column.other:
        raise fault(path, f"{shown(text)} is not a declared category", row=row, column=column.name)
    return places.get(text, len(places))


def _labels(path: Path, schema: DataSchema, cells: Cells, first: int) -> npt.NDArray[np.float64]:
    """Return classes or real targets; both are exact in float64."""
    name = schema.label
    if schema.target_range is not None:
        numbers = [finite(path, name, cell, row) for row, cell in enumerate(cells, first)]
        clipped: npt.NDArray[np.float64] = np.clip(np.array(numbers), *schema.target_range)
        return clipped
    names = schema.class_names or tuple(map(str, range(schema.classes)))
    places = {text: place for place, text in enumerate(names)}
    found = []
    for row, cell in enumerate(cells, first):
        text = text_of(path, name, cell, row)
        if text not in places:
            allowed = ", ".join(names[:10]) + (", …" if len(names) > 10 else "")
            raise fault(path, f"{shown(cell)} is not a class; allowed are {allowed}", row=row, column=name)
        found.append(places[text])
    return np.array(found, np.float64)


def _groups(path: Path, name: str, cells: Cells, first: int) -> list[str]:
    for row, cell in enumerate(cells, first):
        if cell in _ABSENT:
            raise fault(path, "is empty: every record needs a group", row=row, column=name)
    return [text_of(path, name, cell, row) for row, cell in enumerate(cells, first)]


def read_parquet(path: Path, schema: DataSchema) -> Samples:
    """Return the samples of a Parquet file; the columns are checked before any is read."""
    need("pyarrow", path, "parquet")
    from pyarrow import parquet

    try:
        with parquet.ParquetFile(path) as file:
            names = list(declared_columns(path, schema, file.schema_arrow.names))
            check_extent(path, file.metadata.num_rows, schema.width)
            return samples_from(path, schema, _batches(file, names))
    except MapaError:
        raise
    except Exception as error:  # a decoder of untrusted bytes may raise anything
        raise fault(path, f"is not a readable Parquet file ({type(error).__name__}: {error})") from error


def _batches(file: Any, names: list[str]) -> Iterator[dict[str, Cells]]:
    for batch in file.iter_batches(batch_size=BLOCK, columns=names):
        yield {name: batch.column(name).to_pylist() for name in names}

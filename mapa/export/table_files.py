"""A run's tables as CSV or Parquet files."""

from __future__ import annotations

import csv
import json
import math
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from common.errors import ConfigurationError
from mapa.export.tables import parameters_of, safe_name, statement_of
from mapa.output import printable
from mapa.run_result import TABLES, Columns, Run

_ROWS = 1 << 13  # written at once
_FORMULA = tuple("=+-@＝＋－＠")  # what a spreadsheet takes for a formula


def write_csv(run: Run, folder: Path) -> None:
    """Write each table, the scenario's values and the statement. A number reads back as the very same one."""
    for table in TABLES:
        columns = safe_columns(getattr(run, table))
        with (folder / f"{table}.csv").open("w", encoding="utf-8", newline="") as stream:
            rows = csv.writer(stream)
            rows.writerow(columns)
            for part in _parts(columns):
                cells = (map(_cell, column.tolist()) for column in part.values())
                rows.writerows(zip(*cells, strict=True))
    with (folder / "scenario.csv").open("w", encoding="utf-8", newline="") as stream:
        rows = csv.writer(stream)
        rows.writerow(("key", "value"))
        rows.writerows((key, _cell(value)) for key, value in parameters_of(run.scenario).items())
    words = statement_of(run.summary) or ["no statement was written"]
    (folder / "statement.txt").write_text("\n".join(map(printable, words)) + "\n", encoding="utf-8")


def write_parquet(run: Run, folder: Path) -> None:
    """Write each table; scenario and statement are in every file's metadata."""
    try:
        import pyarrow
        from pyarrow import parquet
    except ImportError as error:
        raise ConfigurationError(
            "--to parquet: pyarrow is not installed: pip install 'mapa-testbed[parquet]'"
        ) from error
    about = {
        "mapa.run": run.name,
        "mapa.scenario": json.dumps(dict(run.scenario), ensure_ascii=False),
        "mapa.statement": "\n".join(statement_of(run.summary)),
    }

    def arrow(part: Mapping[str, Any]) -> Any:
        return pyarrow.table({name: pyarrow.array(one, from_pandas=True) for name, one in part.items()})

    for table in TABLES:
        columns = safe_columns(getattr(run, table))
        schema = arrow({name: one[:0] for name, one in columns.items()}).schema.with_metadata(about)
        with parquet.ParquetWriter(folder / f"{table}.parquet", schema, use_dictionary=False) as writer:
            for part in _parts(columns):
                writer.write_table(arrow(part).cast(schema))


WRITERS: Mapping[str, Callable[[Run, Path], None]] = {"csv": write_csv, "parquet": write_parquet}


def safe_columns(columns: Columns) -> dict[str, np.ndarray[Any, Any]]:
    """Return a table whose columns have names that are safe everywhere, each its own."""
    return dict(zip(_distinct(columns), columns.values(), strict=True))


def _distinct(names: Mapping[str, object]) -> Iterator[str]:
    seen: set[str] = set()
    for name in names:
        made, number = safe_name(name), 1
        while made in seen:
            number += 1
            made = f"{safe_name(name)[:56]}_{number}"
        seen.add(made)
        yield made


def _parts(columns: Mapping[str, np.ndarray[Any, Any]]) -> Iterator[dict[str, np.ndarray[Any, Any]]]:
    """Yield some rows of a table after the other."""
    for at in range(0, max(map(len, columns.values()), default=0), _ROWS):
        yield {name: column[at : at + _ROWS] for name, column in columns.items()}


def _cell(value: Any) -> Any:
    """Return a cell: numbers as they are, text so that neither a spreadsheet nor a terminal acts on it."""
    if isinstance(value, str):
        text = printable(value)
        return f"'{text}" if text.startswith(_FORMULA) else text
    return "" if isinstance(value, float) and math.isnan(value) else value

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
from mapa.run_result import TABLES, Columns, Run


def write_csv(run: Run, folder: Path) -> None:
    """Write each table, the scenario's values and the statement. A number reads back as the very same one."""
    for table in TABLES:
        columns = safe_columns(getattr(run, table))
        with (folder / f"{table}.csv").open("w", encoding="utf-8", newline="") as stream:
            rows = csv.writer(stream)
            rows.writerow(columns)
            rows.writerows(zip(*(map(_cell, column.tolist()) for column in columns.values()), strict=True))
    with (folder / "scenario.csv").open("w", encoding="utf-8", newline="") as stream:
        rows = csv.writer(stream)
        rows.writerow(("key", "value"))
        rows.writerows(parameters_of(run.scenario).items())
    words = statement_of(run.summary) or ["no statement was written"]
    (folder / "statement.txt").write_text("\n".join(words) + "\n", encoding="utf-8")


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
    for table in TABLES:
        columns = safe_columns(getattr(run, table))
        arrays = {name: pyarrow.array(column, from_pandas=True) for name, column in columns.items()}
        made = pyarrow.table(arrays).replace_schema_metadata(about)
        parquet.write_table(made, folder / f"{table}.parquet")


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


def _cell(value: Any) -> Any:
    return "" if isinstance(value, float) and math.isnan(value) else value

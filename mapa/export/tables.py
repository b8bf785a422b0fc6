"""A run as CSV or Parquet tables, and as points of curves for other exporters; its records may be hostile."""

from __future__ import annotations

import csv
import json
import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np

from common.errors import ConfigurationError
from common.metrics import RESERVED
from common.records.regular import count, number, rows, table
from common.records.tally import UpdateTimes, check_record
from mapa.output import printable
from mapa.run_result import TABLES, Columns, Run
from mapa.runs import statement_of

Parameter = str | int | float | bool
MOST_METRICS = 64  # names of one run
_ROWS = 1 << 13  # written at once
_FORMULA = tuple("=+-@＝＋－＠")  # what a spreadsheet takes for a formula
_STAGE = {"stage": "index", "sensitivity": "sensitivity", "learning_rate": "learning_rate"}  # key → curve
_UNSAFE = re.compile(r"[^A-Za-z0-9_.-]")


@dataclass(frozen=True, slots=True)
class CurvePoint:
    curve: str  # group/name, both safe in any path
    t: int
    seconds: float | None  # since the first update; None: the engine has no clock
    value: float


def safe_name(text: str) -> str:
    """Return a name that is one part of a path anywhere, and none that leads out of a folder."""
    return (_UNSAFE.sub("_", text)[:64].lstrip(".") or "_") if text else "_"


def parameters_of(scenario: object, prefix: str = "") -> dict[str, Parameter]:
    """Return a scenario's values by dotted key; a list as JSON."""
    if not isinstance(scenario, Mapping):
        return {}
    parameters: dict[str, Parameter] = {}
    for key, value in scenario.items():
        name = f"{prefix}{safe_name(str(key))}"
        if isinstance(value, Mapping):
            parameters |= parameters_of(value, f"{name}.")
        elif isinstance(value, str | bool | int | float):
            parameters[name] = value
        elif value is not None:
            parameters[name] = json.dumps(value, ensure_ascii=False)
    return parameters


def started(manifest: Mapping[str, Any]) -> float:
    """Return the Unix time when the run was started; 0 where the manifest does not say."""
    try:
        return datetime.fromisoformat(manifest["started"]).timestamp()
    except (KeyError, TypeError, ValueError, OverflowError):
        return 0.0


class SafeNames(dict[str, str]):
    """Names of one run by what is safe everywhere, each its own; made when it is first asked for."""

    def __missing__(self, name: str) -> str:
        made, number = safe_name(name), 1
        while made in self.values():
            number += 1
            made = f"{safe_name(name)[:56]}_{number}"
        self[name] = made
        return made


@dataclass(slots=True)
class Curves:
    """Points of a run's curves, record by record; a record that is none of ours is counted and left out."""

    taken: int = 0  # records
    t: int = 0  # of the last update
    seconds: float | None = None
    unreadable: int = 0
    halted: bool = False
    _times: UpdateTimes = field(default_factory=UpdateTimes)
    _names: SafeNames = field(default_factory=SafeNames)  # of metrics

    def take(self, records: Iterable[Mapping[str, Any]]) -> Iterator[CurvePoint]:
        for record in records:
            self.taken += 1
            try:
                check_record(record)
            except ValueError:
                self.unreadable += 1
                continue
            match record["event"]:
                case "gradient_applied":
                    self.t, self.seconds = record["t"], self._times.applied(record["t"], record.get("time"))
                    yield CurvePoint("updates/staleness", self.t, self.seconds, float(record["staleness"]))
                case "stage_opened":
                    for key, name in _STAGE.items():
                        if (value := number(record.get(key))) is not None:
                            yield CurvePoint(f"stage/{name}", record["t"], self.seconds, value)
                case "evaluated":
                    seconds = self._times.evaluated(record["t"], record.get("time"))
                    yield from self._evaluated(record, record["t"], seconds)
                case "halted" | "resumed" as event:
                    self.halted = event == "halted"

    def at_end(self, summary: Mapping[str, Any]) -> Iterator[CurvePoint]:
        """Yield each edge's ε by the statement, where it is finite; before them, without events, the evaluations."""
        for row in rows(summary, "evaluations") if not self.taken else ():
            if (t := count(row.get("updates"))) is not None:
                yield from self._evaluated(row, t, None)
        self.t = self.t or count(summary.get("updates")) or 0
        for row in rows(table(summary, "privacy"), "edges"):
            if count(row.get("edge")) is not None and (value := number(row.get("epsilon"))) is not None:
                yield CurvePoint(f"privacy/epsilon_edge_{row['edge']}", self.t, self.seconds, value)

    def _evaluated(self, row: Mapping[str, Any], t: int, seconds: float | None) -> Iterator[CurvePoint]:
        for key, given in row.items():
            if key in RESERVED or (value := number(given)) is None:
                continue
            if key not in self._names and len(self._names) >= MOST_METRICS:
                self.unreadable += 1
            else:
                yield CurvePoint(f"metrics/{self._names[key]}", t, seconds, value)


def write_csv(run: Run, folder: Path) -> None:
    """Write each table, the scenario's values and the statement. A number reads back as the very same one."""
    for name in TABLES:
        columns = safe_columns(getattr(run, name))
        lists = ((map(_cell, column.tolist()) for column in part.values()) for part in _parts(columns))
        _write_rows(
            folder / f"{name}.csv", columns, chain.from_iterable(zip(*part, strict=True) for part in lists)
        )
    values = ((key, _cell(value)) for key, value in parameters_of(run.scenario).items())
    _write_rows(folder / "scenario.csv", ("key", "value"), values)
    words = statement_of(run.summary) or ["no statement was written"]
    (folder / "statement.txt").write_text("\n".join(map(printable, words)) + "\n", encoding="utf-8")


def _write_rows(file: Path, names: Iterable[str], cells: Iterable[Iterable[Any]]) -> None:
    with file.open("w", encoding="utf-8", newline="") as stream:
        csv.writer(stream).writerow(names)
        csv.writer(stream).writerows(cells)


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

    for name in TABLES:
        columns = safe_columns(getattr(run, name))
        schema = arrow({column: values[:0] for column, values in columns.items()}).schema.with_metadata(about)
        with parquet.ParquetWriter(folder / f"{name}.parquet", schema, use_dictionary=False) as writer:
            for part in _parts(columns):
                writer.write_table(arrow(part).cast(schema))


WRITERS: Mapping[str, Callable[[Run, Path], None]] = {"csv": write_csv, "parquet": write_parquet}


def safe_columns(columns: Columns) -> dict[str, np.ndarray[Any, Any]]:
    """Return a table whose columns have names that are safe everywhere, each its own."""
    names = SafeNames()
    return {names[name]: column for name, column in columns.items()}


def _parts(columns: Mapping[str, np.ndarray[Any, Any]]) -> Iterator[dict[str, np.ndarray[Any, Any]]]:
    for at in range(0, max(map(len, columns.values()), default=0), _ROWS):
        yield {name: column[at : at + _ROWS] for name, column in columns.items()}


def _cell(value: Any) -> Any:
    """Return a cell: numbers as they are, text so that neither a spreadsheet nor a terminal acts on it."""
    if isinstance(value, str):
        text = printable(value)
        return f"'{text}" if text.startswith(_FORMULA) else text
    return "" if isinstance(value, float) and math.isnan(value) else value

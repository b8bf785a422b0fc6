"""What is exported of a run: its parameters, its statement, and points of curves, from records that may be hostile."""

from __future__ import annotations

import csv
import json
import math
import re
import sys
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any

import numpy as np

from common.errors import ConfigurationError
from common.metrics import RESERVED
from mapa.output import printable
from mapa.run_result import TABLES, Columns, Run

Parameter = str | int | float | bool
MOST_METRICS = 64  # names of one run
_TIMES = 100_000  # updates whose time is remembered until their evaluation comes
_LARGEST = 2**53
_UNSAFE = re.compile(r"[^A-Za-z0-9_.-]")


@dataclass(frozen=True, slots=True)
class Point:
    """One value of a curve."""

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
    found: dict[str, Parameter] = {}
    for key, value in scenario.items():
        name = f"{prefix}{safe_name(str(key))}"
        if isinstance(value, Mapping):
            found |= parameters_of(value, f"{name}.")
        elif isinstance(value, str | bool | int | float):
            found[name] = value
        elif value is not None:
            found[name] = json.dumps(value, ensure_ascii=False)
    return found


def statement_of(summary: Mapping[str, Any]) -> list[str]:
    """Return the privacy statement in words; empty: none was written."""
    privacy = summary.get("privacy")
    words = privacy.get("words") if isinstance(privacy, Mapping) else None
    return [word for word in words if isinstance(word, str)] if isinstance(words, list) else []


def started(manifest: Mapping[str, Any]) -> float:
    """Return the Unix time when the run was started; 0 where the manifest does not say."""
    try:
        return datetime.fromisoformat(manifest["started"]).timestamp()
    except (KeyError, TypeError, ValueError, OverflowError):
        return 0.0


def epsilons(summary: Mapping[str, Any], t: int, seconds: float | None) -> Iterator[Point]:
    """Yield each edge's ε by the statement, at the run's last update; none for an edge without a finite one."""
    privacy = summary.get("privacy")
    edges = privacy.get("edges") if isinstance(privacy, Mapping) else None
    for row in edges if isinstance(edges, list) else ():
        edge, epsilon = (row.get("edge"), row.get("epsilon")) if isinstance(row, Mapping) else (None, None)
        if _count(edge) and (value := _number(epsilon)) is not None:
            yield Point(f"privacy/epsilon_edge_{edge}", t, seconds, value)


@dataclass(slots=True)
class Curves:
    """Points of a run's curves, record by record; a record that is none of ours is counted and left out."""

    taken: int = 0  # records
    t: int = 0  # of the last update
    seconds: float | None = None
    unreadable: int = 0
    halted: bool = False
    _first: float | None = None
    _times: OrderedDict[int, float] = field(default_factory=OrderedDict)
    _names: dict[str, str] = field(default_factory=dict)  # metric → its safe name

    def take(self, records: Iterable[Mapping[str, Any]]) -> Iterator[Point]:
        for record in records:
            self.taken += 1
            event, t = record.get("event"), record.get("t")
            if event == "halted":
                self.halted = True
            elif event == "resumed":
                self.halted = False
            elif event in ("gradient_applied", "stage_opened", "evaluated"):
                if not _count(t):
                    self.unreadable += 1
                else:
                    yield from getattr(self, f"_{event}")(record, t)

    def evaluations(self, rows: object) -> Iterator[Point]:
        """Yield the evaluations of a summary, for a run without events."""
        for row in rows if isinstance(rows, list) else ():
            if isinstance(row, Mapping) and _count(row.get("updates")):
                yield from self._evaluated(row, row["updates"])

    def _gradient_applied(self, record: Mapping[str, Any], t: int) -> Iterator[Point]:
        staleness = record.get("staleness")
        if not _count(staleness):
            self.unreadable += 1
            return
        self.t, self.seconds = t, self._since(record)
        if self.seconds is not None:
            self._times[t] = self.seconds
            if len(self._times) > _TIMES:
                self._times.popitem(last=False)
        yield Point("updates/staleness", t, self.seconds, float(staleness or 0))

    def _stage_opened(self, record: Mapping[str, Any], t: int) -> Iterator[Point]:
        seconds = self.seconds
        for key, name in (
            ("stage", "index"),
            ("sensitivity", "sensitivity"),
            ("learning_rate", "learning_rate"),
        ):
            if (value := _number(record.get(key))) is not None:
                yield Point(f"stage/{name}", t, seconds, value)

    def _evaluated(self, record: Mapping[str, Any], t: int) -> Iterator[Point]:
        seconds = self._times.get(t)
        if t == 0 and "time" in record:  # x₁ was there before any update
            seconds = 0.0
        elif seconds is None and self._first is not None:
            seconds = self._since(record)
        for key, given in record.items():
            if key not in RESERVED and (value := _number(given)) is not None:
                name = self._name(str(key))
                if name is not None:
                    yield Point(f"metrics/{name}", t, seconds, value)

    def _since(self, record: Mapping[str, Any]) -> float | None:
        time = _number(record.get("time"))
        if time is None:
            return None
        if self._first is None:
            self._first = time
        return max(0.0, time - self._first)

    def _name(self, metric: str) -> str | None:
        """Return a safe name for a metric, its own for each; None: there are too many."""
        if metric not in self._names:
            if len(self._names) >= MOST_METRICS:
                self.unreadable += 1
                return None
            name, number = safe_name(metric), 1
            while name in self._names.values():
                number += 1
                name = f"{safe_name(metric)[:56]}_{number}"
            self._names[metric] = name
        return self._names[metric]


def _count(value: object) -> bool:
    return type(value) is int and 0 <= value < _LARGEST


def _number(value: object) -> float | None:
    """Return a finite number as it is; None: it is none."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return value if abs(value) <= sys.float_info.max else None  # NaN fails too


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

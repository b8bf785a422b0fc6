"""A run as an object: its records as arrays, read from runs/<id>/ whichever engine wrote them."""

from __future__ import annotations

import math
from array import array
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
from safetensors.numpy import load

from common.errors import ConfigurationError, nearest
from common.metrics import Metric
from common.records.reader import RunRecords, read_run, records_in
from common.records.regular import MOST_MODEL, regular_bytes

if TYPE_CHECKING:
    import pandas

Columns = Mapping[str, npt.NDArray[Any]]
MOST_UPDATES = 1 << 24  # of one run: their table takes 1 GB
TABLES = ("updates", "metrics", "stages", "edges")
_UPDATES = ("t", "edge", "sequence", "version", "staleness", "stage", "sensitivity", "time")
_STAGES = ("stage", "t", "sensitivity", "variance", "p", "learning_rate", "length", "tau_max", "reopened")
_EDGES = ("edge", "edge_id", "applied", "last_sequence", "staleness_mean", "staleness_max", "joins", "gone")
_PRIVACY = ("releases", "shard_size", "epsilon", "epsilon_replace_one")  # of a statement, for each edge
_TYPES: Mapping[str, type[np.generic]] = {
    **dict.fromkeys(
        ("t", "edge", "sequence", "version", "staleness", "stage", "length", "tau_max"), np.int64
    ),
    **dict.fromkeys(("applied", "last_sequence", "staleness_max", "joins"), np.int64),
    **dict.fromkeys(("edge_id", "gone"), np.str_),
    "reopened": np.bool_,
}  # of the others float64, NaN for what is not known


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Run:
    """One run. Tables are mappings from a column's name to a read-only array; `to_pandas` gives them as frames."""

    path: Path  # of its records
    manifest: Mapping[str, Any]  # the scenario, the seed, versions
    summary: Mapping[str, Any]  # empty: the run was cut off
    updates: Columns  # a row for each update; empty where records.events = false
    metrics: Columns  # a row for each evaluation: t, seconds since the first update, a column for each metric
    stages: Columns  # a row for each stage
    edges: Columns  # a row for each edge; epsilon is its total, NaN: none is guaranteed or none was computed
    model: Columns  # x_{T+1} by the names of its blocks
    x: npt.NDArray[np.float32]  # x_{T+1} as one vector

    @property
    def name(self) -> str:
        """The run's id: the name of its folder."""
        return self.path.resolve().name

    @property
    def reason(self) -> str:
        """Why it ended: finished, interrupted, diverged, no-budget, …; unfinished: its cloud has not ended normally."""
        return str(self.summary.get("reason", "unfinished"))

    @property
    def scenario(self) -> Mapping[str, Any]:
        """Every value of the scenario."""
        found: Mapping[str, Any] = self.manifest.get("scenario", {})
        return found

    @property
    def staleness(self) -> npt.NDArray[np.int64]:
        """τ of each update."""
        return self.updates["staleness"]

    @property
    def privacy(self) -> Mapping[str, Any]:
        """The statement: `words` for a person, and `edges` with the figures of each."""
        unknown = f"no statement was written; `mapa ledger {self.path}` says what the events prove"
        found: Mapping[str, Any] = self.summary.get("privacy", {"words": [unknown], "edges": []})
        return found

    @property
    def epsilon(self) -> float:
        """Total ε of the least protected edge, at the statement's δ; NaN: none is guaranteed, or none was computed."""
        value = self.privacy.get("epsilon")
        return math.nan if value is None else float(value)

    def to_pandas(self, table: str = "metrics") -> pandas.DataFrame:
        """Return a table as a data frame: updates, metrics, stages or edges."""
        if table not in TABLES:
            raise ConfigurationError(
                f"table = {table!r}: allowed are {', '.join(TABLES)}{nearest(table, TABLES)}"
            )
        try:
            import pandas
        except ImportError as error:
            raise ConfigurationError(
                "to_pandas needs pandas, which is not installed: pip install 'mapa-testbed[pandas]'; the same"
                f" columns are in run.{table}, as arrays"
            ) from error
        columns: Columns = getattr(self, table)
        return pandas.DataFrame({name: column.copy() for name, column in columns.items()})

    def __repr__(self) -> str:
        summary = self.summary
        if not summary:
            return f"<Run {self.path}: unfinished, {len(self.staleness)} updates on record>"
        try:
            first = Metric.from_dict(summary["metrics"][0])
            value = summary[f"final_{first.name}"]
            measured = "" if value is None else f", {first.name} {first.text(value)}"
            what = f"{summary['algorithm']} {summary['model']} on {summary['data']}"
        except (AttributeError, LookupError, TypeError, ValueError):  # not a summary that mapa wrote
            return f"<Run {self.path}>"
        return f"<Run {summary['name']}: {what}, {summary['updates']} updates, {self.reason}{measured}>"


def read_result(path: Path) -> Run:
    """Read a run's directory; one that was cut off has what its events say."""
    with records_in(path):
        return _read(path)


def _read(path: Path) -> Run:
    columns: dict[str, array[Any]] = {
        name: array("q" if _TYPES.get(name) is np.int64 else "d") for name in _UPDATES
    }

    def take(record: Mapping[str, Any]) -> None:
        if record["event"] != "gradient_applied":
            return
        for name, column in columns.items():
            value = record.get(name)
            column.append(math.nan if value is None and column.typecode == "d" else value)
        if len(column) > MOST_UPDATES:
            raise ConfigurationError(f"{path / 'events.jsonl'}: more than {MOST_UPDATES} updates")

    records = read_run(path, take)
    statement = records.summary.get("privacy", {}).get("edges", [])
    model = _model(path / "model.safetensors")
    flat = model.pop("x", np.zeros(0, np.float32))
    updates = {name: np.frombuffer(one, _TYPES.get(name, np.float64)) for name, one in columns.items()}
    return Run(
        path=path,
        manifest=MappingProxyType(records.manifest),
        summary=MappingProxyType(records.summary),
        updates=_frozen(updates),
        metrics=_metrics(records),
        stages=_columns(records.stages, _STAGES),
        edges=_columns(_edges(records.summary.get("edges", []), statement), (*_EDGES, *_PRIVACY)),
        model=_frozen(model),
        x=_frozen({"x": flat})["x"],
    )


def _frozen(columns: dict[str, npt.NDArray[Any]]) -> Columns:
    for column in columns.values():
        column.flags.writeable = False
    return MappingProxyType(columns)


def _metrics(records: RunRecords) -> Columns:
    names = [metric.name for metric in records.metrics]
    rows = [{"t": one.updates, "seconds": one.seconds, **one.named()} for one in records.evaluations]
    return _columns(rows, ("t", "seconds", *names))


def _edges(tallied: Iterable[Mapping[str, Any]], stated: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    by_edge = {row["edge"]: row for row in stated}
    return [{**row, **{key: by_edge.get(row["edge"], {}).get(key) for key in _PRIVACY}} for row in tallied]


def _columns(rows: list[dict[str, Any]], names: Iterable[str]) -> Columns:
    return _frozen({name: _column(name, [row.get(name) for row in rows]) for name in names})


def _column(name: str, values: list[Any]) -> npt.NDArray[Any]:
    kind = _TYPES.get(name, np.float64)
    if kind is np.float64:
        values = [np.nan if value is None else value for value in values]
    return np.array(values, kind)


def _model(path: Path) -> dict[str, npt.NDArray[Any]]:
    try:
        return dict(load(regular_bytes(path, MOST_MODEL)))
    except FileNotFoundError:
        return {}
    except Exception as error:  # also of the library's own kinds
        raise ConfigurationError(f"{path}: not a model that mapa wrote ({error})") from error

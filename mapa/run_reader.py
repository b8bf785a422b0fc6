"""runs/<id>/ read back, whichever engine wrote it, finished or cut off."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from common.errors import ConfigurationError
from common.metrics import CLASSIFICATION, RESERVED, Metric
from common.records.regular import plain_json, regular_bytes, regular_object
from mapa.runs_folder import chosen

_MOST_EVENTS = 1 << 33  # bytes of events.jsonl


@dataclass(frozen=True, slots=True)
class RecordedEvaluation:
    """One evaluation; `seconds` count from the first update, virtual in a simulation."""

    updates: int
    values: dict[str, float | None]  # by metric; None: not finite
    seconds: float | None

    @property
    def accuracy(self) -> float:
        """The accuracy of a classifier; experiments/ only has classifiers."""
        value = self.values.get("accuracy")
        return math.nan if value is None else value

    @property
    def loss(self) -> float | None:
        return self.values.get("loss")


@dataclass(slots=True)
class RunRecords:
    """The records of one run."""

    path: Path
    manifest: dict[str, Any]
    summary: dict[str, Any]  # empty: the run did not get that far
    evaluations: list[RecordedEvaluation] = field(default_factory=list)
    staleness: Counter[int] = field(default_factory=Counter)
    stages: list[dict[str, Any]] = field(default_factory=list)
    last_update: int = 0  # t of the last update on record

    @property
    def name(self) -> str:
        return self.path.resolve().name  # `.` has none by itself

    @property
    def scenario(self) -> dict[str, Any]:
        found: dict[str, Any] = self.manifest.get("scenario", {})
        return found

    @property
    def metrics(self) -> list[Metric]:
        """The metrics of the run, the headline metric first; without a summary, those in its events."""
        if "metrics" in self.summary:
            return [Metric.from_dict(fields) for fields in self.summary["metrics"]]
        names = self.evaluations[-1].values if self.evaluations else {}
        return [metric for metric in CLASSIFICATION if metric.name in names] or list(CLASSIFICATION)

    @property
    def timed(self) -> bool:
        return bool(self.evaluations) and all(seen.seconds is not None for seen in self.evaluations)


def find_run(name: str, runs: Path) -> Path:
    """Return a run's directory: a path, its id under `runs`, `latest`, or the beginning of one id alone."""
    for path in (Path(name), runs / name):
        if (path / "manifest.json").is_file() or (path / "events.jsonl").is_file():
            return path
    return chosen(name, runs)


def read_run(path: Path, events: list[dict[str, Any]] | None = None) -> RunRecords:
    """Read a run. Without events.jsonl the evaluations come from the summary and have no times.

    `events` are those of `read_events`, where the caller has read them.
    """
    run = RunRecords(path, _json(path / "manifest.json"), _json(path / "summary.json"))
    times: dict[int, float] = {}  # of updates
    when: dict[int, float] = {}  # of evaluations, where their update has none
    found: dict[int, dict[str, float | None]] = {}
    for record in read_events(path) if events is None else events:
        event, time = record.get("event"), record.get("time")
        if event == "gradient_applied":
            run.staleness[record["staleness"]] += 1
            run.last_update = record["t"]
            if time is not None:
                times[record["t"]] = time
        elif event == "evaluated":
            found[record["t"]] = _values(record)
            if time is not None:
                when[record["t"]] = time
        elif event == "stage_opened":
            run.stages.append(record)
    for row in run.summary.get("evaluations", []) if not found else []:
        found[row["updates"]] = _values(row)
    origin = min(times.values(), default=None)
    for t, values in sorted(found.items()):
        # the evaluation itself takes time that the training does not wait for
        at = times.get(t, when.get(t))
        seconds = None if at is None or origin is None else max(0.0, at - origin)
        run.evaluations.append(RecordedEvaluation(t, values, seconds))
    if not run.stages:
        run.stages = list(run.summary.get("stages", []))
    return run


def _values(record: dict[str, Any]) -> dict[str, float | None]:
    """Return the metrics of an evaluation: everything that is not a key of the records themselves."""
    return {key: value for key, value in record.items() if key not in RESERVED}


def read_manifest(path: Path) -> dict[str, Any]:
    """Return a run's manifest; empty where there is none."""
    return _json(path / "manifest.json")


def read_events(path: Path) -> list[dict[str, Any]]:
    """Return a run's events; a last line that was cut off is left out."""
    return _lines(path / "events.jsonl")


def _json(path: Path) -> dict[str, Any]:
    try:
        return regular_object(path)
    except FileNotFoundError:
        return {}
    except OSError as error:
        raise ConfigurationError(f"{path}: cannot be read: {error.strerror or error}") from error
    except ValueError as error:
        raise ConfigurationError(f"{path}: {error}") from error


def _lines(path: Path) -> list[dict[str, Any]]:
    """Return the records; a last line that was cut off is left out."""
    try:
        text = regular_bytes(path, _MOST_EVENTS).decode("utf-8")
    except FileNotFoundError:
        return []
    except OSError as error:
        raise ConfigurationError(f"{path}: cannot be read: {error.strerror or error}") from error
    lines = text.splitlines()
    records = []
    for number, line in enumerate(lines, start=1):
        try:
            records.append(plain_json(line))
        except ValueError as error:
            if number == len(lines):
                break
            raise ConfigurationError(f"{path}, line {number}: {error}") from error
    return records

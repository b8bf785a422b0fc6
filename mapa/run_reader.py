"""runs/<id>/ read back, whichever engine wrote it, finished or cut off."""

from __future__ import annotations

import math
from collections import Counter, OrderedDict
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from common.errors import ConfigurationError
from common.metrics import CLASSIFICATION, RESERVED, Metric
from common.records.regular import lines_in, plain_json, regular_object
from mapa.runs_folder import chosen

_TIMES = 1 << 14  # updates whose time is remembered until their evaluation comes
_MOST_KEPT = 1 << 20  # evaluations, stages and values of τ of one run


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


@contextmanager
def records_in(place: object) -> Iterator[None]:
    """Raise ConfigurationError, which names the place, where values there are not of the types that mapa writes."""
    try:
        yield
    except (ArithmeticError, AttributeError, LookupError, RecursionError, TypeError, ValueError) as error:
        raise ConfigurationError(f"{place}: not records that mapa wrote ({error!r:.200})") from error


def find_run(name: str, runs: Path) -> Path:
    """Return a run's directory: a path, its id under `runs`, `latest`, or the beginning of one id alone."""
    for path in (Path(name), runs / name):
        if (path / "manifest.json").is_file() or (path / "events.jsonl").is_file():
            return path
    return chosen(name, runs)


def read_run(path: Path, events: Iterable[dict[str, Any]] | None = None) -> RunRecords:
    """Read a run. Without events.jsonl the evaluations come from the summary and have no times.

    `events` are those of `read_events`, where the caller reads them too. No update is kept.
    """
    run = RunRecords(path, _json(path / "manifest.json"), _json(path / "summary.json"))
    times: OrderedDict[int, float] = OrderedDict()  # of the last updates
    when: dict[int, float] = {}  # of evaluations
    found: dict[int, dict[str, float | None]] = {}
    origin: float | None = None  # time of the first update
    for record in read_events(path) if events is None else events:
        event, time = record.get("event"), record.get("time")
        if event == "gradient_applied":
            run.staleness[record["staleness"]] += 1
            run.last_update = record["t"]
            if time is not None:
                times[record["t"]] = time
                origin = time if origin is None else min(origin, time)
                if len(times) > _TIMES:
                    times.popitem(last=False)
        elif event == "evaluated":
            found[record["t"]] = _values(record)
            # the evaluation itself takes time that the training does not wait for; x₁ was there before any update
            if (at := times.get(record["t"], time)) is not None:
                when[record["t"]] = at if record["t"] else -math.inf
        elif event == "stage_opened":
            run.stages.append(record)
        if len(run.staleness) + len(found) + len(run.stages) > _MOST_KEPT:
            raise ConfigurationError(
                f"{path / 'events.jsonl'}: more than {_MOST_KEPT} evaluations, stages and values of staleness"
            )
    for row in run.summary.get("evaluations", []) if not found else []:
        found[row["updates"]] = _values(row)
    for t, values in sorted(found.items()):
        seconds = None if t not in when or origin is None else max(0.0, when[t] - origin)
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


def read_events(path: Path) -> Iterator[dict[str, Any]]:
    """Yield a run's events, none kept; a last line that was cut off is left out.

    ConfigurationError at the first line that is no JSON object, or too long.
    """
    file, number = path / "events.jsonl", 1
    lines = lines_in(file)
    try:
        while line := next(lines, b""):
            try:
                record = plain_json(line)
            except ValueError:
                if line.endswith(b"\n"):
                    raise
                return
            if not isinstance(record, dict):
                raise ValueError("not a JSON object")
            yield record
            number += 1
    except FileNotFoundError:
        return
    except OSError as error:
        raise ConfigurationError(f"{file}: cannot be read: {error.strerror or error}") from error
    except ValueError as error:
        raise ConfigurationError(f"{file}, line {number}: {error}") from error


def _json(path: Path) -> dict[str, Any]:
    try:
        return regular_object(path)
    except FileNotFoundError:
        return {}
    except OSError as error:
        raise ConfigurationError(f"{path}: cannot be read: {error.strerror or error}") from error
    except ValueError as error:
        raise ConfigurationError(f"{path}: {error}") from error

"""runs/<id>/ read back, whichever engine wrote it, finished or cut off."""

from __future__ import annotations

import json
import math
import os
from collections import Counter, OrderedDict
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from common.errors import ConfigurationError
from common.metrics import CLASSIFICATION, RESERVED, Metric
from common.records.regular import (
    LONGEST_LINE,
    few_values,
    lines_in,
    open_regular,
    plain_json,
    regular_object,
)

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


class Tail:
    """The one run directory that appears under `runs` from now on, and its events so far."""

    def __init__(self, runs: Path) -> None:
        self._runs = runs
        self._known = {path.name for path in runs.iterdir()} if runs.is_dir() else set()
        self._read = 0  # bytes
        self._path: Path | None = None
        self.events: list[dict[str, Any]] = []

    @property
    def path(self) -> Path | None:
        """The run's directory; None: not there yet."""
        if self._path is None:
            new = sorted(path for path in self._runs.iterdir() if path.name not in self._known)
            self._path = new[-1] if new else None
        return self._path

    def look(self) -> list[dict[str, Any]]:
        """Return every event so far; a line that is still being written comes with the next look."""
        file = None if self.path is None else self.path / "events.jsonl"
        if file is not None and file.is_file():
            with file.open("rb") as stream:
                stream.seek(self._read)
                grown = stream.read()
            whole = grown[: grown.rfind(b"\n") + 1]
            self._read += len(whole)
            self.events += [json.loads(line) for line in whole.splitlines()]
        return self.events

    def named(self, event: str) -> list[dict[str, Any]]:
        return [record for record in self.look() if record["event"] == event]

    @property
    def updates(self) -> int:
        """How many updates are on record."""
        applied = self.named("gradient_applied")
        return int(applied[-1]["t"]) if applied else 0

    @property
    def edges(self) -> set[int]:
        """The indices of the edges whose gradients were applied."""
        return {int(record["edge"]) for record in self.named("gradient_applied")}

    def summary(self) -> dict[str, Any] | None:
        """Return summary.json; None: not written yet."""
        file = None if self.path is None else self.path / "summary.json"
        if file is None or not file.is_file():
            return None
        summary: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
        return summary


CHUNK = 1 << 21  # bytes of one look: about 10,000 events
LONGEST = LONGEST_LINE
LARGEST = 1 << 25  # bytes of a JSON file
MOST = 1 << 20  # values in it
_DIGITS = 40  # of a whole number


@dataclass(slots=True)
class EventTail:
    """events.jsonl read on as it grows. A line that is being written comes with a later look."""

    path: Path
    offset: int = 0  # bytes taken, whole lines only
    unreadable: int = 0  # lines that were no records
    behind: bool = False  # more is there than the last look took
    _identity: tuple[int, int] | None = None  # device and inode of what was read
    _skipping: bool = False  # within a line that is too long

    def look(self) -> tuple[bool, list[dict[str, Any]]]:
        """Return the records since the last look; True before them: the file is another, or was cut."""
        try:
            with open(self.path, "rb", opener=open_regular) as stream:
                seen = os.fstat(stream.fileno())
                identity, began = (seen.st_dev, seen.st_ino), self._identity
                anew = began is not None and (identity != began or seen.st_size < self.offset)
                if anew:
                    self.offset, self.unreadable, self._skipping = 0, 0, False
                self._identity = identity
                stream.seek(self.offset)
                content = stream.read(CHUNK)
                self.behind = seen.st_size > self.offset + len(content)
        except OSError:  # not there yet, or gone for a moment while it is replaced
            self.behind = False
            return False, []
        return anew, self._records(content)

    def _records(self, content: bytes) -> list[dict[str, Any]]:
        end = content.rfind(b"\n") + 1
        if not end:
            if len(content) > LONGEST or self._skipping:
                self._skipping = True
                self.offset += len(content)
            return []
        self.offset += end
        lines = content[: end - 1].split(b"\n")
        if self._skipping:  # the end of a line whose beginning was left out
            self._skipping = False
            self.unreadable += 1
            lines = lines[1:]
        records = []
        for line in lines:
            try:
                record = plain_json(line) if len(line) <= LONGEST else None
            except ValueError:
                record = None
            if isinstance(record, dict):
                records.append(record)
            else:
                self.unreadable += 1
        return records


def _real(text: str) -> float | None:
    value = float(text)
    return value if math.isfinite(value) else None


def _whole(text: str) -> int | None:
    return int(text) if len(text) <= _DIGITS else None


def _none(_: str) -> None:
    """NaN and infinities."""


@dataclass(slots=True)
class JsonFile:
    """A JSON object in a file, read again when the file has changed; {}: none, or none that can be read.

    Its numbers are finite and of a size that can be computed with; others are None.
    """

    path: Path
    keep: Callable[[dict[str, Any]], dict[str, Any]] = dict  # what of it is kept
    value: dict[str, Any] = field(default_factory=dict)
    version: int = 0  # goes up with each change
    _seen: tuple[int, int, int] | None = None

    def look(self) -> dict[str, Any]:
        try:
            with open(self.path, "rb", opener=open_regular) as stream:
                stat = os.fstat(stream.fileno())
                seen = (stat.st_ino, stat.st_size, stat.st_mtime_ns)
                if seen == self._seen or stat.st_size > LARGEST:
                    return self.value
                content = stream.read(LARGEST)
        except OSError:
            return self.value
        self._seen = seen
        try:
            text = few_values(content, MOST).decode("utf-8")
            value = json.loads(text, parse_float=_real, parse_int=_whole, parse_constant=_none)
        except (ValueError, RecursionError):
            value = {}
        self.value = self.keep(value if isinstance(value, dict) else {})
        self.version += 1
        return self.value

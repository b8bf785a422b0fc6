"""runs/<id>/ read back, whichever engine wrote it, finished, cut off or still being written.

Every file is read as if somebody else had left it: regular ones only, no links, bounded, as a stream.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from common.errors import ConfigurationError
from common.metrics import CLASSIFICATION, Metric
from common.records.regular import (
    LONGEST_LINE,
    few_values,
    lines_in,
    open_regular,
    plain_json,
    regular_object,
)
from common.records.tally import Evaluation, Tally, check_record

CHUNK = (
    1 << 17
)  # bytes of one look at a file that grows, more than a line: some hundred events, parts of 0.1 s
LONGEST = LONGEST_LINE
LARGEST = 1 << 25  # bytes of a JSON file that is looked at again and again
MOST = 1 << 20  # values in it
_DIGITS = 40  # of a whole number
_MOST_KEPT = 1 << 20  # edges, evaluations, stages and values of τ of one run
_OFTEN = 1 << 12  # records between two looks at how much is kept

Record = dict[str, Any]  # a line of events.jsonl


@dataclass(slots=True)
class RunRecords:
    path: Path
    manifest: dict[str, Any]
    summary: dict[str, Any]  # empty: the run did not get that far
    tally: Tally = field(default_factory=Tally)
    joined: dict[int, Record] = field(default_factory=dict)  # each edge's last record of joining

    @property
    def name(self) -> str:
        return self.path.resolve().name  # `.` has none by itself

    @property
    def scenario(self) -> dict[str, Any]:
        scenario: dict[str, Any] = self.manifest.get("scenario", {})
        return scenario

    @property
    def evaluations(self) -> list[Evaluation]:
        """The evaluations by updates; without events those of the summary, which have no times."""
        told = self.tally.evaluations or [Evaluation.of(row) for row in self.summary.get("evaluations", [])]
        if self.tally.times.first is None:
            told = [replace(evaluation, seconds=None) for evaluation in told]
        return sorted({one.updates: one for one in told}.values(), key=lambda one: one.updates)

    @property
    def stages(self) -> list[dict[str, Any]]:
        return self.tally.stages or list(self.summary.get("stages", []))

    @property
    def metrics(self) -> list[Metric]:
        """The metrics of the run, the headline metric first; without a summary, those in its events."""
        if "metrics" in self.summary:
            return [Metric.from_dict(fields) for fields in self.summary["metrics"]]
        names = self.evaluations[-1].named() if self.evaluations else {}
        return [metric for metric in CLASSIFICATION if metric.name in names] or list(CLASSIFICATION)

    @property
    def timed(self) -> bool:
        return bool(self.evaluations) and all(one.seconds is not None for one in self.evaluations)


def read_run(path: Path, also: Callable[[Record], None] = lambda _: None) -> RunRecords:
    """Read and count a run; `also` is called with each of its records, none of which is kept."""
    run = RunRecords(path, read_manifest(path), read_json(path / "summary.json"))
    tally = run.tally
    for number, record in enumerate(read_events(path)):
        tally.take(record)
        also(record)
        if record["event"] == "edge_joined":
            run.joined[record["edge"]] = record
        if number % _OFTEN == 0:
            kept = len(tally.edges) + len(tally.staleness) + len(tally.evaluations) + len(tally.stages)
            if kept + len(tally.refused) > _MOST_KEPT:
                raise ConfigurationError(
                    f"{path / 'events.jsonl'}: more than {_MOST_KEPT} edges, evaluations, stages and kinds of staleness"
                )
    return run


def read_manifest(path: Path) -> dict[str, Any]:
    """Return a run's manifest; empty where there is none."""
    return read_json(path / "manifest.json")


def read_json(path: Path) -> dict[str, Any]:
    """Return the object in a JSON file, empty where there is none; raise ConfigurationError if it cannot be read."""
    try:
        return regular_object(path)
    except FileNotFoundError:
        return {}
    except OSError as error:
        raise ConfigurationError(f"{path}: cannot be read: {error.strerror or error}") from error
    except ValueError as error:
        raise ConfigurationError(f"{path}: {error}") from error


def read_events(path: Path) -> Iterator[Record]:
    """Yield a run's records, none kept; a last line that was cut off is left out.

    Raise ConfigurationError at the first line that is too long or no record.
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
            check_record(record)
            yield record
            number += 1
    except FileNotFoundError:
        return
    except OSError as error:
        raise ConfigurationError(f"{file}: cannot be read: {error.strerror or error}") from error
    except ValueError as error:
        raise ConfigurationError(f"{file}, line {number}: {error}") from error


@contextmanager
def records_in(place: object) -> Iterator[None]:
    """Raise ConfigurationError, which names the place, where values there are not of the types that mapa writes."""
    try:
        yield
    except (ArithmeticError, AttributeError, LookupError, RecursionError, TypeError, ValueError) as error:
        raise ConfigurationError(f"{place}: not records that mapa wrote ({error!r:.200})") from error


@dataclass(slots=True)
class EventTail:
    """events.jsonl read on as it grows. A line that is being written comes with a later look."""

    path: Path
    offset: int = 0  # bytes taken, whole lines only
    unreadable: int = 0  # lines that were no JSON objects
    behind: bool = False  # more is there than the last look took
    _identity: tuple[int, int] | None = None  # device and inode of what was read
    _skipping: bool = False  # within a line that is too long

    def look(self) -> tuple[bool, list[Record]]:
        """Return the records since the last look, unchecked; True before them: the file is another, or was cut."""
        try:
            with open(self.path, "rb", opener=open_regular) as stream:
                seen = os.fstat(stream.fileno())
                identity, began = (seen.st_dev, seen.st_ino), self._identity
                replaced = began is not None and (identity != began or seen.st_size < self.offset)
                if replaced:
                    self.offset, self.unreadable, self._skipping = 0, 0, False
                self._identity = identity
                stream.seek(self.offset)
                content = stream.read(CHUNK)
                self.behind = seen.st_size > self.offset + len(content)
        except OSError:  # not there yet, or gone for a moment while it is replaced
            self.behind = False
            return False, []
        return replaced, self._records(content)

    def _records(self, content: bytes) -> list[Record]:
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


@dataclass(slots=True)
class JsonFile:
    """A JSON object in a file, read again when the file has changed; {}: none, or none that can be read.

    Its numbers are finite and of a size that can be computed with; others are None.
    """

    path: Path
    keep: Callable[[dict[str, Any]], dict[str, Any]] = dict  # what of it is kept
    value: dict[str, Any] = field(default_factory=dict)
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
            value = json.loads(text, parse_float=_real, parse_int=_whole, parse_constant=lambda _: None)
        except (ValueError, RecursionError):
            value = {}
        self.value = self.keep(value if isinstance(value, dict) else {})
        return self.value


def _real(text: str) -> float | None:
    value = float(text)
    return value if math.isfinite(value) else None


def _whole(text: str) -> int | None:
    return int(text) if len(text) <= _DIGITS else None

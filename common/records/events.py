"""events.jsonl: one JSON object a line, the same from every engine; how a record is made, checked and written.

Never a gradient, a sample or a norm before noise: a log line is a release too.
"""

from __future__ import annotations

import contextlib
import io
import itertools
import json
import os
import re
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any, Protocol

from common.errors import RecordsError
from common.messages import Fact, GradientApplied
from common.quantities import EdgeId
from common.records.regular import LARGEST, open_regular, plain_json

_BUFFER = 1 << 20  # characters
_LONGEST_WAIT = 1.0  # seconds: a page shows a run while it goes on
_COUNTS = {  # keys that readers count by
    "gradient_applied": ("edge", "t", "staleness", "sequence"),
    "edge_joined": ("edge",),
    "edge_gone": ("edge",),
    "stage_opened": ("stage", "t"),
    "evaluated": ("t",),
}
_TEXTS = {"edge_joined": ("edge_id",), "edge_gone": ("reason",), "gradient_refused": ("reason",)}


def event_name(fact: object) -> str:
    """Return `gradient_applied` for a GradientApplied, and so on."""
    return re.sub(r"(?<!^)(?=[A-Z])", "_", type(fact).__name__).lower()


def record_of(fact: Fact) -> dict[str, Any]:
    """Return a fact as the keys of its line; a law's other parameters stand beside the other keys."""
    fields = asdict(fact)
    parameters = fields.pop("parameters", {})
    if fields.get("device", "") is None:
        del fields["device"]  # a key that came later: only where it says something
    return {"event": event_name(fact), **fields, **parameters}


def check_record(record: Mapping[str, Any]) -> None:
    """Raise ValueError if a key that readers count by is missing or of another type."""
    event, time = record.get("event"), record.get("time")
    if not isinstance(event, str):
        raise ValueError(f"event = {event!r:.40}: must be the name of an event")
    for key in _COUNTS.get(event, ()):
        value = record.get(key)
        if type(value) is not int or not 0 <= value < LARGEST:
            raise ValueError(f"{event}: {key} = {value!r:.40}: must be a whole number, 0 or more")
    for key in _TEXTS.get(event, ()):
        if not isinstance(record.get(key), str):
            raise ValueError(f"{event}: {key} = {record.get(key)!r:.40}: must be a text")
    if time is not None and (type(time) not in (int, float) or not -1e12 < time < 1e12):
        raise ValueError(f"{event}: time = {time!r:.40}: must be seconds")


class Lines(Protocol):
    """Where a journal writes: a text stream, or a file that keeps its lines whole."""

    def write(self, text: str, /) -> object: ...


class Journal:
    """Writes records to a text stream that it does not own."""

    def __init__(self, stream: Lines) -> None:
        self._stream = stream
        self._names: dict[EdgeId, str] = {}

    def fact(self, fact: Fact, time: float | None = None) -> None:
        """Write a fact; `time` is seconds since the run began, virtual in a simulation."""
        if type(fact) is GradientApplied:
            self._stream.write(self._applied(fact, time))
        else:
            self._record(record_of(fact), time)

    def write(self, event: str, fields: Mapping[str, object], time: float | None = None) -> None:
        self._record({"event": event, **fields}, time)

    def _record(self, record: dict[str, Any], time: float | None) -> None:
        if time is not None:
            record["time"] = round(time, 6)
        self._stream.write(json.dumps(record, ensure_ascii=False) + "\n")

    def _applied(self, fact: GradientApplied, time: float | None) -> str:
        """Format the one record of the hot path by hand: a fifth of json.dumps' cost."""
        edge_id = self._names.get(fact.edge_id)
        if edge_id is None:
            edge_id = self._names[fact.edge_id] = json.dumps(fact.edge_id)
        when = "" if time is None else f', "time": {time:.6f}'
        return (
            f'{{"event": "gradient_applied", "edge": {fact.edge}, "edge_id": {edge_id}, '
            f'"sequence": {fact.sequence}, "version": {fact.version}, "t": {fact.t}, '
            f'"staleness": {fact.staleness}, "stage": {fact.stage}, "sensitivity": {fact.sensitivity!r}{when}}}\n'
        )


class EventFile:
    """Keeps lines and writes them in batches. Where a write fails, the torn line is cut off, and nothing follows."""

    def __init__(
        self, path: Path, *, resumed: bool = False, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.path = path
        self._clock = clock
        self._written = clock()  # when lines were last written
        self._file = io.FileIO(path, "ab" if resumed else "xb", opener=open_regular)
        self._waiting: list[str] = []
        self._characters = 0
        self.size = os.fstat(
            self._file.fileno()
        ).st_size  # bytes of whole lines in the file, without what waits

    def lines_behind(self, size: int) -> list[bytes]:
        """Return the whole lines behind `size` bytes; the file is cut off at the first that is no event."""
        if self.size < size:
            raise RecordsError(f"{self.path}: {self.size} bytes, but {size} were written: it was changed")
        with open(self.path, "rb", opener=open_regular) as stream:
            stream.seek(size)
            content = stream.read()
        lines = list(itertools.takewhile(_is_event, content.splitlines(keepends=True)))
        self.size = size + sum(map(len, lines))
        if self.size < size + len(content):
            self._file.truncate(self.size)
        return lines

    def sync(self) -> None:
        """Write what waits, and wait until it survives a power failure."""
        self.flush()
        if not self._file.closed:
            os.fsync(self._file.fileno())

    def write(self, text: str) -> None:
        """Take one line, with its end."""
        self._waiting.append(text)
        self._characters += len(text)
        if self._characters >= _BUFFER or self._clock() - self._written >= _LONGEST_WAIT:
            self.flush()

    def flush(self) -> None:
        """Write what waits; raise RecordsError if that fails. After a failure nothing is written any more."""
        content = "".join(self._waiting).encode()
        self._written = self._clock()
        self._waiting.clear()
        self._characters = 0
        if self._file.closed or not content:
            return
        written = 0
        try:
            while written < len(content):
                written += self._file.write(content[written:])
        except OSError as error:
            self._cut(self.size + content.rfind(b"\n", 0, written) + 1)
            raise self._failure(error) from error
        self.size += written

    def close(self) -> None:
        if self._file.closed:
            return
        self.flush()
        try:
            os.fsync(self._file.fileno())
        except OSError as error:
            raise self._failure(error) from error
        finally:
            self._file.close()

    def _cut(self, size: int) -> None:
        with contextlib.suppress(OSError):  # a disk that takes no cut leaves half a line, which readers skip
            self._file.truncate(size)
        with contextlib.suppress(OSError):
            self._file.close()

    def _failure(self, error: OSError) -> RecordsError:
        return RecordsError(f"{self.path}: cannot be written: {error.strerror or error}")


def _is_event(line: bytes) -> bool:
    """Tell whether a line is whole and one that a journal wrote."""
    try:
        record = plain_json(line)
    except ValueError:
        return False
    return line.endswith(b"\n") and isinstance(record, dict) and "event" in record

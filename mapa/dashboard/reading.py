"""Files of a run that somebody else writes: events from where the last look ended, JSON only when it changed."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from common.records.regular import LONGEST_LINE, few_values, open_regular, plain_json

CHUNK = 1 << 21  # bytes of one look: about 10,000 events
LONGEST = LONGEST_LINE
LARGEST = 1 << 25  # bytes of a JSON file
MOST = 1 << 20  # values in it
_DIGITS = 40  # of a whole number


@dataclass(slots=True)
class Tail:
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

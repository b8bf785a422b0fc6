"""The files of a run, from its directory or from a bundle: bytes by name, never taken by a name that is not ours."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from common.errors import ConfigurationError
from common.records.gradient_log import (
    HEAD_BYTES,
    Entry,
    LogDamagedError,
    SegmentHead,
    parse_head,
    parse_record,
)
from common.records.regular import (
    LONGEST_LINE,
    MOST_JSON,
    forget,
    lines_of,
    mapped,
    open_below,
    pieces_of,
)
from mapa.verification.ledgers import LedgerStatement
from mapa.verification.strict_json import strict_object

MANIFEST, EVENTS, SUMMARY, MODEL = "manifest.json", "events.jsonl", "summary.json", "model.safetensors"
START = ("checkpoints/000001/state.json", "checkpoints/000001/arrays.safetensors")  # the cloud at t = 1
START_OF_LOG = "log/000001.seg"
_SEGMENT = re.compile(r"log/\d{6}\.seg")
FILES = re.compile("|".join([*map(re.escape, (MANIFEST, EVENTS, SUMMARY, MODEL, *START)), _SEGMENT.pattern]))

_KEPT = 1 << 24  # bytes of a segment in memory


class UnreadableError(Exception):
    """A part that cannot be read as what it is; says which."""

    def __init__(self, part: str, why: object) -> None:
        self.part = part
        super().__init__(f"{part}: {why}")


@dataclass(slots=True)
class RunFiles:
    """What is there of a run."""

    origin: str  # for a person
    contents: dict[str, memoryview]
    ledgers: list[LedgerStatement] = field(default_factory=list)
    other_ledgers: dict[str, str] = field(default_factory=dict)  # file → edge: kept here, without this run
    prefix: str = ""  # of these names in a bundle

    def __contains__(self, name: str) -> bool:
        return name in self.contents

    def json(self, name: str) -> dict[str, Any]:
        """Return a JSON file of the run."""
        content = self.contents.get(name)
        if content is None:
            raise UnreadableError(name, "missing")
        try:
            return strict_object(content, MOST_JSON)
        except ValueError as error:
            raise UnreadableError(name, error) from error

    def lines(self) -> Iterator[dict[str, Any]]:
        """Yield the lines of events.jsonl."""
        content = self.contents.get(EVENTS)
        if content is None:
            raise UnreadableError(EVENTS, "missing")
        number, lines = 1, lines_of(pieces_of(content))
        try:
            while line := next(lines, b""):
                if not line.endswith(b"\n"):
                    raise ValueError("cut off")
                yield strict_object(line, LONGEST_LINE)
                number += 1
        except ValueError as error:
            raise UnreadableError(EVENTS, f"line {number}: {error}") from error

    @property
    def segments(self) -> list[str]:
        """Names of the log's segments, in order."""
        return sorted(name for name in self.contents if _SEGMENT.fullmatch(name))

    def head(self) -> SegmentHead:
        """Return the head of the first segment."""
        names = self.segments
        if not names:
            raise UnreadableError("log", "missing: this run did not keep its gradients")
        return self._head(names[0])

    def entries(self) -> Iterator[tuple[str, Entry]]:
        """Yield each record of the log and its segment; UnreadableError at the first that is damaged or missing."""
        first = self.head()
        for number, name in enumerate(self.segments, start=1):
            if name != f"log/{number:06d}.seg":
                raise UnreadableError(f"log/{number:06d}.seg", "missing")
            head = self._head(name)
            if head.segment != number or head[1:] != first[1:]:
                raise UnreadableError(name, f"says that it is segment {head.segment}, or is of another run")
            yield from ((name, entry) for entry in self._records(name))

    def _head(self, name: str) -> SegmentHead:
        try:
            return parse_head(bytes(self.contents[name][:HEAD_BYTES]))
        except LogDamagedError as error:
            raise UnreadableError(name, error) from error

    def _records(self, name: str) -> Iterator[Entry]:
        content, at, kept = self.contents[name], HEAD_BYTES, 0
        while at < len(content):
            try:
                found = parse_record(content, at)
            except LogDamagedError as error:
                raise UnreadableError(name, f"byte {at}: {error}") from error
            if found is None:
                raise UnreadableError(name, f"byte {at}: no whole record with its checksum")
            entry, at = found
            yield entry
            if at - kept > _KEPT:
                forget(content)
                kept = at


def of_directory(path: Path) -> RunFiles:
    """Return the files of a run's directory; ConfigurationError where one is a symbolic link or no regular file."""
    found = [MANIFEST, EVENTS, SUMMARY, MODEL, *START]
    found += [f"log/{one.name}" for one in sorted((path / "log").glob("*.seg"))]
    names = [name for name in found if FILES.fullmatch(name) and os.path.lexists(path / name)]
    try:
        return RunFiles(str(path), {name: mapped(open_below(path, name)) for name in names})
    except OSError as error:
        raise ConfigurationError(f"{error.filename}: {error.strerror or error}") from error

"""The gradient log read back: whole records in order; a torn tail is reported, and cut only by who resumes."""

from __future__ import annotations

import mmap
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from common.records.log_format import (
    FOLDER,
    HEAD_BYTES,
    Entry,
    LogDamagedError,
    SegmentHead,
    parse_head,
    parse_record,
    segment_name,
)
from common.records.regular import open_below


@dataclass(frozen=True, slots=True)
class TornTail:
    """Bytes behind the last whole record: a write that a crash cut off, which was never answered."""

    path: Path
    keep: int  # bytes of whole records; 0: not even the head
    size: int

    def __str__(self) -> str:
        return f"{self.path}: {self.size - self.keep} bytes behind the last whole record"

    def cut(self) -> None:
        """Cut them off; a segment without a head goes as a whole."""
        if self.keep == 0:
            self.path.unlink()
        else:
            os.truncate(self.path, self.keep)


class LogReader:
    """Iterates over the records of a run's log, from segment `first` on; `torn` is known at the end.

    LogDamagedError: a record that is not whole has another one behind it, or a segment is missing or of another run.
    """

    def __init__(self, run: Path, first: int = 1) -> None:
        self.folder = run / FOLDER
        self.first = first
        self.head: SegmentHead | None = None  # of the newest segment read
        self.torn: TornTail | None = None

    @property
    def segments(self) -> list[Path]:
        """The segments that are there, oldest first."""
        found = [path for path in self.folder.glob("*.seg") if path.stem.isdecimal()]
        return sorted((path for path in found if int(path.stem) >= self.first), key=lambda p: int(p.stem))

    def __iter__(self) -> Iterator[Entry]:
        self.head = self.torn = None
        paths = self.segments
        for number, path in enumerate(paths, start=self.first):
            if path.name != segment_name(number):
                raise LogDamagedError(f"{self.folder / segment_name(number)}: missing")
            yield from self._segment(path, number, last=path == paths[-1])

    def _segment(self, path: Path, number: int, *, last: bool) -> Iterator[Entry]:
        try:
            descriptor = open_below(self.folder.parent, f"{FOLDER}/{path.name}")
        except OSError as error:
            raise LogDamagedError(f"{path}: cannot be read: {error.strerror or error}") from error
        with os.fdopen(descriptor, "rb"):
            size = os.fstat(descriptor).st_size
            if size >= HEAD_BYTES:
                yield from self._content(path, descriptor, number, last=last)
            elif last:
                self.torn = TornTail(path, 0, size)
            else:
                raise LogDamagedError(f"{path}: only {size} bytes")

    def _content(self, path: Path, descriptor: int, number: int, *, last: bool) -> Iterator[Entry]:
        with mmap.mmap(descriptor, 0, access=mmap.ACCESS_READ) as mapped:
            try:
                head = parse_head(mapped[:HEAD_BYTES])
            except LogDamagedError as error:
                raise LogDamagedError(f"{path}: {error}") from error
            if head.segment != number or (self.head is not None and head[1:] != self.head[1:]):
                raise LogDamagedError(f"{path}: is segment {head.segment} of another run or place")
            self.head = head
            with memoryview(mapped) as content:
                yield from self._records(path, content, last=last)

    def _records(self, path: Path, content: memoryview, *, last: bool) -> Iterator[Entry]:
        at = HEAD_BYTES
        while at < len(content):
            try:
                found = parse_record(content, at)
            except LogDamagedError as error:
                raise LogDamagedError(f"{path}, byte {at}: {error}") from error
            if found is None:
                if not last or _record_behind(content, at):
                    raise LogDamagedError(f"{path}, byte {at}: a record is damaged")
                self.torn = TornTail(path, at, len(content))
                return
            entry, at = found
            yield entry


def _record_behind(content: memoryview, at: int) -> bool:
    """Tell whether a whole record stands somewhere behind: then what is broken here is no torn tail."""
    for place in range(at + 8, len(content), 8):  # records begin at multiples of 8
        if bytes(content[place : place + 4]) == b"rec1" and parse_record(content, place) is not None:
            return True
    return False

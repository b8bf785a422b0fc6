"""The gradient log as it is written: a record is in the kernel's hands before `append` returns."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

from common.errors import RecordsError
from common.records.log_format import FOLDER, Entry, SegmentHead, pack_head, pack_record, segment_name
from common.records.syncing import sync_path


class LogWriter:
    """One segment, open for writing; the next one takes its place. Never goes on in a segment that it did not begin.

    What a process has written survives its SIGKILL. `sync` makes it survive a power failure.
    """

    def __init__(self, run: Path, incarnation: int, dimension: int, segment: int, *, power: bool) -> None:
        self.folder = run / FOLDER
        self.power = power
        self.segment = segment
        self._run = (incarnation, dimension)
        self._descriptor = -1
        self.size = 0  # bytes of whole records, with the head
        self.records = 0  # in this segment
        self._open()

    @property
    def path(self) -> Path:
        return self.folder / segment_name(self.segment)

    def append(self, entry: Entry) -> None:
        """Write a record; RecordsError where the disk does not take it, and then nothing of it stays."""
        parts = pack_record(entry)
        size = sum(map(len, parts))
        try:
            written = os.writev(self._descriptor, parts)
            if written != size:  # a disk that is full takes what fits, or a signal came between
                rest = memoryview(b"".join(parts))[written:]
                while rest:
                    rest = rest[os.write(self._descriptor, rest) :]
        except OSError as error:
            with contextlib.suppress(OSError):  # whoever reads cuts the tail otherwise
                os.ftruncate(self._descriptor, self.size)
            raise self._failure(error) from error
        self.size += size
        self.records += 1

    def sync(self) -> None:
        """Wait until everything written so far survives a power failure."""
        try:
            os.fdatasync(self._descriptor)
        except OSError as error:
            raise self._failure(error) from error

    def next_segment(self) -> None:
        """End this segment and begin the next."""
        self.close()
        self.segment += 1
        self._open()

    def remove_before(self, segment: int) -> None:
        """Remove the segments before this one."""
        for path in self.folder.glob("*.seg"):
            if path.stem.isdecimal() and int(path.stem) < segment:
                path.unlink(missing_ok=True)

    def close(self) -> None:
        if self._descriptor < 0:
            return
        try:
            if self.power:
                self.sync()
        finally:
            os.close(self._descriptor)
            self._descriptor = -1

    def _open(self) -> None:
        head = pack_head(SegmentHead(self.segment, *self._run))
        try:
            self.folder.mkdir(exist_ok=True)
            self._descriptor = os.open(self.path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND, 0o644)
            if os.write(self._descriptor, head) != len(head):
                raise OSError(28, "No space left on device")
            if self.power:
                os.fsync(self._descriptor)
                sync_path(self.folder)
        except OSError as error:
            if self._descriptor >= 0:
                with contextlib.suppress(OSError):
                    self.path.unlink()
            raise self._failure(error) from error
        self.size, self.records = len(head), 0

    def _failure(self, error: OSError) -> RecordsError:
        return RecordsError(f"{self.path}: cannot be written: {error.strerror or error}")

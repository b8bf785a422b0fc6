"""events.jsonl on disk: whole lines, also where the disk is full."""

from __future__ import annotations

import contextlib
import io
import itertools
import os
import time
from collections.abc import Callable
from pathlib import Path

from common.errors import RecordsError
from common.records.regular import open_regular, plain_json

_BUFFER = 1 << 20  # characters
_LONGEST_WAIT = 1.0  # seconds: whoever watches a run sees it while it goes on


class EventFile:
    """Keeps lines and writes them in batches. Where a write fails, what it tore off is cut, and nothing follows."""

    def __init__(
        self, path: Path, *, resumed: bool = False, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.path = path
        self._clock = clock
        self._written = clock()  # when lines were last written
        self._file = io.FileIO(path, "ab" if resumed else "xb", opener=open_regular)
        self._waiting: list[str] = []
        self._characters = 0
        self._size = os.fstat(self._file.fileno()).st_size  # bytes of whole lines in the file

    @property
    def size(self) -> int:
        """Bytes in the file; what waits is not in it."""
        return self._size

    def lines_behind(self, size: int) -> list[bytes]:
        """Return the whole lines behind so many bytes; from the first on that is no event the file is cut off."""
        if self._size < size:
            raise RecordsError(f"{self.path}: {self._size} bytes, but {size} were written: it was changed")
        with open(self.path, "rb", opener=open_regular) as stream:
            stream.seek(size)
            content = stream.read()
        lines = list(itertools.takewhile(_is_event, content.splitlines(keepends=True)))
        self._size = size + sum(map(len, lines))
        if self._size < size + len(content):
            self._file.truncate(self._size)
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
        """Write what waits; RecordsError where that fails. After a failure nothing is written any more."""
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
            self._cut(self._size + content.rfind(b"\n", 0, written) + 1)
            raise self._failure(error) from error
        self._size += written

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
        with contextlib.suppress(
            OSError
        ):  # a disk that takes no cut leaves half a line, which readers leave out
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

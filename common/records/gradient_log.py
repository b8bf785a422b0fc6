"""The gradient log on disk: every event that changed the cloud's state, in the order in which it took them.

runs/<id>/log/000001.seg, 000002.seg, …: a segment is a head, then records; numbers are little-endian.

    head    "MAPALOG\n" | format u32 | segment u32 | incarnation u64 | N u64 | 0 u32 | crc u32
    record  "rec1" | kind u8 | bytes of the edge id u8 | 0 u16 | bytes of the body u32 | t u64 | time f64 | crc u32,
            then the edge id and the body, each filled up with zeros to a multiple of 8

`crc` is zlib's CRC-32 of all that stands before it in the head or record, then of all that stands behind it. `t` is the
update that comes next when the event is taken (for a gradient that is applied: its own), `time` the run's seconds.
Segment n follows checkpoint n. A log holds what came over the wire: noised gradients, unless the run's algorithm is
not private.
"""

from __future__ import annotations

import contextlib
import os
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from enum import IntEnum
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple

from common.errors import RecordsError
from common.messages import GradientArrived
from common.quantities import EdgeId
from common.records.regular import forget, mapped, open_below, sync_path
from common.wire import v1
from common.wire.codec import decode_gradient
from common.wire.codings.registry import EVERY, expand

try:
    from isal.isal_zlib import crc32  # of the extra `fast`: the same numbers in a tenth of the time
except ImportError:
    from zlib import crc32

FORMAT = 1
FOLDER = "log"  # of a run's directory
_MARK, _HEAD_MARK = b"rec1", b"MAPALOG\n"
_HEAD = struct.Struct("<8sIIQQI")
_FRONT = struct.Struct("<4sBBHIQd")
_CRC = struct.Struct("<I")
HEAD_BYTES = _HEAD.size + 4
_FRONT_BYTES = _FRONT.size + 4  # 32
LARGEST_BODY = 1 << 28  # bytes: MQTT has no larger message
_KEPT = 1 << 24  # bytes of a segment in memory
_AT_ONCE = 1 << 22  # bytes of a removed segment that are given back together, at least
_MOST_MARKS = 256  # behind a torn record


class Kind(IntEnum):
    """What a record is of, and what its body holds."""

    GRADIENT = 1  # a gradient that was new: applied, or refused for good; its bytes as they came
    REPEAT = 2  # a gradient that was not new but made the cloud send its model again: its header alone
    HELLO = 3  # that was welcomed; its bytes as they came
    LEAVE = 4  # by its own message, a last will, or for silence; as its message
    BEGIN = 5  # begin with the edges that are here; no body
    HALT = 6  # by the operator, or for want of a finite model; the reason


class LogDamagedError(RecordsError):
    """A log that cannot be read on, and not because its last record is torn."""


class SegmentHead(NamedTuple):
    """What a segment says of itself."""

    segment: int  # from 1
    incarnation: int  # of the run
    dimension: int  # N


class Entry(NamedTuple):
    """One record."""

    kind: Kind
    t: int  # the next update when it was taken
    time: float  # seconds of the run
    edge_id: EdgeId  # "" where no edge is concerned
    body: bytes

    @property
    def arrived(self) -> GradientArrived:
        """The gradient with its sequence, version and ΔS; the vector of a REPEAT is empty."""
        plain = expand(self.body, EVERY)
        return decode_gradient(self.edge_id, plain, (len(plain) - v1.HEADER_BYTES) // 4)


def pack_head(head: SegmentHead) -> bytes:
    front = _HEAD.pack(_HEAD_MARK, FORMAT, *head, 0)
    return front + _CRC.pack(crc32(front))


def parse_head(content: bytes) -> SegmentHead:
    """Return the head of a segment; LogDamagedError where it is none, or of another format."""
    if len(content) < HEAD_BYTES or not content.startswith(_HEAD_MARK):
        raise LogDamagedError("no head of a segment")
    _mark, form, segment, incarnation, dimension, _zero = _HEAD.unpack_from(content)
    if form != FORMAT:
        raise LogDamagedError(f"format {form} of the log; this version reads format {FORMAT} alone")
    if _CRC.unpack_from(content, _HEAD.size)[0] != crc32(content[: _HEAD.size]):
        raise LogDamagedError("head of a segment with a wrong checksum")
    return SegmentHead(segment, incarnation, dimension)


def pack_record(kind: Kind, t: int, time: float, edge_id: EdgeId, body: bytes) -> tuple[bytes, bytes, bytes]:
    """Return the parts of an entry's record for one gathered write; the body is not copied."""
    named = _filled(edge_id)
    front = _FRONT.pack(_MARK, kind, len(edge_id), 0, len(body), t, time)
    fill = bytes(-len(body) % 8)
    crc = crc32(fill, crc32(body, crc32(named, crc32(front))))
    return front + _CRC.pack(crc) + named, body, fill


def parse_record(content: memoryview, at: int) -> tuple[Entry, int] | None:
    """Return the record that begins `at`, and where the next one does; None: no whole record is there."""
    if at + _FRONT_BYTES > len(content):
        return None
    mark, kind, name_bytes, zero, body_bytes, t, time = _FRONT.unpack_from(content, at)
    if mark != _MARK or zero or body_bytes > LARGEST_BODY:
        return None
    begin = at + _FRONT_BYTES
    body = begin + name_bytes + -name_bytes % 8
    end = body + body_bytes + -body_bytes % 8
    if end > len(content):
        return None
    crc = crc32(content[begin:end], crc32(content[at : at + _FRONT.size]))
    if crc != _CRC.unpack_from(content, at + _FRONT.size)[0]:
        return None
    try:
        named = EdgeId(bytes(content[begin : begin + name_bytes]).decode("ascii"))
        return Entry(Kind(kind), t, time, named, bytes(content[body : body + body_bytes])), end
    except ValueError as error:  # whole, and yet unknown: of a newer version, or made by somebody
        raise LogDamagedError(f"a record of kind {kind} that this version does not know") from error


def segment_name(number: int) -> str:
    return f"{number:06d}.seg"


@lru_cache(maxsize=4096)
def _filled(edge_id: EdgeId) -> bytes:
    return edge_id.encode("ascii") + bytes(-len(edge_id) % 8)


class LogWriter:
    """One segment, open for writing; the next one takes its place. Never goes on in a segment that it did not begin.

    What a process has written survives its SIGKILL. `sync` makes it survive a power failure.
    """

    def __init__(self, run: Path, incarnation: int, dimension: int, segment: int, *, power: bool) -> None:
        self.folder = run / FOLDER
        self.power = power
        self.segment = segment
        self._run = (incarnation, dimension)
        self._descriptor = self._spare = -1
        self._spared = self._shrunk = 0  # bytes of the removed segment; `size` when it was last made shorter
        self.size = 0  # bytes of whole records, with the head
        self.records = 0  # in this segment
        self._open()

    @property
    def path(self) -> Path:
        return self.folder / segment_name(self.segment)

    def append(self, kind: Kind, t: int, time: float, edge_id: EdgeId, body: bytes) -> None:
        """Write an entry's record; RecordsError where the disk does not take it, and then nothing of it stays."""
        parts = pack_record(kind, t, time, edge_id, body)
        size = sum(map(len, parts))
        try:
            written = os.writev(self._descriptor, parts)
            if written != size:  # a disk that is full takes what fits, or a signal came between
                rest = memoryview(b"".join(parts))[written:]
                while rest:
                    rest = rest[os.write(self._descriptor, rest) :]
        except OSError as error:
            with contextlib.suppress(OSError):  # otherwise the reader cuts the tail
                os.ftruncate(self._descriptor, self.size)
            raise self._failure(error) from error
        self.size += size
        self.records += 1
        if self._spared and self.size - self._shrunk > _AT_ONCE:
            self._shrink()

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
        """Remove the segments before this one; the space of the last goes little by little, as the open one grows.

        So its memory is written again while it is warm, and no update waits for the end of a large file.
        """
        for path in self.folder.glob("*.seg"):
            if path.stem.isdecimal() and int(path.stem) < segment:
                self._close_spare()
                self._spare = os.open(path, os.O_WRONLY)  # nameless, it ends with this process at the latest
                path.unlink()
                self._spared, self._shrunk = os.fstat(self._spare).st_size, self.size

    def _shrink(self) -> None:
        """Shorten the removed segment by what was written since."""
        self._spared, self._shrunk = max(0, self._spared - (self.size - self._shrunk)), self.size
        os.ftruncate(self._spare, self._spared)

    def _close_spare(self) -> None:
        if self._spare >= 0:
            os.close(self._spare)
        self._spare, self._spared = -1, 0

    def close(self) -> None:
        self._close_spare()
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
        self.size = self._shrunk = len(head)
        self.records = 0

    def _failure(self, error: OSError) -> RecordsError:
        return RecordsError(f"{self.path}: cannot be written: {error.strerror or error}")


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


class Segment:
    """The records of one segment; where it is torn, `at` tells where the last whole one ends."""

    def __init__(self, content: memoryview, number: int, like: SegmentHead | None = None) -> None:
        """Check the head; LogDamagedError where it is not that of segment `number` of the run that `like` is of."""
        self.content, self.at = content, 0
        self.head = parse_head(bytes(content[:HEAD_BYTES]))
        if self.head.segment != number or (like is not None and self.head[1:] != like[1:]):
            raise LogDamagedError(f"says that it is segment {self.head.segment}, or is of another run")
        self.at = HEAD_BYTES

    @property
    def is_torn(self) -> bool:
        return self.at < len(self.content)

    def __iter__(self) -> Iterator[Entry]:
        kept = self.at
        while self.is_torn:
            try:
                record = parse_record(self.content, self.at)
            except LogDamagedError as error:
                raise LogDamagedError(f"byte {self.at}: {error}") from error
            if record is None:
                return
            entry, self.at = record
            yield entry
            if self.at - kept > _KEPT:
                forget(self.content)
                kept = self.at

    def has_record_behind(self) -> bool:
        """Tell whether a whole record stands behind what is torn: then it is no torn tail."""
        places = range(self.at + 8, len(self.content), 8)  # records begin at multiples of 8
        marked = (place for place in places if self.content[place : place + 4] == _MARK)
        # each check may read all that is left: what holds marks by the thousand was made to take hours, by no crash
        return any(
            number >= _MOST_MARKS or parse_record(self.content, place) is not None
            for number, place in enumerate(marked)
        )


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
            try:
                content = mapped(open_below(self.folder.parent, f"{FOLDER}/{path.name}"))
                last = path == paths[-1]
                if last and len(content) < HEAD_BYTES:
                    self.torn = TornTail(path, 0, len(content))
                    return
                segment = Segment(content, number, self.head)
                self.head = segment.head
                yield from segment
                if segment.is_torn:
                    if not last or segment.has_record_behind():
                        raise LogDamagedError(f"byte {segment.at}: a record is damaged")
                    self.torn = TornTail(path, segment.at, len(content))
            except OSError as error:
                raise LogDamagedError(f"{path}: cannot be read: {error.strerror or error}") from error
            except LogDamagedError as error:
                raise LogDamagedError(f"{path}: {error}") from error

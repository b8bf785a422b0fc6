"""The gradient log on disk: every event that changed the cloud's state, in the order in which it took them.

runs/<id>/log/000001.seg, 000002.seg, …: a segment is a head, then records; numbers are little-endian.

    head    "MAPALOG\\n" | format u32 | segment u32 | incarnation u64 | N u64 | 0 u32 | crc u32
    record  "rec1" | kind u8 | bytes of the edge id u8 | 0 u16 | bytes of the body u32 | t u64 | time f64 | crc u32,
            then the edge id and the body, each filled up with zeros to a multiple of 8

`crc` is zlib's CRC-32 of all that stands before it in the head or record, then of all that stands behind it. `t` is the
update that comes next when the event is taken (for a gradient that is applied: its own), `time` the run's seconds.
Segment n follows checkpoint n. A log holds what came over the wire: noised gradients, unless the run's algorithm is
not private.
"""

from __future__ import annotations

import struct
import zlib
from enum import IntEnum
from typing import NamedTuple

from common.errors import RecordsError
from common.messages import GradientArrived
from common.quantities import EdgeId
from common.wire import v1
from common.wire.codec import decode_gradient

FORMAT = 1
FOLDER = "log"  # of a run's directory
_MARK, _HEAD_MARK = b"rec1", b"MAPALOG\n"
_HEAD = struct.Struct("<8sIIQQI")
_FRONT = struct.Struct("<4sBBHIQd")
_CRC = struct.Struct("<I")
HEAD_BYTES = _HEAD.size + 4
_FRONT_BYTES = _FRONT.size + 4  # 32
LARGEST_BODY = 1 << 28  # bytes: MQTT has no larger message


class Kind(IntEnum):
    """What a record is of, and what its body holds."""

    GRADIENT = 1  # a gradient that was new: applied, or refused for good; its bytes as they came
    REPEAT = 2  # a gradient that was not new but made the cloud send its model again: its header alone
    HELLO = 3  # that was welcomed; its bytes as they came
    LEAVE = 4  # said, by a last will, or for silence; as its message
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
        return decode_gradient(self.edge_id, self.body, (len(self.body) - v1.HEADER_BYTES) // 4)


def pack_head(head: SegmentHead) -> bytes:
    front = _HEAD.pack(_HEAD_MARK, FORMAT, *head, 0)
    return front + _CRC.pack(zlib.crc32(front))


def parse_head(content: bytes) -> SegmentHead:
    """Return the head of a segment; LogDamagedError where it is none, or of another format."""
    if len(content) < HEAD_BYTES or not content.startswith(_HEAD_MARK):
        raise LogDamagedError("no head of a segment")
    _mark, form, segment, incarnation, dimension, _zero = _HEAD.unpack_from(content)
    if form != FORMAT:
        raise LogDamagedError(f"format {form} of the log; this version reads format {FORMAT} alone")
    if _CRC.unpack_from(content, _HEAD.size)[0] != zlib.crc32(content[: _HEAD.size]):
        raise LogDamagedError("head of a segment with a wrong checksum")
    return SegmentHead(segment, incarnation, dimension)


def pack_record(entry: Entry) -> tuple[bytes, bytes, bytes]:
    """Return the parts of a record for one gathered write; the body is not copied."""
    kind, t, time, edge_id, body = entry
    name = edge_id.encode()
    front = _FRONT.pack(_MARK, kind, len(name), 0, len(body), t, time)
    named, fill = _filled(name), bytes(-len(body) % 8)
    crc = zlib.crc32(body, zlib.crc32(named, zlib.crc32(front)))
    if fill:
        crc = zlib.crc32(fill, crc)
    return b"".join((front, _CRC.pack(crc), named)), body, fill


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
    crc = zlib.crc32(content[begin:end], zlib.crc32(content[at : at + _FRONT.size]))
    if crc != _CRC.unpack_from(content, at + _FRONT.size)[0]:
        return None
    try:
        named = EdgeId(bytes(content[begin : begin + name_bytes]).decode("ascii"))
        return Entry(Kind(kind), t, time, named, bytes(content[body : body + body_bytes])), end
    except ValueError as error:  # whole, and yet unknown: of a newer version, or made by somebody
        raise LogDamagedError(f"a record of kind {kind} that this version does not know") from error


def segment_name(number: int) -> str:
    return f"{number:06d}.seg"


def _filled(content: bytes) -> bytes:
    return content + bytes(-len(content) % 8)

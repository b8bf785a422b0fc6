"""A masked release on the wire: a gradient's header under a mark of its own, the integers, the envelope; pure."""

from __future__ import annotations

import struct
from typing import NamedTuple

from common.errors import LocalProtocolError, RemoteProtocolError
from common.quantities import EdgeId
from common.secure.boxes import Envelope, envelope_bytes
from common.secure.masks import Masked, words
from common.wire.v1 import MASKED_MARK

_HEADER = struct.Struct(">4sBQBQBQBd")  # a gradient's: sequence, version, incarnation, ΔS
_UINT64, _FLOAT64 = 0xCF, 0xCB
_LIMIT = 2**63


class MaskedArrived(NamedTuple):
    """y of one edge, and the seeds of its masks, sealed for the helpers."""

    edge_id: EdgeId
    sequence: int
    version: int  # that the edge read
    sensitivity: float  # ΔS of the sum, as the edge accepted it
    masked: Masked  # y
    incarnation: int
    envelope: Envelope


def masked_size(dimension: int, bits: int, c: int, t: int) -> int:
    """Return the bytes of a masked release."""
    return _HEADER.size + dimension * bits // 8 + envelope_bytes(c, t)


def masked_bytes(event: MaskedArrived) -> bytes:
    """Return the bytes of a masked release; the edge id travels in the topic."""
    numbers = event.sequence, event.version, event.incarnation
    if not all(0 <= number < _LIMIT for number in numbers) or not 0 <= event.sensitivity < float("inf"):
        raise LocalProtocolError(f"masked: header {numbers}, {event.sensitivity}: out of range")
    a, b, c = numbers
    header = _HEADER.pack(MASKED_MARK, _UINT64, a, _UINT64, b, _UINT64, c, _FLOAT64, event.sensitivity)
    return b"".join((header, event.masked.tobytes(), bytes(event.envelope)))


def parse_masked(edge_id: EdgeId, payload: bytes, dimension: int, bits: int, c: int, t: int) -> MaskedArrived:
    """Return a masked release; its vector is a read-only view of the payload. RemoteProtocolError: it is none."""
    size = masked_size(dimension, bits, c, t)
    if len(payload) != size:
        raise RemoteProtocolError(
            f"masked: {len(payload)} bytes, N = {dimension} and {c} helpers take {size}"
        )
    mark, tag_a, sequence, tag_b, version, tag_c, incarnation, tag_d, sensitivity = _HEADER.unpack_from(
        payload
    )
    if mark != MASKED_MARK or (tag_a, tag_b, tag_c, tag_d) != (_UINT64, _UINT64, _UINT64, _FLOAT64):
        raise RemoteProtocolError("masked: not a header of version 1")
    if (sequence | version | incarnation) >= _LIMIT:
        raise RemoteProtocolError("masked: an integer of 2^63 or more")
    if not sequence:
        raise RemoteProtocolError("masked: sequence 0; sequences count from 1")
    if not 0 <= sensitivity < float("inf"):  # NaN fails too
        raise RemoteProtocolError(f"masked: sensitivity {sensitivity}")
    end = _HEADER.size + dimension * bits // 8
    masked = words(memoryview(payload)[_HEADER.size : end], bits)
    envelope = Envelope.parse(payload[end:], c, t)
    return MaskedArrived(edge_id, sequence, version, sensitivity, masked, incarnation, envelope)

"""Bytes ↔ domain events; the only msgpack import.

Inbound bytes are hostile: whatever they are, `decode_*` returns a checked event or raises
RemoteProtocolError, and nothing else. Encoding our own nonsense is a LocalProtocolError.
"""

from __future__ import annotations

import math
import secrets
import struct
from collections.abc import Mapping
from typing import Any

import msgpack
import numpy as np
from pydantic import ValidationError

from common.errors import LocalProtocolError, RemoteProtocolError
from common.messages import GradientArrived, Halt, Hello, Leave, Presence, Refuse, SendModel, Welcome, quick
from common.quantities import EdgeId, Vector, is_finite, length
from common.wire import v1
from common.wire.codings.registry import GRADIENT_MARKS

_FLOATS = np.dtype("<f4")
_HEAD = ("v", "kind")  # fields of every cold message
_MOST_FIELDS = 64  # of a cold message, known or not: each unknown one costs an error of its own
_pack, _unpack_from = v1.HEADER.pack, v1.HEADER.unpack_from


def new_nonce() -> str:
    """Return the name of this process on the wire."""
    return secrets.token_hex(8)


# ---- hot: gradient and model


def encode_gradient(event: GradientArrived) -> bytes:
    """Return the bytes of g̃; the edge id travels in the topic."""
    head = (v1.GRADIENT_MARK, event.sequence, event.version, event.incarnation, event.sensitivity)
    return b"".join(_hot_parts(*head, event.gradient, None))


def decode_gradient(edge_id: EdgeId, payload: bytes, dimension: int) -> GradientArrived:
    """Return the gradient; its vector is a read-only view of the payload."""
    sequence, version, incarnation, sensitivity, vector, norm = _decode_hot(
        "gradient", v1.GRADIENT_MARK, payload, dimension
    )
    if not sequence:
        raise RemoteProtocolError("gradient: sequence 0; sequences count from 1")
    return quick(GradientArrived, (edge_id, sequence, version, sensitivity, vector, incarnation, norm))


def incarnation_of(payload: bytes) -> int | None:
    """Return the incarnation that a gradient of our own outbox names; None: its header is of another kind."""
    if len(payload) < v1.HEADER_BYTES or payload[:4] not in (*GRADIENT_MARKS, v1.MASKED_MARK):
        return None
    incarnation: int = _unpack_from(payload)[6]
    return incarnation


def model_parts(effect: SendModel) -> tuple[bytes, memoryview]:
    """Return the bytes of x_t in two parts; the second is the vector itself, which must never change."""
    _, version, sensitivity, acknowledged, model, incarnation, norm = effect
    return _hot_parts(v1.MODEL_MARK, version, incarnation, acknowledged, sensitivity, model, norm)


def encode_model(effect: SendModel) -> bytes:
    """Return the bytes of x_t, with one copy of the vector."""
    return b"".join(model_parts(effect))


def decode_model(edge_id: EdgeId, payload: bytes, dimension: int) -> SendModel:
    """Return the model; its vector is a read-only view of the payload."""
    version, incarnation, acknowledged, sensitivity, vector, _ = _decode_hot(
        "model", v1.MODEL_MARK, payload, dimension
    )
    return quick(SendModel, (edge_id, version, sensitivity, acknowledged, vector, incarnation, None))


def _hot_parts(
    mark: bytes, a: int, b: int, c: int, sensitivity: float, vector: Vector, norm: float | None
) -> tuple[bytes, memoryview]:
    """Return header and vector; a vector whose norm is known, and so finite, is not looked at again."""
    raw = np.ascontiguousarray(vector, _FLOATS)
    try:
        header = _pack(mark, v1.UINT64, a, v1.UINT64, b, v1.UINT64, c, v1.FLOAT64, sensitivity)
    except struct.error as error:
        raise LocalProtocolError(f"header ({a}, {b}, {c}, {sensitivity}): {error}") from error
    if (a | b | c) >= v1.INTEGER_LIMIT or not (0 <= sensitivity < math.inf):
        raise LocalProtocolError(f"header ({a}, {b}, {c}, {sensitivity}): out of range")
    finite = is_finite(raw) if norm is None else norm < math.inf
    if raw.ndim != 1 or not raw.size or not finite:
        raise LocalProtocolError(f"vector of shape {raw.shape}: must be flat, not empty and finite")
    return header, memoryview(raw).cast("B")  # type: ignore[arg-type]  # typed from Python 3.12 on


def _decode_hot(
    kind: str, mark: bytes, payload: bytes, dimension: int
) -> tuple[int, int, int, float, Vector, float]:
    """Return the three integers, ΔS, the vector and its length, which is finite where every number is."""
    if len(payload) != v1.HEADER_BYTES + 4 * dimension:
        raise RemoteProtocolError(
            f"{kind}: {len(payload)} bytes, N = {dimension} takes {v1.HEADER_BYTES + 4 * dimension}"
        )
    found, tag_a, a, tag_b, b, tag_c, c, tag_d, sensitivity = _unpack_from(payload)
    if found != mark or tag_a != 0xCF or tag_b != 0xCF or tag_c != 0xCF or tag_d != 0xCB:
        raise RemoteProtocolError(f"{kind}: not a header of version 1")
    if (a | b | c) >= v1.INTEGER_LIMIT:
        raise RemoteProtocolError(f"{kind}: an integer of 2^63 or more")
    if not 0 <= sensitivity < math.inf:  # NaN fails too
        raise RemoteProtocolError(f"{kind}: sensitivity {sensitivity}")
    vector = np.frombuffer(payload, _FLOATS, -1, v1.HEADER_BYTES)
    norm = length(vector)
    if not norm < math.inf:  # NaN fails too
        raise RemoteProtocolError(f"{kind}: a number that is not finite")
    return a, b, c, sensitivity, vector, norm


# ---- cold: everything else, by schema

ColdMessage = Hello | Welcome | Refuse | Leave | Halt | Presence
_SCHEMAS: dict[type, type[v1.Message]] = {
    Hello: v1.HelloV1,
    Welcome: v1.WelcomeV1,
    Refuse: v1.RefuseV1,
    Leave: v1.LeaveV1,
    Halt: v1.HaltV1,
    Presence: v1.PresenceV1,
}


def encode(message: ColdMessage) -> bytes:
    """Return the bytes of a message, checked as its receiver will check them; an edge's id travels in the topic."""
    schema, limit = _SCHEMAS[type(message)], v1.COLD_LIMIT
    fields = {name: getattr(message, name) for name in schema.model_fields if name not in _HEAD}
    if isinstance(message, Hello):
        fields |= {"parameters": dict(message.parameters), "preparing": message.preparing or None}
    elif isinstance(message, Welcome):
        limit, fields["scenario"] = v1.WELCOME_LIMIT, dict(message.scenario)
        if not v1.bounded(fields["scenario"]):
            raise LocalProtocolError(
                f"welcome: scenario is not JSON-like or printable, or deeper than {v1.DEPTH_LIMIT}, or too large"
            )
    return encode_by(schema, fields, limit)


def encode_by(schema: type[v1.Message], fields: dict[str, Any], limit: int) -> bytes:
    """Return the bytes of a cold message of any schema."""
    try:
        packed: bytes = msgpack.packb(schema.model_validate(fields).model_dump())
    except ValidationError as error:
        raise LocalProtocolError(f"{_kind(schema)}: {_faults(error)}") from error
    if len(packed) > limit:
        raise LocalProtocolError(f"{_kind(schema)}: {len(packed)} bytes, at most {limit}")
    return packed


def decode_by(
    schemas: Mapping[str, type[v1.Message]], payload: bytes, limit: int
) -> tuple[str, dict[str, Any]]:
    """Return kind and fields of a cold message of one of these schemas."""
    unpacked = _unpack("message", payload, limit)
    kind = unpacked["kind"]
    if not isinstance(kind, str) or kind not in schemas:
        raise RemoteProtocolError("message: of a kind that does not belong here")
    return kind, _checked(schemas[kind], unpacked)


def decode_hello(edge_id: EdgeId, payload: bytes) -> Hello:
    fields = _decode_cold(v1.HelloV1, payload)
    return Hello(edge_id=edge_id, **{**fields, "preparing": fields["preparing"] is not None})


def decode_answer(edge_id: EdgeId, payload: bytes) -> Welcome | Refuse:
    """Return what the cloud answered to a hello."""
    unpacked = _unpack("welcome", payload, v1.WELCOME_LIMIT)
    if unpacked.get("kind") == "refuse":
        return Refuse(edge_id, **_checked(v1.RefuseV1, unpacked))
    welcome = Welcome(edge_id=edge_id, **_checked(v1.WelcomeV1, unpacked))
    if welcome.index >= welcome.edges:
        raise RemoteProtocolError(f"welcome: index {welcome.index} of {welcome.edges} shards")
    if not v1.bounded(welcome.scenario):
        raise RemoteProtocolError(
            "welcome: scenario is not JSON-like or printable, or too deep, or too large"
        )
    return welcome


def decode_leave(edge_id: EdgeId, payload: bytes) -> Leave:
    """Return the leave, or the last will, of an edge."""
    return Leave(edge_id, **_decode_cold(v1.LeaveV1, payload))


def decode_halt(payload: bytes) -> Halt:
    return Halt(**_decode_cold(v1.HaltV1, payload))


def decode_presence(payload: bytes) -> Presence:
    return Presence(**_decode_cold(v1.PresenceV1, payload))


def _decode_cold(schema: type[v1.Message], payload: bytes) -> dict[str, Any]:
    return _checked(schema, _unpack(_kind(schema), payload, v1.COLD_LIMIT))


def _checked(schema: type[v1.Message], unpacked: dict[str, Any]) -> dict[str, Any]:
    """Return the fields of a message without version and kind."""
    try:
        message = schema.model_validate(unpacked)
    except ValidationError as error:
        raise RemoteProtocolError(f"{_kind(schema)}: {_faults(error)}") from error
    return {name: value for name, value in message if name not in _HEAD}


def _unpack(kind: str, payload: bytes, limit: int) -> dict[str, Any]:
    if len(payload) > limit:
        raise RemoteProtocolError(f"{kind}: {len(payload)} bytes, at most {limit}")
    try:
        fields = msgpack.unpackb(payload, strict_map_key=True, max_ext_len=0)
    except msgpack.ExtraData as error:
        signed = (
            "; a signed message is for a side that has an identity" if payload.endswith(b"\xc1sig") else ""
        )
        raise RemoteProtocolError(f"{kind}: bytes behind the message{signed}") from error
    except Exception as error:  # a parser at the border: whatever it says, the bytes are at fault
        raise RemoteProtocolError(f"{kind}: not msgpack ({type(error).__name__})") from error
    if isinstance(fields, dict) and len(fields) > _MOST_FIELDS:
        raise RemoteProtocolError(f"{kind}: {len(fields)} fields, at most {_MOST_FIELDS}")
    # Only str keys, so that no key of ours is shadowed by its bytes.
    if not isinstance(fields, dict) or not all(isinstance(key, str) for key in fields):
        raise RemoteProtocolError(f"{kind}: not a map with text keys")
    if "v" not in fields or "kind" not in fields:
        raise RemoteProtocolError(f"{kind}: no version or no kind")
    return fields


def _kind(schema: type[v1.Message]) -> str:
    return schema.__name__.removesuffix("V1").lower()


def _faults(error: ValidationError) -> str:
    """Name the fields at fault, never their values: they are the peer's."""
    places = {".".join(map(str, fault["loc"][:2]))[:80]: fault["type"] for fault in error.errors()[:5]}
    return ", ".join(f"{place!r} ({why})" for place, why in places.items())

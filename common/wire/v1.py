"""Schema of version 1. Fields are never removed nor given a new meaning; a new meaning is a version 2.

The hot messages (gradient, model) have a header of exactly `HEADER_BYTES` bytes: a msgpack array of
six, whose numbers are written at full width so that it is also a fixed structure; then the raw
little-endian float32 vector, which the even header leaves aligned. The cold ones are msgpack maps.
"""

from __future__ import annotations

import math
import struct
from typing import Annotated, Literal

from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Field,
    SerializerFunctionWrapHandler,
    ValidationInfo,
    field_validator,
    model_serializer,
)

INTEGER_LIMIT = 2**63  # sequences, versions and incarnations lie in [0, 2^63)
COLD_LIMIT = 4096  # bytes of hello, refuse, leave, halt, presence
WELCOME_LIMIT = 65536  # bytes; it carries the scenario
DEPTH_LIMIT = 8  # nesting of the scenario
PARAMETERS_LIMIT = 8  # of a noise law
ITEMS_LIMIT = 4096  # entries of a map or list, characters of a text

# array(6) 1 "g" | 0xcf sequence | 0xcf version read | 0xcf incarnation | 0xcb ΔS
# array(6) 1 "m" | 0xcf t | 0xcf incarnation | 0xcf acknowledged | 0xcb ΔS
HEADER = struct.Struct(">4sBQBQBQBd")
HEADER_BYTES = HEADER.size  # 40: ten float32, so the vector stays aligned
UINT64, FLOAT64 = 0xCF, 0xCB
PROOF_LIMIT = 816  # bytes behind a signed message, of which a certificate takes at most 706
SEAL_BYTES = 32  # behind a gradient or a model whose sender is proven
_TOPIC_BYTES = 1024  # of a packet's head and topic, with room to spare
GRADIENT_MARK = b"\x96\x01\xa1g"
MODEL_MARK = b"\x96\x01\xa1m"
MASKED_MARK = b"\x96\x01\xa1s"  # a gradient of secure sums (common/secure/masked.py)


def payload_limit(dimension: int) -> int:
    """Return the bytes of the largest message of a run with N = `dimension` parameters: what its broker must take."""
    return max(4 * dimension + COLD_LIMIT, WELCOME_LIMIT)


def packet_limit(dimension: int, cold: int = COLD_LIMIT) -> int:
    """Return the bytes of the largest packet worth reading where x has N = `dimension` parameters."""
    return max(HEADER_BYTES + 4 * dimension, cold) + _TOPIC_BYTES


def _printable(text: str) -> str:
    """Refuse control characters: what a peer says ends up on a terminal."""
    if not text.isprintable():
        raise ValueError("not printable")
    return text


Count = Annotated[int, Field(ge=0, lt=INTEGER_LIMIT)]
Number = Annotated[int, Field(ge=1, lt=INTEGER_LIMIT)]  # of a hello, from 1 in each process
Word = Annotated[str, Field(pattern=r"^[a-z0-9-]{1,32}$")]
Nonce = Annotated[str, Field(pattern=r"^[0-9a-f]{16}$")]
Text = Annotated[str, Field(max_length=512), AfterValidator(_printable)]
LawName = Annotated[
    str, Field(pattern=r"^([a-z0-9-]{1,32}|[A-Za-z0-9_.]{1,96}:[A-Za-z0-9_]{1,32})$")
]  # or dotted
ParameterName = Annotated[str, Field(pattern=r"^[a-z][a-z0-9_]{0,31}$")]
Finite = Annotated[float, Field(allow_inf_nan=False)]
_Digest = Annotated[bytes, Field(min_length=32, max_length=32)]
# an edge's X25519 key for the run, digest of the terms that it accepted, certificate (DER; may be empty), signature
Entry = Annotated[
    tuple[
        _Digest,
        _Digest,
        Annotated[bytes, Field(max_length=1024)],
        Annotated[bytes, Field(max_length=64)],
    ],
    Field(strict=False),  # msgpack has lists alone
]


class Message(BaseModel):
    """What every cold message has."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    v: Annotated[int, Field(ge=1, le=1)] = 1  # not Literal[1], which takes True for 1


def _less(fields: dict[str, object], *optional: str) -> dict[str, object]:
    """Leave out optional fields that say nothing: older readers know no such field."""
    return {key: value for key, value in fields.items() if value is not None or key not in optional}


class HelloV1(Message):
    """edge/<id>/hello."""

    kind: Literal["hello"] = "hello"
    noise: LawName | None  # None: the run's
    parameters: Annotated[
        dict[ParameterName, Finite], Field(max_length=PARAMETERS_LIMIT)
    ]  # of the law; {}: the run's
    last_sequence: Count
    index: Count | None  # k that it held before
    nonce: Nonce  # of the edge's process: a reconnect keeps it, a second process has another
    number: Number
    incarnation: Count  # of the run that it is meant for, by the presence that was heard
    preparing: Literal[True] | None = None  # left out where it is ready to train
    coding: Word | None = None  # that it asks for; left out where it asks for none
    entry: Entry | None = (
        None  # of the roster; left out without secure sums, and before their terms are known
    )

    @model_serializer(mode="wrap")
    def _without_nothing(self, dump: SerializerFunctionWrapHandler) -> dict[str, object]:
        return _less(dump(self), "preparing", "coding", "entry")


class WelcomeV1(Message):
    """edge/<id>/welcome."""

    kind: Literal["welcome"] = "welcome"
    index: Count
    edges: Annotated[int, Field(ge=1, lt=INTEGER_LIMIT)]  # number of shards
    last_sequence: Count
    scenario: dict[str, object]  # checked by `bounded`
    seed: Count | None
    incarnation: Count
    nonce: Nonce  # of the hello that it answers
    number: Number  # of the hello that it answers
    terms: Annotated[bytes, Field(max_length=COLD_LIMIT)] | None = None  # left out without secure sums

    @model_serializer(mode="wrap")
    def _without_nothing(self, dump: SerializerFunctionWrapHandler) -> dict[str, object]:
        return _less(dump(self), "terms")


class RefuseV1(Message):
    """edge/<id>/welcome, as a kind of its own."""

    kind: Literal["refuse"] = "refuse"
    reason: Word
    detail: Text
    nonce: Nonce | None  # of the hello that it answers; None where it answers a gradient
    number: Number | None  # likewise
    incarnation: Count
    last_sequence: Count | None  # of this edge, known to the cloud; None unless the reason is ledger-lost

    @field_validator("last_sequence")
    @classmethod
    def _with_its_reason(cls, value: int | None, info: ValidationInfo) -> int | None:
        if (value is None) == (info.data.get("reason") == "ledger-lost"):
            raise ValueError("given with ledger-lost, and with it alone")
        return value


class LeaveV1(Message):
    """edge/<id>/leave, and edge/<id>/will as the broker's farewell for a lost edge."""

    kind: Literal["leave"] = "leave"
    reason: Word
    nonce: Nonce


class HaltV1(Message):
    """halt, retained."""

    kind: Literal["halt"] = "halt"
    reason: Word
    updates: Count
    incarnation: Count


class PresenceV1(Message):
    """cloud, retained; offline and not over is the cloud's last will, offline and over its goodbye after the halt."""

    kind: Literal["presence"] = "presence"
    online: bool
    over: bool
    nonce: Nonce
    incarnation: Count


def bounded(value: object) -> bool:
    """Return whether a value is JSON-like, finite, printable and within every cap; walks without recursion."""
    waiting, seen = [(value, 0)], 0
    while waiting:
        node, depth = waiting.pop()
        seen += 1
        if depth > DEPTH_LIMIT or seen > ITEMS_LIMIT:
            return False
        match node:
            case None | bool():
                pass
            case str():
                if not _is_bounded_text(node):
                    return False
            case int():
                if not -INTEGER_LIMIT <= node < INTEGER_LIMIT:
                    return False
            case float():
                if not math.isfinite(node):
                    return False
            case list():
                waiting.extend((item, depth + 1) for item in node)
            case dict():
                if not all(isinstance(key, str) and _is_bounded_text(key) for key in node):
                    return False
                waiting.extend((item, depth + 1) for item in node.values())
            case _:
                return False
    return True


def _is_bounded_text(text: str) -> bool:
    return len(text) <= ITEMS_LIMIT and text.isprintable()  # keys, too, end up on a terminal

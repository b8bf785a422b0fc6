"""Schema of what cloud and helpers say to each other, in version 1: msgpack maps, as the other cold messages."""

from __future__ import annotations

from typing import Annotated, Literal, TypeVar

from pydantic import AfterValidator, BaseModel, ConfigDict, Field

from common.secure.boxes import SALT_BYTES, TAG_BYTES
from common.secure.masks import SEED_BYTES
from common.secure.terms import DIGEST_BYTES, KEY_BYTES, MOST_HELPERS, MOST_MEMBERS, subsets
from common.wire.topics import is_name
from common.wire.v1 import Count, Finite, Message, Number, Word

ASK_LIMIT = 1 << 21  # bytes of what a cloud asks
REPLY_LIMIT = 1 << 17  # bytes of what a helper replies, but an answer
_ANSWER_FIELDS = 256  # bytes of an answer beside its vector, with room to spare
_MOST_SUBSETS = max(len(subsets(c, t)) for c in range(1, MOST_HELPERS + 1) for t in range((c + 1) // 2))
_T = TypeVar("_T")
_MOST_ENTRIES = 256  # of one roster message
_SIGNATURE = 64


def answer_limit(dimension: int, bits: int) -> int:
    """Return the bytes of the largest reply of a run."""
    return max(dimension * bits // 8 + _ANSWER_FIELDS, REPLY_LIMIT)


def _named(text: str) -> str:
    if not is_name(text):
        raise ValueError("not an edge id")
    return text


def _ascending(members: tuple[tuple[object, ...], ...]) -> tuple[tuple[object, ...], ...]:
    releases = [(one[0], one[1]) for one in members]
    if releases != sorted(set(releases)):
        raise ValueError("not in order, or one twice")
    return members


def _different(values: tuple[_T, ...]) -> tuple[_T, ...]:
    if len(set(values)) != len(values):
        raise ValueError("one twice")
    return values


_Hex = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]
_Key = Annotated[bytes, Field(min_length=KEY_BYTES, max_length=KEY_BYTES)]
_Digest = Annotated[bytes, Field(min_length=DIGEST_BYTES, max_length=DIGEST_BYTES)]
_MaybeDigest = Annotated[bytes, Field(max_length=DIGEST_BYTES)]
_Name = Annotated[str, Field(max_length=64), AfterValidator(_named)]
_Statement = Annotated[
    tuple[Annotated[bytes, Field(max_length=4096)], Annotated[bytes, Field(max_length=_SIGNATURE)]],
    Field(strict=False),  # msgpack has lists alone
]
_Entry = Annotated[tuple[_Name, _Key, _Digest, _Statement], Field(strict=False)]
_Member = Annotated[
    tuple[
        _Name,
        Number,
        Annotated[bytes, Field(min_length=SALT_BYTES, max_length=SALT_BYTES)],
        Annotated[bytes, Field(max_length=DIGEST_BYTES * _MOST_SUBSETS)],
        Annotated[bytes, Field(max_length=SEED_BYTES * _MOST_SUBSETS + TAG_BYTES)],
    ],
    Field(strict=False),
]
_Members = Annotated[
    tuple[_Member, ...],
    Field(strict=False, min_length=1, max_length=MOST_MEMBERS),
    AfterValidator(_ascending),
]
_Helper = Annotated[int, Field(ge=0, lt=MOST_HELPERS)]
_Subset = Annotated[int, Field(ge=0, lt=_MOST_SUBSETS)]
_Subsets = Annotated[
    tuple[_Subset, ...], Field(strict=False, max_length=_MOST_SUBSETS), AfterValidator(_different)
]
_Signature = Annotated[
    tuple[_Helper, Annotated[bytes, Field(min_length=_SIGNATURE, max_length=_SIGNATURE)]], Field(strict=False)
]
_Names = Annotated[tuple[_Name, ...], Field(strict=False, max_length=MOST_MEMBERS)]


class OfferV1(Message):
    kind: Literal["offer"] = "offer"
    terms: Annotated[bytes, Field(max_length=4096)]


class RosterV1(Message):
    kind: Literal["roster"] = "roster"
    entries: Annotated[tuple[_Entry, ...], Field(strict=False, max_length=_MOST_ENTRIES)]


class CheckV1(Message):
    kind: Literal["check"] = "check"
    terms: _Digest
    members: _Members


class ProposeV1(Message):
    kind: Literal["propose"] = "propose"
    terms: _Digest
    members: _Members


class OpenV1(Message):
    kind: Literal["open"] = "open"
    terms: _Digest
    members: _Members
    signatures: Annotated[tuple[_Signature, ...], Field(strict=False, max_length=MOST_HELPERS)]
    vectors: _Subsets
    digests: _Subsets


class FinishV1(Message):
    kind: Literal["finish"] = "finish"
    seal: Annotated[bytes, Field(max_length=TAG_BYTES)]


class HelperHelloV1(Message):
    kind: Literal["helper-hello"] = "helper-hello"
    helper: _Helper
    incarnation: Count
    box: _Key
    signing: _Key
    terms: _MaybeDigest
    signed: _Statement


class CheckedV1(Message):
    kind: Literal["checked"] = "checked"
    set: _Digest
    bad: _Names


class SignedV1(Message):
    kind: Literal["signed"] = "signed"
    set: _Digest
    signature: Annotated[bytes, Field(min_length=_SIGNATURE, max_length=_SIGNATURE)]


class RefusedV1(Message):
    kind: Literal["refused"] = "refused"
    set: _MaybeDigest
    reason: Word
    edges: _Names


class AnswerV1(Message):
    kind: Literal["answer"] = "answer"
    set: _Digest
    subset: _Subset
    digest: bool
    sealed: bytes  # the message's own limit bounds it


class TermsV1(BaseModel):
    """The canonical JSON of terms; `Terms` itself checks what depends on several values."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    run: _Name
    incarnation: Count
    at_least: Count
    colluding: Count
    away: Count
    helpers: Annotated[tuple[tuple[_Hex, _Hex], ...], Field(max_length=MOST_HELPERS)]
    cloud: _Hex
    dimension: Count
    scale: Finite
    clip: Finite
    modulus_bits: Count
    law: Word
    noise_multiplier: Finite

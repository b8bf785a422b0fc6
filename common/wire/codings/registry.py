"""The codings by name, and whole messages from their plain bytes to coded ones and back.

A coded gradient or model is the plain message with another fourth byte and a coded vector: the header stays as it is.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

import numpy as np

from common.errors import RemoteProtocolError
from common.wire.codings.coding import Coding, coded_dimension, decode_vector, encode_vector
from common.wire.codings.float16 import Float16
from common.wire.codings.int8 import Int8
from common.wire.v1 import GRADIENT_MARK, HEADER_BYTES, MODEL_MARK

PLAIN: Final = "float32"  # the vector as it is: no coding
CODINGS: Final[Mapping[str, Coding]] = {coding.name: coding for coding in (Float16(), Int8())}

Marked = Mapping[
    bytes, tuple[Coding, bytes]
]  # mark of a coded message: its coding, and the mark of the plain one


def marked(names: Iterable[str]) -> Marked:
    """Return the codings of these names by the marks of their messages; the plain one has none of its own."""
    marks: dict[bytes, tuple[Coding, bytes]] = {}
    for coding in (CODINGS[name] for name in names if name != PLAIN):
        marks[coding.gradient_mark], marks[coding.model_mark] = (coding, GRADIENT_MARK), (coding, MODEL_MARK)
    return marks


EVERY: Final = marked(CODINGS)  # what a reader of records takes
GRADIENT_MARKS: Final = {
    GRADIENT_MARK,
    *(mark for mark, (_, plain) in EVERY.items() if plain == GRADIENT_MARK),
}


def compress(plain: bytes, name: str, rng: np.random.Generator | None = None) -> bytes:
    """Return the coded bytes of a gradient or model that is encoded as it is."""
    if name == PLAIN:
        return plain
    coding = CODINGS[name]
    mark = coding.gradient_mark if plain.startswith(GRADIENT_MARK) else coding.model_mark
    vector = np.frombuffer(plain, "<f4", offset=HEADER_BYTES)
    return b"".join((mark, plain[len(mark) : HEADER_BYTES], encode_vector(coding, vector, rng)))


def expand(payload: bytes, codings: Marked, dimension: int | None = None) -> bytes:
    """Return the plain bytes of a gradient or model by one of `codings`; any other payload is returned as it is.

    Whatever the bytes are, RemoteProtocolError is all that is raised. Without N it follows from the length.
    """
    coding, mark = codings.get(payload[:4], (None, b""))
    if coding is None:
        return payload
    size = len(payload) - HEADER_BYTES
    count = coded_dimension(coding, size) if dimension is None else dimension
    if count is None or size < 0:
        raise RemoteProtocolError(f"{coding.name}: {len(payload)} bytes, which no number of parameters takes")
    vector = decode_vector(coding, payload, HEADER_BYTES, count)
    return b"".join((mark, payload[len(mark) : HEADER_BYTES], vector.astype("<f4", copy=False).data))

"""What a coding of vectors is, and the form that all of them share: blocks of 256 numbers, each with a scale.

A vector of N numbers becomes ⌈N/256⌉ scales (float32), then N items; the last block may be shorter. A coding says how
a block turns into its scale and items, and back.
"""

from __future__ import annotations

from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from common.errors import LocalProtocolError, RemoteProtocolError
from common.quantities import Vector, is_finite

BLOCK = 256
_SCALE = np.dtype("<f4")

Blocks = npt.NDArray[np.float32]  # n × BLOCK, filled up with zeros
Scales = npt.NDArray[np.float32]
Items = npt.NDArray[Any]


class Coding(Protocol):
    """One coding: stateless, and its randomness is an argument."""

    name: str
    gradient_mark: bytes  # begins the header of a gradient that has it
    model_mark: bytes
    item: np.dtype[Any]  # of one number
    random: bool  # whether `quantise` draws
    stretch: float  # a vector's length grows by this factor at most

    def quantise(self, blocks: Blocks, rng: np.random.Generator | None) -> tuple[Scales, Items]: ...

    def restore(self, scales: Scales, items: Items) -> Blocks:
        """Return the values of blocks; raise ValueError for items that `quantise` never makes."""
        ...


def coded_bytes(coding: Coding, dimension: int) -> int:
    """Return how many bytes a vector of N numbers takes."""
    return _SCALE.itemsize * -(-dimension // BLOCK) + coding.item.itemsize * dimension


def coded_dimension(coding: Coding, size: int) -> int | None:
    """Return N of a vector of this size in bytes; None: no vector has it."""
    whole = _SCALE.itemsize + BLOCK * coding.item.itemsize
    blocks = -(-size // whole)
    dimension = (size - _SCALE.itemsize * blocks) // coding.item.itemsize
    return dimension if dimension >= 0 and coded_bytes(coding, dimension) == size else None


def encode_vector(coding: Coding, vector: Vector, rng: np.random.Generator | None) -> bytes:
    """Return the bytes of a vector; a coding that draws needs a generator."""
    if vector.ndim != 1 or not vector.size or not is_finite(vector):
        raise LocalProtocolError(f"vector of shape {vector.shape}: must be flat, not empty and finite")
    if coding.random and rng is None:
        raise LocalProtocolError(f"{coding.name}: draws, and was given no generator")
    scales, items = coding.quantise(_blocks(vector.astype(np.float32, copy=False)), rng)
    return scales.astype(_SCALE).tobytes() + items.reshape(-1)[: vector.size].astype(coding.item).tobytes()


def decode_vector(coding: Coding, payload: bytes, offset: int, dimension: int) -> Vector:
    """Return the vector behind `offset`; raise RemoteProtocolError for bytes that are none, whatever they are."""
    expected = coded_bytes(coding, dimension)
    if len(payload) - offset != expected:
        raise RemoteProtocolError(
            f"{coding.name}: {len(payload) - offset} bytes of vector, N = {dimension} takes {expected}"
        )
    blocks = -(-dimension // BLOCK)
    scales = np.frombuffer(payload, _SCALE, blocks, offset)
    items = np.frombuffer(payload, coding.item, dimension, offset + scales.nbytes)
    if not (np.isfinite(scales) & (scales >= 0)).all():
        raise RemoteProtocolError(f"{coding.name}: a scale that is negative or not finite")
    try:
        with np.errstate(over="ignore", invalid="ignore"):  # what overflows is not finite
            values = coding.restore(scales, _blocks(items))
    except ValueError as error:
        raise RemoteProtocolError(f"{coding.name}: {error}") from error
    vector: Vector = values.reshape(-1)[:dimension]
    if not is_finite(vector):
        raise RemoteProtocolError(f"{coding.name}: a number that is not finite")
    return vector


def _blocks(values: npt.NDArray[Any]) -> npt.NDArray[Any]:
    padded = np.zeros(-(-values.size // BLOCK) * BLOCK, values.dtype)
    padded[: values.size] = values
    return padded.reshape(-1, BLOCK)

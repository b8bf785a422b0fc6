"""Masks that cancel in a sum: ChaCha20 streams of seeds, added modulo 2³² or 2⁶⁴; pure.

A release is masked by one stream for every subset of helpers; whoever knows the sum of a set's streams learns the sum
of its releases, and nothing of a single one.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from functools import lru_cache
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from common.errors import ConfigurationError

try:
    from cryptography.hazmat.primitives.ciphers import Cipher
    from cryptography.hazmat.primitives.ciphers.algorithms import ChaCha20
except ImportError as error:
    raise ConfigurationError(
        "secure sums: the package cryptography is not installed; pip install 'mapa-testbed[identity]'"
    ) from error

SEED_BYTES = 16
Masked: TypeAlias = npt.NDArray[np.unsignedinteger[Any]]  # uint32 or uint64
Integers: TypeAlias = npt.NDArray[np.int64]

_WORDS: dict[int, np.dtype[Any]] = {32: np.dtype("<u4"), 64: np.dtype("<u8")}
_SIGNED: dict[int, np.dtype[Any]] = {4: np.dtype("<i4"), 8: np.dtype("<i8")}
_COUNTER = bytes(16)
_CHUNK = 1 << 18  # bytes of a stream at a time: they stay in the processor's cache


@lru_cache(maxsize=1)
def _zeros() -> bytes:
    return bytes(_CHUNK)


def _chunks(seed: bytes, size: int) -> Iterable[bytes]:
    key = hashlib.sha256(b"mapa/v1 stream\0" + seed).digest()
    cipher, zeros = Cipher(ChaCha20(key, _COUNTER), None).encryptor(), _zeros()
    for start in range(0, size, _CHUNK):
        yield cipher.update(zeros if size - start >= _CHUNK else zeros[: size - start])


def add_stream(total: Masked, seed: bytes) -> None:
    """Add a seed's stream to a vector, in place, modulo 2^bits."""
    at = 0
    for chunk in _chunks(seed, total.nbytes):
        words = np.frombuffer(chunk, total.dtype)
        total[at : at + words.size] += words
        at += words.size


def sum_of_streams(seeds: Iterable[bytes], dimension: int, bits: int) -> Masked:
    """Return Σ stream(seed) modulo 2^bits: what a helper answers for a set and a subset."""
    total: Masked = np.zeros(dimension, _WORDS[bits])
    for seed in seeds:
        add_stream(total, seed)
    return total


def stream(seed: bytes, dimension: int, bits: int) -> Masked:
    """Return the stream of one seed: uniform integers of so many bits, little-endian."""
    return sum_of_streams([seed], dimension, bits)


def mask(x: Integers, seeds: Iterable[bytes], bits: int) -> Masked:
    """Return y = (x + Σ stream(seed)) mod 2^bits."""
    y: Masked = x.astype(_WORDS[bits])  # wraps: negative integers and too large ones are taken modulo 2^bits
    for seed in seeds:
        add_stream(y, seed)
    return y


def unmasked(masked: Iterable[Masked], sums: Iterable[Masked]) -> Integers:
    """Return Σ x of a set from its masked vectors and the sums of its streams, centred modulo 2^bits."""
    vectors = iter(masked)
    total = next(vectors).copy()
    for y in vectors:
        total += y
    for streams in sums:
        total -= streams
    centred: Integers = total.view(_SIGNED[total.itemsize]).astype(np.int64)
    return centred


def words(payload: bytes | memoryview, bits: int) -> Masked:
    """Return bytes of a wire as a read-only vector."""
    vector: Masked = np.frombuffer(payload, _WORDS[bits])
    return vector

"""Counter-based randomness: what edge k draws for its n-th gradient depends on (seed, k, n) alone.

Any arrival order can therefore be replayed. One Philox is reused and reseated (2 µs);
constructing one for every draw would cost ten times that.
"""

from __future__ import annotations

import secrets
from enum import IntEnum
from typing import Any, Self

import numpy as np

from common.quantities import Indices

_WORD = 2**64


class Purpose(IntEnum):
    """What a stream is for; two purposes never share a number."""

    INITIAL_MODEL = 0
    BATCH = 1
    NOISE = 2
    EPOCH = 3
    PARTITION = 4
    COMPUTE_TIME = 5
    UPLINK_TIME = 6
    DOWNLINK_TIME = 7
    SPEED = 8
    LINK = 9
    AUDIT = 10
    DEVICE = 11
    AVAILABILITY = 12
    GRADIENT_CODING = 13
    MODEL_CODING = 14


def new_incarnation() -> int:
    """Draw the name of one life of a run, from its t = 1 on; it fits the wire's integers."""
    return secrets.randbits(63)


class CounterStreams:
    """Every random stream of a run.

    Seeded: Philox key (seed, k), counter (0, 0, purpose, n).
    Secure: a 128-bit key from the operating system, counter (0, k, purpose, n); the key is never
    shown, so the noise cannot be subtracted, and no two processes share one.
    """

    def __init__(self, key: tuple[int, int], *, reproducible: bool) -> None:
        self._key = key
        self.reproducible = reproducible
        self._bits = np.random.Philox(key=0)
        self._generator = np.random.Generator(self._bits)
        # Tuples of whole numbers: numpy takes them in a third of the time of arrays. Nothing of a buffer is left over.
        self._words: dict[str, tuple[int, ...]] = {}
        self._state: Any = {**self._bits.state, "state": self._words, "buffer": (0, 0, 0, 0)}

    @classmethod
    def seeded(cls, seed: int) -> Self:
        return cls((seed % _WORD, 0), reproducible=True)

    @classmethod
    def secure(cls) -> Self:
        return cls((secrets.randbits(64), secrets.randbits(64)), reproducible=False)

    def at(self, edge: int, purpose: Purpose, n: int) -> np.random.Generator:
        """Return the generator of (edge k, purpose, n); it is valid until the next call."""
        words = self._words
        if self.reproducible:
            words["key"], words["counter"] = (self._key[0], edge), (0, 0, purpose, n)
        else:
            words["key"], words["counter"] = self._key, (0, edge, purpose, n)
        self._bits.state = self._state  # has_uint32 is 0, too
        return self._generator

    def __repr__(self) -> str:
        return f"CounterStreams({'seeded' if self.reproducible else 'secure'})"


def permutation_of(bits: np.random.BitGenerator, size: int) -> Indices:
    """Return a permutation by raw numbers, which no version of numpy changes; Generator.permutation might."""
    return np.argsort(bits.random_raw(size), kind="stable")


def streams_for(seed: int | None) -> CounterStreams:
    """Return seeded streams where a seed is given, else secure ones."""
    return CounterStreams.secure() if seed is None else CounterStreams.seeded(seed)

"""What the edges of a run with secure sums agree on before anything is masked (docs/secure-aggregation.md); pure.

Every sealed box is bound to the digest of the terms that its edge accepted, so it opens under these and no others.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import math
from dataclasses import dataclass, fields
from functools import cached_property, lru_cache

from common.errors import require
from common.quantities import RunId

MOST_HELPERS = 7
MOST_MEMBERS = 1024  # of a set
KEY_BYTES = DIGEST_BYTES = 32


@lru_cache(maxsize=32)
def subsets(c: int, t: int) -> tuple[tuple[int, ...], ...]:
    """Return the (c − t)-subsets of helpers 0 … c − 1, lexicographically: each shares one seed of every release."""
    return tuple(itertools.combinations(range(c), c - t))


@lru_cache(maxsize=256)
def held(c: int, t: int, helper: int) -> tuple[int, ...]:
    """Return the positions in `subsets` of those that a helper belongs to."""
    return tuple(position for position, subset in enumerate(subsets(c, t)) if helper in subset)


@dataclass(frozen=True, slots=True)
class HelperKeys:
    """The public keys of a helper, made for one run."""

    box: bytes  # X25519
    signing: bytes  # Ed25519


@dataclass(frozen=True, kw_only=True)
class Terms:
    """The terms of a run; ConfigurationError where they are not lawful."""

    run: RunId
    incarnation: int
    at_least: int  # m: distinct edges of a set
    colluding: int  # a: edges that may side with the cloud
    away: int  # t: helpers that may be away; and helpers that may side with the cloud
    helpers: tuple[HelperKeys, ...]  # c of them, in order
    cloud: bytes  # X25519: who may open the helpers' answers
    dimension: int  # N
    scale: float  # s, a power of two: grid steps of a unit
    clip: float  # C of every release: noise is shares of that for one C alone
    modulus_bits: int
    law: str
    noise_multiplier: float  # z of the sum of m

    def __post_init__(self) -> None:
        c, t = len(self.helpers), self.away
        most = f"from 2 to {MOST_MEMBERS}"
        require(2 <= self.at_least <= MOST_MEMBERS, "at_least", self.at_least, most)
        allowed = f"from 0 to {self.at_least - 1}, one less than at_least"
        require(0 <= self.colluding < self.at_least, "colluding", self.colluding, allowed)
        require(1 <= c <= MOST_HELPERS, "helpers", c, f"from 1 to {MOST_HELPERS}")
        allowed = f"from 0 to {(c - 1) // 2}: more than twice as many helpers ({c}) are needed"
        require(t >= 0 and 2 * t < c, "away", t, allowed)
        require(self.dimension >= 1, "dimension", self.dimension, "at least 1")
        power = 0 < self.scale < math.inf and math.frexp(self.scale)[0] == 0.5
        require(power, "scale", self.scale, "a power of two")
        require(0 < self.clip < math.inf, "clip", self.clip, "above 0")
        require(self.modulus_bits in (32, 64), "modulus_bits", self.modulus_bits, "32 or 64")
        require(0 < self.noise_multiplier < math.inf, "noise_multiplier", self.noise_multiplier, "above 0")
        keys = [key for one in self.helpers for key in (one.box, one.signing)] + [self.cloud]
        require(
            all(len(key) == KEY_BYTES for key in keys), "keys", "of other lengths", f"{KEY_BYTES} bytes each"
        )
        require(len(set(keys)) == len(keys), "keys", "not all different", "one for each purpose")

    @property
    def bears_liars(self) -> bool:
        """Whether t helpers may even lie: then no two sets that share a release are ever opened (c ≥ 3t + 1)."""
        return len(self.helpers) > 3 * self.away

    @property
    def quorum(self) -> int:
        """Signatures that open a set.

        Against liars any two quorums share t + 1 helpers: ⌊(c + t)/2⌋ + 1. Fewer than 3t + 1 helpers could not give so
        many with t away; there any two share one helper, which must follow the protocol.
        """
        c = len(self.helpers)
        return ((c + self.away) if self.bears_liars else c) // 2 + 1

    @property
    def subsets(self) -> tuple[tuple[int, ...], ...]:
        return subsets(len(self.helpers), self.away)

    def held(self, helper: int) -> tuple[int, ...]:
        """Return the subsets that a helper belongs to."""
        return held(len(self.helpers), self.away, helper)

    @cached_property
    def encoded(self) -> bytes:
        """The canonical bytes: JSON with sorted keys, keys as hexadecimal."""
        values: dict[str, object] = {field.name: getattr(self, field.name) for field in fields(self)}
        values["helpers"] = [[one.box.hex(), one.signing.hex()] for one in self.helpers]
        values |= {"cloud": self.cloud.hex(), "scale": float(self.scale), "clip": float(self.clip)}
        values["noise_multiplier"] = float(self.noise_multiplier)
        return json.dumps(values, sort_keys=True, separators=(",", ":"), allow_nan=False).encode()

    @cached_property
    def digest(self) -> bytes:
        """SHA-256 of the canonical bytes."""
        return hashlib.sha256(self.encoded).digest()

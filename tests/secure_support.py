"""Terms, keys and masked releases for tests of secure sums."""

from __future__ import annotations

import secrets
from dataclasses import dataclass, field

import numpy as np
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from common.quantities import EdgeId, RunId
from common.secure.agreement import Member
from common.secure.boxes import Envelope, RunKey, new_seeds, seal
from common.secure.masks import Integers, Masked, mask
from common.secure.terms import HelperKeys, Terms

RUN, LIFE = RunId("r1"), 5


def new_key() -> RunKey:
    return RunKey(secrets.token_bytes(32))


@dataclass
class Parties:
    """The keys of a run, and what its edges release."""

    c: int = 4
    t: int = 1
    m: int = 3
    dimension: int = 5
    bits: int = 32
    colluding: int = 0
    boxes: list[RunKey] = field(init=False)
    signing: list[Ed25519PrivateKey] = field(init=False)
    cloud: RunKey = field(default_factory=new_key)
    edges: dict[EdgeId, RunKey] = field(default_factory=dict)
    released: dict[tuple[EdgeId, int], tuple[Masked, Envelope, Integers]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.boxes = [new_key() for _ in range(self.c)]
        self.signing = [Ed25519PrivateKey.generate() for _ in range(self.c)]
        self.terms = self.agreed()

    def agreed(self, **changes: object) -> Terms:
        keys = zip(self.boxes, self.signing, strict=True)
        terms: dict[str, object] = {
            "run": RUN,
            "incarnation": LIFE,
            "at_least": self.m,
            "colluding": self.colluding,
            "away": self.t,
            "helpers": tuple(
                HelperKeys(box.public, one.public_key().public_bytes_raw()) for box, one in keys
            ),
            "cloud": self.cloud.public,
            "dimension": self.dimension,
            "scale": 65536.0,
            "modulus_bits": self.bits,
            "law": "gaussian",
            "noise_multiplier": 1.5,
            "clip": 1.0,
        }
        return Terms(**{**terms, **changes})  # type: ignore[arg-type]

    def release(self, name: str, sequence: int, *, terms: Terms | None = None) -> tuple[EdgeId, int]:
        """Have an edge mask a vector; it has a key from its first release on."""
        edge_id, terms = EdgeId(name), terms or self.terms
        key = self.edges.setdefault(edge_id, new_key())
        x = np.random.default_rng([sequence, len(self.released)]).integers(-1000, 1000, self.dimension)
        seeds = new_seeds(terms, secrets.token_bytes)
        pairs = [key.pair(one.box) for one in terms.helpers]
        sealed = seal(seeds, terms, edge_id, sequence, pairs, secrets.token_bytes)
        self.released[edge_id, sequence] = mask(x, seeds, self.bits), sealed, x
        return edge_id, sequence

    def member(self, release: tuple[EdgeId, int], helper: int) -> Member:
        envelope = self.released[release][1]
        return Member(*release, envelope.salt, envelope.commitments, envelope.boxes[helper])

    def members(self, releases: list[tuple[EdgeId, int]], helper: int) -> tuple[Member, ...]:
        return tuple(self.member(one, helper) for one in sorted(releases))

"""Sealed boxes: the seeds of one release, for each helper those of the subsets that it belongs to; pure.

The key of a box comes from X25519 of the edge's and the helper's keys for the run, and from run, incarnation, edge,
sequence and helper; the box is bound to the terms that the edge accepted and to the digests of all seeds. So two
helpers of a subset hold the same seed, or one of them says that its box is wrong: no edge sets honest ones at odds.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from typing import NamedTuple

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305

from common.errors import RemoteProtocolError
from common.quantities import EdgeId, RunId
from common.secure.derivation import expanded, extracted, named
from common.secure.masks import SEED_BYTES
from common.secure.terms import DIGEST_BYTES, Terms, held, subsets

SALT_BYTES = 12
TAG_BYTES = 16
Entropy = Callable[[int], bytes]  # so many random bytes: `secrets.token_bytes`
_NO_NONCE = bytes(12)  # where a key seals one text, and always the same


class RunKey:
    """An X25519 key for one incarnation of one run."""

    def __init__(self, private: bytes) -> None:
        self._private = X25519PrivateKey.from_private_bytes(private)
        self.public = self._private.public_key().public_bytes_raw()

    @classmethod
    def derived(cls, identity: bytes, run: RunId, incarnation: int) -> RunKey:
        """Return the key that follows from an identity's private key: the same after a restart."""
        info = b"mapa/v1 run key\0" + named(run, incarnation)
        return cls(expanded(extracted(b"mapa/v1 identity", identity), info))

    def pair(self, other: bytes) -> bytes:
        """Return the secret shared with another's public key; worth keeping: 50 µs. RemoteProtocolError: no key."""
        try:
            shared = self._private.exchange(X25519PublicKey.from_public_bytes(other))
        except ValueError as error:
            raise RemoteProtocolError("key: not one of X25519") from error
        return extracted(b"mapa/v1 pair\0" + b"".join(sorted((self.public, other))), shared)


class Envelope(NamedTuple):
    """What goes beside a masked vector."""

    salt: bytes
    commitments: bytes  # SHA-256 of each subset's seed, one behind the other
    boxes: tuple[bytes, ...]  # of each helper

    @classmethod
    def parse(cls, content: bytes, c: int, t: int) -> Envelope:
        """Return the parts of its bytes; RemoteProtocolError where their number is another."""
        size = envelope_bytes(c, t)
        if len(content) != size:
            raise RemoteProtocolError(f"envelope: {len(content)} bytes, {c} helpers take {size}")
        at, parts = SALT_BYTES + DIGEST_BYTES * len(subsets(c, t)), []
        head = content[:SALT_BYTES], content[SALT_BYTES:at]
        for helper in range(c):
            end = at + box_bytes(c, t, helper)
            parts.append(content[at:end])
            at = end
        return cls(*head, tuple(parts))

    def __bytes__(self) -> bytes:
        return b"".join((self.salt, self.commitments, *self.boxes))


def box_bytes(c: int, t: int, helper: int = 0) -> int:
    return SEED_BYTES * len(held(c, t, helper)) + TAG_BYTES


def envelope_bytes(c: int, t: int) -> int:
    """Return the bytes that a masked release has beside its vector."""
    return SALT_BYTES + DIGEST_BYTES * len(subsets(c, t)) + c * box_bytes(c, t)


def new_seeds(terms: Terms, entropy: Entropy) -> list[bytes]:
    """Return a seed for every subset; those of one release, never to be used again."""
    return [entropy(SEED_BYTES) for _ in terms.subsets]


def seal(
    seeds: Sequence[bytes],
    terms: Terms,
    edge_id: EdgeId,
    sequence: int,
    pairs: Sequence[bytes],
    entropy: Entropy,
) -> Envelope:
    """Seal the seeds of a release; `pairs`: the secret shared with each helper, `RunKey.pair` of its box key."""
    salt = entropy(SALT_BYTES)
    commitments = b"".join(map(commitment, seeds))
    context = named(terms.run, terms.incarnation, edge_id, sequence)
    bound = terms.digest + context + commitments
    boxes = tuple(
        ChaCha20Poly1305(_box_key(pair, context, helper)).encrypt(
            salt, b"".join(seeds[position] for position in terms.held(helper)), bound
        )
        for helper, pair in enumerate(pairs)
    )
    return Envelope(salt, commitments, boxes)


def open_box(
    salt: bytes,
    commitments: bytes,
    box: bytes,
    terms: Terms,
    helper: int,
    edge_id: EdgeId,
    sequence: int,
    pair: bytes,
) -> dict[int, bytes]:
    """Return the seeds of a box by subset; RemoteProtocolError where it is not this release's under these terms."""
    context = named(terms.run, terms.incarnation, edge_id, sequence)
    mine = terms.held(helper)
    if len(salt) != SALT_BYTES or len(commitments) != DIGEST_BYTES * len(terms.subsets):
        raise RemoteProtocolError("box: a salt or commitments of another length")
    try:
        cipher = ChaCha20Poly1305(_box_key(pair, context, helper))
        opened = cipher.decrypt(salt, box, terms.digest + context + commitments)
    except InvalidTag as error:
        raise RemoteProtocolError("box: does not open") from error
    if len(opened) != SEED_BYTES * len(mine):
        raise RemoteProtocolError("box: seeds of another length")
    seeds = {}
    for place, position in enumerate(mine):
        seed = opened[place * SEED_BYTES : (place + 1) * SEED_BYTES]
        if commitment(seed) != commitments[position * DIGEST_BYTES : (position + 1) * DIGEST_BYTES]:
            raise RemoteProtocolError("box: a seed that is not the one committed to")
        seeds[position] = seed
    return seeds


def commitment(seed: bytes) -> bytes:
    return hashlib.sha256(b"mapa/v1 seed\0" + seed).digest()


def seal_once(pair: bytes, purpose: bytes, content: bytes) -> bytes:
    """Seal under a purpose that names this content alone, for ever: the same bytes each time."""
    return ChaCha20Poly1305(expanded(pair, b"mapa/v1 once\0" + purpose)).encrypt(_NO_NONCE, content, None)


def open_once(pair: bytes, purpose: bytes, sealed: bytes) -> bytes:
    """Return what was sealed under a purpose; RemoteProtocolError where it was not."""
    try:
        return ChaCha20Poly1305(expanded(pair, b"mapa/v1 once\0" + purpose)).decrypt(_NO_NONCE, sealed, None)
    except InvalidTag as error:
        raise RemoteProtocolError("sealed answer: does not open") from error


def _box_key(pair: bytes, context: bytes, helper: int) -> bytes:
    return expanded(pair, b"mapa/v1 box\0" + context + bytes([helper]))

"""The session of one process of the cloud with one of an edge: keys for gradients and models, and their seals; pure.

X25519 of the two processes' keys, which their hello and welcome have signed, and HKDF over run, incarnation, edge, both
nonces and both certificates give one key for each direction. A seal is a GMAC under that key and a counter that only
grows, so a message counts once, in its direction, between these two processes.
"""

from __future__ import annotations

import struct
from typing import NamedTuple

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from common.errors import ForgedMessageError
from common.quantities import EdgeId, RunId
from common.secure.boxes import RunKey
from common.secure.derivation import expanded, named
from common.wire.signatures import digest
from common.wire.v1 import SEAL_BYTES

SEAL = struct.Struct(">8sQ16s")  # nonce of the edge's process | counter from 1 | tag
assert SEAL.size == SEAL_BYTES
_unpack_from = SEAL.unpack_from
GRADIENTS, MODELS = b"gradients\0", b"models\0"  # the two directions
_LAST = 2**63  # counters end before


class Side(NamedTuple):
    """What the other side learns of a process from what it signs."""

    nonce: bytes
    key: bytes  # X25519
    certificate: bytes


def session_keys(
    own: RunKey, run: RunId, incarnation: int, edge_id: EdgeId, edge: Side, cloud: Side
) -> dict[bytes, bytes]:
    """Return the key of each direction; RemoteProtocolError where the other's public key is none."""
    pair = own.pair(cloud.key if own.public == edge.key else edge.key)
    info = b"mapa/v1 session\0" + named(run, incarnation, edge_id) + edge.nonce + cloud.nonce
    info += digest(edge.certificate) + digest(cloud.certificate)
    return {way: expanded(pair, info + way) for way in (GRADIENTS, MODELS)}


class Session:
    """The keys of two processes; each side seals in its own direction and opens in the other's."""

    def __init__(
        self,
        own: RunKey,
        run: RunId,
        incarnation: int,
        edge_id: EdgeId,
        edge: Side,
        cloud: Side,
        *,
        seals: bytes,
        number: int,
        serial: int,
    ) -> None:
        keys = session_keys(own, run, incarnation, edge_id, edge, cloud)
        self._out = AESGCM(keys.pop(seals))
        ((_, opens),) = keys.items()
        self._in = AESGCM(opens)
        self._nonce = edge.nonce
        self._sealed = self._opened = 0  # counters, of the last message
        self.other, self.incarnation = cloud if own.public == edge.key else edge, incarnation
        self.number = number  # of the newest hello or welcome that it was agreed by
        self.serial = serial  # of the other's certificate

    def seal(self, body: bytes) -> bytes:
        """Return the seal that goes behind a body; the counter is AES-GCM's nonce, which a key never sees twice."""
        self._sealed += 1
        tag = self._out.encrypt(self._sealed.to_bytes(12, "big"), b"", body)
        return SEAL.pack(self._nonce, self._sealed, tag)

    def open(self, payload: bytes) -> bytes:
        """Return the body; ForgedMessageError where it was not sealed for this side, or came before."""
        end = len(payload) - SEAL_BYTES
        if end < 0:
            raise ForgedMessageError("not sealed, and this side takes sealed messages only")
        nonce, counter, tag = _unpack_from(payload, end)
        if nonce != self._nonce:
            raise ForgedMessageError("of another session")
        body = payload[:end]
        if not self._opened < counter < _LAST:
            raise ForgedMessageError(f"counter {counter} came before, or a later one did")
        try:
            self._in.decrypt(counter.to_bytes(12, "big"), tag, body)
        except InvalidTag as error:
            raise ForgedMessageError("not as its sender sealed it") from error
        self._opened = counter
        return body


def nonce_of(payload: bytes) -> bytes:
    """Return the nonce of the edge's process that a sealed message names."""
    return payload[-SEAL_BYTES : 8 - SEAL_BYTES]

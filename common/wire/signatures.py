"""Who says a message: signatures under certificates, for what comes before a session, or is still read after it.

A signed message is its body and, behind it, the signer's certificate, the nonce and the X25519 key of its process, and
an Ed25519 signature over all of these and the topic, which names run, edge and kind. Pure: the clock and the lists of
what was revoked are arguments.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Callable, Collection, Mapping
from datetime import datetime
from typing import NamedTuple

from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from cryptography.hazmat.primitives.serialization import Encoding, load_pem_private_key
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from common.errors import ConfigurationError, ForgedMessageError
from common.secure.boxes import RunKey
from common.wire.v1 import PROOF_LIMIT

EDGES, SERVICES = "edges", "services"  # the authorities of a testbed
CLOUD = "cloud"  # the name of the cloud's certificate, which no helper has
_DOMAIN, _STATEMENT = b"mapa/v1 signed\0", b"mapa/v1 statement\0"
# nonce of the signer's process | its X25519 key | signature | bytes of the certificate before them | mark
_END = struct.Struct(">8s32s64sH4s")
_MARK = b"\xc1sig"  # begins with the one byte that no MessagePack has
_LONGEST_CERTIFICATE = PROOF_LIMIT - _END.size  # ours take 410 bytes at most
_REMEMBERED = 4096  # certificates that were checked

Revoked = Callable[[], Collection[tuple[str, int]]]  # (authority, serial number), as the peer knows them now


class Holder(NamedTuple):
    """Whom a certificate is of."""

    authority: str
    name: str
    key: Ed25519PublicKey
    serial: int
    since: datetime
    until: datetime


class Signed(NamedTuple):
    """A message whose signer is proven."""

    body: bytes
    nonce: bytes  # of the signer's process
    key: bytes  # X25519, of the same
    certificate: bytes
    serial: int


class Signer:
    """One process of an identity. ConfigurationError where key and certificate are no pair of Ed25519."""

    def __init__(self, key: bytes, certificate: bytes, nonce: str, run_key: RunKey) -> None:
        try:
            private = load_pem_private_key(key, password=None)
            read = x509.load_pem_x509_certificate(certificate)
            public = read.public_key()
        except Exception as error:  # a parser: whatever it says, the files are at fault
            raise ConfigurationError(f"identity: key.pem or cert.pem cannot be read ({error})") from error
        if not isinstance(private, Ed25519PrivateKey) or public != private.public_key():
            raise ConfigurationError("identity: key.pem and cert.pem are no Ed25519 key and its certificate")
        self.name = _common_name(read)
        self.certificate = read.public_bytes(Encoding.DER)
        if len(self.certificate) > _LONGEST_CERTIFICATE:
            raise ConfigurationError(f"identity: cert.pem has more than {_LONGEST_CERTIFICATE} bytes")
        self.nonce, self.run_key = bytes.fromhex(nonce), run_key
        self._private = private

    def sign(self, topic: str, body: bytes) -> bytes:
        """Return a message as it is sent; the same bytes each time."""
        said = _said(topic, self.nonce, self.run_key.public, self.certificate, body)
        end = (self.nonce, self.run_key.public, self._private.sign(said), len(self.certificate), _MARK)
        return body + self.certificate + _END.pack(*end)

    def statement(self, content: bytes) -> tuple[bytes, bytes]:
        """Return the certificate and a signature of what is neither a message nor of one process."""
        return self.certificate, self._private.sign(_STATEMENT + content)


class Trust:
    """The authorities by which one side knows the others."""

    def __init__(
        self, authorities: Mapping[str, bytes], now: Callable[[], datetime], revoked: Revoked = frozenset
    ) -> None:
        try:
            self._authorities = {
                name: x509.load_pem_x509_certificate(content) for name, content in authorities.items()
            }
        except ValueError as error:
            raise ConfigurationError(
                f"identity: an authority's certificate cannot be read ({error})"
            ) from error
        self._now, self._revoked = now, revoked
        self._known: dict[tuple[str, bytes], Holder] = {}

    def verified(self, topic: str, payload: bytes, authority: str, name: str) -> Signed:
        """Return a message of the one who has this name from this authority; ForgedMessageError: it is not."""
        at = len(payload) - _END.size
        if at < 0 or payload[-len(_MARK) :] != _MARK:
            raise ForgedMessageError("not signed, and this side takes signed messages only")
        nonce, key, signature, length, _ = _END.unpack_from(payload, at)
        if not 0 < length <= min(at, _LONGEST_CERTIFICATE):
            raise ForgedMessageError(f"a certificate of {length} bytes")
        body, certificate = payload[: at - length], payload[at - length : at]
        holder = self._valid(authority, certificate, name)
        try:
            holder.key.verify(signature, _said(topic, nonce, key, certificate, body))
        except InvalidSignature as error:
            raise ForgedMessageError(f"not as {name!r} signed it") from error
        return Signed(body, nonce, key, certificate, holder.serial)

    def vouches(
        self, authority: str, name: str, certificate: bytes, content: bytes, signature: bytes
    ) -> bool:
        """Return whether the one who has this name from this authority has signed a statement."""
        try:
            holder = self._valid(authority, certificate, name)
            holder.key.verify(signature, _STATEMENT + content)
        except (ForgedMessageError, InvalidSignature):
            return False
        return True

    def check(self, authority: str, serial: int) -> None:
        """Raise ForgedMessageError where a certificate was revoked."""
        if (authority, serial) in self._revoked():
            raise ForgedMessageError("its sender's certificate was revoked")

    def _valid(self, authority: str, certificate: bytes, name: str) -> Holder:
        """Return a certificate's holder; ForgedMessageError where it is not this one's, not now or not any more."""
        if not 0 < len(certificate) <= _LONGEST_CERTIFICATE:
            raise ForgedMessageError(f"a certificate of {len(certificate)} bytes")
        holder = self._holder(authority, certificate)
        if holder.name != name:
            raise ForgedMessageError(f"signed by another than {name!r}")
        if not holder.since <= self._now() < holder.until:
            raise ForgedMessageError(f"the certificate of {name!r} is not valid now")
        self.check(authority, holder.serial)
        return holder

    def _holder(self, authority: str, certificate: bytes) -> Holder:
        """Return whom a certificate of an authority is of; checked once."""
        known = self._known.get((authority, certificate))
        if known is None:
            try:
                known = _checked(self._authorities[authority], authority, certificate)
            except Exception as error:  # a parser at the border: whatever it says, the bytes are at fault
                raise ForgedMessageError(
                    f"a certificate that {authority!r} did not sign ({type(error).__name__})"
                ) from error
            if len(self._known) >= _REMEMBERED:
                self._known.clear()
            self._known[authority, certificate] = known
        return known


def digest(certificate: bytes) -> bytes:
    return hashlib.sha256(certificate).digest()


def _checked(issuer: x509.Certificate, authority: str, content: bytes) -> Holder:
    read = x509.load_der_x509_certificate(content)
    read.verify_directly_issued_by(issuer)
    usage = read.extensions.get_extension_for_class(x509.ExtendedKeyUsage).value
    rights = read.extensions.get_extension_for_class(x509.BasicConstraints).value
    key = read.public_key()
    if rights.ca or list(usage) != [ExtendedKeyUsageOID.CLIENT_AUTH] or not isinstance(key, Ed25519PublicKey):
        raise ValueError("no client's certificate")
    span = read.not_valid_before_utc, read.not_valid_after_utc
    return Holder(authority, _common_name(read), key, read.serial_number, *span)


def _common_name(certificate: x509.Certificate) -> str:
    (attribute,) = certificate.subject.get_attributes_for_oid(NameOID.COMMON_NAME)
    return str(attribute.value)


def _said(topic: str, nonce: bytes, key: bytes, certificate: bytes, body: bytes) -> bytes:
    """Return what is signed: no two messages have the same."""
    place = topic.encode()
    lengths = struct.pack(">HH", len(place), len(certificate))
    return b"".join((_DOMAIN, lengths, place, nonce, key, certificate, body))

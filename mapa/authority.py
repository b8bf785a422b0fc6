"""The certificate authority of a testbed: who is broker, cloud, edge or helper, and who no longer is.

A folder holds two authorities. One signs edges, the other the services (broker, cloud, helpers): Mosquitto trusts whole
authorities, so an edge's certificate opens the listener of edges and no other, and can pose as no broker. One name has
one valid certificate; its common name is the client's id and user name at the broker.
"""

from __future__ import annotations

import fcntl
import hashlib
import hmac
import ipaddress
import json
import os
import re
import secrets
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from pathlib import Path

from common.errors import ConfigurationError, require
from common.records.regular import sync_path
from common.wire.topics import edge_id

try:
    from cryptography import x509
    from cryptography.exceptions import UnsupportedAlgorithm
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec, ed25519
    from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID
except ImportError as error:
    raise ConfigurationError(
        "identities: the package cryptography is not installed; pip install 'mapa-testbed[identity]'"
    ) from error

PEM = serialization.Encoding.PEM
CLOUD, BROKER, ENROLMENT = "cloud", "broker", "enrolment"
_LIFETIME = timedelta(days=825)
_AUTHORITY_LIFETIME = timedelta(days=3650)
_CLOCKS_DIFFER = timedelta(minutes=5)
_LARGEST_REQUEST = 4096  # bytes


class Role(StrEnum):
    BROKER = "broker"
    CLOUD = "cloud"
    EDGE = "edge"
    HELPER = "helper"

    @property
    def issuer(self) -> str:
        return "edges" if self is Role.EDGE else "services"


_RESERVED = {CLOUD: Role.CLOUD, BROKER: Role.BROKER, ENROLMENT: Role.BROKER}


@dataclass(frozen=True, slots=True)
class Issued:
    """A certificate that was issued."""

    name: str
    role: Role
    serial: str  # hexadecimal
    until: str  # ISO 8601, UTC
    revoked: str | None = None

    def state(self, now: datetime) -> str:
        if self.revoked is not None:
            return "revoked"
        return "valid" if now < datetime.fromisoformat(self.until) else "expired"


@dataclass(frozen=True, slots=True)
class Invitation:
    """A token that was given out: its secret's hash, and the key that signed each of its edges."""

    group: str
    secret: str
    until: str
    keys: dict[str, str | None]  # by edge; None: has not come yet

    @property
    def missing(self) -> list[str]:
        return [name for name, key in self.keys.items() if key is None]


def members(group: str, count: int) -> list[str]:
    """Return the edges of a group: `lab-0`, `lab-1`, …; without a count the group is one edge of that name."""
    return [edge_id(f"{group}-{number}") for number in range(count)] if count else [edge_id(group)]


@dataclass(slots=True)
class Register:
    """All that was issued, as `register.json` keeps it."""

    hosts: list[str] = field(default_factory=list)
    entries: list[Issued] = field(default_factory=list)
    invitations: list[Invitation] = field(default_factory=list)

    def valid(self, name: str, now: datetime) -> Issued | None:
        return next(
            (entry for entry in self.entries if entry.name == name and entry.state(now) == "valid"), None
        )


@dataclass(frozen=True, slots=True)
class Identity:
    """A key, its certificate, and the authority that services are checked against, all as PEM."""

    key: bytes
    certificate: bytes
    authority: bytes
    edges: bytes | None = None  # the authority that a service knows edges by

    def write(self, folder: Path) -> None:
        """Write key.pem, cert.pem, ca.pem and a service's edges.pem, readable by their owner alone."""
        for missing in (folder.parent, folder):
            missing.mkdir(mode=0o700, parents=True, exist_ok=True)
        for name, content in (
            ("key.pem", self.key),
            ("cert.pem", self.certificate),
            ("ca.pem", self.authority),
            ("edges.pem", self.edges),
        ):
            if content is not None:
                write_private(folder / name, content)


class Authority:
    """The authorities of a folder that `create` made."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        if not self._register_file.is_file():
            raise ConfigurationError(
                f"folder = {str(folder)!r}: holds no authority; `mapa certs init` makes one"
            )

    @classmethod
    def create(cls, folder: Path, hosts: Sequence[str]) -> Authority:
        """Make the authorities of a new folder; `hosts`: the names and addresses by which clients reach the broker."""
        for host in hosts:
            _alternative(host)
        if folder.exists() and any(folder.iterdir()):
            raise ConfigurationError(f"folder = {str(folder)!r}: is not empty; choose another")
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        folder.chmod(0o700)
        now = datetime.now(UTC)
        for issuer in ("edges", "services"):
            key = ec.generate_private_key(ec.SECP256R1())
            name = _name(f"mapa {issuer} {secrets.token_hex(4)}")
            certificate = (
                _certificate(name, name, key.public_key(), now, _AUTHORITY_LIFETIME)
                .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
                .add_extension(_key_usage(signs_certificates=True), critical=True)
                .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
                .sign(key, hashes.SHA256())
            )
            write_private(folder / f"{issuer}.key", _key_pem(key))
            write_private(folder / f"{issuer}.pem", certificate.public_bytes(PEM))
        _write_register(folder / "register.json", Register(hosts=list(hosts)))
        return cls(folder)

    @property
    def _register_file(self) -> Path:
        return self.folder / "register.json"

    def certificate_of(self, issuer: str) -> bytes:
        """Return the certificate of the authority of edges or of services as PEM."""
        self._certificate_of(issuer)
        return (self.folder / f"{issuer}.pem").read_bytes()

    @property
    def services_certificate(self) -> bytes:
        return self.certificate_of("services")

    @property
    def fingerprint(self) -> str:
        """SHA-256 of the services' authority, by which a token names it."""
        return fingerprint(self.services_certificate)

    def register(self) -> Register:
        return _read_register(self._register_file)

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Keep other writers out, in this process and in others; not to be entered twice."""
        with (self.folder / ".lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield

    @contextmanager
    def _changed(self) -> Iterator[Register]:
        """Lend the register to one writer at a time; it is written where nothing was raised."""
        with self.locked():
            register = self.register()
            yield register
            _write_register(self._register_file, register)

    def issue(
        self, name: str, role: Role, *, again: bool = False, host: str | None = None, elsewhere: bool = False
    ) -> Identity:
        """Make a key and sign it; `again`: revoke what the name has; `host`: one more that a broker serves.

        `elsewhere`: a site's broker, which serves that host and none of the register's.
        """
        key = (
            ed25519.Ed25519PrivateKey.generate()
            if role is not Role.BROKER
            else ec.generate_private_key(ec.SECP256R1())
        )
        services = self.certificate_of("services")  # what cannot be read is said before anything changes
        with self._changed() as register:
            more = {"again": again, "elsewhere": elsewhere}
            certificate = self._sign(register, name, role, key.public_key(), host=host, **more)
        edges = None if role is Role.EDGE else self.certificate_of("edges")
        return Identity(_key_pem(key), certificate, services, edges)

    def _sign(
        self,
        register: Register,
        name: str,
        role: Role,
        key: ed25519.Ed25519PublicKey | ec.EllipticCurvePublicKey,
        *,
        again: bool,
        host: str | None = None,
        elsewhere: bool = False,
    ) -> bytes:
        edge_id(name)
        require(
            _RESERVED.get(name, role) is role,
            "name",
            repr(name),
            f"another than {', '.join(_RESERVED)}, which services have",
        )
        now = datetime.now(UTC)
        if (held := register.valid(name, now)) is not None:
            if not again or held.role is not role:
                raise ConfigurationError(
                    f"name = {name!r}: there is a valid certificate of this name ({held.role}); choose another name,"
                    f" or `mapa certs rotate {name}` or `revoke {name}`"
                )
            self._revoke(register, name, now)
        issuer = self._certificate_of(role.issuer)
        usage = ExtendedKeyUsageOID.SERVER_AUTH if role is Role.BROKER else ExtendedKeyUsageOID.CLIENT_AUTH
        builder = (
            _certificate(_name(name), issuer.subject, key, now, _LIFETIME)
            .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
            .add_extension(_key_usage(), critical=True)
            .add_extension(x509.ExtendedKeyUsage([usage]), critical=True)
            .add_extension(_issued_by(issuer), critical=False)
        )
        if role is Role.BROKER:
            own = [BROKER, "localhost", "127.0.0.1"]  # for the cloud beside it, and a health check
            known = [] if elsewhere else register.hosts
            hosts = dict.fromkeys([*known, *own, *([] if host is None else [host])])
            alternatives = [_alternative(one) for one in hosts]
            builder = builder.add_extension(x509.SubjectAlternativeName(alternatives), critical=False)
        certificate = builder.sign(self._key_of(role.issuer), hashes.SHA256())
        until = certificate.not_valid_after_utc.isoformat()
        register.entries.append(Issued(name, role, f"{certificate.serial_number:x}", until))
        return certificate.public_bytes(PEM)

    def revoke(self, *names: str) -> None:
        """Revoke what the names have, certificate and unused token; nothing, and an error, if one has neither."""
        with self._changed() as register:
            for name in dict.fromkeys(names):
                if not self._revoke(register, name, datetime.now(UTC)):
                    raise ConfigurationError(f"name = {name!r}: has no valid certificate and no unused token")

    @staticmethod
    def _revoke(register: Register, name: str, now: datetime) -> bool:
        held = register.valid(name, now)
        invited = [one for one in register.invitations if name in one.keys]
        unused = any(one.keys[name] is None for one in invited)
        register.entries = [
            replace(entry, revoked=now.isoformat()) if entry is held else entry for entry in register.entries
        ]
        for one in invited:  # used or not: a token would sign the same key again
            del one.keys[name]
        return held is not None or unused

    def revocations(self, issuer: str) -> bytes:
        """Return the signed list of an authority's revoked certificates."""
        now = datetime.now(UTC)
        builder = (
            x509.CertificateRevocationListBuilder()
            .issuer_name(self._certificate_of(issuer).subject)
            .last_update(now - _CLOCKS_DIFFER)
            .next_update(now + _AUTHORITY_LIFETIME)  # a broker refuses everybody where its list is too old
        )
        for entry in self.register().entries:
            if entry.revoked is not None and entry.role.issuer == issuer:
                revoked = x509.RevokedCertificateBuilder().serial_number(int(entry.serial, 16))
                builder = builder.add_revoked_certificate(
                    revoked.revocation_date(datetime.fromisoformat(entry.revoked)).build()
                )
        return builder.sign(self._key_of(issuer), hashes.SHA256()).public_bytes(PEM)

    def invite(self, group: str, count: int, lifetime: timedelta) -> tuple[str, datetime]:
        """Return the secret of a token for a group of edges, and when it expires; earlier ones for them are void."""
        secret, until = secrets.token_urlsafe(24), datetime.now(UTC) + lifetime
        names = members(group, count)
        with self._changed() as register:
            for name in names:
                require(name not in _RESERVED, "name", repr(name), "an edge's")
                if (
                    held := register.valid(name, datetime.now(UTC))
                ) is not None and held.role is not Role.EDGE:
                    raise ConfigurationError(f"name = {name!r}: is the name of a {held.role}")
                for one in register.invitations:
                    one.keys.pop(name, None)
            keys = dict.fromkeys(names)
            register.invitations = [one for one in register.invitations if one.keys]
            register.invitations.append(Invitation(group, _hashed(secret), until.isoformat(), keys))
        return secret, until

    def enrol(self, name: str, secret: str, request: bytes) -> bytes:
        """Return a certificate for the key of a signing request, once; the same key may ask for it again.

        Raise ConfigurationError for a token that is unknown, expired or used, which looks the same from outside.
        """
        key = _requested_key(request)
        raw = hashlib.sha256(key.public_bytes_raw()).hexdigest()
        now = datetime.now(UTC)
        with self._changed() as register:
            for one in register.invitations:
                fits = name in one.keys and hmac.compare_digest(one.secret, _hashed(secret))
                if fits and now < datetime.fromisoformat(one.until) and one.keys[name] in (None, raw):
                    certificate = self._sign(register, name, Role.EDGE, key, again=True)
                    one.keys[name] = raw
                    return certificate
        raise ConfigurationError("token: unknown, expired, revoked or used already; ask for another")

    def _certificate_of(self, issuer: str) -> x509.Certificate:
        path = self.folder / f"{issuer}.pem"
        try:
            return x509.load_pem_x509_certificate(path.read_bytes())
        except (OSError, ValueError) as error:
            raise _damaged(path, error) from error

    def _key_of(self, issuer: str) -> ec.EllipticCurvePrivateKey:
        path = self.folder / f"{issuer}.key"
        try:
            key = serialization.load_pem_private_key(path.read_bytes(), password=None)
        except (OSError, ValueError, TypeError, UnsupportedAlgorithm) as error:
            raise _damaged(path, error) from error
        if (
            not isinstance(key, ec.EllipticCurvePrivateKey)
            or key.public_key() != self._certificate_of(issuer).public_key()
        ):
            raise ConfigurationError(f"{path}: is not the key of {issuer}.pem; restore it from a copy")
        return key


def _damaged(path: Path, error: Exception) -> ConfigurationError:
    return ConfigurationError(f"{path}: cannot be read ({error}); restore it from a copy")


def new_key() -> bytes:
    """Return a key of an edge as PEM."""
    return _key_pem(ed25519.Ed25519PrivateKey.generate())


def signing_request(key: bytes, name: str) -> bytes:
    """Return what an authority signs: the public half of a key, signed by its private half."""
    private = serialization.load_pem_private_key(key, password=None)
    if not isinstance(private, ed25519.Ed25519PrivateKey):
        raise ConfigurationError("key: is not one that an enrolment made")
    return (
        x509.CertificateSigningRequestBuilder()
        .subject_name(_name(name))
        .sign(private, None)
        .public_bytes(PEM)
    )


def fingerprint(certificate: bytes) -> str:
    """Return the SHA-256 of a certificate; ConfigurationError where there is none."""
    try:
        return x509.load_pem_x509_certificate(certificate).fingerprint(hashes.SHA256()).hex()
    except ValueError as error:
        raise ConfigurationError(f"certificate: cannot be read ({error})") from error


def write_private(path: Path, content: bytes) -> None:
    """Write a file that its owner alone can read, whole or not at all."""
    draft = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
    try:
        descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(descriptor, "wb") as stream:
            stream.write(content)
            stream.flush()
            os.fsync(stream.fileno())
        draft.replace(path)
        sync_path(path.parent)
    except OSError as error:
        draft.unlink(missing_ok=True)
        raise ConfigurationError(f"{path}: cannot be written ({error.strerror})") from error


def _requested_key(request: bytes) -> ed25519.Ed25519PublicKey:
    """Return the key of a signing request; nothing else of what it asks for is granted."""
    allowed = f"a PEM signing request of an Ed25519 key, at most {_LARGEST_REQUEST} bytes"
    require(len(request) <= _LARGEST_REQUEST, "request", f"{len(request)} bytes", allowed)
    try:
        read = x509.load_pem_x509_csr(request)
        key = read.public_key()
        if read.is_signature_valid and isinstance(key, ed25519.Ed25519PublicKey):
            return key
    except Exception:  # a parser at the border: whatever it says, the bytes are at fault
        pass
    raise ConfigurationError(f"request: must be {allowed}")


def _certificate(
    subject: x509.Name,
    issuer: x509.Name,
    key: ed25519.Ed25519PublicKey | ec.EllipticCurvePublicKey,
    now: datetime,
    lifetime: timedelta,
) -> x509.CertificateBuilder:
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - _CLOCKS_DIFFER)
        .not_valid_after(now + lifetime)
    )


def _name(common_name: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, common_name)])


def _alternative(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        fits = re.fullmatch(r"[A-Za-z0-9_-]{1,63}(\.[A-Za-z0-9_-]{1,63})*", host)
        require(fits is not None and len(host) < 254, "host", repr(host), "a DNS name or an IP address")
        return x509.DNSName(host)


def _key_usage(*, signs_certificates: bool = False) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=not signs_certificates,
        key_cert_sign=signs_certificates,
        crl_sign=signs_certificates,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        encipher_only=False,
        decipher_only=False,
    )


def _issued_by(issuer: x509.Certificate) -> x509.AuthorityKeyIdentifier:
    identifier = issuer.extensions.get_extension_for_class(x509.SubjectKeyIdentifier).value
    return x509.AuthorityKeyIdentifier.from_issuer_subject_key_identifier(identifier)


def _key_pem(key: ed25519.Ed25519PrivateKey | ec.EllipticCurvePrivateKey) -> bytes:
    return key.private_bytes(PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())


def _hashed(secret: str) -> str:
    return hashlib.sha256(secret.encode()).hexdigest()


def _read_register(path: Path) -> Register:
    try:
        values = json.loads(path.read_text(encoding="utf-8"))
        register = Register(
            hosts=[str(host) for host in values["hosts"]],
            entries=[Issued(**{**row, "role": Role(row["role"])}) for row in values["entries"]],
            invitations=[Invitation(**row) for row in values["invitations"]],
        )
        for entry in register.entries:
            int(entry.serial, 16)
        moments = [entry.until for entry in register.entries] + [one.until for one in register.invitations]
        moments += [entry.revoked for entry in register.entries if entry.revoked is not None]
        if any(datetime.fromisoformat(moment).tzinfo is None for moment in moments):
            raise ValueError("a time without a zone")
        if any(not isinstance(one.keys, dict) for one in register.invitations):
            raise ValueError("an invitation without edges")
    except (OSError, ValueError, TypeError, KeyError, RecursionError) as error:
        raise _damaged(path, error) from error
    return register


def _write_register(path: Path, register: Register) -> None:
    write_private(path, json.dumps(asdict(register), indent=1).encode())

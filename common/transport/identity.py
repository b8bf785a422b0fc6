"""Guards from the files of an identity, as `mapa certs` writes them; imported only where messages are signed."""

from __future__ import annotations

import contextlib
import secrets
import time
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path

from common.errors import ConfigurationError
from common.quantities import EdgeId, RunId

try:
    from cryptography import x509

    from common.secure.boxes import RunKey
    from common.wire.guards import CloudGuard, EdgeGuard, MaySpeak
    from common.wire.signatures import CLOUD, EDGES, SERVICES, Signer, Trust
except ImportError as error:
    raise ConfigurationError(
        "identity: messages are signed with the package cryptography, which is not installed; pip install"
        " 'mapa-testbed[identity]', or --no-authentic"
    ) from error

_LOOK_EVERY = 1.0  # seconds between two looks at the lists of what was revoked


class RevocationLists:
    """The serial numbers in edges.crl and services.crl of a folder; a list that changes is read again."""

    def __init__(self, folder: Path, authorities: Mapping[str, bytes]) -> None:
        self._files = {name: folder / f"{name}.crl" for name in authorities}
        self._issuers = {name: x509.load_pem_x509_certificate(pem) for name, pem in authorities.items()}
        self._read: dict[str, int] = {}  # when each was last changed, in nanoseconds
        self._revoked: frozenset[tuple[str, int]] = frozenset()
        self._next = time.monotonic() + _LOOK_EVERY
        for name in self._files:
            self._look(name)

    def __call__(self) -> frozenset[tuple[str, int]]:
        if (now := time.monotonic()) >= self._next:
            self._next = now + _LOOK_EVERY
            for name in self._files:
                with contextlib.suppress(ConfigurationError):  # half copied: the next look reads it
                    self._look(name)
        return self._revoked

    def _look(self, name: str) -> None:
        """Read a list that is new; one that is missing takes back nothing that was known to be revoked."""
        path = self._files[name]
        try:
            changed = path.stat().st_mtime_ns
            if self._read.get(name) == changed:
                return
            listed = x509.load_pem_x509_crl(path.read_bytes())
        except FileNotFoundError:
            return
        except (OSError, ValueError) as error:
            raise ConfigurationError(f"{path}: cannot be read ({error})") from error
        if not listed.is_signature_valid(self._issuers[name].public_key()):  # type: ignore[arg-type]
            raise ConfigurationError(f"{path}: is not signed by the authority of {name}")
        self._read[name] = changed
        others = {one for one in self._revoked if one[0] != name}
        self._revoked = frozenset(others | {(name, entry.serial_number) for entry in listed})


def cloud_guard(
    folder: Path, run: RunId, incarnation: int, nonce: str, may_speak: MaySpeak = lambda _: True
) -> CloudGuard:
    """Return the guard of a cloud's process; ConfigurationError names the file that does not fit."""
    signer, trust = _opened(folder, nonce, {EDGES: "edges.pem", SERVICES: "ca.pem"})
    _check_name(folder, signer, CLOUD)
    return CloudGuard(run, incarnation, signer, trust, may_speak)


def edge_guard(folder: Path, run: RunId, edge_id: EdgeId, nonce: str) -> EdgeGuard:
    """Return the guard of an edge's process; ConfigurationError names the file that does not fit."""
    signer, trust = _opened(folder, nonce, {SERVICES: "ca.pem"})
    _check_name(folder, signer, edge_id)
    return EdgeGuard(run, edge_id, signer, trust)


def name_of(folder: Path) -> str:
    """Return whose identity it is."""
    return _signer(folder, "0" * 16).name


def _opened(folder: Path, nonce: str, files: Mapping[str, str]) -> tuple[Signer, Trust]:
    authorities = {name: _content(folder / file) for name, file in files.items()}
    signer = _signer(folder, nonce)
    trust = Trust(authorities, lambda: datetime.now(UTC), RevocationLists(folder, authorities))
    return signer, trust


def _signer(folder: Path, nonce: str) -> Signer:
    run_key = RunKey(secrets.token_bytes(32))
    return Signer(_content(folder / "key.pem"), _content(folder / "cert.pem"), nonce, run_key)


def _content(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise ConfigurationError(
            f"{path}: cannot be read ({error.strerror}); `mapa certs` makes it, also for an earlier identity:"
            " `mapa certs rotate NAME`"
        ) from error


def _check_name(folder: Path, signer: Signer, name: str) -> None:
    if signer.name != name:
        raise ConfigurationError(f"{folder}: is the identity of {signer.name!r}, not of {name!r}")

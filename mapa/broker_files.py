"""The folder that a broker of several hosts reads: configuration, topics by user, certificates, passwords."""

from __future__ import annotations

import base64
import getpass
import hashlib
import secrets
from collections.abc import Mapping
from pathlib import Path

from mapa.authority import CLOUD, Authority, Role, write_private

EDGES_PORT, CLOUD_PORT, WEBSOCKET_PORT = 8883, 8884, 8443

# Paths are relative: Mosquitto is started in this folder.
CONFIGURATION = """\
# Written by `mapa certs`. Start it here: mosquitto -c mosquitto.conf
user {user}
per_listener_settings {per_listener}
{common}persistence false
set_tcp_nodelay true
# bytes of one message: 40 + 4N for N parameters, and a little more
message_size_limit 1048576
max_inflight_messages 100
max_queued_messages 10000
max_queued_bytes 67108864
sys_interval 0
log_dest stdout
log_type error
log_type warning
log_type notice
# a health check every few seconds would fill the log
connection_messages false

# For edges. A client's id is its user name, whatever it says: nobody throws out another under its client id.
listener {edges_port}
{edges}use_username_as_clientid true

# The same, as MQTT over WebSocket, for edges behind a firewall.
listener {websocket_port}
protocol websockets
{edges}use_username_as_clientid true

# For clouds, whose client ids tell them apart. No edge's certificate or password is worth anything here.
listener {cloud_port}
{services}"""

_TLS = """\
certfile server.pem
keyfile server.key
tls_version tlsv1.2
"""
_BY_CERTIFICATE = """\
cafile {issuer}.pem
crlfile {issuer}.crl
require_certificate true
use_identity_as_username true
"""
_BY_PASSWORD = """\
cafile services.pem
password_file {passwords}
"""
_ACCESS = """\
allow_anonymous false
acl_file acl
"""
PASSWORDS, CLOUD_PASSWORDS = "passwords", "passwords-cloud"

ACL = """\
# User names are edge ids: each edge has its own branch and no other.
# It writes its gradients, reads its models, and can publish neither a model nor a halt.
# start.sh puts the run's name in the place of `+` where RUN is set: under any name an edge could retain without bound.
user cloud
topic readwrite mapa/v1/#

pattern write mapa/v1/+/edge/%u/hello
pattern write mapa/v1/+/edge/%u/gradient
pattern write mapa/v1/+/edge/%u/leave
pattern write mapa/v1/+/edge/%u/will
pattern read mapa/v1/+/edge/%u/welcome
pattern read mapa/v1/+/edge/%u/model
pattern write mapa/v1/+/helper/%u/hello
pattern write mapa/v1/+/helper/%u/reply
pattern read mapa/v1/+/helper/%u/ask
pattern read mapa/v1/+/halt
pattern read mapa/v1/+/cloud
"""


def write_broker(folder: Path, authority: Authority, *, by_password: bool = False) -> None:
    """Write what a broker needs; an own `mosquitto.conf` or `acl` of the operator's stays as it is."""
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    if not (folder / "server.pem").exists():
        issue_server(folder, authority)
    write_revocations(folder, authority)
    for issuer in ("edges", "services"):
        write_private(folder / f"{issuer}.pem", (authority.folder / f"{issuer}.pem").read_bytes())
    listeners = {
        issuer: _TLS
        + (_ACCESS + _BY_PASSWORD if by_password else _BY_CERTIFICATE).format(
            issuer=issuer, passwords=passwords
        )
        for issuer, passwords in (("edges", PASSWORDS), ("services", CLOUD_PASSWORDS))
    }
    configuration = CONFIGURATION.format(
        user=getpass.getuser(),
        per_listener=str(by_password).lower(),
        common="" if by_password else _ACCESS,
        edges_port=EDGES_PORT,
        websocket_port=WEBSOCKET_PORT,
        cloud_port=CLOUD_PORT,
        **listeners,
    )
    for name, text in (("mosquitto.conf", configuration), ("acl", ACL)):
        if not (folder / name).exists():
            write_private(folder / name, text.encode())


def issue_server(folder: Path, authority: Authority) -> None:
    """Write a certificate of the broker for its authority's hosts; an earlier one is revoked."""
    identity = authority.issue("broker", Role.BROKER, again=True)
    write_private(folder / "server.key", identity.key)
    write_private(folder / "server.pem", identity.certificate)


def write_revocations(folder: Path, authority: Authority) -> None:
    """Write the lists of what was revoked, for the cloud too; of several writers the last one knows all."""
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    readers = [folder, *(place for place in [folder.parent / CLOUD] if (place / "edges.pem").exists())]
    with authority.locked():
        for issuer in ("edges", "services"):
            for place in readers:
                write_private(place / f"{issuer}.crl", authority.revocations(issuer))


def write_passwords(folder: Path, passwords: Mapping[str, str]) -> None:
    """Write Mosquitto's hashes, PBKDF2 of SHA-512 as its own tool makes them: of all users, and of the cloud alone."""
    rounds = (
        101  # Mosquitto's own; the passwords are 192 random bits, which no number of rounds protects better
    )
    lines = {}
    for name, password in sorted(passwords.items()):
        salt = secrets.token_bytes(12)
        hashed = hashlib.pbkdf2_hmac("sha512", password.encode(), salt, rounds)
        encoded = base64.b64encode(salt).decode(), base64.b64encode(hashed).decode()
        lines[name] = f"{name}:$7${rounds}${encoded[0]}${encoded[1]}\n"
    write_private(folder / CLOUD_PASSWORDS, lines.get(CLOUD, "").encode())
    write_private(folder / PASSWORDS, "".join(lines.values()).encode())

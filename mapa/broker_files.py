"""The folder that a broker of several hosts reads: configuration, topics by user, certificates, passwords."""

from __future__ import annotations

import base64
import getpass
import hashlib
import secrets
from collections.abc import Mapping, Sequence
from pathlib import Path

from common.errors import ConfigurationError
from common.transport.connection import BrokerAddress
from mapa.authority import CLOUD, Authority, Role, write_private

EDGES_PORT, CLOUD_PORT, WEBSOCKET_PORT = 8883, 8884, 8443

# Paths are relative: Mosquitto is started in this folder.
CONFIGURATION = """\
# Written by `mapa certs`. Start it here: mosquitto -c mosquitto.conf
user {user}
per_listener_settings {per_listener}
{common}persistence false
set_tcp_nodelay true
# bytes of one message: 40 + 4N for N parameters, and a little more; a packet has a topic beside it, and a larger one
# ends its connection before it takes memory
message_size_limit 1048576
max_packet_size 1052672
# of one client; what waits beyond it is dropped
max_inflight_messages 100
max_queued_messages 10000
max_queued_bytes 67108864
# a session that outlives its connection, which no client of ours asks for
persistent_client_expiration 1d
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
# whoever reaches the port can hold connections, until 90 s without a CONNECT: the cloud must find a descriptor left, so
# `ulimit -n` is to be above the limits of both listeners together
max_connections 2000

# The same, as MQTT over WebSocket, for edges behind a firewall.
listener {websocket_port}
protocol websockets
{edges}use_username_as_clientid true
max_connections 2000

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
# `mapa certs init --run`, or start.sh where RUN is set, puts a run's name in the place of `+`: under any name an edge
# could retain without bound.
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

# Of a site's broker: what its edges say goes to the cloud's, and what they are told comes from there. Both ends keep
# the session while the line is cut.
BRIDGE = """
# Of the broker of the cloud: it knows this one as {user}, and lets it speak for these edges alone.
connection cloud
address {address}
bridge_cafile services.pem
bridge_certfile bridge.pem
bridge_keyfile bridge.key
bridge_tls_version tlsv1.2
remote_clientid {user}
cleansession false
notifications false
keepalive_interval 10
restart_timeout 1 10
topic mapa/v1/+/halt in 1
topic mapa/v1/+/cloud in 1
"""
_UP, _DOWN = ("hello", "gradient", "leave", "will"), ("welcome", "model")


def write_broker(
    folder: Path, authority: Authority, *, by_password: bool = False, run: str | None = None
) -> None:
    """Write what a broker needs; an own `mosquitto.conf` or `acl` of the operator's stays as it is.

    `run`: the only run that edges may write to.
    """
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
    access = ACL if run is None else ACL.replace("/+/", f"/{run}/")
    for name, text in (("mosquitto.conf", configuration), ("acl", access)):
        if not (folder / name).exists():
            write_private(folder / name, text.encode())


def write_bridge(
    folder: Path, authority: Authority, site: str, edges: Sequence[str], host: str, address: BrokerAddress
) -> Path:
    """Write the folder of a site's broker, reached as `host`, and let it speak for its edges at the broker of `folder`.

    `address`: where the site reaches that broker's listener of edges.
    """
    user, place = f"bridge-{site}", folder.parent / "sites" / site
    hub = folder / "acl"
    granted = hub.read_text(encoding="utf-8") if hub.is_file() else ""
    if not granted or f"user {user}\n" in granted:
        why = (
            f"speaks for its edges already, in {hub}"
            if granted
            else f"{hub} is missing; `mapa certs init` writes it"
        )
        raise ConfigurationError(f"SITE = {site!r}: {why}")
    bridge = authority.issue(user, Role.EDGE)
    server = authority.issue(f"broker-{site}", Role.BROKER, host=host, elsewhere=True)
    for name, content in (
        ("bridge.key", bridge.key),
        ("bridge.pem", bridge.certificate),
        ("server.key", server.key),
        ("server.pem", server.certificate),
    ):
        place.mkdir(mode=0o700, parents=True, exist_ok=True)
        write_private(place / name, content)
    write_broker(place, authority)
    lines, grants = [BRIDGE.format(address=address, user=user)], [f"\nuser {user}\n"]
    for leaves, way, right in ((_UP, "out", "write"), (_DOWN, "in", "read")):
        for edge in edges:
            lines += [f"topic mapa/v1/+/edge/{edge}/{leaf} {way} 1\n" for leaf in leaves]
            grants += [f"topic {right} mapa/v1/+/edge/{edge}/{leaf}\n" for leaf in leaves]
    configuration = place / "mosquitto.conf"
    write_private(configuration, (configuration.read_text(encoding="utf-8") + "".join(lines)).encode())
    write_private(hub, (granted + "".join(grants)).encode())
    return place


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

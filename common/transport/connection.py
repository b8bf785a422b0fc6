"""How to reach a broker: address, credentials, limits."""

from __future__ import annotations

import ipaddress
import re
import socket
import ssl
from dataclasses import dataclass, field
from pathlib import Path

from common.errors import ConfigurationError
from common.transport.channel import Guard, Will
from common.transport.websocket import WebSocket

DEFAULT_PORT = 1883
WEBSOCKET = "wss://"
_WEBSOCKET_PORT = 443
_WEBSOCKET_PATH = "/mqtt"
SIZE_HINT = "raise its limit (Mosquitto: message_size_limit and max_packet_size)"  # where it carries no model
_ADDRESS = re.compile(r"(?:\[(?P<six>[0-9A-Fa-f:.%]+)\]|(?P<host>[A-Za-z0-9._-]+))(?::(?P<port>[0-9]{1,5}))?")


@dataclass(frozen=True, slots=True)
class BrokerAddress:
    """Where a broker listens; a host that begins with / is the path of a unix socket."""

    host: str
    port: int = DEFAULT_PORT
    path: str | None = None  # of MQTT over WebSocket, always with TLS

    @property
    def is_unix(self) -> bool:
        return self.host.startswith("/")

    @property
    def is_loopback(self) -> bool:
        """Whether nothing that is sent there leaves this machine; names are not looked up, but for localhost."""
        if self.is_unix or self.host.lower() == "localhost":
            return True
        try:
            return ipaddress.ip_address(self.host.partition("%")[0]).is_loopback
        except ValueError:
            return False

    def __str__(self) -> str:
        if self.is_unix:
            return self.host
        place = f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"
        return place if self.path is None else f"{WEBSOCKET}{place}{self.path}"


def parse_address(text: str) -> BrokerAddress:
    """Return the address of HOST, HOST:PORT, [IPv6]:PORT, wss://HOST[:PORT][/PATH] or /path/of/a/unix/socket."""
    if text.startswith("/"):
        return BrokerAddress(text, DEFAULT_PORT)
    place, path, usual = text, None, DEFAULT_PORT
    if text.startswith(WEBSOCKET):
        place, slash, rest = text.removeprefix(WEBSOCKET).partition("/")
        path, usual = slash + rest or _WEBSOCKET_PATH, _WEBSOCKET_PORT
    found = _ADDRESS.fullmatch(place)
    port = int(found["port"] or usual) if found else 0
    if not found or not 0 < port < 65536 or re.search(r"[^!-~]", path or ""):
        raise ConfigurationError(
            f"broker = {text!r}: expected HOST, HOST:PORT, [IPv6]:PORT, {WEBSOCKET}HOST[:PORT][/PATH] or"
            " /path/of/a/socket, port 1 to 65535"
        )
    return BrokerAddress(found["six"] or found["host"], port, path)


@dataclass(frozen=True, slots=True, kw_only=True)
class TlsFiles:
    """TLS files. Without `ca` the system's CA certificates are trusted."""

    ca: Path | None = None
    cert: Path | None = None
    key: Path | None = None

    def __post_init__(self) -> None:
        if (self.cert is None) != (self.key is None):
            raise ConfigurationError("tls: cert and key go together; one of them is missing")
        for name, path in (("ca", self.ca), ("cert", self.cert), ("key", self.key)):
            if path is not None and not path.is_file():
                raise ConfigurationError(f"tls: {name} = {str(path)!r}: no such file")

    @classmethod
    def identity(cls, folder: Path) -> TlsFiles:
        """Return the files of an identity as `mapa certs` writes them."""
        return cls(ca=folder / "ca.pem", cert=folder / "cert.pem", key=folder / "key.pem")

    def context(self) -> ssl.SSLContext:
        """Return the SSL context; the broker's host name is always checked."""
        try:
            context = ssl.create_default_context(cafile=self.ca)
            if self.cert is not None:
                context.load_cert_chain(self.cert, self.key)
        except (ssl.SSLError, OSError) as error:
            raise ConfigurationError(f"tls: {self.ca}, {self.cert}, {self.key}: {error}") from error
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        return context


@dataclass(frozen=True, slots=True, kw_only=True)
class Credentials:
    """User name, password and TLS files for a broker."""

    username: str | None = None
    password: str | None = field(default=None, repr=False)
    tls: TlsFiles | None = None
    identity: Path | None = None  # folder of what messages are signed with; None: they are not


def still_trying(address: BrokerAddress, timeout: float, reason: str) -> str:
    """Say what is waited for, and for how long."""
    return f"broker {address}: {reason}; trying again for up to {timeout:g} s (--connect-timeout)"


def unreachable(address: BrokerAddress, timeout: float, reason: str) -> str:
    """Say that no connection came about, and why."""
    return f"broker {address}: no connection within {timeout:g} s ({reason})"


def advised(error: OSError | ValueError, *, tls: bool) -> str:
    """Return why a connection failed, with what an operator can do about it."""
    said = str(error) or type(error).__name__
    match error:
        case socket.gaierror():
            advice = "this host does not know the name; check the address, or give an IP address"
        case ConnectionRefusedError():
            advice = "nothing listens there; is the broker running, and is this its port (HOST:PORT)?"
        case FileNotFoundError():
            advice = "there is no such socket; is the broker running?"
        case ssl.SSLError() | ConnectionResetError() if tls:
            advice = (
                "TLS failed; does the broker use TLS at this port? Without it leave out --tls and --tls-ca"
            )
        case TimeoutError() | OSError():
            advice = "no answer from there; check the address, the network and firewalls on the way"
        case _:
            return said
    return f"{said}: {advice}"


@dataclass(frozen=True, slots=True, kw_only=True)
class MqttOptions:
    """One client's connection."""

    address: BrokerAddress
    client_id: str
    credentials: Credentials = field(default_factory=Credentials)
    server_name: str | None = None  # that the broker's certificate must bear; None: the address's host
    will: Will | None = None  # as it is to be sent
    guard: Guard | None = None  # proves messages end to end; None: the broker is trusted
    keepalive: int = 30  # seconds; the broker gives a silent client one and a half of them
    connect_timeout: float = 5.0  # seconds for TCP, TLS and MQTT's own greeting, each
    min_backoff: float = 0.25  # seconds, doubled at every failure
    max_backoff: float = 8.0
    max_queued: int = 1000  # QoS 1 messages without acknowledgement
    max_packet: int = 1 << 28  # bytes; larger ones are skipped. MqttChannel.allow changes it later
    max_unsent: int = 1 << 26  # bytes that the broker has not taken; beyond, QoS 0 must wait with its sender


def open_socket(options: MqttOptions) -> socket.socket | WebSocket:
    """Connect by TCP (with TCP_NODELAY), TLS, WebSocket over TLS or a unix socket; raise OSError."""
    address = options.address
    if address.is_unix:
        plain = socket.socket(socket.AF_UNIX)
        plain.settimeout(options.connect_timeout)
    else:
        plain = socket.create_connection((address.host, address.port), timeout=options.connect_timeout)
    try:
        if address.is_unix:
            plain.connect(address.host)
            return plain
        # Without it on both ends small messages fall to a tenth of the rate.
        plain.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        tls = options.credentials.tls
        if address.path is not None:
            tls = tls or TlsFiles()
        elif tls is None:
            return plain
        name = options.server_name or address.host
        plain = tls.context().wrap_socket(plain, server_hostname=name)
        return plain if address.path is None else WebSocket(plain, name, address.path)
    except BaseException:
        plain.close()
        raise

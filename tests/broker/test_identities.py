"""A real Mosquitto with what `mapa certs` writes: who gets in, as whom, and what each may do there.

Each test shows that the same action succeeds with the right credentials.
"""

from __future__ import annotations

import os
import signal
import socket
import ssl
import struct
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from datetime import datetime, tzinfo
from pathlib import Path
from typing import Any

import pytest

import mapa.authority
from common.errors import BrokerUnavailableError, ConfigurationError
from common.transport.connection import BrokerAddress, Credentials, MqttOptions, TlsFiles
from common.transport.loop import SelectorLoop
from common.transport.mqtt import MqttChannel
from mapa.authority import Authority, Role
from mapa.broker_files import CLOUD_PORT, EDGES_PORT, WEBSOCKET_PORT, write_broker, write_revocations
from mapa.brokers import Broker, accepts, find_mosquitto, free_port
from tests.program_support import PATIENCE, eventually

pytestmark = [
    pytest.mark.broker,
    pytest.mark.skipif(
        find_mosquitto() is None, reason="no mosquitto on PATH (Debian: apt install mosquitto)"
    ),
]


@dataclass
class Site:
    """Authorities, a broker that trusts them, and identities as folders."""

    folder: Path
    authority: Authority
    edges: int = field(default_factory=free_port)
    clouds: int = field(default_factory=free_port)
    websocket: int = field(default_factory=free_port)
    broker: Broker = field(init=False)

    def start(self) -> None:
        files = self.folder / "broker"
        write_broker(files, self.authority)
        configuration = files / "mosquitto.conf"
        text = configuration.read_text()
        ports = ((EDGES_PORT, self.edges), (CLOUD_PORT, self.clouds), (WEBSOCKET_PORT, self.websocket))
        for usual, port in ports:
            assert f"listener {usual}\n" in text
            text = text.replace(f"listener {usual}\n", f"listener {port} 127.0.0.1\n")
        configuration.write_text(text)
        command = ["/usr/bin/env", "-C", str(files), find_mosquitto() or "", "-c", "mosquitto.conf"]
        address = BrokerAddress("localhost", self.edges)
        self.broker = Broker(address, "mosquitto", command, self.folder / "log", needs_greeting=False)
        self.broker.start()
        for _, port in ports:
            eventually(
                lambda port=port: accepts(BrokerAddress("127.0.0.1", port), greeting=False), "it listens"
            )

    def identity(self, name: str, role: Role = Role.EDGE, authority: Authority | None = None) -> Path:
        place = self.folder / name
        (authority or self.authority).issue(name, role).write(place)
        return place

    def revoke(self, name: str) -> None:
        self.authority.revoke(name)
        write_revocations(self.folder / "broker", self.authority)
        os.kill(self.broker.pid, signal.SIGHUP)


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    made = Site(tmp_path, Authority.create(tmp_path / "authority", ["localhost"]))
    made.start()
    yield made
    made.broker.stop()


def context(identity: Path | None, site: Site) -> ssl.SSLContext:
    """Return what a client brings: its identity, and trust in the services' authority."""
    made = ssl.create_default_context(cafile=site.authority.folder / "services.pem")
    if identity is not None:
        made.load_cert_chain(identity / "cert.pem", identity / "key.pem")
    return made


class Session:
    """A client as small as MQTT allows, so that nothing of ours makes a refusal."""

    def __init__(self, port: int, tls: ssl.SSLContext | None, client_id: str = "me") -> None:
        self.socket: socket.socket = socket.create_connection(("127.0.0.1", port), timeout=PATIENCE)
        try:
            if tls is not None:
                self.socket = tls.wrap_socket(self.socket, server_hostname="localhost")
            self.send(0x10, _text("MQTT") + b"\x04\x02\x00\x3c" + _text(client_id))
            if (answer := self.receive()) != (0x20, b"\x00\x00"):
                raise ConnectionAbortedError(f"CONNACK {answer!r}")
        except BaseException:
            self.socket.close()
            raise

    def __enter__(self) -> Session:
        return self

    def __exit__(self, *_: object) -> None:
        self.socket.close()

    def send(self, kind: int, body: bytes) -> None:
        assert len(body) < 128
        self.socket.sendall(bytes([kind, len(body)]) + body)

    def receive(self) -> tuple[int, bytes]:
        """Return type and body of the next packet; ConnectionError at the end of the connection."""
        kind, length = self._exactly(2)
        return kind, self._exactly(length)

    def _exactly(self, size: int) -> bytes:
        content = b""
        while len(content) < size:
            part = self.socket.recv(size - len(content))
            if not part:
                raise ConnectionResetError("the broker has closed the connection")
            content += part
        return content

    def publish(self, topic: str, payload: bytes) -> None:
        """Publish and wait until the broker has it; whether it passes it on is its own affair."""
        self.send(0x32, _text(topic) + b"\x00\x01" + payload)
        assert self.receive() == (0x40, b"\x00\x01")

    def subscribe(self, topics: str) -> None:
        self.send(0x82, b"\x00\x02" + _text(topics) + b"\x00")
        kind, _ = self.receive()
        assert kind == 0x90

    def message(self) -> tuple[str, bytes]:
        kind, body = self.receive()
        assert kind & 0xF0 == 0x30
        (length,) = struct.unpack("!H", body[:2])
        return body[2 : 2 + length].decode(), body[2 + length :]


def _text(text: str) -> bytes:
    return struct.pack("!H", len(text)) + text.encode()


def refused(port: int, tls: ssl.SSLContext | None) -> bool:
    """Return whether a client is kept out; TLS 1.3 tells a client only when it reads."""
    socket.create_connection(("127.0.0.1", port), timeout=PATIENCE).close()  # somebody listens there
    try:
        with Session(port, tls):
            return False
    except (ssl.SSLError, ConnectionError):
        return True


def test_an_edge_without_a_certificate_or_without_tls_is_kept_out(site: Site) -> None:
    assert not refused(site.edges, context(site.identity("e1"), site))
    assert refused(site.edges, context(None, site))
    assert refused(site.edges, None)


def test_a_certificate_of_another_authority_is_worth_nothing(site: Site, tmp_path: Path) -> None:
    other = Authority.create(tmp_path / "other", ["localhost"])
    assert refused(site.edges, context(site.identity("e1", authority=other), site))
    assert refused(site.clouds, context(site.identity("cloud", Role.CLOUD, authority=other), site))
    assert not refused(site.edges, context(site.identity("e2"), site))


def test_a_broker_of_another_authority_is_not_trusted(site: Site, tmp_path: Path) -> None:
    other = Site(tmp_path / "impostor", Authority.create(tmp_path / "other", ["localhost"]))
    other.start()
    edge = context(site.identity("e1"), site)
    try:
        with pytest.raises(ssl.SSLCertVerificationError):
            Session(other.edges, edge)
    finally:
        other.broker.stop()
    assert not refused(site.edges, edge)


def test_an_identity_opens_the_listener_of_its_role_alone(site: Site) -> None:
    edge, cloud = context(site.identity("e1"), site), context(site.identity("cloud", Role.CLOUD), site)
    assert not refused(site.edges, edge)
    assert refused(site.clouds, edge)
    assert not refused(site.clouds, cloud)
    assert refused(site.edges, cloud)


def test_the_brokers_own_key_is_no_clouds(site: Site, tmp_path: Path) -> None:
    stolen = tmp_path / "stolen"
    stolen.mkdir()
    for name, source in (("cert.pem", "server.pem"), ("key.pem", "server.key")):
        (stolen / name).write_bytes((tmp_path / "broker" / source).read_bytes())
    assert refused(site.clouds, context(stolen, site))
    assert not refused(site.clouds, context(site.identity("cloud", Role.CLOUD), site))


def test_an_expired_certificate_is_refused(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    class LongAgo(datetime):
        @classmethod
        def now(cls, tz: tzinfo | None = None) -> datetime:
            return datetime(2015, 1, 1, tzinfo=tz)

    monkeypatch.setattr(mapa.authority, "datetime", LongAgo)
    old = site.identity("e1")
    monkeypatch.undo()
    assert refused(site.edges, context(old, site))
    assert not refused(site.edges, context(site.identity("e1"), site))


def test_a_revoked_certificate_is_refused_once_the_broker_has_read_its_list(site: Site) -> None:
    one, two = context(site.identity("e1"), site), context(site.identity("e2"), site)
    assert not refused(site.edges, one)
    site.revoke("e1")
    eventually(lambda: refused(site.edges, one), "the list is read")
    assert not refused(site.edges, two)
    assert not refused(site.edges, context(site.identity("e1"), site)), "a new one of the same name"


@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_1, ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
def test_tls_below_1_2_is_refused(site: Site, version: ssl.TLSVersion) -> None:
    client = context(site.identity("e1"), site)
    client.set_ciphers("DEFAULT:@SECLEVEL=0")  # else it is the client that refuses
    with (
        pytest.warns(DeprecationWarning, match="TLSv1_1")
        if version < ssl.TLSVersion.TLSv1_2
        else nullcontext()
    ):
        client.minimum_version = client.maximum_version = version
    assert refused(site.edges, client) is (version < ssl.TLSVersion.TLSv1_2)


def test_a_client_id_is_its_certificates_name_whatever_the_client_says(site: Site) -> None:
    own, other = context(site.identity("e1"), site), context(site.identity("e2"), site)
    with Session(site.edges, own, "run:e1") as first:
        for stolen in ("run:e1", "e1", "me"):
            assert not refused(site.edges, other), stolen
            with Session(site.edges, other, stolen):
                first.subscribe("mapa/v1/r/edge/e1/model")  # it is still there
        with Session(site.edges, own, "another"), pytest.raises((ConnectionError, ssl.SSLError)):
            first.receive()  # of one identity the later client remains


def test_an_edge_writes_and_reads_its_own_branch_alone(site: Site) -> None:
    tls = context(site.identity("cloud", Role.CLOUD), site)
    with (
        Session(site.clouds, tls, "cloud-nonce") as cloud,
        Session(site.edges, context(site.identity("e1"), site)) as edge,
    ):
        cloud.subscribe("mapa/v1/#")
        others = ("edge/e2/gradient", "edge/e2/leave", "edge/e2/will", "edge/e1/model", "halt", "cloud")
        for leaf in others:
            edge.publish(f"mapa/v1/r/{leaf}", b"forged")
        edge.publish("mapa/v1/r/edge/e1/gradient", b"own")
        assert cloud.message() == ("mapa/v1/r/edge/e1/gradient", b"own")
        edge.subscribe("#")
        edge.subscribe("mapa/v1/r/edge/e2/model")
        for leaf in ("edge/e2/model", "edge/e2/gradient", "edge/e1/model"):
            cloud.send(0x30, _text(f"mapa/v1/r/{leaf}") + b"x")
        assert edge.message() == ("mapa/v1/r/edge/e1/model", b"x")


@pytest.mark.parametrize("size", [10, 20_000])
def test_edges_behind_a_firewall_have_the_same_identities_over_websocket(
    site: Site, connect: Callable[..., Any], size: int
) -> None:
    def client(name: str, folder: Path, port: BrokerAddress, topic: str) -> Any:
        return connect(port, name, topic, credentials=Credentials(tls=TlsFiles.identity(folder)))

    inside = BrokerAddress("localhost", site.websocket, "/mqtt")
    cloud = client(
        "c",
        site.identity("cloud", Role.CLOUD),
        BrokerAddress("localhost", site.clouds),
        "mapa/v1/+/edge/+/gradient",
    )
    edge = client("r:e1", site.identity("e1"), inside, "mapa/v1/r/edge/e1/model")
    for qos in (0, 1):
        edge.channel.publish("mapa/v1/r/edge/e2/gradient", b"forged", qos=qos)
        edge.channel.publish("mapa/v1/r/edge/e1/gradient", bytes([qos]) * size, qos=qos)
        cloud.channel.publish("mapa/v1/r/edge/e1/model", bytes([qos]) * size, qos=qos)
    for side, leaf in ((cloud, "gradient"), (edge, "model")):
        side.wait(lambda side=side: len(side.seen) >= 2)
        expected = [(f"mapa/v1/r/edge/e1/{leaf}", bytes([qos]) * size) for qos in (0, 1)]
        assert side.seen == expected
    other = Authority.create(site.folder / "other", ["localhost"])
    stranger = MqttOptions(
        address=inside,
        client_id="x",
        credentials=Credentials(
            tls=replace(
                TlsFiles.identity(site.identity("e3", authority=other)),
                ca=site.authority.folder / "services.pem",
            )
        ),
    )
    with SelectorLoop() as loop, pytest.raises((BrokerUnavailableError, ConfigurationError)):
        MqttChannel(stranger, loop).connect(1.0)

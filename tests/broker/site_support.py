"""A site of several hosts: authorities, the broker that docker/cloud.yml starts, identities, passwords."""

from __future__ import annotations

import os
import socket
import ssl
import struct
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from getpass import getuser
from pathlib import Path

from common.transport.connection import BrokerAddress, Credentials, TlsFiles
from mapa.authority import Authority, Role
from mapa.broker_files import (
    CLOUD_PORT,
    EDGES_PORT,
    WEBSOCKET_PORT,
    write_broker,
    write_passwords,
    write_revocations,
)
from mapa.brokers import Broker, accepts, find_mosquitto, free_port
from tests.program_support import PATIENCE, ROOT, eventually


@dataclass
class Site:
    """What `mapa certs` writes below a folder, on free ports; with passwords where some are given."""

    folder: Path
    passwords: dict[str, str] | None = None  # by user
    run: str = ""  # the only run that edges may write to; "": any
    authority: Authority = field(init=False)
    edges: BrokerAddress = field(init=False)
    clouds: BrokerAddress = field(init=False)
    websocket: BrokerAddress = field(init=False)

    def __post_init__(self) -> None:
        self.authority = Authority.create(self.folder / "authority", ["localhost"])
        self.edges, self.clouds = (BrokerAddress("localhost", free_port()) for _ in range(2))
        self.websocket = BrokerAddress("localhost", free_port(), "/mqtt")

    @property
    def files(self) -> Path:
        return self.folder / "broker"

    def write(self) -> None:
        """Write the broker's folder, on free ports of the loopback interface."""
        write_broker(self.files, self.authority, by_password=self.passwords is not None)
        if self.passwords is not None:
            write_passwords(self.files, self.passwords)
        text = (self.files / "mosquitto.conf").read_text()
        for usual, address in self._ports:
            assert f"listener {usual}\n" in text
            text = text.replace(f"listener {usual}\n", f"listener {address.port} 127.0.0.1\n")
        (self.files / "mosquitto.conf").write_text(text)

    @property
    def _ports(self) -> tuple[tuple[int, BrokerAddress], ...]:
        return (EDGES_PORT, self.edges), (CLOUD_PORT, self.clouds), (WEBSOCKET_PORT, self.websocket)

    @contextmanager
    def running(self, *, in_container: bool = True) -> Iterator[Broker]:
        """Start the broker as a container does, or as an operator without one."""
        self.write()
        home, path = self.folder / "home", f"{os.environ['PATH']}:{Path(find_mosquitto() or '/').parent}"
        for part in ("data", "secrets"):
            (home / part).mkdir(parents=True)
        words = ["-C", str(self.files), f"PATH={path}", "mosquitto", "-c", "mosquitto.conf"]
        if in_container:
            given = {"MOSQUITTO_HOME": home, "MOSQUITTO_SECRETS": self.files, "MOSQUITTO_USER": getuser()}
            given |= {"RUN": self.run, "LOOK": "0.05", "PATH": path}
            script = str(ROOT / "docker" / "mosquitto" / "start.sh")
            words = [*(f"{name}={value}" for name, value in given.items()), "/bin/sh", script]
        log = self.folder / "log"
        broker = Broker(self.edges, "mosquitto", ["/usr/bin/env", *words], log, needs_greeting=False)
        with broker.running():
            for _, address in self._ports:
                eventually(lambda address=address: accepts(address, greeting=False), "the broker listens")
            yield broker

    def identity(self, name: str, role: Role = Role.EDGE, authority: Authority | None = None) -> Path:
        place = self.folder / name
        (authority or self.authority).issue(name, role).write(place)
        return place

    def credentials(self, name: str, role: Role = Role.EDGE) -> Credentials:
        """Return what one of our own clients brings: its password, or an identity that is made where it is missing."""
        if self.passwords is not None:
            ca = TlsFiles(ca=self.authority.folder / "services.pem")
            return Credentials(username=name, password=self.passwords[name], tls=ca)
        place = self.folder / name
        return Credentials(tls=TlsFiles.identity(place if place.exists() else self.identity(name, role)))

    def revoke(self, name: str) -> None:
        self.authority.revoke(name)
        write_revocations(self.files, self.authority)


def context(identity: Path | None, site: Site) -> ssl.SSLContext:
    """Return what a client brings: its identity, and trust in the services' authority."""
    made = ssl.create_default_context(cafile=site.authority.folder / "services.pem")
    if identity is not None:
        made.load_cert_chain(identity / "cert.pem", identity / "key.pem")
    return made


class Session:
    """A client as small as MQTT allows, so that nothing of ours makes a refusal."""

    def __init__(
        self, at: BrokerAddress, tls: ssl.SSLContext | None, client_id: str = "me", user: str = ""
    ) -> None:
        self.socket: socket.socket = socket.create_connection((at.host, at.port), timeout=PATIENCE)
        try:
            if tls is not None:
                self.socket = tls.wrap_socket(self.socket, server_hostname="localhost")
            flags, named = (b"\x82", text(user)) if user else (b"\x02", b"")
            self.send(0x10, text("MQTT") + b"\x04" + flags + b"\x00\x3c" + text(client_id) + named)
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

    def publish(self, topic: str, payload: bytes, *, retained: bool = False) -> None:
        """Publish and wait until the broker has it; whether it passes it on is its own affair."""
        self.send(0x33 if retained else 0x32, text(topic) + b"\x00\x01" + payload)
        assert self.receive() == (0x40, b"\x00\x01")

    def subscribe(self, topics: str) -> None:
        self.send(0x82, b"\x00\x02" + text(topics) + b"\x00")
        kind, _ = self.receive()
        assert kind == 0x90

    def message(self) -> tuple[str, bytes]:
        kind, body = self.receive()
        assert kind & 0xF0 == 0x30
        (length,) = struct.unpack("!H", body[:2])
        return body[2 : 2 + length].decode(), body[2 + length :]


def text(text: str) -> bytes:
    return struct.pack("!H", len(text)) + text.encode()

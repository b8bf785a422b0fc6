"""An edge account that attacks: each verb of MQTT on each topic of a run, and floods; nothing here is of our client.

It knows the protocol and what an account may read: the run's name, the edges' ids, the cloud's nonce and incarnation.
`python -m tests.broker.attacker FILE` does what `order` wrote.
"""

from __future__ import annotations

import contextlib
import json
import secrets
import socket
import ssl
import struct
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from common import messages
from common.errors import RemoteProtocolError
from common.messages import GradientArrived, Hello, Leave
from common.quantities import EdgeId, NoisyGradient, RunId
from common.wire.codec import encode, encode_gradient, new_nonce
from common.wire.guards import EdgeGuard

CLOSED = (OSError, ssl.SSLError)  # the broker throws it out: so it should


@dataclass
class Account:
    """What a valid account has: an address, its credentials, and what it has read."""

    host: str
    port: int
    cloud_port: int  # where it has no business
    ca: str
    own: str
    victims: list[str]
    run: str
    nonce: str  # of the cloud's process
    incarnation: int
    dimension: int
    identity: str | None = None  # folder of its key
    password: str | None = None
    rate: float = 1e9  # messages a second of a flood, at most
    sent: dict[str, int] = field(default_factory=dict)  # messages or connections, by attack

    def context(self) -> ssl.SSLContext:
        made = ssl.create_default_context(cafile=self.ca)
        if self.identity is not None:
            made.load_cert_chain(Path(self.identity) / "cert.pem", Path(self.identity) / "key.pem")
        return made

    def topic(self, leaf: str, edge: str | None = None) -> str:
        return f"mapa/v1/{self.run}/edge/{edge or self.own}/{leaf}"

    @property
    def topics(self) -> list[str]:
        """Every topic of the run, of another run, and of the broker."""
        leaves = ("hello", "gradient", "leave", "will", "welcome", "model", "other")
        every = [self.topic(leaf, edge) for edge in (*self.victims, self.own) for leaf in leaves]
        shared = [f"mapa/v1/{self.run}/{leaf}" for leaf in ("halt", "cloud", "clouds", "probe")]
        return [
            *every,
            *shared,
            f"mapa/v1/other/edge/{self.own}/hello",
            "mapa/v1/other/halt",
            "$SYS/broker/x",
            "x",
        ]

    def forged(self, topic: str) -> list[bytes]:
        """Return what would do harm there, were it believed; and what is no message at all."""
        *_, edge, leaf = ("", *topic.split("/"))
        vector = NoisyGradient(np.full(self.dimension, 1e3, np.float32))
        made: dict[str, list[bytes]] = {
            "halt": [encode(messages.Halt("finished", 1, self.incarnation))],
            "cloud": [
                encode(messages.Presence(False, self.nonce, self.incarnation, over=over))
                for over in (True, False)
            ],
            "clouds": [encode(messages.Presence(True, secrets.token_hex(8), self.incarnation))],
            "leave": [encode(Leave(EdgeId(edge), reason, self.nonce)) for reason in ("budget", "failed")],
            "will": [encode(Leave(EdgeId(edge), "lost", self.nonce))],
            "hello": [self.hello(edge, 1)],
            "gradient": [encode_gradient(GradientArrived(EdgeId(edge), 1, 1, 1.0, vector, self.incarnation))],
            "model": [bytes(40 + 4 * self.dimension)],
        }
        return [*made.get(leaf, []), b"", b"\x96\x01\xa1g" + bytes(36), b"x" * 5000]

    def hello(self, edge: str, number: int, nonce: str = "") -> bytes:
        said = Hello(
            edge_id=EdgeId(edge), nonce=nonce or new_nonce(), number=number, incarnation=self.incarnation
        )
        return encode(said)

    def guard(self, nonce: str) -> EdgeGuard | None:
        """Return what proves its messages, as a process of its own; None: it has a password alone."""
        if self.identity is None:
            return None
        from common.transport.identity import edge_guard

        return edge_guard(Path(self.identity), RunId(self.run), EdgeId(self.own), nonce)

    def proven(self, guard: EdgeGuard | None, leaf: str, payload: bytes, qos: int = 0) -> bytes:
        """Return a message in its own branch, as proven as it can be."""
        topic = self.topic(leaf)
        sealed = payload if guard is None else b"".join(guard.seal(topic, payload) or (payload,))
        return publication(topic, sealed, qos)

    # -- connections ----------------------------------------------------------------------------------

    def plain(self, port: int = 0) -> socket.socket:
        return socket.create_connection((self.host, port or self.port), timeout=5)

    def secured(self, port: int = 0) -> ssl.SSLSocket:
        return self.context().wrap_socket(self.plain(port), server_hostname="localhost")

    @contextlib.contextmanager
    def client(self, client_id: str = "", port: int = 0, **more: Any) -> Iterator[Client]:
        """Connect as itself, under a client id of its choice."""
        client = Client(self.secured(port))
        try:
            client.connect(client_id or self.own, **{"user": self.own, "password": self.password, **more})
            yield client
        finally:
            client.socket.close()


def text(value: str | bytes) -> bytes:
    raw = value.encode() if isinstance(value, str) else value
    return struct.pack("!H", len(raw)) + raw


def packet(kind: int, body: bytes) -> bytes:
    return bytes([kind]) + length_of(len(body)) + body


def length_of(size: int) -> bytes:
    head = bytearray()
    while True:
        size, digit = divmod(size, 128)
        head.append(digit | (128 if size else 0))
        if not size:
            return bytes(head)


def publication(topic: str, payload: bytes, qos: int = 0, *, retain: bool = False, number: int = 1) -> bytes:
    mark = struct.pack("!H", number) if qos else b""
    return packet(0x30 | qos << 1 | retain, text(topic) + mark + payload)


@dataclass
class Client:
    """A connection that sends what it likes."""

    socket: socket.socket
    read: int = 0  # bytes

    def connect(
        self,
        client_id: str,
        *,
        user: str | None = None,
        password: str | None = None,
        will: tuple[str, bytes] | None = None,
        clean: bool = True,
    ) -> None:
        flags = 2 * clean
        tail = text(client_id)
        if will is not None:
            flags |= 0x04 | 0x08 | 0x20  # QoS 1, retained
            tail += text(will[0]) + text(will[1])
        if user is not None and password is not None:
            flags |= 0xC0
            tail += text(user) + text(password)
        self.socket.sendall(packet(0x10, text("MQTT") + b"\x04" + bytes([flags]) + b"\x00\x3c" + tail))
        answer = self.socket.recv(4)
        if answer[:1] != b"\x20" or answer[3:] != b"\x00":
            raise ConnectionAbortedError(f"CONNACK {answer!r}")

    def send(self, *packets: bytes) -> None:
        self.socket.sendall(b"".join(packets))

    def subscribe(self, *topics: str, qos: int = 0) -> None:
        self.send(packet(0x82, b"\x00\x01" + b"".join(text(topic) + bytes([qos]) for topic in topics)))

    def drain(self, seconds: float = 0.0) -> None:
        """Read what has come, and what comes within so many seconds."""
        until = time.monotonic() + seconds
        while True:
            self.socket.settimeout(max(1e-3, until - time.monotonic()))
            try:
                part = self.socket.recv(1 << 16)
            except TimeoutError:
                break
            finally:
                self.socket.settimeout(5)
            if not part:
                raise ConnectionResetError("the broker has closed the connection")
            self.read += len(part)

    def messages(self, seconds: float) -> list[tuple[str, bytes]]:
        """Return what is published to it within so many seconds; QoS 0 alone is asked for."""
        until, content, found = time.monotonic() + seconds, b"", []
        self.socket.settimeout(0.05)
        while time.monotonic() < until:
            with contextlib.suppress(TimeoutError):
                content += self.socket.recv(1 << 16)
        self.socket.settimeout(5)
        at = 0
        while at < len(content):
            kind, size, shift, at = content[at], 0, 0, at + 1
            while True:
                digit, at = content[at], at + 1
                size, shift = size | (digit & 127) << shift, shift + 7
                if digit < 128:
                    break
            body, at = content[at : at + size], at + size
            if kind & 0xF0 == 0x30 and len(body) == size:
                (length,) = struct.unpack_from("!H", body)
                found.append((body[2 : 2 + length].decode(), body[2 + length :]))
        return found

    def settle(self) -> None:
        """Wait until the broker has taken all that was sent: it answers a ping behind it."""
        self.send(b"\xc0\x00")
        self.drain(0.02)


# -- attacks, each until a time; they return how often they struck -----------------------------------------


def take_client_ids(account: Account, _: float) -> int:
    """Connect under the client id of the cloud and of every edge, here and at the cloud's own port."""
    ids = [f"{account.run}::{account.nonce}", "cloud", "", *account.victims]
    ids += [f"{account.run}:{victim}" for victim in account.victims]
    for port in (account.port, account.cloud_port):
        for client_id in ids:
            for clean in (True, False):
                with contextlib.suppress(*CLOSED), account.client(client_id, port, clean=clean) as client:
                    client.settle()
    for victim in (*account.victims, "cloud"):
        with contextlib.suppress(*CLOSED), account.client(victim, user=victim) as client:
            client.settle()
    return 2 * len(ids)


def publish_everywhere(account: Account, _: float) -> int:
    """Publish every forgery on every topic, with each QoS, retained and not."""
    count = 0
    for topic in account.topics:
        for payload in account.forged(topic):
            with contextlib.suppress(*CLOSED), account.client() as client:
                for retain in (False, True):
                    client.send(*(publication(topic, payload, qos, retain=retain) for qos in (0, 1, 2)))
                    count += 3
                client.settle()
    return count


def leave_wills(account: Account, _: float) -> int:
    """Die with a last will on every topic, retained."""
    for topic in account.topics:
        with contextlib.suppress(*CLOSED), account.client(will=(topic, account.forged(topic)[0])):
            pass  # closed without a DISCONNECT: the broker publishes the will
    return len(account.topics)


def listen_everywhere(account: Account, until: float) -> int:
    """Subscribe to everything; `read` counts what comes of others."""
    others = [topic for topic in account.topics if f"/edge/{account.own}/" not in topic]
    others = [topic for topic in others if not topic.endswith(("/halt", "/cloud"))]  # which it may read
    with account.client() as client:
        client.subscribe("#", "+/#", "mapa/v1/+/edge/+/model", "$SYS/#", "$share/g/mapa/#", *others, qos=2)
        client.drain(0.2)
        before = client.read
        client.drain(max(0.3, until - time.monotonic()))
        return client.read - before


def flood(
    account: Account, until: float, make: Callable[[int], bytes], batch: int = 20, *, reads: bool = True
) -> int:
    """Send what `make` returns as fast as can be."""
    count, began = 0, time.monotonic()
    while time.monotonic() < until:
        with contextlib.suppress(*CLOSED), account.client() as client:
            client.subscribe(account.topic("model"), account.topic("welcome"))
            while time.monotonic() < until:
                count += batch
                time.sleep(max(0.0, began + count / account.rate - time.monotonic()))
                client.send(*(make(count - batch + one) for one in range(batch)))
                if reads:
                    client.drain()
    return count


def hellos(account: Account, until: float) -> int:
    """Say hello, each time anew, and proven."""
    nonce = new_nonce()
    guard = account.guard(nonce)
    return flood(
        account, until, lambda n: account.proven(guard, "hello", account.hello(account.own, n + 1, nonce))
    )


def signatures(account: Account, until: float) -> int:
    """Send what looks signed, and has to be checked to be found out."""
    guard = account.guard(new_nonce())
    said = bytearray(account.proven(guard, "leave", b"x" * 8))
    said[-10] ^= 1  # of the length of the certificate, or of the signature
    return flood(account, until, lambda _: bytes(said), 100)


def gradients(account: Account, until: float, body: bytes) -> int:
    """Be welcomed, and send this in the place of gradients, proven, as fast as can be."""
    nonce, count = new_nonce(), 0
    guard, until = account.guard(nonce), until + 0.5  # it has to be welcomed first
    while time.monotonic() < until:
        with contextlib.suppress(*CLOSED), account.client() as client:
            client.subscribe(account.topic("model"), account.topic("welcome"))
            hello = account.hello(account.own, 1 + count, nonce)
            client.send(account.proven(guard, "hello", hello, 1))
            for topic, payload in client.messages(0.5):
                if guard is not None and topic.endswith("/welcome"):
                    with contextlib.suppress(RemoteProtocolError):
                        guard.open(topic, payload)  # which makes the session
            began = time.monotonic() - count / account.rate
            while time.monotonic() < until:
                count += 20
                time.sleep(max(0.0, began + count / account.rate - time.monotonic()))
                client.send(*(account.proven(guard, "gradient", body) for _ in range(20)))
                client.drain()
    return count


def repeats(account: Account, until: float) -> int:
    """Repeat one gradient, which asks for a model each time."""
    vector = NoisyGradient(np.full(account.dimension, 1e18, np.float32))  # no honest one: never applied
    arrived = GradientArrived(EdgeId(account.own), 1, 1, 1.0, vector, account.incarnation)
    return gradients(account, until, encode_gradient(arrived))


def malformed(account: Account, until: float) -> int:
    """Send gradients of the right length that are none."""
    return gradients(account, until, bytes(40 + 4 * account.dimension))


def small(account: Account, until: float) -> int:
    """Send leaves that nobody heeds."""
    one = publication(account.topic("leave"), b"x")
    return flood(account, until, lambda _: one, 500)


def large(account: Account, until: float) -> int:
    """Send messages as large as the broker takes, and larger ones."""
    sizes = [1 << 20, (1 << 20) - 200, 4 << 20]
    return flood(account, until, lambda n: publication(account.topic("gradient"), bytes(sizes[n % 3])), 1)


def never_read(account: Account, until: float) -> int:
    """Ask for models and read none: they wait in the broker."""
    nonce = new_nonce()
    guard = account.guard(nonce)

    def hello(n: int) -> bytes:
        return account.proven(guard, "hello", account.hello(account.own, n + 1, nonce))

    return flood(account, until, hello, reads=False)


def half_handshakes(account: Account, until: float) -> int:
    """Begin messages of QoS 2 and never end them."""
    return flood(
        account, until, lambda n: publication(account.topic("leave"), b"x", 2, number=1 + n % 65535), 200
    )


def retain(account: Account, until: float) -> int:
    """Retain a large message under every run's name."""
    return flood(
        account,
        until,
        lambda n: publication(f"mapa/v1/run-{n}/edge/{account.own}/hello", bytes(1 << 19), retain=True),
        1,
    )


def subscriptions(account: Account, until: float) -> int:
    """Subscribe to ever more filters."""

    def many(n: int) -> bytes:
        filters = b"".join(text(f"{n}/{one}") + b"\x00" for one in range(100))
        return packet(0x82, b"\x00\x01" + filters)

    return flood(account, until, many, 10)


def connects(account: Account, until: float) -> int:
    """Connect, and connect again, each time with a whole handshake."""
    count = 0
    while time.monotonic() < until:
        with contextlib.suppress(*CLOSED), account.client():
            count += 1
    return count


def idle(account: Account, until: float) -> int:
    """Hold connections that say nothing, some in the midst of TLS or of a packet."""
    with contextlib.ExitStack() as stack:
        count = 0
        for _ in range(100):
            with contextlib.suppress(*CLOSED):
                stack.enter_context(account.plain())
                stack.enter_context(account.plain(account.cloud_port))
                begun = stack.enter_context(account.secured())
                begun.sendall(b"\x10\xff\xff\xff\x7f\x00")  # 268 MB are announced
                count += 3
        while time.monotonic() < until:
            for _ in range(10):
                time.sleep(0.05)
    return count


ATTACKS: dict[str, Callable[[Account, float], int]] = {
    one.__name__: one
    for one in (
        take_client_ids,
        publish_everywhere,
        leave_wills,
        listen_everywhere,
        hellos,
        signatures,
        repeats,
        small,
        large,
        never_read,
        half_handshakes,
        retain,
        subscriptions,
        connects,
        idle,
        malformed,  # last: where messages are proven it is banned for this
    )
}


def main(path: Path) -> None:
    given = json.loads(path.read_text())
    account = Account(**given["account"])
    for name, seconds in given["attacks"]:
        account.sent[name] = ATTACKS[name](account, time.monotonic() + seconds)
        print(json.dumps({name: account.sent[name]}), flush=True)


def order(path: Path, account: Account, attacks: list[tuple[str, float]]) -> list[str]:
    """Write what `main` is to do; return the command."""
    path.write_text(json.dumps({"account": asdict(account), "attacks": attacks}))
    return [sys.executable, "-m", "tests.broker.attacker", str(path)]


if __name__ == "__main__":
    main(Path(sys.argv[1]))

"""What reads bytes of unknown origin and keeps no state: each decoder with valid messages, and what it may raise."""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import numpy as np

from common.errors import ConfigurationError, RecordsError, RemoteProtocolError
from common.messages import Refuse
from common.quantities import EdgeId
from common.records.checkpoint import pack, unpack
from common.records.gradient_log import Kind, Segment, SegmentHead, pack_head, pack_record
from common.records.regular import plain_json
from common.scenario.scenario import parse_scenario, parse_welcome
from common.secure import agreement
from common.transport.channel import Routes
from common.transport.stream import PacketStream, publish_head
from common.transport.websocket import WebSocket
from common.wire import codec
from common.wire.codings.registry import CODINGS, EVERY, compress, expand
from common.wire.secure_codec import decode_ask, decode_reply, decode_terms, encode_ask, encode_reply
from common.wire.topics import parse_edge_topic
from mapa.enrolment import Token
from mapa.verification.bundle import NAMES, NoBundleError, read_zip, zip_of
from tests.common.test_wire_codec import DECODERS, EDGE, VALID, gradient
from tests.core_support import small_scenario
from tests.hostile.mutation import Form
from tests.secure_support import Parties

NUMBERS = 24  # of a vector: int8 has blocks


@dataclass(frozen=True, slots=True)
class Target:
    """Something that takes messages: `take` tells whether one was taken, and raises where that does harm."""

    name: str
    form: Form
    corpus: Callable[[], Sequence[bytes]]  # valid messages, now
    take: Callable[[bytes], bool]


def decoder(
    name: str,
    form: Form,
    corpus: Sequence[bytes],
    read: Callable[[bytes], object],
    *refusals: type[Exception],
) -> Target:
    """Return the target of a function that returns something or raises one of `refusals`."""

    allowed = refusals or (RemoteProtocolError,)

    def take(payload: bytes) -> bool:
        try:
            read(payload)
        except allowed:
            return False
        return True

    for one in corpus:
        assert take(one), f"{name}: {one!r} is not valid"
    return Target(name, form, lambda: corpus, take)


# -- sockets whose other side is a script -------------------------------------------------------------


@dataclass
class Scripted:
    """A socket from which bytes come in pieces, and then the end; what is sent goes nowhere."""

    content: bytes
    piece: int = 1 << 16
    fail: type[OSError] | None = None  # instead of the end

    def recv_into(self, view: memoryview, *_: Any) -> int:
        part = self.recv(min(len(view), self.piece))
        view[: len(part)] = part
        return len(part)

    def recv(self, count: int) -> bytes:
        part, self.content = self.content[: min(count, self.piece)], self.content[min(count, self.piece) :]
        if not part and self.fail is not None:
            raise self.fail
        return part

    def send(self, content: bytes) -> int:
        return len(content)

    def sendall(self, content: bytes) -> None:
        request = bytes(content)
        if b"Sec-WebSocket-Key: " in request:  # the answer is to this key
            key = request.partition(b"Sec-WebSocket-Key: ")[2].partition(b"\r\n")[0]
            self.content = self.content.replace(ACCEPT, accepted(key))

    def gettimeout(self) -> float:
        return 10.0

    def pending(self) -> int:
        return 0

    def close(self) -> None:
        """Nothing is open."""


ACCEPT = b"@ACCEPT@"


def accepted(key: bytes) -> bytes:
    return base64.b64encode(hashlib.sha1(key + b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11").digest())


def read_packets(content: bytes) -> int:
    """Read MQTT as `MqttChannel` does, and leave to paho what is paho's; return how many packets came whole."""
    piece = (1 + len(content) // 100, 7 + len(content) // 50, 1 << 16)[len(content) % 3]
    stream = PacketStream(Scripted(content, piece), max_packet=5000, max_unsent=1000)  # type: ignore[arg-type]
    whole = 0
    while stream.fill() or not stream.ended:
        while True:
            if stream.take_publish() is not None:
                whole += 1
            elif stream.for_paho and not stream.ended:
                assert stream.recv(1 << 20)
                whole += 1
            else:
                break
        assert len(stream._buffer) <= 2 * len(content) + (1 << 18), "more memory than bytes have come"
    if not whole:
        raise ConnectionError("nothing whole")
    return whole


def read_websocket(content: bytes) -> None:
    """Open a WebSocket on what a server sends, and read to the end."""
    sock: Any = Scripted(content, (1 + len(content) // 200, 1 << 16)[len(content) % 2])
    client, view = WebSocket(sock, "broker.example.org", "/mqtt"), memoryview(bytearray(4096))
    while client.recv_into(view):
        pass
    assert len(client._in) + len(client._control) + len(client._out) < 200_000 + len(content)


# -- valid messages -----------------------------------------------------------------------------------


def packets() -> list[bytes]:
    """Return what a broker sends."""
    publish = publish_head("mapa/v1/r/edge/e1/model", 48, False) + VALID["model"]
    first = publish_head("mapa/v1/r/halt", 10, True)
    acknowledged = b"\x32" + bytes([first[1] + 2]) + first[2:] + b"\x00\x05" + b"x" * 10
    twice = b"\x34" + acknowledged[1:]
    connack, suback, pingresp = b"\x20\x02\0\0", b"\x90\x03\0\1\0", b"\xd0\0"
    of_ours = (
        b"\x40\x02\0\7",
        b"\x50\x02\0\7",
        b"\x62\x02\0\5",
        b"\xb0\x02\0\3",
    )  # PUBACK, PUBREC, PUBREL, UNSUBACK
    whole = publish + acknowledged + pingresp + publish
    return [publish, acknowledged, twice, connack, suback, pingresp, *of_ours, whole]


def frames() -> list[bytes]:
    """Return what a server of MQTT over WebSocket sends."""
    head = (
        b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nSec-WebSocket-Accept: "
        + ACCEPT
        + b"\r\n\r\n"
    )
    body = (
        b"\x82\x04\xd0\0\xd0\0"
        + b"\x89\x02hi"
        + b"\x02\x01a"
        + b"\x80\x01b"
        + b"\x82\x7e\x00\x80"
        + b"z" * 128
    )
    return [head + body, head, head + b"\x82\x7f" + (70_000).to_bytes(8, "big") + b"y" * 70_000]


def asks_and_replies() -> tuple[list[bytes], list[bytes], Parties]:
    """Return valid messages between a cloud and helpers."""
    parties = Parties()
    releases = [parties.release(name, sequence) for name, sequence in (("a", 1), ("b", 4), ("c", 2))]
    members, digest = parties.members(releases, 0), b"d" * 32
    statement = agreement.Statement(b"certificate", b"s" * 64)
    entries = tuple(agreement.RosterEntry(EdgeId(name), b"k" * 32, digest, statement) for name in "ab")
    asks: list[Any] = [
        agreement.Offer(parties.terms.encoded),
        agreement.Roster(entries),
        agreement.Check(digest, members),
        agreement.Propose(digest, members),
        agreement.Open(digest, members, ((0, b"s" * 64), (2, b"t" * 64)), (0, 2), (1,)),
        agreement.Finish(b"f" * 16),
    ]
    replies: list[Any] = [
        agreement.HelperHello(1, 5, b"b" * 32, b"s" * 32, b"", statement),
        agreement.Checked(digest, (EdgeId("a"),)),
        agreement.Signed(digest, b"s" * 64),
        agreement.Refused(digest, "unknown-edge", (EdgeId("b"),)),
        agreement.Answer(digest, 1, False, b"sealed" * 9),
    ]
    return [*map(encode_ask, asks)], [*map(encode_reply, replies)], parties


def a_segment() -> bytes:
    """Return a segment of a gradient log."""
    records = [
        pack_record(Kind.HELLO, 1, 0.5, EDGE, VALID["hello"]),
        pack_record(Kind.BEGIN, 1, 0.6, EdgeId(""), b""),
        pack_record(Kind.GRADIENT, 1, 0.7, EDGE, VALID["gradient"]),
        pack_record(Kind.HALT, 2, 0.8, EdgeId(""), b"interrupted"),
    ]
    return pack_head(SegmentHead(1, 7, 2)) + b"".join(map(b"".join, records))


def read_segment(content: bytes) -> None:
    segment = Segment(memoryview(content), 1)
    for entry in segment:
        if entry.kind is Kind.GRADIENT:
            _ = entry.arrived
    if segment.is_torn and segment.has_record_behind():
        raise RecordsError("damaged")


def read_route(topic: bytes) -> None:
    """Deliver to an address as a channel does."""
    faults: list[RemoteProtocolError] = []
    routes = Routes(lambda _, error: faults.append(error))
    routes.add("mapa/v1/r/edge/+/gradient", lambda name, _: str(parse_edge_topic(name)), 0, retained=False)
    routes.deliver(topic, b"x", retained=False)
    if faults:
        raise faults[0]


def decoders() -> Iterator[Target]:
    """Yield every decoder."""
    for kind, read in DECODERS.items():
        yield decoder(kind, Form.HOT if kind in ("gradient", "model") else Form.MAP, [VALID[kind]], read)
    refuse = codec.encode(Refuse(EDGE, "ledger-lost", "why", "0" * 16, 1, 5, 7))
    yield decoder("refuse", Form.MAP, [refuse], DECODERS["answer"])
    rng = np.random.default_rng(1)
    plain = codec.encode_gradient(gradient(rng.normal(size=NUMBERS)))
    coded = [compress(plain, name, rng) for name in CODINGS]
    yield decoder(
        "coded gradient",
        Form.HOT,
        coded,
        lambda p: codec.decode_gradient(EDGE, expand(p, EVERY, NUMBERS), NUMBERS),
    )
    yield decoder("coded, of any length", Form.HOT, coded, lambda p: expand(p, EVERY))
    asks, replies, parties = asks_and_replies()
    yield decoder("secure: ask", Form.MAP, asks, decode_ask)
    yield decoder("secure: reply", Form.MAP, replies, decode_reply)
    yield decoder("secure: terms", Form.JSON, [parties.terms.encoded], decode_terms)
    yield decoder("topic", Form.OCTETS, [b"mapa/v1/r/edge/e1/gradient"], read_route)
    yield decoder("MQTT packets", Form.OCTETS, packets(), read_packets, ConnectionError)
    yield decoder("WebSocket", Form.OCTETS, frames(), read_websocket, OSError)
    yield from records()


def records() -> Iterator[Target]:
    """Yield what reads files of others, and scenarios."""
    scenario = small_scenario(data={"partition": "dirichlet"}, links=[{"name": "4g"}, {"delay_ms": 5}])
    told = [json.dumps(one).encode() for one in (scenario.for_edge(0), scenario.for_edge(1))]
    yield decoder(
        "scenario in a welcome", Form.JSON, told, lambda p: parse_welcome(_table(p)), ConfigurationError
    )
    own = json.dumps(scenario.model_dump(mode="json", exclude_unset=True)).encode()
    yield decoder(
        "scenario of a file", Form.JSON, [own], lambda p: parse_scenario(_table(p)), ConfigurationError
    )
    state, arrays = pack({"t": 3, "model": np.ones(4, np.float32), "edges": [{"law": None, "former": []}]})
    refusals = (
        ValueError,
        KeyError,
        TypeError,
        ConfigurationError,
    )  # that `Checkpoints.read` takes for damage
    yield decoder("checkpoint: state", Form.JSON, [state], lambda p: unpack(p, arrays), *refusals)
    yield decoder("checkpoint: arrays", Form.OCTETS, [arrays], lambda p: unpack(state, p), *refusals)
    yield decoder("gradient log", Form.OCTETS, [a_segment()], read_segment, RecordsError, RemoteProtocolError)
    yield decoder("JSON of a record", Form.JSON, [state], plain_json, ValueError)
    parts = {
        name: memoryview(content) for name, content in (("manifest.json", state), ("run/summary.json", b"{}"))
    }
    bundle = b"".join(bytes(piece) for _, piece in zip_of(parts))
    yield decoder("bundle", Form.OCTETS, [bundle], lambda p: read_zip(memoryview(p), NAMES), NoBundleError)
    until = datetime(2030, 1, 1, tzinfo=UTC).isoformat()
    token = str(Token("vm.example.org", 8885, "lab", 10, "ab" * 32, "secret", until)).encode()
    yield decoder(
        "token", Form.OCTETS, [token], lambda p: Token.parse(p.decode("latin-1")), ConfigurationError
    )


def _table(payload: bytes) -> dict[str, Any]:
    """Return the object in a payload; what is none would not come so far."""
    try:
        value = plain_json(payload)
    except ValueError:
        value = None
    if not isinstance(value, dict):
        raise ConfigurationError("no table")
    return value

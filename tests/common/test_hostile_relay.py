"""A relay that treats MQTT badly: packets stay whole, none is lost, and a seed always does the same."""

from __future__ import annotations

import socket
from collections import Counter
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from common.errors import RemoteProtocolError
from common.transport.connection import BrokerAddress
from common.transport.relay import Disorder, PacketFramer, RelayLoop, topic_of
from common.transport.stream import publish_head

PAYLOADS = st.lists(st.binary(max_size=400), max_size=12)


def publish(payload: bytes, topic: str = "a/b") -> bytes:
    return publish_head(topic, len(payload), False) + payload


@given(PAYLOADS, st.lists(st.integers(1, 300), max_size=30))
def test_packets_are_found_however_the_bytes_come(payloads: list[bytes], cuts: list[int]) -> None:
    packets = [publish(payload) for payload in payloads]
    stream, framer, found = b"".join(packets), PacketFramer(), []
    for cut in [*cuts, len(stream)]:
        found += framer.feed(stream[:cut])
        stream = stream[cut:]
    assert found == packets
    assert framer.rest == b""


def test_a_length_that_never_ends_is_refused() -> None:
    with pytest.raises(RemoteProtocolError, match="four bytes"):
        PacketFramer().feed(b"\x30\xff\xff\xff\xff\xff")


@given(st.text(max_size=5), PAYLOADS)
def test_disorder_loses_nothing_and_follows_its_seed(seed: str, payloads: list[bytes]) -> None:
    one, other = Disorder(seed), Disorder(seed)
    for payload in payloads:
        packet = publish(payload)
        copies = one.copies(packet)
        assert copies == other.copies(packet)
        assert 1 <= len(copies) <= 2
        assert all(copy == packet and 0 <= delay <= 2.0 for delay, copy in copies)


def test_a_second_copy_that_is_acknowledged_says_so() -> None:
    disorder = Disorder("seed", late=0.0, twice=1.0)
    packet = b"\x32\x07\x00\x03a/b\x00\x01"
    (_, first), (_, second) = disorder.copies(packet)
    assert first == packet
    assert second == b"\x3a" + packet[1:]


@given(st.binary(max_size=400), st.text("abc/", min_size=1, max_size=200))
def test_a_topic_that_is_spared_keeps_its_order(payload: bytes, topic: str) -> None:
    packet = publish(payload, topic)
    assert topic_of(packet) == topic.encode()
    disorder = Disorder("seed", late=1.0, twice=1.0, spared=topic)
    assert disorder.copies(packet) == [(0.0, packet)]
    assert len(disorder.copies(publish(payload, f"{topic}/other"))) == 2


@pytest.fixture
def listener() -> Iterator[socket.socket]:
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.settimeout(60)
        yield server


def received(connection: socket.socket, count: int) -> list[bytes]:
    framer, found = PacketFramer(), list[bytes]()
    connection.settimeout(60)
    while len(found) < count:
        read = connection.recv(65536)
        assert read, found
        found += framer.feed(read)
    return found


def ended(connection: socket.socket) -> bool:
    """Wait for the end, by a reset or without."""
    connection.settimeout(60)
    try:
        return connection.recv(1) == b""
    except ConnectionResetError:
        return True


def test_messages_come_late_twice_and_in_another_order_and_other_packets_in_theirs(
    listener: socket.socket,
) -> None:
    with RelayLoop() as loop:
        relay = loop.open_hostile(BrokerAddress(*listener.getsockname()))
        relay.disorder = Disorder("seed", late=0.5, twice=0.3, longest=0.1)
        with socket.create_connection((relay.address.host, relay.address.port)) as edge:
            far, _ = listener.accept()
            with far:
                sent = [publish(str(number).encode()) for number in range(50)]
                pings = b"\xc0\x00", b"\xe0\x00"
                edge.sendall(pings[0] + b"".join(sent) + pings[1])
                expected = Disorder("seed", late=0.5, twice=0.3, longest=0.1)
                due = Counter(copy for packet in sent for _, copy in expected.copies(packet))
                got = received(far, due.total() + 2)
    assert got[0] == pings[0]
    assert got[-1] == pings[1]  # nothing follows a DISCONNECT
    assert Counter(got[1:-1]) == due
    assert due.total() > len(sent)
    assert list(dict.fromkeys(got[1:-1])) != sent


def test_a_partition_holds_and_a_cut_ends(listener: socket.socket) -> None:
    with RelayLoop() as loop:
        relay = loop.open_hostile(BrokerAddress(*listener.getsockname()))
        edge = socket.create_connection((relay.address.host, relay.address.port))
        far, _ = listener.accept()
        with edge, far:
            loop.do(relay.partition(True))
            edge.sendall(publish(b"held"))
            far.settimeout(0.2)
            with pytest.raises(TimeoutError):
                far.recv(1)
            loop.do(relay.partition(False))
            assert received(far, 1) == [publish(b"held")]
            loop.do(relay.cut(True))
            assert ended(edge)
        with socket.create_connection((relay.address.host, relay.address.port)) as refused:
            assert ended(refused)
        loop.do(relay.cut(False))
        with socket.create_connection((relay.address.host, relay.address.port)) as again:
            far, _ = listener.accept()
            with far:
                again.sendall(publish(b"back"))
                assert received(far, 1) == [publish(b"back")]

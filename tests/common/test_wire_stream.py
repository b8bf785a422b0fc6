"""PacketStream: MQTT packets come out whole, however the bytes were cut."""

from __future__ import annotations

import contextlib
import socket
import ssl
import threading
from unittest.mock import Mock

import pytest
from hypothesis import given
from hypothesis import strategies as st

from common.errors import LocalProtocolError
from common.transport.stream import PacketStream, publish_head

TOPICS = st.text(
    st.characters(blacklist_categories=["Cs"], blacklist_characters="+#\0"), min_size=1, max_size=30
)


def streams(max_packet: int = 1 << 20, max_unsent: int = 1 << 20) -> tuple[PacketStream, socket.socket]:
    ours, theirs = socket.socketpair()
    ours.setblocking(False)
    theirs.settimeout(600)
    return PacketStream(ours, max_packet=max_packet, max_unsent=max_unsent), theirs


def drain(stream: PacketStream) -> tuple[list[tuple[bytes, bytes]], list[bytes]]:
    """Return the publishes, and the packets that are left to paho."""
    publishes, others = [], []
    while True:
        packet = stream.take_publish()
        if packet is not None:
            publishes.append(packet)
        elif stream.for_paho and not stream.ended:
            others.append(stream.recv(100_000))
            with pytest.raises(BlockingIOError):
                stream.recv(1)
        else:
            return publishes, others


@given(
    st.lists(st.tuples(TOPICS, st.binary(max_size=400)), max_size=8),
    st.lists(st.integers(1, 500), max_size=30),
    st.booleans(),
)
def test_publishes_come_out_whole_and_others_are_left_to_paho(
    messages: list[tuple[str, bytes]], cuts: list[int], retain: bool
) -> None:
    ping = b"\xd0\x00"
    wire = b"".join(publish_head(topic, len(body), retain) + body + ping for topic, body in messages)
    stream, theirs = streams()
    publishes: list[tuple[bytes, bytes]] = []
    others: list[bytes] = []
    for size in [*cuts, len(wire) + 1]:
        part, wire = wire[:size], wire[size:]
        theirs.sendall(part)
        stream.fill()
        more, left = drain(stream)
        publishes += more
        others += left
    assert publishes == [(topic.encode(), body) for topic, body in messages]
    assert others == [ping] * len(messages)
    theirs.close()
    stream.fill()
    assert stream.ended
    stream.close()


@given(st.binary(min_size=1, max_size=300))
def test_arbitrary_bytes_never_raise(wire: bytes) -> None:
    stream, theirs = streams(max_packet=1000)
    with theirs:
        theirs.sendall(wire)
        stream.fill()
        drain(stream)
    stream.close()


def test_a_packet_larger_than_the_buffer_is_read_and_one_beyond_the_cap_is_skipped() -> None:
    stream, theirs = streams(max_packet=1 << 20)
    large, beyond = b"l" * 900_000, b"b" * 2_000_000
    bodies = [b"first", large, beyond, b"last"]
    wire = b"".join(publish_head("t", len(body), False) + body for body in bodies)
    seen = []
    with theirs:
        for at in range(0, len(wire), 60_000):
            theirs.sendall(wire[at : at + 60_000])
            while True:
                before = len(seen)
                stream.fill()
                seen += drain(stream)[0]
                if len(seen) == before:
                    break
    stream.close()
    assert [body for _, body in seen] == [b"first", large, b"last"]
    assert stream.skipped == 1


def test_a_length_that_is_only_claimed_takes_no_memory() -> None:
    stream, theirs = streams(max_packet=1 << 28)
    before = len(stream._buffer)
    claim = publish_head("t", 201_000_000, False)
    with theirs:
        for part in (claim[:5], claim[5:], b"x" * 60_000):
            theirs.sendall(part)
            stream.fill()
            assert drain(stream) == ([], [])
        assert len(stream._buffer) == before
        sent = 60_000
        while sent < 1_000_000:
            theirs.sendall(b"x" * 60_000)
            sent += 60_000
            stream.fill()
            assert drain(stream) == ([], [])
            assert len(stream._buffer) <= 2 * sent + before
    stream.close()


def test_the_cap_may_change_while_the_connection_lives() -> None:
    stream, theirs = streams(max_packet=1000)
    body = b"b" * 5000
    wire = publish_head("t", len(body), False) + body
    with theirs:
        seen = []
        for cap in (1000, 6000, 1000):
            stream.max_packet = cap
            theirs.sendall(wire[:100])
            stream.fill()
            seen += drain(stream)[0]
            theirs.sendall(wire[100:])
            stream.fill()
            seen += drain(stream)[0]
    stream.close()
    assert seen == [(b"t", body)]
    assert stream.skipped == 2


def test_what_the_socket_does_not_take_is_kept_in_order_up_to_a_cap() -> None:
    stream, theirs = streams(max_unsent=3_000_000)
    accepted = []
    for number in range(100):
        body = bytes([number]) * 1_000_000
        if not stream.write(b"head", body):
            break
        accepted.append(b"head" + body)
    else:
        pytest.fail("the cap never took hold")
    assert stream.full
    assert stream.send(b"an acknowledgement") == 18  # is owed, however much waits
    wanted = b"".join(accepted) + b"an acknowledgement"
    got = bytearray()
    with theirs:
        while len(got) < len(wanted):
            got += theirs.recv(1 << 20)
            stream.flush()
    assert bytes(got) == wanted
    assert stream.unsent == 0
    stream.close()


@pytest.mark.parametrize("topic", ["", "a/+", "#", "a\0", "x" * 65536])
def test_a_topic_that_cannot_be_published_to_is_refused(topic: str) -> None:
    with pytest.raises(LocalProtocolError, match="cannot be published"):
        publish_head(topic, 1, False)


@pytest.mark.parametrize("size", [0, 120, 121, 16_375, 16_376, 2_097_144, 2_097_145, (1 << 28) - 9])
def test_the_length_is_written_as_mqtt_says(size: int) -> None:
    head = publish_head("topic", size, False)
    length, shift, at = 0, 0, 1
    while True:
        length |= (head[at] & 127) << shift
        shift += 7
        at += 1
        if head[at - 1] < 128:
            break
    assert length == 2 + 5 + size
    assert head[at:] == b"\x00\x05topic"


def test_more_than_mqtt_carries_is_refused() -> None:
    with pytest.raises(LocalProtocolError, match="exceed MQTT"):
        publish_head("topic", 1 << 28, False)


def acknowledged_publish(qos: int, topic: bytes, identifier: int, body: bytes) -> bytes:
    """Return a publish of QoS 1 or 2 as a broker sends it."""
    rest = len(topic).to_bytes(2, "big") + topic + identifier.to_bytes(2, "big") + body
    length, left = bytearray(), len(rest)
    while True:
        left, septet = left >> 7, left & 127
        length.append(septet | 128 if left else septet)
        if not left:
            return bytes((0x30 | qos << 1, *length)) + rest


@given(
    st.integers(1, 2),
    st.integers(1, 65535),
    st.integers(1, 65000),
    st.lists(st.integers(1, 70_000), max_size=6),
)
def test_a_packet_beyond_the_cap_leaves_its_id_to_be_acknowledged(
    qos: int, identifier: int, topic: int, cuts: list[int]
) -> None:
    """Without it the broker's window of unacknowledged messages fills, and nothing comes any more."""
    stream, theirs = streams(max_packet=1000)
    ping = b"\xd0\x00"
    wire = acknowledged_publish(qos, b"t" * topic, identifier, b"b" * 200_000) + ping
    before, publishes, others = len(stream._buffer), [], []
    with theirs:
        for size in [*cuts, *[60_000] * 6]:
            part, wire = wire[:size], wire[size:]
            theirs.sendall(part)
            for _ in range(3):  # a part may need more than one read
                stream.fill()
                more, left = drain(stream)
                publishes += more
                others += left
    assert not wire
    stream.close()
    stand_in = acknowledged_publish(qos, b"?", identifier, b"")
    assert (publishes, others) == ([], [stand_in, ping])
    assert stream.skipped == 1
    assert len(stream._buffer) == before


def test_a_goodbye_is_read_although_something_was_still_coming() -> None:
    """A socket that is closed with unread bytes resets the connection, and the goodbye may be lost with it."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        ours = socket.create_connection(server.getsockname())
        broker, _ = server.accept()
    with broker:
        broker.settimeout(60)
        broker.sendall(b"x" * 10_000)
        stream = PacketStream(ours, max_packet=1 << 20, max_unsent=1 << 20)
        stream.send(b"\xe0\x00")
        closing = threading.Thread(target=stream.close)
        closing.start()
        assert broker.recv(16) == b"\xe0\x00"
        assert broker.recv(16) == b""
        broker.sendall(b"y" * 10_000)  # what was under way meanwhile
    closing.join(60)
    assert not closing.is_alive()
    assert stream.fileno() == -1


@pytest.mark.parametrize("size", [32_000, 87_400, 300_000])
@pytest.mark.parametrize("first", [1, 3, 50_000])
def test_large_packets_come_out_whole_wherever_the_bytes_are_cut(size: int, first: int) -> None:
    ours, theirs = socket.socketpair()
    ours.setblocking(False)
    theirs.setblocking(False)
    stream = PacketStream(ours, max_packet=1 << 20, max_unsent=1 << 20)
    bodies = [bytes([number]) * size for number in range(6)]
    wire = b"".join(publish_head(f"edge/{n}", size, False) + body for n, body in enumerate(bodies))
    taken: list[tuple[bytes, bytes]] = []
    limit = first
    with contextlib.closing(stream), theirs:
        while len(taken) < len(bodies):
            with contextlib.suppress(BlockingIOError):
                wire = wire[theirs.send(wire[:limit]) :]
            limit = len(wire)
            stream.fill()
            assert not stream.ended
            while (packet := stream.take_publish()) is not None:
                taken.append(packet)
    assert taken == [(f"edge/{n}".encode(), body) for n, body in enumerate(bodies)]


@given(
    st.lists(st.lists(st.binary(max_size=40), max_size=3), max_size=8),
    st.lists(st.integers(0, 50), max_size=20),
)
def test_over_tls_messages_go_whole_and_what_was_begun_is_offered_again(
    messages: list[list[bytes]], rooms: list[int]
) -> None:
    """TLS takes no gathered parts, and of a write that would block it wants the same bytes again."""
    taken, offered, left = bytearray(), b"", list(rooms)

    def send(content: bytes | memoryview) -> int:
        nonlocal offered
        assert bytes(content).startswith(offered)
        room = left.pop() if left else 1000
        if not room:
            offered = bytes(content)
            raise ssl.SSLWantWriteError
        offered = b""
        taken.extend(content[:room])
        return min(room, len(content))

    sock = Mock(spec=ssl.SSLSocket, send=send)
    sock.sendmsg.side_effect = NotImplementedError
    stream = PacketStream(sock, max_packet=1000, max_unsent=1 << 20)
    for parts in messages:
        assert stream.write(*parts)
    while stream.unsent:
        stream.flush()
    assert bytes(taken) == b"".join(part for parts in messages for part in parts)

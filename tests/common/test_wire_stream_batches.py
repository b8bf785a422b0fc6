"""PacketStream: answers that leave together, and packets larger than a read."""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Iterator

import pytest

from common.stream import PacketStream, publish_head


@pytest.fixture
def pair() -> Iterator[tuple[PacketStream, socket.socket]]:
    ours, theirs = socket.socketpair()
    ours.setblocking(False)
    theirs.settimeout(20)
    stream = PacketStream(ours, max_packet=1 << 20, max_unsent=1 << 20)
    with contextlib.closing(stream), theirs:
        yield stream, theirs


def received(theirs: socket.socket, count: int) -> bytes:
    taken = b""
    while len(taken) < count:
        taken += theirs.recv(count - len(taken))
    return taken


def silent(theirs: socket.socket) -> bool:
    theirs.setblocking(False)
    try:
        theirs.recv(1, socket.MSG_PEEK)
    except BlockingIOError:
        return True
    finally:
        theirs.settimeout(20)
    return False


def test_what_is_gathered_leaves_in_order_when_it_is_told_to(
    pair: tuple[PacketStream, socket.socket],
) -> None:
    stream, theirs = pair
    stream.gather()
    assert stream.write(b"a", b"1")
    assert stream.send(b"from paho") == 9
    assert stream.write(b"b", b"2")
    assert silent(theirs)
    stream.send_gathered()
    assert received(theirs, 13) == b"a1from pahob2"
    assert stream.write(b"c", b"3")  # no longer gathering
    assert received(theirs, 2) == b"c3"


@pytest.mark.parametrize(("payload", "count"), [(b"x" * 40_000, 2), (b"", 128)])
def test_gathering_ends_by_itself_when_much_or_many_wait(
    pair: tuple[PacketStream, socket.socket], payload: bytes, count: int
) -> None:
    stream, theirs = pair
    stream.gather()
    for number in range(count):
        assert silent(theirs)
        stream.write(number.to_bytes(1), payload)
    expected = b"".join(number.to_bytes(1) + payload for number in range(count))
    assert received(theirs, len(expected)) == expected


def test_what_is_gathered_still_leaves_before_the_end() -> None:
    ours, theirs = socket.socketpair()
    theirs.settimeout(20)
    stream = PacketStream(ours, max_packet=1 << 20, max_unsent=1 << 20)
    stream.gather()
    stream.write(b"good", b"bye")
    stream.close()
    with theirs:
        assert received(theirs, 7) == b"goodbye"
        assert theirs.recv(1) == b""


@pytest.mark.parametrize("size", [32_000, 87_400, 300_000])
@pytest.mark.parametrize("first", [1, 3, 50_000])
def test_large_packets_come_out_whole_wherever_the_bytes_are_cut(
    pair: tuple[PacketStream, socket.socket], size: int, first: int
) -> None:
    stream, theirs = pair
    bodies = [bytes([number]) * size for number in range(6)]
    wire = b"".join(publish_head(f"edge/{n}", size, False) + body for n, body in enumerate(bodies))
    theirs.setblocking(False)
    taken: list[tuple[bytes, bytes]] = []
    limit = first
    while len(taken) < len(bodies):
        with contextlib.suppress(BlockingIOError):
            wire = wire[theirs.send(wire[:limit]) :]
        limit = len(wire)
        stream.fill()
        assert not stream.ended
        while (packet := stream.take_publish()) is not None:
            taken.append(packet)
    assert taken == [(f"edge/{n}".encode(), body) for n, body in enumerate(bodies)]

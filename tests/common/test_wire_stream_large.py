"""PacketStream: packets larger than a read, and many of them behind one another."""

from __future__ import annotations

import contextlib
import socket

import pytest

from common.transport.stream import PacketStream, publish_head


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

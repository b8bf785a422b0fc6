"""WebSocket frames: whatever the pieces in which they travel, and from servers that mean no good."""

from __future__ import annotations

import base64
import hashlib
import re
import socket
import struct
import threading
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from common.transport import websocket
from common.transport.websocket import WebSocket

GUID = "258EAFA5-E914-47DA-95CA-C5AB0DC85B11"
PATIENCE = 60.0


def greet(server: socket.socket, answer: Callable[[str], str] | None = None) -> str:
    """Read a client's request and answer it as RFC 6455 says, or otherwise."""
    request = b""
    while not request.endswith(b"\r\n\r\n"):
        request += server.recv(1)
    key = re.search(rb"Sec-WebSocket-Key: (\S+)", request)
    assert key is not None
    accepted = base64.b64encode(hashlib.sha1(key[1] + GUID.encode()).digest()).decode()
    usual = f"HTTP/1.1 101 Switching Protocols\r\nsec-websocket-accept: {accepted}\r\n\r\n"
    server.sendall((usual if answer is None else answer(accepted)).encode())
    return request.decode()


def pair(answer: Callable[[str], str] | None = None) -> tuple[WebSocket, socket.socket]:
    ours, theirs = socket.socketpair()
    for side in (ours, theirs):
        side.settimeout(PATIENCE)
    greeting = threading.Thread(target=greet, args=(theirs, answer))
    greeting.start()
    try:
        return WebSocket(ours, "broker.example.org", "/mqtt"), theirs
    except BaseException:
        ours.close()
        theirs.close()
        raise
    finally:
        greeting.join()


@pytest.fixture
def sides() -> Iterator[tuple[WebSocket, socket.socket]]:
    client, server = pair()
    yield client, server
    client.close()
    server.close()


def frame(content: bytes, kind: int = 2, *, first: int = 128, masked: int = 0) -> bytes:
    """Return a server's frame."""
    size = len(content)
    if size < 126:
        length = bytes([masked | size])
    else:
        length = struct.pack("!BH", 126, size) if size < 1 << 16 else struct.pack("!BQ", 127, size)
    return bytes([first | kind]) + length + content


def unmasked(server: socket.socket) -> tuple[int, bytes]:
    """Read a client's frame; return its kind and content."""

    def exactly(size: int) -> bytes:
        content = b""
        while len(content) < size:
            part = server.recv(size - len(content))
            assert part
            content += part
        return content

    first, second = exactly(2)
    assert first & 0xF0 == 0x80
    assert second & 128, "a client masks"
    size = second & 127
    if size > 125:
        (size,) = struct.unpack("!H" if size == 126 else "!Q", exactly(2 if size == 126 else 8))
    mask = exactly(4)
    return first & 15, bytes(byte ^ mask[at % 4] for at, byte in enumerate(exactly(size)))


def read(client: WebSocket, size: int, room: int = 1 << 16) -> bytes:
    content, buffer = b"", bytearray(room)
    while len(content) < size:
        count = client.recv_into(memoryview(buffer))
        assert count, "the end"
        content += buffer[:count]
    return content


@settings(max_examples=60, deadline=None)
@given(
    messages=st.lists(
        st.binary(max_size=300) | st.sampled_from([b"x" * 126, b"y" * 65536]), min_size=1, max_size=5
    ),
    cuts=st.lists(st.integers(1, 5000), min_size=1, max_size=9),
    room=st.sampled_from([1, 7, 65536]),
)
def test_messages_arrive_whole_however_they_are_cut(
    messages: list[bytes], cuts: list[int], room: int
) -> None:
    client, server = pair()
    sent = b"".join(b"".join((frame(one), frame(b"are you there", kind=9))) for one in messages)
    whole = b"".join(messages)
    room = max(room, len(whole) // 2000)

    def feed() -> None:
        at, turn = 0, 0
        while at < len(sent):
            size = max(cuts[turn % len(cuts)], len(sent) // 500)
            server.sendall(sent[at : at + size])
            at, turn = at + size, turn + 1

    feeding = threading.Thread(target=feed)
    feeding.start()
    try:
        assert read(client, len(whole), room) == whole
    finally:
        feeding.join()
        client.close()
        server.close()


@pytest.mark.parametrize("size", [0, 1, 125, 126, 65535, 65536])
def test_what_is_sent_is_one_masked_frame(sides: tuple[WebSocket, socket.socket], size: int) -> None:
    client, server = sides
    content = bytes(at % 251 for at in range(size))
    sending = threading.Thread(target=lambda: client.send(content))
    sending.start()
    assert unmasked(server) == (2, content)
    sending.join()


def test_a_full_socket_takes_a_frame_in_pieces_and_loses_none(sides: tuple[WebSocket, socket.socket]) -> None:
    client, server = sides
    client.setblocking(False)
    content, left = bytes(at % 253 for at in range(3_000_000)), 0
    received: list[tuple[int, bytes]] = []
    reading = threading.Thread(target=lambda: received.extend(unmasked(server) for _ in range(2)))
    waits = 0
    while left < len(content):
        try:
            left += client.send(content[left:])
        except BlockingIOError:
            waits += 1
            if waits == 1:
                reading.start()
    client.setblocking(True)
    client.sendall(b"and another")
    reading.join(PATIENCE)
    assert received == [(2, content), (2, b"and another")]
    assert waits


def test_a_ping_is_answered_between_two_frames(sides: tuple[WebSocket, socket.socket]) -> None:
    client, server = sides
    server.sendall(frame(b"1234", kind=9) + frame(b"content"))
    assert read(client, 7) == b"content"
    assert unmasked(server) == (10, b"1234")


@pytest.mark.parametrize(
    "bad",
    [
        frame(b"text", kind=1),
        frame(b"", kind=8),
        frame(b"extension", first=0xC0),
        frame(b"", masked=128),
        frame(b"x" * 126, kind=9),
        frame(b"", kind=3),
    ],
    ids=["text", "close", "extension", "masked", "long ping", "unknown kind"],
)
def test_what_no_broker_sends_is_the_end(sides: tuple[WebSocket, socket.socket], bad: bytes) -> None:
    client, server = sides
    server.sendall(frame(b"good") + bad + frame(b"never read"))
    assert read(client, 4) == b"good"
    assert client.recv_into(memoryview(bytearray(100))) == 0


def test_pings_without_an_end_take_no_memory(sides: tuple[WebSocket, socket.socket]) -> None:
    client, server = sides
    client.setblocking(False)
    flood = frame(b"x" * 100, kind=9) * 100
    server.settimeout(0.2)
    for _ in range(300):  # 3 MB, and nobody reads the answers
        try:
            server.sendall(flood)
        except TimeoutError:
            break
        try:
            client.recv_into(memoryview(bytearray(100)))
        except BlockingIOError:
            continue
    assert len(client._control) + len(client._out) < 200_000


@pytest.mark.parametrize(
    "answer",
    [
        lambda _: "HTTP/1.1 200 OK\r\n\r\n",
        lambda _: "HTTP/1.1 101 Switching Protocols\r\nSec-WebSocket-Accept: wrong\r\n\r\n",
        lambda accepted: f"HTTP/1.1 400 Bad\r\nSec-WebSocket-Accept: {accepted}\r\n\r\n",
        lambda _: "x" * 9000 + "\r\n\r\n",
    ],
    ids=["a web page", "another key", "refused", "endless"],
)
def test_a_server_that_speaks_no_websocket_is_said(answer: Callable[[str], str]) -> None:
    with pytest.raises(ConnectionError, match="no WebSocket answers there"):
        pair(answer)


def test_a_server_that_answers_byte_by_byte_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    class Slow:
        """Each read takes a second of a clock of the test."""

        reads = 0

        def gettimeout(self) -> float:
            return 10.0

        def sendall(self, content: bytes) -> None: ...

        def recv(self, _: int) -> bytes:
            self.reads += 1
            return b"H"

    slow: Any = Slow()
    monkeypatch.setattr(websocket, "time", SimpleNamespace(monotonic=lambda: float(slow.reads)))
    with pytest.raises(TimeoutError, match="no whole WebSocket answer"):
        WebSocket(slow, "broker.example.org", "/mqtt")
    assert slow.reads == 11

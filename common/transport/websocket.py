"""MQTT over WebSocket (RFC 6455): a socket whose bytes travel in frames, for edges behind a firewall."""

from __future__ import annotations

import base64
import contextlib
import hashlib
import math
import secrets
import socket
import ssl
import struct
import time

_GUID = "258EAFA5-E914-47DA-95CA-C5AB0DC85B11"
_LONGEST_ANSWER = 8192  # bytes of the server's HTTP head
_READ = 65536
_CONTINUED, _BINARY, _CLOSE, _PING, _PONG = 0, 2, 8, 9, 10
_MOST_CONTROL = 125  # bytes of a ping


class WebSocket:
    """What a PacketStream asks of a socket, over one that a TLS handshake has opened.

    `send` takes the bytes of a frame that was begun again, as OpenSSL does: a frame's length stands before it.
    """

    def __init__(self, sock: socket.socket, host: str, path: str) -> None:
        """Ask the server to change to WebSocket, within the socket's timeout."""
        self._sock = sock
        self._in = bytearray()  # read, and not yet taken apart
        self._left = 0  # bytes to come of the frame under way
        self._out = bytearray()  # of a frame that was begun
        self._begun = 0  # bytes of it that the caller will give again
        self._control = bytearray()  # whole frames for the next gap
        self._upgrade(host, path)

    def _upgrade(self, host: str, path: str) -> None:
        limit = self._sock.gettimeout()
        deadline = math.inf if limit is None else time.monotonic() + limit
        key = base64.b64encode(secrets.token_bytes(16)).decode()
        self._sock.sendall(
            f"GET {path} HTTP/1.1\r\nHost: {host}\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
            f"Sec-WebSocket-Key: {key}\r\nSec-WebSocket-Version: 13\r\nSec-WebSocket-Protocol: mqtt\r\n\r\n".encode()
        )
        while (end := self._in.find(b"\r\n\r\n")) < 0:
            part = self._sock.recv(_READ)
            if not part or len(self._in) > _LONGEST_ANSWER:
                raise ConnectionError("no WebSocket answers there")
            self._in += part
            if time.monotonic() > deadline:  # the timeout is of one read, and a server may send byte by byte
                raise TimeoutError("no whole WebSocket answer")
        status, *lines = bytes(self._in[:end]).decode("latin-1").split("\r\n")
        del self._in[: end + 4]
        fields = {
            name.strip().lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)
        }
        accepted = base64.b64encode(hashlib.sha1((key + _GUID).encode()).digest()).decode()
        if " 101 " not in f"{status} " or fields.get("sec-websocket-accept") != accepted:
            raise ConnectionError(f"no WebSocket answers there: {status[:80]!r}")

    # reading

    def recv_into(self, view: memoryview) -> int:
        """Read bytes of messages; 0: the end, or what no MQTT broker sends."""
        while not self._left:
            if (header := self._header()) is None:
                part = self._sock.recv(_READ)
                if not part:
                    return 0
                self._in += part
            elif not header:
                return 0
        if not self._in:
            count = self._sock.recv_into(view[: self._left])
        else:
            count = min(len(view), self._left, len(self._in))
            view[:count] = self._in[:count]
            del self._in[:count]
        self._left -= count
        return count

    def _header(self) -> bool | None:
        """Begin the next frame; None: read more first; False: the end."""
        if len(self._in) < 2:
            return None
        first, second = self._in[0], self._in[1]
        kind, length, size = first & 15, second & 127, 2
        if first & 0x70 or second & 128:
            return False  # an extension that nobody asked for; a server masks nothing
        if length > _MOST_CONTROL:
            size = 4 if length == 126 else 10
            if len(self._in) < size:
                return None
            (length,) = struct.unpack("!H" if size == 4 else "!Q", self._in[2:size])
        if kind in (_BINARY, _CONTINUED):
            self._left = length
            del self._in[:size]
            return True
        if kind not in (_PING, _PONG) or length > _MOST_CONTROL:
            return False
        if len(self._in) < size + length:
            return None
        if kind == _PING and len(self._control) < _READ:  # who only pings gets no more of our memory
            self._control += _frame(_PONG, self._in[size : size + length])
        del self._in[: size + length]
        with contextlib.suppress(BlockingIOError, ssl.SSLWantReadError, ssl.SSLWantWriteError):
            self._flush()
        return True

    def recv(self, count: int) -> bytes:
        content = bytearray(count)
        return bytes(content[: self.recv_into(memoryview(content))])

    def pending(self) -> int:
        """Bytes that are here, and that no selector tells of."""
        return len(self._in) + (self._sock.pending() if isinstance(self._sock, ssl.SSLSocket) else 0)

    # writing

    def send(self, content: bytes | bytearray | memoryview) -> int:
        """Send a frame; return the bytes that are gone. The others must come again, at the beginning of the next."""
        if not self._begun:
            self._out += self._control
            self._control.clear()
            self._out += _frame(_BINARY, content)
            self._begun = len(content)
        self._flush()
        gone = max(0, self._begun - len(self._out))
        if content and not gone:
            raise BlockingIOError
        self._begun -= gone
        return gone

    def _flush(self) -> None:
        if not self._out:
            self._out += self._control
            self._control.clear()
        while self._out:
            try:
                del self._out[: self._sock.send(self._out)]
            except (BlockingIOError, ssl.SSLWantReadError, ssl.SSLWantWriteError):
                return

    def sendall(self, content: bytes | bytearray | memoryview) -> None:
        while content:
            content = content[self.send(content) :]

    def shutdown(self, how: int) -> None:
        with contextlib.suppress(OSError):
            self._out += _frame(_CLOSE, b"")
            self._flush()
        self._sock.shutdown(how)

    def close(self) -> None:
        self._sock.close()

    def settimeout(self, seconds: float | None) -> None:
        self._sock.settimeout(seconds)

    def setblocking(self, flag: bool) -> None:
        self._sock.setblocking(flag)

    def fileno(self) -> int:
        return self._sock.fileno()


def _frame(kind: int, content: bytes | bytearray | memoryview) -> bytes:
    """Return a client's frame, which is masked, so that no proxy takes it for something else."""
    length = len(content)
    head = bytes([128 | kind])
    if length <= _MOST_CONTROL:
        head += bytes([128 | length])
    else:
        head += struct.pack("!BH", 254, length) if length < 1 << 16 else struct.pack("!BQ", 255, length)
    mask = secrets.token_bytes(4)
    repeated = (mask * (length // 4 + 1))[:length]
    masked = int.from_bytes(content, "little") ^ int.from_bytes(repeated, "little")
    return head + mask + masked.to_bytes(length, "little")

"""A socket that reads ahead, and knows where an MQTT packet ends.

paho reads a packet in five calls and copies its payload four times. QoS 0 publishes, which are
nearly all the traffic, are taken from and written to the socket here (a third of the processor
time); every other packet passes through paho, which is given this object as its socket.

A packet above the cap is skipped as it comes. One that waits for an acknowledgement reaches paho all
the same, without its topic and payload: a broker limits the unacknowledged messages under way
to a client, and a client that discarded them without a word would soon hear nothing any more.
"""

from __future__ import annotations

import contextlib
import socket
import ssl
import threading
import time
from collections import deque
from functools import lru_cache
from itertools import islice

from common.errors import LocalProtocolError
from common.transport.channel import UNREAD, Bytes
from common.transport.websocket import WebSocket

_WOULD_BLOCK = (BlockingIOError, ssl.SSLWantReadError, ssl.SSLWantWriteError)
_READ_AHEAD = 131072
_ROOM = 32768  # least free room for a read
_DISCONNECT = 0xE0  # first byte of an MQTT goodbye
_PARTING = 0.5  # seconds for the broker to take it and close
_GATHERED = 64  # parts in one call


@lru_cache(maxsize=4096)
def publish_head(topic: str, payload_bytes: int, retain: bool) -> bytes:
    """Return all of a QoS 0 publish that stands before its payload."""
    name = topic.encode()
    if not 0 < len(name) <= 65535 or "+" in topic or "#" in topic or "\0" in topic:
        raise LocalProtocolError(f"topic {topic!r}: cannot be published to")
    rest = 2 + len(name) + payload_bytes
    if rest >= 1 << 28:
        raise LocalProtocolError(f"topic {topic!r}: {payload_bytes} bytes exceed MQTT's limit")
    head = bytearray([0x31 if retain else 0x30])
    while True:
        rest, septet = rest >> 7, rest & 127
        head.append(septet | 128 if rest else septet)
        if not rest:
            break
    return bytes(head + len(name).to_bytes(2, "big") + name)


class PacketStream:
    """The bytes of one connection, both ways. Reading is the loop's; any thread may write, one at a time."""

    def __init__(self, sock: socket.socket | WebSocket, *, max_packet: int, max_unsent: int) -> None:
        self._sock = sock
        self._buffer = bytearray(_READ_AHEAD)
        self._view = memoryview(self._buffer)
        self._low = self._high = self._granted = 0
        self._skip = 0  # bytes still to come of a packet that is discarded
        self._stand_in = b""  # what paho gets in its place, once all of it has come
        self._for_paho = b""  # a stand-in that paho has not read yet
        self.skipped = 0  # packets larger than max_packet that would have taken more memory
        self.retained = False  # the publish that was taken last came from the broker's store
        self.ended = False
        self.max_packet = max_packet  # bytes; may change. What is whole in the read-ahead passes all the same
        self._max_unsent = max_unsent
        self._waiting: deque[memoryview] = (
            deque()
        )  # what the socket has not taken: parts of messages, not copies
        self.unsent = 0  # bytes of it
        self._writing = threading.Lock()
        self._goodbye = False  # a DISCONNECT was sent
        self.framed = isinstance(sock, ssl.SSLSocket | WebSocket)  # a read brings a part of 16 kB at most
        self._gather = None if self.framed else getattr(sock, "sendmsg", None)

    # reading

    def fill(self) -> bool:
        """Read what has come; False: nothing for now, or the end."""
        if self._low == self._high:
            self._low = self._high = 0
        elif len(self._buffer) - self._high < _ROOM:
            left = self._high - self._low
            self._view[:left] = self._view[self._low : self._high]  # an overlap is moved as it should
            self._low, self._high = 0, left
        try:
            count = self._sock.recv_into(self._view[self._high :])
        except _WOULD_BLOCK:
            return False
        except OSError:
            count = 0
        if not count:
            self.ended = True
            return False
        self._high += count
        return True

    @property
    def decrypted(self) -> bool:
        """Whether TLS holds bytes that have come."""
        return self.framed and self._sock.pending() > 0  # type: ignore[union-attr]

    def take_publish(self) -> tuple[bytes, bytes] | None:
        """Return topic and payload of a QoS 0 publish that is next and whole.

        None: nothing whole is next, or it is paho's; `for_paho` tells.
        """
        self._granted = 0
        if self._skip and (not self._discard() or self._for_paho):
            return None
        low, high, buffer = self._low, self._high, self._buffer
        at, length, shift = low + 1, 0, 0
        while True:
            if at >= high:
                return None
            byte = buffer[at]
            at += 1
            length |= (byte & 127) << shift
            if byte < 128:
                break
            shift += 7
            if shift > 21:
                self.ended = True  # out of step: only a new connection helps
                return None
        end = at + length
        if end > high:
            self._make_room(at, length)
            return None
        if buffer[low] & 0xF6 != 0x30:
            self._granted = end
            return None
        topic_end = at + 2 + (buffer[at] << 8 | buffer[at + 1]) if length >= 2 else end + 1
        if topic_end > end:
            self.ended = True
            return None
        self._low = end
        self.retained = buffer[low] & 1 == 1
        return bytes(self._view[at + 2 : topic_end]), bytes(self._view[topic_end:end])

    @property
    def for_paho(self) -> bool:
        """Whether paho has a whole packet, or the end, to read."""
        return self._granted > self._low or self.ended or bool(self._for_paho)

    def _make_room(self, at: int, length: int) -> None:
        """Skip a packet that is too large; else see that the next read has room. Its `length` bytes begin `at`.

        A length is a claim: the buffer grows with the bytes that have come, never ahead of them.
        """
        packet = at + length - self._low
        size, held = len(self._buffer), self._high - self._low
        if packet > self.max_packet:
            stand_in = self._stand_in_for(at, length)
            if stand_in is not None:
                self._stand_in = stand_in
                self._skip = packet
                self._discard()
        elif packet > size - _ROOM and held > size - 2 * _ROOM:
            left = self._view[self._low : self._high]
            self._buffer = bytearray(min(packet + _READ_AHEAD, 2 * size))
            self._view = memoryview(self._buffer)
            self._view[:held] = left
            self._low, self._high = 0, held

    def _discard(self) -> bool:
        """Drop bytes of a packet that is too large; True: all of it is gone."""
        gone = min(self._skip, self._high - self._low)
        self._low += gone
        self._skip -= gone
        if self._skip:
            return False
        self.skipped += 1
        self._for_paho, self._stand_in = self._stand_in, b""
        return True

    def _stand_in_for(self, at: int, length: int) -> bytes | None:
        """Return what paho is to acknowledge instead of a packet that is skipped: b"" nothing; None: read on first.

        A publish of QoS 1 or 2 keeps its flags and its packet id, on the topic UNREAD and without a payload. The
        longest topic and the id fit into the read-ahead, so waiting for them takes no memory.
        """
        first, high, buffer = self._buffer[self._low], self._high, self._buffer
        if first & 0xF0 != 0x30 or not first & 0x06:
            return b""
        if high < at + 2:
            return None
        topic_end = at + 2 + (buffer[at] << 8 | buffer[at + 1])
        if topic_end + 2 > at + length:
            self.ended = True  # no room for its packet id: only a new connection helps
            return None
        if high < topic_end + 2:
            return None
        name = UNREAD.encode()
        rest = len(name).to_bytes(2, "big") + name + buffer[topic_end : topic_end + 2]
        return bytes((first, len(rest))) + rest

    # writing

    @property
    def full(self) -> bool:
        """Whether the broker has so much to take that nothing more is published."""
        return self.unsent > self._max_unsent

    def write(self, *parts: Bytes, owed: bool = False) -> bool:
        """Send, and keep what the socket does not take yet; False: too much is kept already, unless it is owed.

        The parts are not copied, so they must never change. At once, never several answers together: that saves a
        quarter of our processor time and costs a quarter of the rate, because broker and edges idle meanwhile.
        """
        if self._gather is None:
            parts = (b"".join(parts),)
        with self._writing:
            if self._waiting:
                if self.full and not owed:
                    return False
                sent = 0
            else:
                try:
                    sent = self._gather(parts) if self._gather else self._sock.send(parts[0])
                except _WOULD_BLOCK:
                    sent = 0
            for part in parts:
                size = len(part)
                if sent < size:
                    self._waiting.append(memoryview(part)[sent:])
                    self.unsent += size - sent
                    sent = 0
                else:
                    sent -= size
            return True

    def flush(self) -> None:
        """Send what was kept, as far as the socket takes it."""
        with self._writing:
            waiting = self._waiting
            while waiting:
                try:
                    if self._gather is not None:
                        sent = self._gather(islice(waiting, _GATHERED))
                    else:
                        sent = self._sock.send(waiting[0])
                except _WOULD_BLOCK:
                    return
                self.unsent -= sent
                while waiting and sent >= len(waiting[0]):
                    sent -= len(waiting.popleft())
                if sent:
                    waiting[0] = waiting[0][sent:]

    # what paho asks of a socket

    def recv(self, count: int) -> bytes:
        """Serve one packet at a time, so that paho never holds half of the next."""
        if self._for_paho:
            taken, self._for_paho = self._for_paho[:count], self._for_paho[count:]
            return taken
        end = min(self._low + count, self._granted)
        if end <= self._low:
            if self.ended:
                return b""
            raise BlockingIOError
        taken = bytes(self._view[self._low : end])
        self._low = end
        return taken

    def send(self, buffer: bytes | bytearray) -> int:
        """Take all of it, in order with `write`: acknowledgements, keep-alives and what the channel has bounded."""
        self._goodbye = self._goodbye or buffer[:1] == bytes((_DISCONNECT,))
        with contextlib.suppress(OSError):  # reading sees the end of the connection
            self.write(bytes(buffer), owed=True)
        return len(buffer)

    def close(self) -> None:
        """Close; what was kept gets one last second."""
        if self._waiting:
            with contextlib.suppress(OSError, ValueError):
                self._sock.settimeout(1.0)
                self._sock.sendall(b"".join(self._waiting))
        if self._goodbye:
            self._part()
        self._sock.close()

    def _part(self) -> None:
        """Wait until the broker has closed its side, and discard what it still sends.

        A socket that is closed while something comes resets the connection. The broker may then never read the
        goodbye, and publish our last will as if we were lost.
        """
        until = time.monotonic() + _PARTING
        with contextlib.suppress(OSError, ValueError):
            self._sock.shutdown(socket.SHUT_WR)
            while (left := until - time.monotonic()) > 0:
                self._sock.settimeout(left)
                if not self._sock.recv(_READ_AHEAD):
                    return

    def fileno(self) -> int:
        return self._sock.fileno()

    def setblocking(self, flag: bool) -> None:
        self._sock.setblocking(flag)

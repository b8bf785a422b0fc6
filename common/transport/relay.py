"""TCP relays between a client and the broker, inside this program: an emulated link, or a network that breaks promises.

The client connects to a port of this machine, the relay to the broker: no privileges, every platform. All relays of a
`RelayLoop` share one thread and one asyncio loop.
"""

from __future__ import annotations

import asyncio
import contextlib
import heapq
import itertools
import random
import socket
import threading
from collections.abc import Callable, Coroutine, Iterable
from typing import Any, Protocol, Self, TypeVar

import numpy as np

from common.errors import RemoteProtocolError
from common.transport.connection import BrokerAddress
from common.transport.link import LinkClock, LinkProfile

_PATIENCE = 30.0  # seconds for what is asked of the loop
_LOOK = 0.005  # seconds between two looks at what is still under way
_HELD_LIMIT = 1 << 22  # bytes held one way before the sender is told to wait
_PUBLISH, _DISCONNECT = 3, 14
_DUPLICATE = 0x08  # DUP, in the first byte of a PUBLISH with an acknowledgement
_T = TypeVar("_T")


class Line(Protocol):
    """What happens to the bytes of one direction."""

    def take(self, data: bytes | None, now: float) -> Iterable[tuple[float, bytes | None]]:
        """Return what is sent on, and when; b"" is the end of the stream, None the loss of the connection."""


class Way(asyncio.Protocol):
    """One direction of one connection: what comes here goes out of `other` when it is due."""

    def __init__(self, relay: Relay, *, upward: bool) -> None:
        self._relay = relay
        self._line = relay.line(upward)
        self._held: list[tuple[float, int, bytes | None]] = []  # heap
        self._order = itertools.count()
        self._held_bytes = 0
        self._paused = False
        self.upward = upward
        self.choked = upward  # `other` does not read, or is not reached yet
        self._timer: asyncio.TimerHandle | None = None
        self.over = False  # the end was sent on
        self.other: Way | None = None
        self.transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        wire = transport.get_extra_info("socket")
        if wire.family != getattr(socket, "AF_UNIX", None):
            wire.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.transport = transport
        self._relay.transports.add(transport)

    def data_received(self, data: bytes) -> None:
        self._take(data)
        if self._held_bytes > _HELD_LIMIT and not self._paused and self.transport is not None:
            self._paused = True
            self.transport.pause_reading()

    def eof_received(self) -> bool:
        self._take(b"")
        return True  # keep our side open: what is held the other way may still arrive

    def connection_lost(self, exc: Exception | None) -> None:
        del exc
        if self.transport is not None:
            self._relay.transports.discard(self.transport)
        if self.other is not None:
            self._take(None)

    def pause_writing(self) -> None:
        if self.other is not None:
            self.other.choked = True

    def resume_writing(self) -> None:
        if self.other is not None:
            self.other.choked = False
            self.other.release()

    def _take(self, data: bytes | None) -> None:
        for due, part in self._line.take(data, self._relay.loop.time()):
            heapq.heappush(self._held, (due, next(self._order), part))
            self._held_bytes += len(part or b"")
        if self._timer is None or self._held[0][0] < self._timer.when():
            self.release()

    def release(self) -> None:
        """Send on all that is due; wait for the rest."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        now = self._relay.loop.time()
        while self._held and self._held[0][0] <= now and not self._blocked:
            data = heapq.heappop(self._held)[2]
            self._held_bytes -= len(data or b"")
            self._send_on(data)
        if self._held and not self._blocked:
            self._timer = self._relay.loop.call_at(self._held[0][0], self.release)
        if self._paused and self._held_bytes < _HELD_LIMIT // 2 and self.transport is not None:
            self._paused = False
            if not self.transport.is_closing():
                self.transport.resume_reading()

    @property
    def _blocked(self) -> bool:
        return self.choked or self._relay.partitioned

    def _send_on(self, data: bytes | None) -> None:
        out = None if self.other is None else self.other.transport
        if out is None or self.other is None or out.is_closing():
            return
        if data:
            out.write(data)
        elif data is None or self.other.over:
            out.close()
        else:
            self.over = True
            out.write_eof()

    @property
    def ended(self) -> bool:
        """Whether all that came here, its end included, has been sent on."""
        out = None if self.other is None else self.other.transport
        if out is None or out.is_closing():
            return True
        return self.over and not self._held and not out.get_write_buffer_size()

    def abandon(self) -> None:
        """Forget what is held, and hold nothing more: a timer would keep it until it is due."""
        self.other = None
        self._held.clear()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None


class Relay:
    """A port on this machine whose connections are passed on to a broker. Made by a `RelayLoop`."""

    def __init__(
        self, broker: BrokerAddress, loop: asyncio.AbstractEventLoop, line: Callable[[bool], Line]
    ) -> None:
        self.loop = loop
        self.line = line  # of a new connection's direction: upward or not
        self.transports: set[asyncio.Transport] = set()
        self.partitioned = False  # all bytes are held
        self.refusing = False  # new connections are closed
        self._broker = broker
        self._ways: list[Way] = []
        self._calls: set[asyncio.Task[None]] = set()
        self._listener = socket.socket()
        self.address = BrokerAddress("127.0.0.1", 0)

    async def listen(self, host: str) -> None:
        """Open a port on an interface of this machine."""
        self._listener.bind((host, 0))
        self._listener.listen(128)
        self._listener.setblocking(False)
        self.address = BrokerAddress(host, self._listener.getsockname()[1])
        self.loop.add_reader(self._listener, self._accept)

    async def drain(self) -> None:
        """Wait until the client's ends of all connections have reached the broker."""
        while not all(way.ended for way in self._ways if way.upward):
            await asyncio.sleep(_LOOK)

    async def partition(self, on: bool) -> None:
        """Hold every byte, or let all of them go."""
        self.partitioned = on
        for way in self._ways:
            way.release()

    async def shut(self) -> None:
        """Close the port and every connection; what is held is lost."""
        self.loop.remove_reader(self._listener)
        await asyncio.sleep(0)  # a connection just accepted begins, or it would stay open
        self._listener.close()
        await self.cut(True)

    async def cut(self, on: bool) -> None:
        """Reset every connection and refuse new ones, or take them again."""
        self.refusing = on
        if not on:
            return
        for call in self._calls:
            call.cancel()
        if self._calls:
            await asyncio.wait(self._calls)
        for way in self._ways:
            way.abandon()
        for transport in list(self.transports):
            transport.abort()
        while self.transports:
            await asyncio.sleep(0)

    def _accept(self) -> None:
        # Not asyncio's own server: closed at the wrong moment it leaks the connection it accepts.
        try:
            connection, _ = self._listener.accept()
        except OSError:
            return  # the caller has given up
        if self.refusing:
            connection.close()
            return
        connection.setblocking(False)
        call = self.loop.create_task(self._join(connection))
        self._calls.add(call)
        call.add_done_callback(self._calls.discard)

    async def _join(self, connection: socket.socket) -> None:
        near, far = Way(self, upward=True), Way(self, upward=False)
        near.other, far.other = far, near
        self._ways = [way for way in self._ways if way.transport is None or not way.transport.is_closing()]
        self._ways += [near, far]
        try:
            await self.loop.connect_accepted_socket(lambda: near, connection)
            if self._broker.is_unix:
                await self.loop.create_unix_connection(lambda: far, self._broker.host)
            else:
                await self.loop.create_connection(lambda: far, self._broker.host, self._broker.port)
            near.choked = False
            near.release()
        except OSError:  # the broker is away: a client tries again and again
            self._ways = [way for way in self._ways if way is not near and way is not far]
            near.abandon()
            if near.transport is not None:
                near.transport.abort()


# -- a network that breaks promises -------------------------------------------------------------------------
# What TCP and a broker promise, order above all, does not hold behind it; what our protocol promises must hold all
# the same. Only whole PUBLISH packets are moved about. Every other packet passes at once and in its order.


class PacketFramer:
    """Bytes as they come → whole MQTT packets."""

    def __init__(self) -> None:
        self._rest = bytearray()

    def feed(self, received: bytes) -> list[bytes]:
        """Return every packet that is whole now; RemoteProtocolError where a length is none."""
        self._rest += received
        packets = []
        while (size := self._size()) is not None and size <= len(self._rest):
            packets.append(bytes(self._rest[:size]))
            del self._rest[:size]
        return packets

    @property
    def rest(self) -> bytes:
        """The beginning of a packet whose end has not come."""
        return bytes(self._rest)

    def _size(self) -> int | None:
        """Return the bytes of the next packet with its head; None: its length has not come."""
        length = 0
        for place in range(1, 5):
            if place >= len(self._rest):
                return None
            byte = self._rest[place]
            length |= (byte & 127) << 7 * (place - 1)
            if byte < 128:
                return place + 1 + length
        raise RemoteProtocolError("an MQTT packet whose length has more than four bytes")


def topic_of(packet: bytes) -> bytes:
    """Return the topic of a whole PUBLISH packet."""
    at = next(place for place in range(1, len(packet)) if packet[place] < 128) + 1
    size = int.from_bytes(packet[at : at + 2], "big")
    return packet[at + 2 : at + 2 + size]


class Disorder:
    """How messages are disordered, from a seed: each may come late, and twice. Those of one topic may be spared."""

    def __init__(
        self,
        seed: str,
        *,
        late: float = 0.5,
        twice: float = 0.2,
        longest: float = 1.0,
        spared: str | None = None,
    ) -> None:
        self._rng = random.Random(seed)
        self._spared = None if spared is None else spared.encode()
        self._late, self._twice, self._longest = late, twice, longest

    def copies(self, packet: bytes) -> list[tuple[float, bytes]]:
        """Return what is to be sent instead of a PUBLISH, and after how many seconds."""
        if self._spared is not None and topic_of(packet) == self._spared:
            return [(0.0, packet)]
        delay = self._rng.uniform(0, self._longest) if self._rng.random() < self._late else 0.0
        sent = [(delay, packet)]
        if self._rng.random() < self._twice:
            again = packet
            if packet[0] & 0x06:  # an acknowledgement is due: a second copy says that it is one
                again = bytes((packet[0] | _DUPLICATE,)) + packet[1:]
            sent.append((delay + self._rng.uniform(0, self._longest), again))
        return sent


class HostileRelay(Relay):
    """The way of one process to the broker."""

    def __init__(self, broker: BrokerAddress, loop: asyncio.AbstractEventLoop) -> None:
        super().__init__(broker, loop, lambda _: PacketLine(self))
        self.disorder: Disorder | None = None  # of the messages that come from now on


class PacketLine:
    """Whole packets; PUBLISH packets as its relay's disorder has them."""

    def __init__(self, relay: HostileRelay) -> None:
        self._relay = relay
        self._framer = PacketFramer()
        self._latest = 0.0  # when the last packet goes on: no goodbye and no end before that

    def take(self, data: bytes | None, now: float) -> list[tuple[float, bytes | None]]:
        try:
            packets = self._framer.feed(data or b"")
        except RemoteProtocolError:
            packets, data = [], None
        disorder = self._relay.disorder
        sent: list[tuple[float, bytes | None]] = []
        for packet in packets:
            kind = packet[0] >> 4
            if kind == _PUBLISH and disorder is not None:
                sent += [(now + delay, copy) for delay, copy in disorder.copies(packet)]
            else:
                sent.append((max(now, self._latest) if kind == _DISCONNECT else now, packet))
            self._latest = max(self._latest, *(due for due, _ in sent))
        if not data:  # the end, or its loss
            last = max(now, self._latest)
            rest = self._framer.rest
            sent += [(last, rest), (last, data)] if rest else [(last, data)]
        return sent


# -- all of them --------------------------------------------------------------------------------------------

_R = TypeVar("_R", bound=Relay)


class RelayLoop:
    """The one thread of all relays of a program; its methods are called from another one."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._relays: list[Relay] = []
        self._thread = threading.Thread(target=self._loop.run_forever, name="mapa-relays", daemon=True)
        self._thread.start()

    def open(self, profile: LinkProfile, broker: BrokerAddress, generator: np.random.Generator) -> Relay:
        """Open the link of one edge to a broker; connect to its `address`. The generator is the relay's from now on.

        A partition of the profile holds bytes and never cuts a connection: a long one ends as it would in the field,
        by a keepalive at either end. A connection that is opened meanwhile is held likewise. TCP's own handshake is
        local and not delayed; MQTT's and TLS's are.
        """
        opened = self._loop.time()
        # One clock a way for all connections: the line is the edge's, not the connection's.
        clocks = {way: LinkClock(profile, generator, opened) for way in (True, False)}
        return self._listening(Relay(broker, self._loop, clocks.__getitem__), "127.0.0.1")

    def open_hostile(self, broker: BrokerAddress, host: str = "127.0.0.1") -> HostileRelay:
        """Open a relay on an interface of this machine, whose `disorder` may be set."""
        return self._listening(HostileRelay(broker, self._loop), host)

    def do(self, work: Coroutine[Any, Any, _T]) -> _T:
        """Run a method of a relay in the loop's thread."""
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(timeout=_PATIENCE)

    def _listening(self, relay: _R, host: str) -> _R:
        self.do(relay.listen(host))
        self._relays.append(relay)
        return relay

    def shut(self, relay: Relay) -> None:
        """Close one relay."""
        self._relays.remove(relay)
        self.do(relay.shut())

    def drain(self, seconds: float) -> None:
        """Wait, at most that long, for connections that their edges have ended: what they sent last is under way."""

        async def drained() -> None:
            await asyncio.gather(*(relay.drain() for relay in self._relays))

        with contextlib.suppress(TimeoutError):
            self.do(asyncio.wait_for(drained(), seconds))

    def close(self) -> None:
        """Close every relay and end the thread; a second close does nothing."""
        if self._loop.is_closed():
            return
        while self._relays:
            self.shut(self._relays[-1])
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

"""TCP relays between a client and the broker, inside this program; the relay here emulates the link of an edge.

The client connects to 127.0.0.1:<port>, the relay to the broker: no privileges, every platform. All relays of a kind
share one thread and one asyncio loop.
"""

from __future__ import annotations

import asyncio
import contextlib
import heapq
import itertools
import socket
import threading
from collections.abc import Coroutine
from typing import Any, Generic, Self, TypeVar

import numpy as np

from common.transport.connection import BrokerAddress
from common.transport.link import LinkClock, LinkProfile

_PATIENCE = 30.0  # seconds for what is asked of the loop
_LOOK = 0.005  # seconds between two looks at what is still under way
_HELD_LIMIT = 1 << 22  # bytes held one way before the sender is told to wait


class Way(asyncio.Protocol):
    """One direction of one connection: what comes here goes out of `other` when it is due."""

    def __init__(self, relay: Relay, *, upward: bool) -> None:
        self._relay = relay
        self._held: list[tuple[float, int, bytes | None]] = []  # heap; data b"": no more comes; None: lost
        self._order = itertools.count()
        self._held_bytes = 0
        self._paused = False
        self.upward = upward
        self.choked = upward  # `other` does not read, or is not reached yet
        self._timer: asyncio.TimerHandle | None = None
        self.over = False  # the end was sent on
        self.other: Way | None = None
        self.transport: asyncio.Transport | None = None

    def take(self, data: bytes | None) -> None:
        """Hold what comes until it is due."""
        raise NotImplementedError

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        wire = transport.get_extra_info("socket")
        if wire.family != getattr(socket, "AF_UNIX", None):
            wire.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.transport = transport
        self._relay.transports.add(transport)

    def data_received(self, data: bytes) -> None:
        self.take(data)
        if self._held_bytes > _HELD_LIMIT and not self._paused and self.transport is not None:
            self._paused = True
            self.transport.pause_reading()

    def eof_received(self) -> bool:
        self.take(b"")
        return True  # keep our side open: what is held the other way may still arrive

    def connection_lost(self, exc: Exception | None) -> None:
        del exc
        if self.transport is not None:
            self._relay.transports.discard(self.transport)
        if self.other is not None:
            self.take(None)

    def pause_writing(self) -> None:
        if self.other is not None:
            self.other.choked = True

    def resume_writing(self) -> None:
        if self.other is not None:
            self.other.choked = False
            self.other.release()

    def hold(self, due: float, data: bytes | None) -> None:
        """Send on at a time of the loop's clock."""
        heapq.heappush(self._held, (due, next(self._order), data))
        self._held_bytes += len(data or b"")
        if self._timer is None:
            self._timer = self._relay.loop.call_at(self._held[0][0], self.release)

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
    """A port on this machine whose connections are passed on to a broker. Made by a `RelayThread`."""

    def __init__(self, broker: BrokerAddress, loop: asyncio.AbstractEventLoop) -> None:
        self.loop = loop
        self.transports: set[asyncio.Transport] = set()
        self.partitioned = False  # all bytes are held
        self.cut = False  # new connections are refused
        self._broker = broker
        self._ways: list[Way] = []
        self._calls: set[asyncio.Task[None]] = set()
        self._listener = socket.socket()
        self.address = BrokerAddress("127.0.0.1", 0)

    def way(self, *, upward: bool) -> Way:
        """Return a new direction of a new connection."""
        raise NotImplementedError

    async def listen(self, host: str = "127.0.0.1") -> None:
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

    def partition(self, on: bool) -> None:
        """Hold every byte, or let all of them go."""
        self.partitioned = on
        for way in self._ways:
            way.release()

    async def shut(self) -> None:
        """Close the port and every connection; what is held is lost."""
        self.loop.remove_reader(self._listener)
        await asyncio.sleep(0)  # a connection just accepted begins, or it would stay open
        self._listener.close()
        await self.reset()

    async def reset(self) -> None:
        """Cut every connection."""
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
        if self.cut:
            connection.close()
            return
        connection.setblocking(False)
        call = self.loop.create_task(self._join(connection))
        self._calls.add(call)
        call.add_done_callback(self._calls.discard)

    async def _join(self, connection: socket.socket) -> None:
        near, far = self.way(upward=True), self.way(upward=False)
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


_T = TypeVar("_T")
_R = TypeVar("_R", bound=Relay)


class RelayThread(Generic[_R]):
    """One thread for all relays of a kind; its methods are called from another one."""

    def __init__(self, name: str) -> None:
        self._loop = asyncio.new_event_loop()
        self._relays: list[_R] = []
        self._thread = threading.Thread(target=self._loop.run_forever, name=name, daemon=True)
        self._thread.start()

    def shut(self, relay: _R) -> None:
        """Close one relay."""
        self._relays.remove(relay)
        self._await(relay.shut())

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

    def _listening(self, relay: _R, host: str = "127.0.0.1") -> _R:
        """Open a relay's port; it is closed with the others."""
        self._await(relay.listen(host))
        self._relays.append(relay)
        return relay

    def _await(self, work: Coroutine[Any, Any, _T]) -> _T:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(timeout=_PATIENCE)


class DelayedWay(Way):
    def __init__(self, relay: DelayRelay, *, upward: bool) -> None:
        super().__init__(relay, upward=upward)
        self._clock = relay.clocks[upward]

    def take(self, data: bytes | None) -> None:
        self.hold(self._clock.due(self._relay.loop.time(), len(data or b"")), data)


class DelayRelay(Relay):
    """The link of one edge. Made by `RelayLoop.open`.

    A partition of the link's profile holds bytes and never cuts a connection: a long one ends as it would in the field,
    by a keepalive at either end. A connection that is opened meanwhile is held likewise. TCP's own handshake is local
    and not delayed; MQTT's and TLS's are.
    """

    def __init__(
        self,
        profile: LinkProfile,
        broker: BrokerAddress,
        generator: np.random.Generator,
        loop: asyncio.AbstractEventLoop,
    ) -> None:
        super().__init__(broker, loop)
        self.profile = profile
        opened = loop.time()
        # One clock a way for all connections: the line is the edge's, not the connection's.
        self.clocks = {way: LinkClock(profile, generator, opened) for way in (True, False)}

    def way(self, *, upward: bool) -> Way:
        return DelayedWay(self, upward=upward)


class RelayLoop(RelayThread[DelayRelay]):
    """The one thread of all relays of a program that emulate links."""

    def __init__(self) -> None:
        super().__init__("mapa-relays")

    def open(self, profile: LinkProfile, broker: BrokerAddress, generator: np.random.Generator) -> DelayRelay:
        """Open a relay to a broker; connect to its `address`. The generator is the relay's from now on."""
        return self._listening(DelayRelay(profile, broker, generator, self._loop))

    def drain(self, seconds: float) -> None:
        """Wait, at most that long, for connections that their edges have ended: what they sent last is under way."""

        async def drained() -> None:
            await asyncio.gather(*(relay.drain() for relay in self._relays))

        with contextlib.suppress(TimeoutError):
            self._await(asyncio.wait_for(drained(), seconds))

"""A TCP relay that treats MQTT badly on demand: holds bytes, cuts connections, delays, doubles and reorders messages.

What TCP and a broker promise, order above all, does not hold behind it; what the protocol promises must hold all the
same. Only whole PUBLISH packets are moved about. Every other packet passes at once and in its order.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import socket

from common.errors import RemoteProtocolError
from common.transport.connection import BrokerAddress
from common.transport.relay import RelayThread

_PUBLISH, _DISCONNECT = 3, 14
_DUPLICATE = 0x08  # DUP, in the first byte of a PUBLISH with an acknowledgement
_CHUNK = 1 << 16
_PARTING = 5.0  # seconds for the other end to close, once one has


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


class _HostileWay:
    """One direction of one connection."""

    def __init__(
        self, relay: HostileRelay, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        self._relay, self._reader, self._writer = relay, reader, writer
        self._framer = PacketFramer()
        self._late: dict[asyncio.TimerHandle, bytes] = {}  # in the order in which they came

    async def carry(self) -> None:
        """Pass on until the end; what is late goes before it."""
        with contextlib.suppress(OSError, RemoteProtocolError):
            while received := await self._reader.read(_CHUNK):
                for packet in self._framer.feed(received):
                    await self._relay.open.wait()
                    self._pass(packet)
                await self._writer.drain()
            await self._relay.open.wait()
            self._catch_up()
            self._writer.write(self._framer.rest)
            await self._writer.drain()

    def _pass(self, packet: bytes) -> None:
        if self._writer.is_closing():
            return  # whoever was to read it has gone
        disorder = self._relay.disorder
        if packet[0] >> 4 == _PUBLISH and disorder is not None:
            for delay, copy in disorder.copies(packet):
                if delay:
                    self._send_later(delay, copy)
                else:
                    self._writer.write(copy)
            return
        if packet[0] >> 4 == _DISCONNECT:
            self._catch_up()  # nothing counts behind it
        self._writer.write(packet)

    def _send_later(self, delay: float, packet: bytes) -> None:
        def send() -> None:
            self._late.pop(timer, None)
            if not self._relay.open.is_set():  # a partition began meanwhile: try again
                self._send_later(0.05, packet)
            elif not self._writer.is_closing():
                self._writer.write(packet)

        timer = self._relay.loop.call_later(delay, send)
        self._late[timer] = packet

    def _catch_up(self) -> None:
        for timer, packet in self._late.items():
            timer.cancel()
            if not self._writer.is_closing():
                self._writer.write(packet)
        self._late.clear()

    def abandon(self) -> None:
        for timer in self._late:
            timer.cancel()
        self._late.clear()


class HostileRelay:
    """The way of one node to the broker. Made by `HostileLoop.open`, and told by it what to do."""

    def __init__(self, broker: BrokerAddress, loop: asyncio.AbstractEventLoop) -> None:
        self._broker, self.loop = broker, loop
        self.open = asyncio.Event()  # cleared: a partition
        self.open.set()
        self.cut = False
        self.disorder: Disorder | None = None
        self._connections: set[asyncio.Task[None]] = set()
        self._writers: set[asyncio.StreamWriter] = set()
        self._server: asyncio.Server | None = None
        self.address = BrokerAddress("127.0.0.1", 0)

    async def listen(self, host: str) -> None:
        """Open a port on an interface of this machine."""
        self._server = await asyncio.start_server(self._serve, host, 0)
        self.address = BrokerAddress(host, self._server.sockets[0].getsockname()[1])

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._connections.add(task)
        task.add_done_callback(self._connections.discard)
        self._writers.add(writer)
        try:
            if not self.cut:
                await self._join(reader, writer)
        except (OSError, asyncio.CancelledError):
            pass  # the broker is away, or this relay is shut
        finally:
            self._writers.discard(writer)
            writer.transport.abort()

    async def _join(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        far_reader, far_writer = await asyncio.open_connection(self._broker.host, self._broker.port)
        self._writers.add(far_writer)
        for one in (writer, far_writer):
            one.get_extra_info("socket").setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        ways = _HostileWay(self, reader, far_writer), _HostileWay(self, far_reader, writer)
        carried = [asyncio.create_task(way.carry()) for way in ways]
        try:
            await asyncio.wait(carried, return_when=asyncio.FIRST_COMPLETED)
            for task, out in zip(carried, (far_writer, writer), strict=True):
                if task.done() and not out.is_closing():
                    out.write_eof()  # to close at once would reset what is still on its way
            await asyncio.wait(carried, timeout=_PARTING)
            for one in (writer, far_writer):
                one.close()
        finally:
            for task in carried:
                task.cancel()
            await asyncio.gather(*carried, return_exceptions=True)
            for way in ways:
                way.abandon()
            self._writers.discard(far_writer)
            if not far_writer.is_closing():
                far_writer.transport.abort()

    async def shut(self) -> None:
        """Close the port and every connection."""
        if self._server is not None:
            self._server.close()
        await self.reset()

    async def reset(self) -> None:
        """Cut every connection."""
        for writer in list(self._writers):
            writer.transport.abort()
        connections = list(self._connections)
        for task in connections:
            task.cancel()
        await asyncio.gather(*connections, return_exceptions=True)


class HostileLoop(RelayThread[HostileRelay]):
    """One thread for all hostile relays."""

    def __init__(self) -> None:
        super().__init__("mapa-hostile")

    def open(self, broker: BrokerAddress, host: str = "127.0.0.1") -> HostileRelay:
        """Open a relay to a broker on an interface of this machine; connect to its `address`."""

        async def make() -> HostileRelay:
            relay = HostileRelay(broker, self._loop)
            await relay.listen(host)
            return relay

        return self._keep(make())

    def partition(self, relay: HostileRelay, on: bool) -> None:
        """Hold every byte, or let all of them go."""
        self._loop.call_soon_threadsafe(relay.open.clear if on else relay.open.set)

    def cut(self, relay: HostileRelay, on: bool) -> None:
        """Reset every connection and refuse new ones, or take them again."""
        relay.cut = on
        if on:
            self._await(relay.reset())

    def disorder(self, relay: HostileRelay, how: Disorder | None) -> None:
        """Disorder messages from now on, or no more."""
        relay.disorder = how

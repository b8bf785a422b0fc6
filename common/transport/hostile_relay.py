"""A TCP relay that treats MQTT badly on demand: holds bytes, cuts connections, delays, doubles and reorders messages.

What TCP and a broker promise, order above all, does not hold behind it; what the protocol promises must hold all the
same. Only whole PUBLISH packets are moved about. Every other packet passes at once and in its order.
"""

from __future__ import annotations

import heapq
import random

from common.errors import RemoteProtocolError
from common.transport.connection import BrokerAddress
from common.transport.relay import Relay, RelayThread, Way

_PUBLISH, _DISCONNECT = 3, 14
_DUPLICATE = 0x08  # DUP, in the first byte of a PUBLISH with an acknowledgement


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


class HostileWay(Way):
    def __init__(self, relay: HostileRelay, *, upward: bool) -> None:
        super().__init__(relay, upward=upward)
        self._hostile = relay
        self._framer = PacketFramer()

    def take(self, data: bytes | None) -> None:
        now = self._relay.loop.time()
        try:
            packets = self._framer.feed(data or b"")
        except RemoteProtocolError:
            packets, data = [], None
        for packet in packets:
            self._pass(packet, now)
        if not data:  # the end, or its loss: nothing counts behind it
            self._catch_up(now)
            self.hold(now, self._framer.rest)
            self.hold(now, data)
        self.release()

    def _pass(self, packet: bytes, now: float) -> None:
        disorder = self._hostile.disorder
        if packet[0] >> 4 == _PUBLISH and disorder is not None:
            for delay, copy in disorder.copies(packet):
                self.hold(now + delay, copy)
            return
        if packet[0] >> 4 == _DISCONNECT:
            self._catch_up(now)
        self.hold(now, packet)

    def _catch_up(self, now: float) -> None:
        """Let what is late go now, in the order in which it would have gone."""
        late = [heapq.heappop(self._held)[2] for _ in range(len(self._held))]
        self._held = [(now, next(self._order), data) for data in late]


class HostileRelay(Relay):
    """The way of one process to the broker. Made by `HostileLoop.open`, and told by it what to do."""

    disorder: Disorder | None = None

    def way(self, *, upward: bool) -> Way:
        return HostileWay(self, upward=upward)


class HostileLoop(RelayThread[HostileRelay]):
    """One thread for all hostile relays."""

    def __init__(self) -> None:
        super().__init__("mapa-hostile")

    def open(self, broker: BrokerAddress, host: str = "127.0.0.1") -> HostileRelay:
        """Open a relay to a broker on an interface of this machine; connect to its `address`."""
        return self._listening(HostileRelay(broker, self._loop), host)

    def partition(self, relay: HostileRelay, on: bool) -> None:
        """Hold every byte, or let all of them go."""
        self._loop.call_soon_threadsafe(relay.partition, on)

    def cut(self, relay: HostileRelay, on: bool) -> None:
        """Reset every connection and refuse new ones, or take them again."""
        relay.cut = on
        if on:
            self._await(relay.reset())

    def disorder(self, relay: HostileRelay, how: Disorder | None) -> None:
        """Disorder messages from now on, or no more."""
        relay.disorder = how

"""The in-memory twin of broker, channel and loop: deliveries in order, time that jumps; or a network with faults."""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial

from common.errors import LocalProtocolError, RemoteProtocolError
from common.transport.channel import (
    UNREAD,
    Bytes,
    Guard,
    OnMessage,
    OnViolation,
    Routes,
    Timer,
    TimerQueue,
    Will,
    ignore_violation,
)
from common.wire.topics import topic_matches


@dataclass(slots=True)
class Faults:
    """What a network does to messages; always the same for the same seed, in the same run."""

    seed: int
    lost: float = 0.0  # share of QoS 0 that is never delivered
    late: float = 0.0  # share of deliveries that are held, so that later ones overtake them
    replayed: float = 0.0  # share of publishes at which an old message, of any age, is delivered once more
    longest: float = 30.0  # seconds that a delivery is held, at most
    most: int = 1000  # replays: what they cause is replayed, too, and might never end
    random: random.Random = field(init=False)

    def __post_init__(self) -> None:
        self.random = random.Random(self.seed)

    def hits(self, share: float) -> bool:
        return share > 0 and self.random.random() < share

    def delay(self) -> float:
        """Return for how long a delivery is held: short or long, by the same odds for each order of magnitude."""
        return float(self.longest * 10 ** self.random.uniform(-4, 0))


class MemoryBroker:
    """A broker and a loop in one: deliveries in the order of publishing, time that jumps; or with faults."""

    def __init__(self, faults: Faults | None = None) -> None:
        self.faults = faults
        self.retained: dict[str, bytes] = {}
        self.published: list[tuple[str, bytes]] = []
        self._channels: list[MemoryChannel] = []
        self._soon: deque[Callable[[], None]] = deque()
        self._timers = TimerQueue()
        self._now = 0.0
        self._stopped = False

    # the loop

    def now(self) -> float:
        return self._now

    def call_later(self, delay: float, callback: Callable[[], None]) -> Timer:
        return self._timers.add(self._now + delay, callback)

    def post(self, callback: Callable[[], None]) -> None:
        self._soon.append(callback)

    def stop(self) -> None:
        self._stopped = True

    def run(self) -> None:
        """Serve until `stop`; having nothing left to wait for is an error in a test."""
        self._stopped = False
        while not self._stopped:
            if not self.step():
                raise LocalProtocolError("the loop would wait forever: no message, no timer, no stop")

    def serve(self, done: Callable[[], bool], *, until: float | None = None) -> bool:
        """Serve until done(), or until nothing happens before the time `until`; return done()."""
        while not done() and (self._soon or self._due_by(until)):
            self.step()
        return done()

    def _due_by(self, until: float | None) -> bool:
        due = self._timers.next_due()
        return due is not None and (until is None or due <= until)

    def step(self) -> bool:
        """Make the next delivery, or jump to the next timer; False: there is none."""
        if self._soon:
            self._soon.popleft()()
        elif (due := self._timers.next_due()) is not None:
            self._now = max(self._now, due)
            self._timers.fire_next()
        else:
            return False
        return True

    def settle(self) -> None:
        """Deliver everything in flight; timers do not run."""
        while self._soon:
            self._soon.popleft()()

    def advance(self, seconds: float) -> None:
        """Let time pass: deliveries and timers as they fall due."""
        end = self._now + seconds
        self.settle()
        while (due := self._timers.next_due()) is not None and due <= end:
            self._now = max(self._now, due)
            self._timers.fire_next()
            self.settle()
        self._now = end

    # the broker

    def attach(self, channel: MemoryChannel) -> None:
        self._channels.append(channel)

    def detach(self, channel: MemoryChannel, *, lost: bool) -> None:
        self._channels.remove(channel)
        if lost and channel.will is not None:
            will = channel.will
            self.route(will.topic, will.payload, retain=will.retain, qos=will.qos)

    def route(self, topic: str, payload: bytes, *, retain: bool, qos: int = 1) -> None:
        """Queue a message for those subscribed when it is delivered."""
        self.published.append((topic, payload))
        if retain and payload:
            self.retained[topic] = payload
        elif retain:
            self.retained.pop(topic, None)
        deliver = partial(self._deliver, topic, payload)
        faults = self.faults
        if faults is None:
            self.post(deliver)
            return
        if faults.hits(faults.late):
            self.call_later(faults.delay(), deliver)
        elif qos or not faults.hits(faults.lost):
            self.post(deliver)
        if faults.most and faults.hits(faults.replayed):
            faults.most -= 1
            self.call_later(faults.delay(), partial(self._deliver, *faults.random.choice(self.published)))

    def _deliver(self, topic: str, payload: bytes) -> None:
        for channel in list(self._channels):
            channel.take(topic, payload)


class MemoryChannel:
    """A client of a MemoryBroker. `lose` and `restore` stand for a connection that breaks."""

    def __init__(
        self,
        broker: MemoryBroker,
        *,
        will: Will | None = None,
        on_connected: Callable[[], None] | None = None,
        on_lost: Callable[[str], None] | None = None,
        on_violation: OnViolation = ignore_violation,
        guard: Guard | None = None,
    ) -> None:
        self.will, self._guard = will, guard
        self.connected = self.closed = self.failed = False
        self.refusal: str | None = None
        self.last_error = ""
        self.on_connected, self.on_lost, self.on_violation = on_connected, on_lost, on_violation
        self._broker = broker
        self._routes = Routes(lambda topic, error: self.on_violation(topic, error), guard)
        self._subscribed: dict[str, bool] = {}  # topic → whether a filter matches it
        self._owed: list[tuple[str, bytes, bool]] = []  # QoS 1 while away
        self._max_packet = 1 << 28

    @property
    def violations(self) -> int:
        """Messages that violated the protocol."""
        return self._routes.violations

    @property
    def owing(self) -> bool:
        return bool(self._owed)

    def open(self) -> None:
        self.restore()

    def connect(self, timeout: float = 0.0, say: Callable[[str], None] | None = None) -> None:  # noqa: ARG002
        self.restore()

    def abort(self) -> None:
        self.on_lost = None
        self.closed = True
        if self.connected:
            self.lose()

    def publish(self, topic: str, *payload: Bytes, qos: int = 0, retain: bool = False) -> bool:
        if self._guard is not None:
            sealed = self._guard.seal(topic, *payload)
            if sealed is None:
                return False
            payload = sealed
        whole = b"".join(payload)
        if self.connected:
            self._broker.route(topic, whole, retain=retain, qos=qos)
        elif qos:
            self._owed.append((topic, whole, retain))
        return self.connected or qos > 0

    def subscribe(
        self, topic_filter: str, callback: OnMessage, *, qos: int = 0, retained: bool = False
    ) -> None:
        self._routes.add(topic_filter, callback, qos, retained=retained)
        self._subscribed.clear()
        if self.connected:
            self._take_retained(topic_filter)

    def take(self, topic: str, payload: bytes, *, retained: bool = False) -> None:
        """Receive one message, if a filter matches it."""
        if not self.connected or not self._is_subscribed(topic):
            return
        if len(topic) + len(payload) > self._max_packet:
            self._routes.violated(
                UNREAD, RemoteProtocolError(f"a packet of more than {self._max_packet} bytes")
            )
        else:
            self._routes.deliver(topic.encode(), payload, retained=retained)

    def _is_subscribed(self, topic: str) -> bool:
        if topic not in self._subscribed:
            self._subscribed[topic] = any(topic_matches(wanted, topic) for wanted in self._routes.filters)
        return self._subscribed[topic]

    def allow(self, max_packet: int) -> None:
        self._max_packet = max_packet

    def lose(self, reason: str = "lost") -> None:
        """Break the connection: the last will is published."""
        self.connected = False
        self._broker.detach(self, lost=True)
        if self.on_lost is not None:
            self.on_lost(reason)

    def restore(self) -> None:
        self.connected = True
        self._broker.attach(self)
        for topic_filter in list(self._routes.filters):
            self._take_retained(topic_filter)
        owed, self._owed = self._owed, []
        for topic, payload, retain in owed:
            self._broker.route(topic, payload, retain=retain)
        if self.on_connected is not None:
            self.on_connected()

    def hasten(self) -> None:
        """Do nothing: a test restores the connection."""

    def close(self, timeout: float = 5.0) -> None:  # noqa: ARG002 - here nothing is ever owed
        """Disconnect: no last will."""
        self.closed = True
        if self.connected:
            self.connected = False
            self._broker.detach(self, lost=False)

    def _take_retained(self, topic_filter: str) -> None:
        for topic, payload in self._broker.retained.items():
            if topic_matches(topic_filter, topic):
                self._broker.post(partial(self.take, topic, payload, retained=True))

"""What a service sees of MQTT: a channel, the loop that serves it, and routes from a topic to its callback."""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Protocol

from common.errors import RemoteProtocolError
from common.wire.topics import topic_matches


class RetainedMessageError(RemoteProtocolError):
    """A retained message on a topic that has none: it may be of any age and from anyone."""


OnMessage = Callable[[str, bytes], None]  # topic, payload
Bytes = bytes | memoryview  # of single bytes; in a part of a message that never changes
OnViolation = Callable[[str, RemoteProtocolError], None]  # topic, what was wrong


class Guard(Protocol):
    """Proves messages between ends that do not trust their broker."""

    def seal(self, topic: str, *payload: Bytes) -> tuple[Bytes, ...] | None:
        """Return a message as it is sent; None: it cannot be sent yet."""

    def open(self, topic: str, payload: bytes) -> bytes:
        """Return what a proven message says; RemoteProtocolError: it is not proven."""


UNREAD = "?"  # stands for the topic of a packet that was skipped before its topic was read
_REMEMBERED = 4096  # topics whose callback is remembered; a flood of topics empties it, no more
_LONGEST = 256  # bytes of a topic that is remembered: ours are shorter, and any client may send 64 kB


def ignore_violation(topic: str, error: RemoteProtocolError) -> None:
    """Drop it: it has been counted."""


class Routes:
    """The filters of one client; the first one that matches gets the message.

    Topics come back at every update, so a match is remembered: a look-up instead of paho's tree.
    """

    def __init__(self, on_violation: OnViolation, guard: Guard | None = None) -> None:
        self.filters: dict[str, tuple[OnMessage, int]] = {}  # filter → callback, QoS
        self._may_be_retained: set[OnMessage] = set()
        self.violations = 0
        self._on_violation, self._guard = on_violation, guard
        self._known: dict[bytes, tuple[str, OnMessage]] = {}

    def add(self, topic_filter: str, callback: OnMessage, qos: int, *, retained: bool = False) -> None:
        """Have a filter's messages delivered; those that the broker had retained only where that is said."""
        self.filters[topic_filter] = (callback, qos)
        if retained:
            self._may_be_retained.add(callback)
        self._known.clear()

    def deliver(self, topic: bytes, payload: bytes, *, retained: bool = False) -> None:
        """Call the callback; a RemoteProtocolError is counted and reported, others pass."""
        name = ""
        try:
            name, callback = self._known.get(topic) or self._find(topic)
            if retained and callback not in self._may_be_retained:
                raise RetainedMessageError(f"topic {name[:200]!r}: a retained message")
            callback(name, payload if self._guard is None else self._guard.open(name, payload))
        except RemoteProtocolError as error:
            self.violated(name or repr(topic[:200]), error)

    def violated(self, topic: str, error: RemoteProtocolError) -> None:
        """Count and report."""
        self.violations += 1
        self._on_violation(topic, error)

    def _find(self, topic: bytes) -> tuple[str, OnMessage]:
        try:
            name = topic.decode()
        except UnicodeDecodeError as error:
            raise RemoteProtocolError(f"topic {topic[:200]!r}: not UTF-8") from error
        for topic_filter, (callback, _qos) in self.filters.items():
            if topic_matches(topic_filter, name):
                if len(topic) <= _LONGEST:
                    if len(self._known) >= _REMEMBERED:
                        self._known.clear()
                    self._known[topic] = name, callback
                return name, callback
        raise RemoteProtocolError(f"topic {name[:200]!r}: no subscription matches it")


class Timer:
    """A call that waits for its time."""

    __slots__ = ("callback", "due")

    def __init__(self, due: float, callback: Callable[[], None]) -> None:
        self.due = due
        self.callback: Callable[[], None] | None = callback

    def cancel(self) -> None:
        """Cancel the call; a second cancel does nothing."""
        self.callback = None


class Loop(Protocol):
    """The one thread of a service."""

    def now(self) -> float:
        """Return monotonic seconds."""

    def call_later(self, delay: float, callback: Callable[[], None]) -> Timer:
        """Call once, after `delay` seconds; in the loop's thread only."""

    def post(self, callback: Callable[[], None]) -> None:
        """Call soon, in the loop's thread; from any thread and from signal handlers."""

    def run(self) -> None:
        """Serve until `stop`; raise what a callback raised."""

    def serve(self, done: Callable[[], bool], *, until: float | None = None) -> bool:
        """Serve until done() or until a time of `now`; return done()."""

    def stop(self) -> None:
        """Make `run` return; from any thread."""


class Channel(Protocol):
    """One client's connection to a broker, as a service uses it."""

    @property
    def connected(self) -> bool:
        """Whether a publish would reach the broker now."""

    @property
    def closed(self) -> bool:
        """Whether `close` has ended the connection for good."""

    def publish(self, topic: str, *payload: Bytes, qos: int = 0, retain: bool = False) -> bool:
        """Publish a message, given in parts; False: no connection or no room, and at QoS 0 it is lost."""

    def subscribe(
        self, topic_filter: str, callback: OnMessage, *, qos: int = 0, retained: bool = False
    ) -> None:
        """Subscribe, now and after every reconnect; retained messages are delivered only if `retained`."""

    def allow(self, max_packet: int) -> None:
        """Set the largest inbound packet, in bytes; larger ones are skipped and counted."""

    def hasten(self) -> None:
        """Reconnect now; only the final messages remain to be sent."""

    def close(self, timeout: float = 5.0) -> None:
        """Deliver pending QoS 1 messages within `timeout` seconds, disconnect (no last will), release all resources."""


class BrokerChannel(Channel, Protocol):
    """A channel as the program sees it that opens it; the callbacks run in the loop's thread."""

    on_connected: Callable[[], None] | None
    on_lost: Callable[[str], None] | None
    on_violation: OnViolation
    last_error: str  # why the last attempt to connect failed

    @property
    def failed(self) -> bool:
        """Whether the last attempt to connect failed."""

    @property
    def refusal(self) -> str | None:
        """What the operator must fix: credentials or certificates; None: nothing."""

    @property
    def owing(self) -> bool:
        """Whether something has not reached the broker: unacknowledged QoS 1 messages, unsent bytes."""

    def open(self) -> None:
        """Start connecting and keep trying, without waiting."""

    def connect(self, timeout: float, say: Callable[[str], None] | None = None) -> None:
        """Connect within `timeout` seconds; raise BrokerUnavailableError, or ConfigurationError for a refusal."""

    def abort(self) -> None:
        """Drop the connection as a crash would: the last will is published."""


class TimerQueue:
    """Timers in the order of their due times, equal ones in the order they were set."""

    def __init__(self) -> None:
        self._heap: list[tuple[float, int, Timer]] = []
        self._order = itertools.count()

    def add(self, due: float, callback: Callable[[], None]) -> Timer:
        timer = Timer(due, callback)
        heapq.heappush(self._heap, (due, next(self._order), timer))
        return timer

    def next_due(self) -> float | None:
        """Return when the next call is due; None: there is none."""
        while self._heap and self._heap[0][2].callback is None:
            heapq.heappop(self._heap)
        return self._heap[0][0] if self._heap else None

    def fire_next(self) -> None:
        """Make the call that is due first."""
        timer = heapq.heappop(self._heap)[2]
        callback, timer.callback = timer.callback, None
        if callback is not None:
            callback()


@dataclass(frozen=True, slots=True)
class Will:
    """What the broker publishes when a client is lost without a DISCONNECT."""

    topic: str
    payload: bytes
    qos: int = 1
    retain: bool = False

    def proven_by(self, guard: Guard | None) -> Will:
        """Return it as a guard lets others believe it."""
        if guard is None:
            return self
        return replace(self, payload=b"".join(guard.seal(self.topic, self.payload) or ()))

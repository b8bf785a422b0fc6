"""From a message's topic to the callback that asked for it; shared by the real channel and its twin."""

from __future__ import annotations

from collections.abc import Callable

from common.errors import RemoteProtocolError
from common.wire.topics import topic_matches


class RetainedMessageError(RemoteProtocolError):
    """A retained message on a topic that has none: it may be of any age and from anyone."""


OnMessage = Callable[[str, bytes], None]  # topic, payload
OnViolation = Callable[[str, RemoteProtocolError], None]  # topic, what was wrong

UNREAD = "?"  # stands for the topic of a packet that was skipped before its topic was read
_REMEMBERED = 4096  # topics whose callback is remembered; a flood of topics empties it, no more
_LONGEST = 256  # bytes of a topic that is remembered: ours are shorter, and anybody may send 64 kB


def ignore_violation(topic: str, error: RemoteProtocolError) -> None:
    """Drop it: it has been counted."""


class Routes:
    """The filters of one client; the first one that matches gets the message.

    Topics come back at every update, so a match is remembered: a look-up instead of paho's tree.
    """

    def __init__(self, on_violation: OnViolation) -> None:
        self.filters: dict[str, tuple[OnMessage, int]] = {}  # filter → callback, QoS
        self._may_be_retained: set[OnMessage] = set()
        self.violations = 0
        self._on_violation = on_violation
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
            callback(name, payload)
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

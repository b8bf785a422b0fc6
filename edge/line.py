"""An edge's way to the broker: one channel at a time."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from common.transport.channel import Channel, Loop
from common.transport.link import LinkProfile

_CLOSING = 0.01  # seconds between two looks at a channel that closes


@dataclass(slots=True)
class Line:
    """The channel, and the next one where a link or another edge id calls for it.

    `connect` makes a channel that subscribes and connects by itself, directly or through a link.
    """

    loop: Loop
    connect: Callable[[LinkProfile | None], Channel]
    link: LinkProfile | None = None  # the one that the channel goes through
    channel: Channel | None = None
    ended: bool = False

    @property
    def connected(self) -> bool:
        return self.channel is not None and self.channel.connected

    def open(self) -> None:
        self.channel = self.connect(self.link)

    def reroute(self) -> None:
        """Connect anew, soon: the channel may be in the middle of a delivery.

        The old connection ends first: the broker would take a second one for its successor and send its will.
        """
        self.loop.post(self._reroute)

    def publish(self, topic: str, payload: bytes, *, qos: int) -> None:
        if self.channel is not None:
            self.channel.publish(topic, payload, qos=qos)

    def allow(self, max_packet: int) -> None:
        if self.channel is not None:
            self.channel.allow(max_packet)

    def hasten(self) -> None:
        if self.channel is not None:
            self.channel.hasten()

    def end(self, timeout: float) -> None:
        """Close for good within these seconds: whatever was under way, no further channel is made."""
        self.ended = True
        if self.channel is not None:
            self.channel.close(timeout)

    def _reroute(self) -> None:
        if self.ended:
            return
        if self.channel is not None and not self.channel.closed:
            self.channel.close()
            self.loop.call_later(_CLOSING, self._reroute)
        else:
            self.open()

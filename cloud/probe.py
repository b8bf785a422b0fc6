"""Whether the broker carries messages as large as this run's, asked before anybody waits for one.

A broker drops a message beyond its limit without a word (Mosquitto's message_size_limit) or ends the
connection (max_packet_size); either way the models would never arrive and the run would stand still.
"""

from __future__ import annotations

from dataclasses import dataclass

from common.quantities import RunId
from common.transport.channel import Channel
from common.wire.topics import probe_topic


@dataclass(slots=True)
class SizeProbe:
    """Two messages to ourselves: a large one, and behind it a small one that tells when to stop waiting."""

    run: RunId
    nonce: str  # another cloud's probe is not ours
    channel: Channel
    size: int  # bytes of the large one
    passed: bool = False  # it came back
    settled: bool = False  # the small one came back, so nothing is to be waited for

    def begin(self) -> None:
        """Listen to our own messages; `send` must follow in the loop's thread, behind the subscription."""
        self.channel.subscribe(probe_topic(self.run), self.on_word)

    def send(self) -> None:
        """Send both, without acknowledgement, as models are sent."""
        mark = self.nonce.encode()
        self.channel.publish(probe_topic(self.run), mark.ljust(self.size, b"\0"))
        self.channel.publish(probe_topic(self.run), mark)

    def on_word(self, topic: str, payload: bytes) -> None:  # noqa: ARG002
        mark = self.nonce.encode()
        if payload == mark:
            self.settled = True
        elif len(payload) == self.size and payload.startswith(mark):
            self.passed = True

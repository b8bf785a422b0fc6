"""One cloud per run: before it starts, a cloud asks whether another one is serving the run."""

from __future__ import annotations

from dataclasses import dataclass

from common.quantities import RunId
from common.transport.channel import Channel
from common.wire.codec import Presence, decode_presence, encode_presence
from common.wire.topics import clouds_topic, presence_topic


@dataclass(slots=True)
class Inquiry:
    """What a cloud learns before it announces itself.

    A retained online presence may be left over from a cloud whose end the broker has not noticed; an answer is not.
    """

    run: RunId
    nonce: str
    channel: Channel
    incarnation: int = 0
    online: bool = False  # so the retained presence of another cloud says
    asked: bool = False  # our question came back; a retained presence would have come before it
    answered: bool = False  # another cloud is alive

    def begin(self) -> None:
        """Look at the presence and ask."""
        self.channel.subscribe(presence_topic(self.run), self.on_presence, qos=1, retained=True)
        self.channel.subscribe(clouds_topic(self.run), self.on_word, qos=1)
        question = encode_presence(Presence(False, self.nonce, self.incarnation))
        self.channel.publish(clouds_topic(self.run), question, qos=1)

    @property
    def settled(self) -> bool:
        """Whether there is nothing to wait for: another cloud has answered, or none has left its presence."""
        return self.answered or (self.asked and not self.online)

    def on_presence(self, topic: str, payload: bytes) -> None:  # noqa: ARG002
        presence = decode_presence(payload)
        self.online = presence.online and presence.nonce != self.nonce

    def on_word(self, topic: str, payload: bytes) -> None:  # noqa: ARG002
        presence = decode_presence(payload)
        if presence.nonce == self.nonce:
            self.asked = True
        elif presence.online:
            self.answered = True

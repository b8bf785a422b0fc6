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
    Of clouds that start together the one whose question the broker takes first goes on: all of them get the questions
    in the broker's order, and the last question is retained until a cloud has announced itself.
    """

    run: RunId
    nonce: str
    channel: Channel
    incarnation: int = 0
    online: bool = False  # so the retained presence of another cloud says
    earlier: bool = False  # another cloud has asked before us; it may have died since
    asked: bool = False  # our question came back; a retained presence would have come before it
    answered: bool = False  # another cloud is alive
    _left: str = ""  # nonce of the retained presence

    def begin(self) -> None:
        """Look at the presence and ask."""
        self.channel.subscribe(presence_topic(self.run), self.on_presence, qos=1, retained=True)
        self.channel.subscribe(clouds_topic(self.run), self.on_word, qos=1, retained=True)
        question = encode_presence(Presence(False, self.nonce, self.incarnation))
        self.channel.publish(clouds_topic(self.run), question, qos=1, retain=True)

    def withdraw(self) -> None:
        """Remove our question: this cloud does not start. Another one that answered removes it itself."""
        if not self.answered:
            self.channel.publish(clouds_topic(self.run), b"", qos=1, retain=True)

    @property
    def settled(self) -> bool:
        """Whether there is nothing to wait for: another cloud has answered, or none has left presence or question."""
        return self.answered or (self.asked and not self.online and not self.earlier)

    def on_presence(self, topic: str, payload: bytes) -> None:  # noqa: ARG002
        presence = decode_presence(payload)
        self.online = presence.online and presence.nonce != self.nonce
        if not self.online:
            return
        if not self.asked:
            self._left = presence.nonce
        elif presence.nonce != self._left:
            self.answered = (
                True  # not the retained one, which a reconnect brings again: it has begun just now
            )

    def on_word(self, topic: str, payload: bytes) -> None:  # noqa: ARG002
        if not payload:
            return  # a question that was withdrawn
        presence = decode_presence(payload)
        if presence.nonce == self.nonce:
            self.asked = True
        elif presence.online:
            self.answered = True
        elif not self.asked:
            self.earlier = True
        elif not self.earlier and not self.answered:  # it comes after us, and nobody else speaks for the run
            answer = encode_presence(Presence(True, self.nonce, self.incarnation))
            self.channel.publish(clouds_topic(self.run), answer, qos=1)

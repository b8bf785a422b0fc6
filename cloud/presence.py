"""One cloud per run: its retained presence and halt, kept up against others, and the question who serves the run."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from common.errors import ConfigurationError, RemoteProtocolError
from common.messages import Halt, Presence
from common.quantities import RunId
from common.transport.channel import Channel, Loop, Timer
from common.wire.codec import decode_halt, decode_presence, encode
from common.wire.topics import clouds_topic, halt_topic, presence_topic

_ANSWER = 5.0  # seconds for the answer of another cloud whose presence is still retained
_RESTORE = 0.25  # seconds until presence and halt are retained again, however many messages call for it
_RETRY = 0.1  # seconds between two tries to publish
_T = TypeVar("_T")


@dataclass(slots=True)
class ResendQueue(Generic[_T]):
    """Messages that wait their turn, by topic; an older one of the same topic is of no use to its reader."""

    loop: Loop
    publish: Callable[[str, _T], bool]  # whether the channel took it
    ready: Callable[[], bool] = lambda: True  # whether a try can succeed now
    waiting: dict[str, _T] = field(default_factory=dict)
    _timer: Timer | None = None

    def send(self, topic: str, message: _T) -> None:
        """Publish now, or as soon as the channel takes it."""
        if self.publish(topic, message):
            self.forget(topic)
        else:
            self.add(topic, message)

    def add(self, topic: str, message: _T) -> None:
        """Publish later, in the place of what waits for the topic."""
        self.waiting[topic] = message
        if self._timer is None:
            self._timer = self.loop.call_later(_RETRY, self._retry)

    def forget(self, topic: str) -> None:
        self.waiting.pop(topic, None)

    def _retry(self) -> None:
        self._timer = None
        while self.waiting and self.ready():
            topic, message = next(iter(self.waiting.items()))
            if not self.publish(topic, message):
                break
            del self.waiting[topic]
        if self.waiting:
            self._timer = self.loop.call_later(_RETRY, self._retry)


@dataclass(slots=True)
class CloudPresence:
    """Presence and halt of one run, retained; what other senders write in their place does not stay."""

    run: RunId
    nonce: str  # of this cloud's process
    incarnation: int  # of the run
    loop: Loop
    channel: Channel
    warn: Callable[[str], None]  # tells the operator, a bounded number of times
    dropped: Counter[str]  # messages that break the protocol, by kind
    halt: Halt | None = None
    over: bool = False  # the loop ends: no cloud is here for the edges
    _queue: ResendQueue[bytes] = field(init=False)
    _restoring: bool = False

    def __post_init__(self) -> None:
        def retain(topic: str, payload: bytes) -> bool:
            return self.channel.publish(topic, payload, qos=1, retain=True)

        self._queue = ResendQueue(self.loop, retain)

    def begin(self) -> None:
        """Announce the cloud; a halt left by an earlier run of this name is removed."""
        self._retain_halt()
        self.announce()
        # after our own presence: one that a former cloud left is no news
        subscribe = self.channel.subscribe
        subscribe(presence_topic(self.run), self.on_presence, qos=1, retained=True)
        subscribe(halt_topic(self.run), self.on_halt, qos=1, retained=True)
        self._clear_questions()  # ours: the presence says more
        subscribe(clouds_topic(self.run), self.on_inquiry, qos=1)

    def announce(self) -> None:
        """Publish the cloud's presence; again after every reconnect, since its last will said it is offline."""
        self._queue.send(presence_topic(self.run), self._encoded(online=not self.over))

    def tell_halt(self, halt: Halt) -> None:
        """Publish the halt, again until the channel takes it: no edge may miss it."""
        self.halt = halt
        self._retain_halt()

    def leave(self) -> None:
        self.over = True
        self.announce()

    def restore(self) -> None:
        """Retain presence and halt again, soon: an unreadable message may have replaced either.

        A new edge would wait for a presence forever.
        """
        if not self._restoring:
            self._restoring = True
            self.loop.call_later(_RESTORE, self._restore)

    def _restore(self) -> None:
        self._restoring = False
        self._retain_halt()
        self.announce()

    @property
    def owing(self) -> bool:
        """Whether the channel still has to take the halt or the presence."""
        return bool(self._queue.waiting)

    def _encoded(self, *, online: bool) -> bytes:
        return encode(Presence(online, self.nonce, self.incarnation, over=self.over))

    @property
    def _encoded_halt(self) -> bytes:
        return b"" if self.halt is None else encode(self.halt)

    def _retain_halt(self) -> None:
        self._queue.send(halt_topic(self.run), self._encoded_halt)

    # -- messages of other senders ----------------------------------------------------------------------

    def on_halt(self, topic: str, payload: bytes) -> None:
        """Remove a halt that is not ours: late edges would believe it, and the others ask us about it."""
        ours = self._encoded_halt
        if not payload or payload == ours:
            return
        self.dropped["halt"] += 1
        self.warn(f"run {self.run!r}: a halt from another sender was removed")
        self._queue.send(topic, ours)
        decode_halt(payload)  # what is no halt at all is a violation, too

    def on_presence(self, topic: str, payload: bytes) -> None:  # noqa: ARG002
        """Announce again where the will of another cloud, or a late one of ours, says that no cloud is online.

        Also where the retained presence was removed, or replaced by an unreadable message.
        """
        try:
            presence = self._decoded(payload)
        except RemoteProtocolError:
            self.restore()
            raise
        if self.over:
            return
        if not presence.online:
            self.announce()
            if presence.over and presence.incarnation == self.incarnation:
                self.dropped["presence"] += 1
                self.warn(
                    f"run {self.run!r}: another sender has said goodbye in this cloud's name: with a halt it"
                    " ends edges, with exit code 0; the broker's ACL keeps others from that topic"
                )
        elif presence.nonce != self.nonce:
            self.warn(f"another cloud is announcing itself for run {self.run!r}")

    def on_inquiry(self, topic: str, payload: bytes) -> None:  # noqa: ARG002
        """Answer a cloud that is about to start under this run's name."""
        if not payload:
            return  # a question that was withdrawn
        asking = self._decoded(payload)
        if not asking.online and asking.nonce != self.nonce and not self.over:
            self.channel.publish(clouds_topic(self.run), self._encoded(online=True), qos=1)
            self._clear_questions()  # it will not start

    def _clear_questions(self) -> None:
        self.channel.publish(clouds_topic(self.run), b"", qos=1, retain=True)

    def _decoded(self, payload: bytes) -> Presence:
        try:
            return decode_presence(payload)
        except RemoteProtocolError:
            self.dropped["presence"] += 1
            raise


@dataclass(slots=True)
class Inquiry:
    """Asks, before a cloud announces itself, whether another one serves the run.

    A retained online presence may be left over from a cloud whose end the broker has not noticed; an answer is not.
    Of clouds that start together the one whose question the broker takes first continues: all of them get the questions
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
        self.channel.subscribe(presence_topic(self.run), self.on_presence, qos=1, retained=True)
        self.channel.subscribe(clouds_topic(self.run), self.on_word, qos=1, retained=True)
        question = encode(Presence(False, self.nonce, self.incarnation))
        self.channel.publish(clouds_topic(self.run), question, qos=1, retain=True)

    def ask(self, loop: Loop, say: Callable[[str], None]) -> None:
        """Ask and wait; raise ConfigurationError if another cloud answers. A mere retained presence is replaced."""
        self.begin()
        loop.serve(lambda: self.settled, until=loop.now() + _ANSWER)
        self.check_alone()
        if self.online or self.earlier:
            say(f"run {self.run!r}: previous cloud unresponsive; taking over")

    def withdraw(self) -> None:
        """Remove our question: this cloud does not start. Another one that answered removes it itself."""
        if not self.answered:
            self.channel.publish(clouds_topic(self.run), b"", qos=1, retain=True)

    def check_alone(self) -> None:
        """Raise ConfigurationError if another cloud has answered."""
        if self.answered:
            raise ConfigurationError(
                f"run = {self.run!r}: another cloud is serving it on this broker, or began to at the same moment; stop"
                " that one, or choose another --run"
            )

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
            self.answered = True  # not the retained one, which a reconnect repeats: it has just begun

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
        elif not self.earlier and not self.answered:  # it comes after us, and no other cloud serves the run
            answer = encode(Presence(True, self.nonce, self.incarnation))
            self.channel.publish(clouds_topic(self.run), answer, qos=1)

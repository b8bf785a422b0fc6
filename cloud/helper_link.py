"""The cloud's shell for its helpers: asks and replies on the channel, and who has been silent for too long."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from cloud.secure_sums import AskHelper, SecureSums, SumEffect
from common.errors import RemoteProtocolError
from common.quantities import RunId
from common.secure.agreement import Ask, HelperHello, Offer, Statement, hello_statement
from common.secure.terms import HelperKeys
from common.transport.channel import Channel, Loop
from common.wire.secure_codec import decode_reply, encode_ask
from common.wire.secure_v1 import REPLY_LIMIT, answer_limit
from common.wire.topics import HelperTopic, every_helper, helper_name, helper_topic

PATIENCE = 2.0  # seconds that a helper may owe an answer before it counts as away

# Whether a statement was signed under a certificate of the services' authority that bears this name.
Trusted = Callable[[Statement, bytes, str], bool]
Agree = Callable[[tuple[HelperKeys, ...]], SecureSums]  # makes the run's terms, and has them in the log


@dataclass(slots=True)
class HelperLink:
    """The helpers of one incarnation of a run, each known by the name of its branch.

    Until all c have said hello there are no terms. What the sums bring about beside asks is performed by the run.
    """

    run: RunId
    incarnation: int
    count: int  # c
    channel: Channel
    loop: Loop
    agree: Agree
    perform: Callable[[SumEffect], None]
    trusted: Trusted = lambda _signed, _statement, _name: True
    sums: SecureSums | None = None  # of a run that is resumed: its terms are in the log
    names: dict[int, str] = field(default_factory=dict)  # by place
    dropped: Counter[str] = field(default_factory=Counter)  # messages that break the protocol, by kind
    _hellos: dict[int, HelperHello] = field(default_factory=dict)
    _since: dict[int, float] = field(default_factory=dict)  # when a helper was last asked or heard

    def start(self) -> None:
        """Subscribe; helpers say hello once they hear that the cloud is there."""
        self.channel.subscribe(every_helper(self.run, HelperTopic.HELLO), self.on_hello, qos=1)
        self.channel.subscribe(every_helper(self.run, HelperTopic.REPLY), self.on_reply, qos=1)
        self.loop.call_later(PATIENCE / 2, self._look_for_silence)

    def on_hello(self, topic: str, payload: bytes) -> None:
        try:
            self._greeted(helper_name(topic), decode_reply(payload))
        except RemoteProtocolError:
            self.dropped["helper-hello"] += 1
            raise

    def on_reply(self, topic: str, payload: bytes) -> None:
        sums = self.sums
        try:
            place = self._place_of(helper_name(topic))
            if sums is None or place is None:
                raise RemoteProtocolError("a reply of a helper that has not said hello")
            terms = sums.terms
            limit = max(REPLY_LIMIT, answer_limit(terms.dimension, terms.modulus_bits))
            reply = decode_reply(payload, limit)
            if isinstance(reply, HelperHello):
                raise RemoteProtocolError("a hello among the replies")
            self._since[place] = self.loop.now()
            effects = sums.answered(place, reply)
        except RemoteProtocolError:
            self.dropped["helper-reply"] += 1
            raise
        self.carry_out(effects)

    def carry_out(self, effects: Iterable[SumEffect]) -> None:
        """Send asks and hand the rest to the run, in their order."""
        for effect in effects:
            if isinstance(effect, AskHelper):
                self._send(effect.helper, effect.ask)
            else:
                self.perform(effect)

    def finish(self) -> None:
        """Have every helper destroy its keys."""
        if self.sums is not None:
            self.carry_out(self.sums.finish())

    def _greeted(self, name: str, hello: object) -> None:
        if not isinstance(hello, HelperHello) or hello.incarnation != self.incarnation:
            raise RemoteProtocolError(f"{name}: no hello for this incarnation of the run")
        place = hello.helper
        if place >= self.count or not self.trusted(hello.signed, hello_statement(self.run, hello), name):
            raise RemoteProtocolError(f"{name}: not helper {place} of this run, or not by its certificate")
        if self.names.get(place, name) != name or self._place_of(name) not in (None, place):
            raise RemoteProtocolError(f"{name}: helper {place} is another, or this one has another place")
        if self.sums is not None:
            effects = self.sums.greeted(hello)
            self.names[place] = name
            self._since[place] = self.loop.now()
            self.carry_out(effects)
            return
        self.names[place], self._hellos[place] = name, hello
        if len(self._hellos) == self.count:
            hellos = [self._hellos[at] for at in range(self.count)]
            self.sums = self.agree(tuple(HelperKeys(one.box, one.signing) for one in hellos))
            for one in hellos:
                self._since[one.helper] = self.loop.now()
                self.carry_out(self.sums.greeted(one))

    def _place_of(self, name: str) -> int | None:
        return next((place for place, known in self.names.items() if known == name), None)

    def _send(self, place: int, ask: Ask) -> None:
        if (name := self.names.get(place)) is not None:
            self._since[place] = self.loop.now()
            self.channel.publish(helper_topic(self.run, name, HelperTopic.ASK), encode_ask(ask), qos=1)

    def _look_for_silence(self) -> None:
        """Count helpers that owe an answer for too long as away, and keep asking those for a hello."""
        if (sums := self.sums) is not None:
            late = self.loop.now() - PATIENCE
            for place in range(self.count):
                if self._since.get(place, 0.0) > late:
                    continue
                if place in sums.awaited:
                    self.carry_out(sums.silent(place))
                if place not in sums.here:
                    self._send(place, Offer(sums.terms.encoded))
        self.loop.call_later(PATIENCE / 2, self._look_for_silence)

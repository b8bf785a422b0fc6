"""A helper's shell: what the cloud asks it on a channel, its memory on disk, and its replies."""

from __future__ import annotations

import secrets
from collections import Counter
from collections.abc import Callable
from pathlib import Path

from common.errors import RecordsError, RemoteProtocolError
from common.quantities import RunId
from common.secure.agreement import Answer, HelperHello, Reply, Statement
from common.transport.channel import Channel
from common.wire.codec import decode_presence
from common.wire.secure_codec import decode_ask, encode_reply
from common.wire.secure_v1 import ASK_LIMIT, REPLY_LIMIT, answer_limit
from common.wire.topics import HelperTopic, helper_topic, presence_topic
from mapa.helper.helper import Authority, Helper, Seal
from mapa.helper.signed_sets import SignedSets

EXIT_DONE, EXIT_FAILED = 0, 1
_FRONT = 1024  # bytes of a packet beside an ask, with room to spare


def unsigned(_statement: bytes) -> Statement:
    """Sign under no certificate: for runs where the broker alone says who a helper is."""
    return Statement(b"", b"")


class HelperService:
    """One helper of one run; everything happens in the loop's thread.

    It has keys and a file for every incarnation of the run that the cloud announces, and ends with the one whose cloud
    has it destroy its keys.
    """

    def __init__(
        self,
        run: RunId,
        name: str,
        place: int,
        folder: Path,
        channel: Channel,
        *,
        authority: Authority | None = None,
        seal: Seal = unsigned,
        say: Callable[[str], None] = print,
        on_stop: Callable[[int], None],
    ) -> None:
        self.run, self.name, self.place = run, name, place
        self.helper: Helper | None = None  # None: no cloud was heard of yet
        self.dropped: Counter[str] = Counter()  # messages that break the protocol, by kind
        self.refusals: Counter[str] = Counter()  # by reason
        self._folder, self._channel, self._say, self._on_stop = folder, channel, say, on_stop
        self._authority, self._seal = authority, seal
        self._sets: SignedSets | None = None
        self._ended = False

    def start(self) -> None:
        """Subscribe; the cloud's presence, which the broker keeps, begins the rest."""
        self._channel.allow(ASK_LIMIT + _FRONT)
        self._channel.subscribe(helper_topic(self.run, self.name, HelperTopic.ASK), self.on_ask, qos=1)
        self._channel.subscribe(presence_topic(self.run), self.on_presence, qos=1, retained=True)

    def on_connected(self) -> None:
        """Say hello again: what was asked meanwhile is asked once more."""
        if self.helper is not None and not self._ended:
            self._publish(self.helper.hello)

    def on_presence(self, _topic: str, payload: bytes) -> None:
        """Greet a cloud that is there, with the keys for its incarnation."""
        try:
            presence = decode_presence(payload)
        except RemoteProtocolError:
            self.dropped["presence"] += 1
            raise
        if not presence.online or self._ended:
            return
        if self.helper is None or self.helper.secrets.incarnation != presence.incarnation:
            try:
                self._begin(presence.incarnation)
            except RecordsError as error:
                self._stop(EXIT_FAILED, str(error))
                return
        self.on_connected()

    def on_ask(self, _topic: str, payload: bytes) -> None:
        """Do what is asked: its records are on the disk before its replies leave."""
        helper, sets = self.helper, self._sets
        if helper is None or sets is None or self._ended:
            return
        try:
            ask = decode_ask(payload)
        except RemoteProtocolError:
            self.dropped["ask"] += 1
            raise
        records, replies = helper.receive(ask)
        try:
            sets.append(*records)
        except RecordsError as error:
            self._stop(EXIT_FAILED, f"{error}; nothing more is signed or answered")
            return
        for reply in replies:
            self._publish(reply)
        if helper.finished:
            self._stop(EXIT_DONE, f"run {self.run!r} is over: its keys are destroyed")

    def close(self) -> None:
        """Let the file go, as a kill would."""
        self._ended = True
        if self._sets is not None:
            self._sets.close()
            self._sets = None

    def _begin(self, incarnation: int) -> None:
        if self._sets is not None:
            self._sets.close()
        self.helper = self._sets = None
        sets = SignedSets(self._folder, self.run, incarnation, self.place, secrets.token_bytes)
        self._sets = sets
        self.helper = Helper(sets.secrets, authority=self._authority, seal=self._seal, records=sets.records)

    def _publish(self, reply: Reply | HelperHello) -> None:
        if isinstance(reply, Answer) and self.helper is not None and self.helper.terms is not None:
            limit = answer_limit(self.helper.terms.dimension, self.helper.terms.modulus_bits)
        else:
            limit = REPLY_LIMIT
        if (reason := getattr(reply, "reason", None)) is not None:
            self.refusals[reason] += 1
        leaf = HelperTopic.HELLO if isinstance(reply, HelperHello) else HelperTopic.REPLY
        self._channel.publish(helper_topic(self.run, self.name, leaf), encode_reply(reply, limit), qos=1)

    def _stop(self, code: int, why: str) -> None:
        self._say(f"{self.name}: {why}")
        self.close()
        self._on_stop(code)

"""What the cloud sends: read, checked against this edge's own books, and told to the session."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TypeVar

from common.errors import RemoteProtocolError
from common.messages import ModelReceived, Refuse, Welcome
from common.quantities import RunId
from common.transport.channel import Channel
from common.wire.codec import decode_answer, decode_halt, decode_model, decode_presence
from common.wire.topics import EdgeTopic, edge_topic, halt_topic, presence_topic
from edge.conversation import FromCloud, Phase
from edge.joining import Joining
from edge.session import EdgeSession
from edge.worker import EdgeWorker

_T = TypeVar("_T")


@dataclass(slots=True)
class Inbox:
    """The four topics that an edge reads. What breaks the protocol is counted and raised: the channel goes on."""

    run: RunId
    nonce: str
    joining: Joining
    session: EdgeSession
    tell: Callable[[FromCloud], None]
    say: Callable[[str], None]
    dropped: Counter[str] = field(default_factory=Counter)
    _early: bytes | None = None  # a model that came before the welcome

    def subscribe(self, channel: Channel) -> None:
        edge_id = self.joining.edge_id
        channel.subscribe(edge_topic(self.run, edge_id, EdgeTopic.MODEL), self.on_model)
        channel.subscribe(edge_topic(self.run, edge_id, EdgeTopic.WELCOME), self.on_answer, qos=1)
        # before the halt: a retained one is then judged by who is there
        channel.subscribe(presence_topic(self.run), self.on_presence, qos=1, retained=True)
        channel.subscribe(halt_topic(self.run), self.on_halt, qos=1, retained=True)

    def on_model(self, topic: str, payload: bytes) -> None:  # noqa: ARG002 - the topic is ours alone
        preparation = self.joining.preparation
        if preparation is None or not self.session.welcomed:
            self._early = payload  # QoS 0 may overtake the welcome's QoS 1
            return
        self.tell(self._read("model", lambda: self._model(payload, preparation.worker)))

    def on_answer(self, topic: str, payload: bytes) -> None:
        answer = self._read("welcome", lambda: self._answer(payload))
        if answer is None:
            return
        self.tell(answer)
        if self._early is not None and self.session.welcomed:
            early, self._early = self._early, None
            self.on_model(topic, early)

    def on_halt(self, topic: str, payload: bytes) -> None:  # noqa: ARG002
        if (
            payload
        ):  # an empty one says that the broker keeps none; the cloud is asked about one that was heard
            self.tell(self._read("halt", lambda: decode_halt(payload)))

    def on_presence(self, topic: str, payload: bytes) -> None:  # noqa: ARG002
        presence = self._read("presence", lambda: decode_presence(payload))
        before = self.session.cloud.presence
        self.tell(presence)
        if before is None or before.online == presence.online or self.session.phase is Phase.DONE:
            return
        back = "is back" if presence.online else "is offline; waiting for it"
        self.say(f"{self.joining.edge_id}: the cloud {back}")

    def forget(self) -> None:
        """Read nothing more for the id before."""
        self._early = None

    def _read(self, kind: str, decode: Callable[[], _T]) -> _T:
        try:
            return decode()
        except RemoteProtocolError:
            self.dropped[kind] += 1
            raise

    def _model(self, payload: bytes, worker: EdgeWorker) -> ModelReceived:
        received = decode_model(self.joining.edge_id, payload, worker.model.dimension)
        # `clip` asks again, for whoever calls it: no release without it. Here, so that such a model is dropped before
        # it counts as an answer.
        worker.check(received)
        self._check_sequence("model: acknowledged", received.acknowledged)
        return received

    def _answer(self, payload: bytes) -> Welcome | Refuse | None:
        """Return the answer; None: it is for another process of this id. A refuse of a gradient names no process."""
        answer = decode_answer(self.joining.edge_id, payload)
        if isinstance(answer, Refuse):
            return answer if answer.nonce in (None, self.nonce) else None
        if answer.nonce != self.nonce:
            return None
        if answer.number > self.session.hellos:
            raise RemoteProtocolError(f"welcome: number = {answer.number}: no such hello was sent")
        self._check_sequence("welcome: last_sequence", answer.last_sequence)
        return answer

    def _check_sequence(self, key: str, sequence: int) -> None:
        """Believe in no gradient that was never debited: a cloud that has seen more answers `ledger-lost`."""
        debited = self.session.last_sequence
        if sequence > debited:
            raise RemoteProtocolError(f"{key} = {sequence}: must be at most {debited}, the last one debited")

"""What proves each message of a run to its reader: the cloud's guard and an edge's; pure.

A guard stands between a service and its channel: what it opens is proven to be of the peer that the topic names, and
what it cannot prove never reaches the service. Gradients and models are sealed under a session; hellos, answers to
them, leaves, wills, halts and presence are signed, since they come before a session or outlive it.
"""

from __future__ import annotations

from collections.abc import Callable

from common.errors import ForgedMessageError, RemoteProtocolError, TooOftenError
from common.messages import Welcome
from common.quantities import EdgeId, RunId
from common.transport.channel import Bytes
from common.wire.codec import decode_answer, decode_hello
from common.wire.sessions import GRADIENTS, MODELS, Session, Side, nonce_of
from common.wire.signatures import CLOUD, EDGES, SERVICES, Signed, Signer, Trust
from common.wire.topics import (
    EdgeTopic,
    clouds_topic,
    edge_topic,
    halt_topic,
    parse_edge_topic,
    presence_topic,
    probe_topic,
)

MaySpeak = Callable[[EdgeId], bool]
_PROCESSES = 4  # of one edge whose sessions are kept; a broker may repeat the hellos of old ones


class CloudGuard:
    """The cloud's: one session for each process of an edge that has said hello."""

    def __init__(
        self, run: RunId, incarnation: int, signer: Signer, trust: Trust, may_speak: MaySpeak = lambda _: True
    ) -> None:
        """`may_speak`: asked before a signature of an edge is checked, which costs more than to send it."""
        self._run, self._incarnation, self._signer, self._trust = run, incarnation, signer, trust
        self._may_speak = may_speak
        self._of_clouds = {halt_topic(run), presence_topic(run), clouds_topic(run)}
        self._probe = probe_topic(run)
        self.side = Side(signer.nonce, signer.run_key.public, signer.certificate)
        self._sessions: dict[EdgeId, dict[bytes, Session]] = {}  # by the nonce of the edge's process
        self._of_gradients: dict[str, dict[bytes, Session]] = {}  # the same by topic, for every update
        self._welcomed: dict[EdgeId, Session] = {}  # whom models are for

    def seal(self, topic: str, *payload: Bytes) -> tuple[Bytes, ...] | None:
        """Return a message as it is sent; None: there is no session for it."""
        if topic == self._probe:
            return payload
        body = b"".join(payload)
        if topic in self._of_clouds:
            return (self._signer.sign(topic, body) if body else body,)
        _, edge_id, leaf = parse_edge_topic(topic)
        if leaf is EdgeTopic.MODEL:
            session = self._welcomed.get(edge_id)
            return None if session is None else (body, session.seal(body))
        self._answers(edge_id, body)
        return (self._signer.sign(topic, body),)

    def open(self, topic: str, payload: bytes) -> bytes:
        """Return the body of a message of the peer that its topic names; RemoteProtocolError: it is none."""
        sessions = self._of_gradients.get(topic)
        session = None if sessions is None else sessions.get(nonce_of(payload))
        if session is not None:
            self._trust.check(EDGES, session.serial)
            return session.open(payload)
        if topic in self._of_clouds:  # an empty one claims nothing: it removes what is retained
            return self._trust.verified(topic, payload, SERVICES, CLOUD).body if payload else payload
        if topic == self._probe:
            return payload
        _, edge_id, leaf = parse_edge_topic(topic)
        if leaf is EdgeTopic.GRADIENT:
            raise ForgedMessageError("gradient: of no session")
        if not self._may_speak(edge_id):
            raise TooOftenError(f"{leaf.value}: too many of this edge")
        signed = self._trust.verified(topic, payload, EDGES, edge_id)
        if leaf is EdgeTopic.HELLO:
            self._hears(edge_id, signed)
        return signed.body

    def _hears(self, edge_id: EdgeId, signed: Signed) -> None:
        """Agree on a session with the process that says hello, unless there is one, or the hello is an old one."""
        hello = decode_hello(edge_id, signed.body)
        if bytes.fromhex(hello.nonce) != signed.nonce:
            raise RemoteProtocolError("hello: signed under another nonce than its own")
        sessions = self._sessions.setdefault(edge_id, {})
        self._of_gradients[edge_topic(self._run, edge_id, EdgeTopic.GRADIENT)] = sessions
        known = sessions.get(signed.nonce)
        side = Side(signed.nonce, signed.key, signed.certificate)
        if known is not None and (hello.number <= known.number or side == known.other):
            known.number = max(known.number, hello.number)
            return
        if len(sessions) >= _PROCESSES:  # the one that was heard of first, but never the one that takes part
            welcomed = self._welcomed.get(edge_id)
            del sessions[next(nonce for nonce, one in sessions.items() if one is not welcomed)]
        sessions[signed.nonce] = Session(
            self._signer.run_key,
            self._run,
            self._incarnation,
            edge_id,
            side,
            self.side,
            seals=MODELS,
            number=hello.number,
            serial=signed.serial,
        )

    def _answers(self, edge_id: EdgeId, body: bytes) -> None:
        """Note to which process of an edge models go from now on."""
        answer = decode_answer(edge_id, body)
        if isinstance(answer, Welcome):
            session = self._sessions.get(edge_id, {}).get(bytes.fromhex(answer.nonce))
            if session is not None:
                self._welcomed[edge_id] = session


class EdgeGuard:
    """An edge's: one session, with the cloud that welcomed it last."""

    def __init__(self, run: RunId, edge_id: EdgeId, signer: Signer, trust: Trust) -> None:
        self._run, self._edge_id, self._signer, self._trust = run, edge_id, signer, trust
        self._of_clouds = {halt_topic(run), presence_topic(run)}
        self._side = Side(signer.nonce, signer.run_key.public, signer.certificate)
        self._session: Session | None = None

    def seal(self, topic: str, *payload: Bytes) -> tuple[Bytes, ...] | None:
        """Return a message as it is sent; None: there is no session for it."""
        body = b"".join(payload)
        if parse_edge_topic(topic).leaf is EdgeTopic.GRADIENT:
            return None if self._session is None else (body, self._session.seal(body))
        return (self._signer.sign(topic, body),)

    def open(self, topic: str, payload: bytes) -> bytes:
        """Return the body of a message of the cloud; RemoteProtocolError: it is none."""
        if topic in self._of_clouds:  # an empty one claims nothing: it removes what is retained
            return self._trust.verified(topic, payload, SERVICES, CLOUD).body if payload else payload
        if parse_edge_topic(topic).leaf is EdgeTopic.MODEL:
            if self._session is None:
                raise ForgedMessageError("model: of no session")  # its welcome may still come: QoS 1
            self._trust.check(SERVICES, self._session.serial)
            return self._session.open(payload)
        signed = self._trust.verified(topic, payload, SERVICES, CLOUD)
        self._hears(signed)
        return signed.body

    def _hears(self, signed: Signed) -> None:
        """Agree on a session with the cloud that welcomes this process, unless there is one, or the welcome is old."""
        welcome = decode_answer(self._edge_id, signed.body)
        if not isinstance(welcome, Welcome) or bytes.fromhex(welcome.nonce) != self._signer.nonce:
            return
        known, side = self._session, Side(signed.nonce, signed.key, signed.certificate)
        if known is not None and welcome.number <= known.number:
            return
        if known is not None and (side, welcome.incarnation) == (known.other, known.incarnation):
            known.number = welcome.number
            return
        self._session = Session(
            self._signer.run_key,
            self._run,
            welcome.incarnation,
            self._edge_id,
            self._side,
            side,
            seals=GRADIENTS,
            number=welcome.number,
            serial=signed.serial,
        )

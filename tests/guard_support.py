"""A run's cloud and edges with identities, whose messages are proven; and what they say to each other."""

from __future__ import annotations

import secrets
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime

import numpy as np

from common.messages import GradientArrived, Hello, SendModel, Welcome
from common.quantities import EdgeId, NoisyGradient, RunId
from common.secure.boxes import RunKey
from common.wire.codec import encode, encode_gradient, encode_model, new_nonce
from common.wire.guards import CloudGuard, EdgeGuard
from common.wire.signatures import EDGES, SERVICES, Revoked, Signer, Trust
from common.wire.topics import EdgeTopic, edge_topic
from mapa.authority import Authority, Identity, Role

LIFE = 7  # the incarnation
VECTOR = np.arange(1, 9, dtype=np.float32)


def utc_now() -> datetime:
    return datetime.now(UTC)


@dataclass
class Members:
    """The identities of a testbed, made once each."""

    authority: Authority
    made: dict[str, Identity] = field(default_factory=dict)

    def identity(self, name: str, role: Role = Role.EDGE) -> Identity:
        if name not in self.made:
            self.made[name] = self.authority.issue(name, role)
        return self.made[name]

    def signer(self, name: str, role: Role = Role.EDGE, nonce: str | None = None) -> Signer:
        identity = self.identity(name, role)
        run_key = RunKey(secrets.token_bytes(32))
        return Signer(identity.key, identity.certificate, nonce or new_nonce(), run_key)

    def trust(self, revoked: Revoked = frozenset, now: Callable[[], datetime] = utc_now) -> Trust:
        pems = {name: (self.authority.folder / f"{name}.pem").read_bytes() for name in (EDGES, SERVICES)}
        return Trust(pems, now, revoked)

    def cloud(self, run: str = "r", life: int = LIFE, **trust: object) -> CloudGuard:
        return CloudGuard(RunId(run), life, self.signer("cloud", Role.CLOUD), self.trust(**trust))  # type: ignore[arg-type]

    def edge(self, name: str = "e1", run: str = "r", nonce: str | None = None) -> Speaker:
        nonce = nonce or new_nonce()
        guard = EdgeGuard(RunId(run), EdgeId(name), self.signer(name, nonce=nonce), self.trust())
        return Speaker(guard, name, run, nonce)


@dataclass
class Speaker:
    """An edge's process, and what it says."""

    guard: EdgeGuard
    name: str
    run: str
    nonce: str
    hellos: int = 0

    def topic(self, leaf: EdgeTopic) -> str:
        return edge_topic(RunId(self.run), EdgeId(self.name), leaf)

    def hello(self, life: int = LIFE) -> bytes:
        self.hellos += 1
        said = Hello(edge_id=EdgeId(self.name), nonce=self.nonce, number=self.hellos, incarnation=life)
        return sealed(self.guard, self.topic(EdgeTopic.HELLO), encode(said))

    def gradient(self, sequence: int = 1) -> bytes:
        return sealed(self.guard, self.topic(EdgeTopic.GRADIENT), gradient(sequence))

    def join(self, cloud: CloudGuard, life: int = LIFE) -> bytes:
        """Say hello and hear the welcome; return it as it was sent."""
        cloud.open(self.topic(EdgeTopic.HELLO), self.hello(life))
        said = sealed(cloud, self.topic(EdgeTopic.WELCOME), self.welcome(life))
        self.guard.open(self.topic(EdgeTopic.WELCOME), said)
        return said

    def welcome(self, life: int = LIFE) -> bytes:
        return encode(
            Welcome(
                edge_id=EdgeId(self.name),
                index=0,
                edges=2,
                last_sequence=0,
                nonce=self.nonce,
                number=self.hellos,
                incarnation=life,
            )
        )


def gradient(sequence: int = 1) -> bytes:
    return encode_gradient(
        GradientArrived(EdgeId(""), sequence, 1, 0.5, NoisyGradient(VECTOR.astype(np.float64)), LIFE)
    )


def model(version: int = 1) -> bytes:
    return encode_model(SendModel(EdgeId(""), version, 0.5, 0, VECTOR, LIFE))


def sealed(guard: CloudGuard | EdgeGuard, topic: str, body: bytes) -> bytes:
    """Return the bytes that the broker sees."""
    parts = guard.seal(topic, body)
    assert parts is not None, "no session"
    return b"".join(parts)

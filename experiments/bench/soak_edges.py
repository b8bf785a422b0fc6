"""Lean edges for the soak: the real protocol, a prepared vector, a pace of its own.

`python -m experiments.bench.soak_edges` reads one JSON line from stdin, takes part until the halt, writes the round
trips to a .npy file and answers with what it counted.
"""

from __future__ import annotations

import json
import random
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np

from common.messages import GradientArrived, Hello, Refuse
from common.quantities import EdgeId, NoisyGradient, RunId
from common.transport.connection import BrokerAddress, parse_address
from common.transport.loop import SelectorLoop
from common.wire.codec import (
    decode_answer,
    decode_model,
    decode_presence,
    encode_gradient,
    encode_hello,
    new_nonce,
)
from common.wire.topics import EdgeTopic
from experiments.bench.wire_edges import BenchEdge

_RESEND = 5.0  # seconds, as the scenario's resend_after is by default
_CATCH_UP = 1.0  # seconds behind its pace that an edge makes up for
_LOOK_EVERY = 1.0  # seconds between two looks for what is unanswered


class SoakEdge(BenchEdge):
    """One edge that pushes at its pace, says the same again where no answer comes, and times every round trip."""

    def __init__(
        self,
        run: RunId,
        edge_id: EdgeId,
        dimension: int,
        broker: BrokerAddress,
        loop: SelectorLoop,
        *,
        pause: float,
        rng: random.Random,
    ) -> None:
        self.loop, self.pause, self.rng = loop, pause, rng
        self.trips: list[tuple[float, float]] = []  # when answered; seconds since it was first sent
        self.refused: Counter[str] = Counter()
        self.resent = 0
        self._nonce, self._hellos, self._incarnation = new_nonce(), 0, -1
        self._owed: bytes | None = None  # the gradient without an answer
        self._since = self._tried = 0.0  # when it was made; when it was last sent
        self._due = 0.0  # when its next push is due by its pace
        self._thinking = False
        super().__init__(run, edge_id, dimension, broker, loop)

    def on_presence(self, topic: str, payload: bytes) -> None:  # noqa: ARG002
        presence = decode_presence(payload)
        if presence.online:
            self._incarnation = presence.incarnation
            self.say_hello()

    def say_hello(self) -> None:
        self._hellos += 1
        self._tried = self.loop.now()
        hello = Hello(
            edge_id=self.edge_id,
            nonce=self._nonce,
            number=self._hellos,
            incarnation=self._incarnation,
            last_sequence=self.sequence,
        )
        self.channel.publish(self._topics[EdgeTopic.HELLO], encode_hello(hello), qos=1)

    def on_answer(self, topic: str, payload: bytes) -> None:  # noqa: ARG002
        answer = decode_answer(self.edge_id, payload)
        if isinstance(answer, Refuse):
            self.refused[answer.reason] += 1

    def on_model(self, topic: str, payload: bytes) -> None:  # noqa: ARG002
        sent = decode_model(self.edge_id, payload, self.dimension)
        if sent.acknowledged < self.sequence or self._thinking:
            return  # an answer to something older, or a second one
        now = self.loop.now()
        if self._owed is not None:
            self.trips.append((now, now - self._since))
            self._owed = None
        self._thinking = True
        sign = np.float32(1 if self.sequence % 2 else -1)  # so that x stays where it is
        gradient = GradientArrived(
            self.edge_id,
            self.sequence + 1,
            sent.version,
            sent.sensitivity,
            NoisyGradient(self.vector * sign),
            sent.incarnation,
        )
        payload = encode_gradient(gradient)
        self._due = max(self._due + self.rng.uniform(0.5, 1.5) * self.pause, now - _CATCH_UP)
        self.loop.call_later(max(0.0, self._due - now), lambda: self._push(payload))

    def _push(self, payload: bytes) -> None:
        self._thinking = False
        self.sequence += 1
        self._owed, self._since = payload, self.loop.now()
        self._send()

    def _send(self) -> None:
        if self._owed is not None and not self.channel.closed:
            self._tried = self.loop.now()
            self.channel.publish(self._gradient_topic, self._owed)

    def look(self) -> None:
        """Say again what has had no answer for too long."""
        if self._thinking or self._incarnation < 0 or self.loop.now() < self._tried + _RESEND:
            return
        self.resent += 1
        if self._owed is not None:
            self._send()
        else:
            self.say_hello()


def take_part(given: dict[str, Any]) -> dict[str, Any]:
    """Serve these edges until the halt; return what was counted."""
    broker, rng = parse_address(given["broker"]), random.Random(given["seed"])
    with SelectorLoop() as loop:
        edges = [
            SoakEdge(
                RunId(given["run"]),
                EdgeId(edge_id),
                given["dimension"],
                broker,
                loop,
                pause=given["pause"],
                rng=rng,
            )
            for edge_id in given["ids"]
        ]

        def look() -> None:
            for edge in edges:
                edge.look()
            loop.call_later(_LOOK_EVERY, look)

        look()
        ended = loop.serve(
            lambda: all(edge.channel.closed for edge in edges), until=loop.now() + given["until"]
        )
    trips = np.array([trip for edge in edges for trip in edge.trips]).reshape(-1, 2)
    np.save(Path(given["out"]), trips)
    refused = sum((edge.refused for edge in edges), Counter[str]())
    return {"ended": ended, "refused": dict(refused), "resent": sum(edge.resent for edge in edges)}


if __name__ == "__main__":
    print(json.dumps(take_part(json.loads(sys.stdin.readline()))), flush=True)

"""Lean edges in Python: the real protocol on a real channel, but a prepared vector instead of a gradient.

`python -m experiments.bench.edges TASK` takes part in one run and prints a line; TASK is JSON. They go at a pace until
the run's halt, or do what lean_edges.c does, where there is no compiler.
"""

from __future__ import annotations

import json
import random
import sys
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from common.messages import GradientArrived, Hello, Refuse
from common.quantities import EdgeId, NoisyGradient, RunId
from common.transport.connection import MqttOptions, parse_address
from common.transport.loop import SelectorLoop
from common.transport.mqtt import MqttChannel
from common.wire import codec
from common.wire.topics import EdgeTopic, edge_client_id, edge_topic, halt_topic, presence_topic

_RESEND = 5.0  # seconds, as the scenario's resend_after is by default
_CATCH_UP = 1.0  # seconds behind its pace that an edge makes up for
_LOOK_EVERY = 1.0  # seconds between two looks for what is unanswered


@dataclass(frozen=True, slots=True, kw_only=True)
class EdgeTask:
    """What one program of edges is asked to do."""

    broker: str
    run: str
    dimension: int  # N
    patience: float  # seconds until every edge has had a model, or until the halt
    first: int = 0  # number of its first edge
    count: int = 0  # of its edges
    pause: float = 0.0  # seconds between two gradients of an edge, on average; 0: none
    trips: str = ""  # the .npy file for the round trips; none: they are not kept
    warm: float = 0.0
    window: float = 0.0  # seconds after the warm ones that are measured; 0: until the halt
    pids: Sequence[int] = ()  # programs whose processor time is told


class LeanEdge:
    """One edge of zero compute: answers every model with the next sequence, at once or at its pace."""

    def __init__(self, edge_id: EdgeId, task: EdgeTask, loop: SelectorLoop, rng: random.Random) -> None:
        run = RunId(task.run)
        self.edge_id, self.loop, self.pause, self.rng = edge_id, loop, task.pause, rng
        vector = np.full(task.dimension, 1e-3, np.float32)
        self.vectors = NoisyGradient(vector), NoisyGradient(-vector)  # in turn: x stays where it is
        self.sequence = self.hellos = self.resent = self.models = 0
        self.refused: Counter[str] = Counter()
        self.trips: list[tuple[float, float]] = []  # when answered; seconds since it was first sent
        self._nonce, self._incarnation = codec.new_nonce(), -1
        self._gradient: bytes | None = None  # the last one
        self._since = self._tried = self._due = 0.0  # when it was made, last sent, and when the next is due
        self._thinking = False
        self._topics = {leaf: edge_topic(run, edge_id, leaf) for leaf in EdgeTopic}
        options = MqttOptions(address=parse_address(task.broker), client_id=edge_client_id(run, edge_id))
        self.channel = MqttChannel(options, loop)
        self.channel.subscribe(self._topics[EdgeTopic.MODEL], self.on_model)
        self.channel.subscribe(self._topics[EdgeTopic.WELCOME], self.on_answer, qos=1)
        self.channel.subscribe(halt_topic(run), self.on_halt, qos=1, retained=True)
        self.channel.subscribe(presence_topic(run), self.on_presence, qos=1, retained=True)
        self.channel.open()

    def on_presence(self, topic: str, payload: bytes) -> None:  # noqa: ARG002
        """Say hello once the cloud is there; it is there when it has subscribed."""
        presence = codec.decode_presence(payload)
        if presence.online:
            self._incarnation = presence.incarnation
            self._say_hello()

    def _say_hello(self) -> None:
        self.hellos += 1
        self._tried = self.loop.now()
        hello = Hello(
            edge_id=self.edge_id,
            nonce=self._nonce,
            number=self.hellos,
            incarnation=self._incarnation,
            last_sequence=self.sequence,
        )
        self.channel.publish(self._topics[EdgeTopic.HELLO], codec.encode(hello), qos=1)

    def on_answer(self, topic: str, payload: bytes) -> None:  # noqa: ARG002
        answer = codec.decode_answer(self.edge_id, payload)
        if isinstance(answer, Refuse):
            self.refused[answer.reason] += 1

    def on_model(self, topic: str, payload: bytes) -> None:  # noqa: ARG002
        sent = codec.decode_model(self.edge_id, payload, self.vectors[0].size)
        if self.pause and (self._thinking or sent.acknowledged < self.sequence):
            return  # a second answer, or one to something older
        now = self.loop.now()
        if self.sequence and self.pause:
            self.trips.append((now, now - self._since))
        self.models += 1
        vector = self.vectors[self.sequence % 2]
        number = self.sequence + 1
        gradient = GradientArrived(
            self.edge_id, number, sent.version, sent.sensitivity, vector, sent.incarnation
        )
        self._gradient = codec.encode_gradient(gradient)
        if not self.pause:
            self._push()
            return
        self._thinking = True
        self._due = max(self._due + self.rng.uniform(0.5, 1.5) * self.pause, now - _CATCH_UP)
        self.loop.call_later(max(0.0, self._due - now), self._push)

    def _push(self) -> None:
        self._thinking = False
        self.sequence += 1
        self._since = self.loop.now()
        self._send()

    def _send(self) -> None:
        if self._gradient is not None and not self.channel.closed:
            self._tried = self.loop.now()
            self.channel.publish(self._topics[EdgeTopic.GRADIENT], self._gradient)

    def look(self) -> None:
        """Say again what has had no answer for too long."""
        if self._thinking or self._incarnation < 0 or self.loop.now() < self._tried + _RESEND:
            return
        self.resent += 1
        if self.sequence:
            self._send()
        else:
            self._say_hello()

    def on_halt(self, topic: str, payload: bytes) -> None:  # noqa: ARG002
        if payload:
            self.channel.close()


def take_part(task: EdgeTask) -> dict[str, Any]:
    """Serve these edges until the run's halt, or for a measured window; return what was counted."""
    rng = random.Random(task.first)
    with SelectorLoop() as loop:
        numbers = range(task.first, task.first + task.count)
        edges = [LeanEdge(EdgeId(f"edge-{k}"), task, loop, rng) for k in numbers]
        if task.window:
            return _window(task, edges, loop)

        def look() -> None:
            for edge in edges:
                edge.look()
            loop.call_later(_LOOK_EVERY, look)

        look()
        gone = loop.serve(
            lambda: all(edge.channel.closed for edge in edges), until=loop.now() + task.patience
        )
    if task.trips:
        np.save(task.trips, np.array([trip for edge in edges for trip in edge.trips]).reshape(-1, 2))
    refused = sum((edge.refused for edge in edges), Counter[str]())
    return {"ended": gone, "refused": dict(refused), "resent": sum(edge.resent for edge in edges)}


def _window(task: EdgeTask, edges: Sequence[LeanEdge], loop: SelectorLoop) -> dict[str, Any]:
    clocks = [time.CLOCK_PROCESS_CPUTIME_ID, *map(clock_of, task.pids)]
    came = loop.now()
    if not loop.serve(lambda: all(edge.models for edge in edges), until=came + task.patience):
        return {"error": f"{sum(edge.models > 0 for edge in edges)} of {len(edges)} edges had a model"}
    first = loop.now()
    loop.serve(lambda: False, until=first + task.warm)
    began, before = loop.now(), sum(edge.models for edge in edges)
    spent = [time.clock_gettime(clock) for clock in clocks]
    loop.serve(lambda: False, until=began + task.window)
    return {
        "updates": sum(edge.models for edge in edges) - before,
        "seconds": loop.now() - began,
        "first": first - came,
        "resent": 0,
        "cpu": [time.clock_gettime(clock) - start for clock, start in zip(clocks, spent, strict=True)],
    }


def clock_of(pid: int) -> int:
    """Return the clock of a process's own time on processors, as clock_getcpuclockid(3) makes it on Linux."""
    return ~pid << 3 | 2


if __name__ == "__main__":
    print(json.dumps(take_part(EdgeTask(**json.loads(sys.argv[1])))), flush=True)

"""Bench edges: the real protocol on a real channel, but a prepared vector instead of a gradient.

`python -m experiments.bench.wire_edges HOST:PORT` reads a segment a line from stdin, takes part in it
until its halt, and answers with a line. The same children serve every cloud that is measured.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable

import numpy as np

from common.errors import BrokerUnavailableError
from common.messages import GradientArrived, Hello, Refuse
from common.quantities import EdgeId, NoisyGradient, RunId
from common.transport.connection import BrokerAddress, MqttOptions, parse_address
from common.transport.loop import SelectorLoop
from common.transport.mqtt import MqttChannel
from common.wire.codec import (
    decode_answer,
    decode_model,
    decode_presence,
    encode_gradient,
    encode_hello,
    new_nonce,
)
from common.wire.topics import EdgeTopic, edge_client_id, edge_topic, halt_topic, presence_topic

PATIENCE = 60.0  # seconds for one segment; reached only where something hangs


class BenchEdge:
    """One edge of zero compute: answers every model with the next sequence, at the version it read."""

    def __init__(
        self, run: RunId, edge_id: EdgeId, dimension: int, broker: BrokerAddress, loop: SelectorLoop
    ) -> None:
        self.edge_id, self.dimension = edge_id, dimension
        self.vector = NoisyGradient(np.full(dimension, 1e-3, np.float32))
        self.sequence = 0
        self._topics = {leaf: edge_topic(run, edge_id, leaf) for leaf in EdgeTopic}
        self._gradient_topic = self._topics[EdgeTopic.GRADIENT]
        options = MqttOptions(address=broker, client_id=edge_client_id(run, edge_id))
        self.channel = MqttChannel(options, loop)
        self.channel.subscribe(self._topics[EdgeTopic.MODEL], self.on_model)
        self.channel.subscribe(self._topics[EdgeTopic.WELCOME], self.on_answer, qos=1)
        self.channel.subscribe(halt_topic(run), self.on_halt, qos=1, retained=True)
        self.channel.subscribe(presence_topic(run), self.on_presence, qos=1, retained=True)
        self.channel.open()

    def on_presence(self, topic: str, payload: bytes) -> None:  # noqa: ARG002
        """Say hello once the cloud is there; it is there when it has subscribed."""
        if not self.sequence:
            life = decode_presence(payload).incarnation
            hello = Hello(edge_id=self.edge_id, nonce=new_nonce(), incarnation=life)
            self.channel.publish(self._topics[EdgeTopic.HELLO], encode_hello(hello), qos=1)

    def on_answer(self, topic: str, payload: bytes) -> None:  # noqa: ARG002
        answer = decode_answer(self.edge_id, payload)
        if isinstance(answer, Refuse):
            raise BrokerUnavailableError(f"{self.edge_id}: refused, {answer.detail}")

    def on_model(self, topic: str, payload: bytes) -> None:  # noqa: ARG002
        sent = decode_model(self.edge_id, payload, self.dimension)
        self.sequence += 1
        gradient = GradientArrived(
            self.edge_id, self.sequence, sent.version, sent.sensitivity, self.vector, sent.incarnation
        )
        self.channel.publish(self._gradient_topic, encode_gradient(gradient))

    def on_halt(self, topic: str, payload: bytes) -> None:  # noqa: ARG002
        if payload:
            self.channel.close()


def take_part(broker: BrokerAddress, run: RunId, ids: list[EdgeId], dimension: int) -> None:
    """Serve these edges until the run's halt."""
    with SelectorLoop() as loop:
        edges = [BenchEdge(run, edge_id, dimension, broker, loop) for edge_id in ids]
        ended = loop.serve(lambda: all(edge.channel.closed for edge in edges), until=loop.now() + PATIENCE)
        if not ended:
            raise BrokerUnavailableError(f"run {run}: no halt within {PATIENCE:g} s")


def serve_segments(take: Callable[[RunId, list[EdgeId], int], None]) -> None:
    """Take part in what stdin names, until it closes: a parent that dies leaves no edges behind."""
    print("ready", flush=True)
    for line in sys.stdin:
        segment = json.loads(line)
        take(segment["run"], segment["ids"], segment["dimension"])
        print("done", flush=True)


if __name__ == "__main__":
    address = parse_address(sys.argv[1])
    serve_segments(lambda run, ids, dimension: take_part(address, run, ids, dimension))

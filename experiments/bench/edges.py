"""Lean edges for every bench: the real protocol on a real channel, but a prepared vector instead of a gradient.

`python -m experiments.bench.edges` reads a task a line from stdin as JSON, takes part in that run until its halt, and
answers with a line; the authors' way has edges of its own. With the arguments of lean_edges.c it does what that
program does, where there is no compiler.
"""

from __future__ import annotations

import json
import pickle
import random
import sys
import threading
import time
from collections import Counter
from dataclasses import dataclass
from typing import Any

import numpy as np
import paho.mqtt.client as paho
from paho.mqtt.enums import CallbackAPIVersion

from common.messages import GradientArrived, Hello, Refuse
from common.quantities import EdgeId, NoisyGradient, RunId
from common.transport.connection import MqttOptions, parse_address
from common.transport.loop import SelectorLoop
from common.transport.mqtt import MqttChannel
from common.wire import codec
from common.wire.topics import EdgeTopic, edge_client_id, edge_topic, halt_topic, presence_topic

PATIENCE = 60.0  # seconds for one run; reached only where something hangs
AUTHORS_QOS = 2
_RESEND = 5.0  # seconds, as the scenario's resend_after is by default
_CATCH_UP = 1.0  # seconds behind its pace that an edge makes up for
_LOOK_EVERY = 1.0  # seconds between two looks for what is unanswered


@dataclass(frozen=True, slots=True, kw_only=True)
class EdgeTask:
    """What one child is asked to do."""

    broker: str
    run: str
    dimension: int  # N
    first: int = 0  # number of its first edge
    count: int = 0  # of its edges
    pause: float = (
        0.0  # seconds between two gradients of an edge, on average; 0: none, and nothing is sent again
    )
    patience: float = PATIENCE
    trips: str = ""  # the .npy file for the round trips; none: they are not kept
    authors: bool = False  # pickled tensors and QoS 2 instead of this project's protocol


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
        self._since = self._tried = 0.0  # when it was made; when it was last sent
        self._due = 0.0  # when the next one is due by the pace
        self._thinking = False
        self._topics = {leaf: edge_topic(run, edge_id, leaf) for leaf in EdgeTopic}
        self._gradient_topic = self._topics[EdgeTopic.GRADIENT]
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
            self.say_hello()

    def say_hello(self) -> None:
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
        gradient = GradientArrived(
            self.edge_id, self.sequence + 1, sent.version, sent.sensitivity, vector, sent.incarnation
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
            self.channel.publish(self._gradient_topic, self._gradient)

    def look(self) -> None:
        """Say again what has had no answer for too long."""
        if self._thinking or self._incarnation < 0 or self.loop.now() < self._tried + _RESEND:
            return
        self.resent += 1
        if self.sequence:
            self._send()
        else:
            self.say_hello()

    def on_halt(self, topic: str, payload: bytes) -> None:  # noqa: ARG002
        if payload:
            self.channel.close()


def take_part(task: EdgeTask, ids: list[EdgeId]) -> dict[str, Any]:
    """Serve these edges until the run's halt; return what was counted."""
    rng = random.Random(task.first)
    with SelectorLoop() as loop:
        edges = [LeanEdge(edge_id, task, loop, rng) for edge_id in ids]

        def look() -> None:
            for edge in edges:
                edge.look()
            loop.call_later(_LOOK_EVERY, look)

        if task.pause:
            look()
        ended = loop.serve(
            lambda: all(edge.channel.closed for edge in edges), until=loop.now() + task.patience
        )
    if task.trips:
        np.save(task.trips, np.array([trip for edge in edges for trip in edge.trips]).reshape(-1, 2))
    refused = sum((edge.refused for edge in edges), Counter[str]())
    return {"ended": ended, "refused": dict(refused), "resent": sum(edge.resent for edge in edges)}


def take_part_for(words: list[str]) -> dict[str, Any]:
    """Do what lean_edges.c does, with its arguments; the bytes of a hello are not needed."""
    port, run, edges, dimension, warm, seconds, patience, _hello, *pids = words
    clocks = [
        time.CLOCK_PROCESS_CPUTIME_ID,
        *(~int(pid) << 3 | 2 for pid in pids),
    ]  # as clock_getcpuclockid has it
    task = EdgeTask(broker=f"127.0.0.1:{port}", run=run, dimension=int(dimension))
    with SelectorLoop() as loop:
        all_edges = [LeanEdge(EdgeId(f"edge-{k}"), task, loop, random.Random(k)) for k in range(int(edges))]
        came = loop.now()
        if not loop.serve(lambda: all(edge.models for edge in all_edges), until=came + float(patience)):
            begun = sum(edge.models > 0 for edge in all_edges)
            return {"error": f"{begun} of {edges} edges had a model"}
        first = loop.now()
        loop.serve(lambda: False, until=first + float(warm))
        began, before = loop.now(), sum(edge.models for edge in all_edges)
        spent = [time.clock_gettime(clock) for clock in clocks]
        loop.serve(lambda: False, until=began + float(seconds))
        return {
            "updates": sum(edge.models for edge in all_edges) - before,
            "seconds": loop.now() - began,
            "first": first - came,
            "resent": 0,
            "cpu": [time.clock_gettime(clock) - start for clock, start in zip(clocks, spent, strict=True)],
        }


# -- what NOT to do, as the paper's authors did it: whoever may publish may run code where it is unpickled ----------


def authors_client(broker: str) -> paho.Client:
    client, address = paho.Client(CallbackAPIVersion.VERSION2), parse_address(broker)
    client.connect_async(address.host, address.port)
    return client


def _authors_edge(task: EdgeTask, edge_id: EdgeId) -> threading.Thread:
    import torch

    gradient = torch.full((task.dimension,), 1e-3)
    client = authors_client(task.broker)

    def publish() -> None:
        client.publish(f"{task.run}/{edge_id}/gradient", pickle.dumps(gradient), AUTHORS_QOS)

    def on_message(client: paho.Client, userdata: Any, message: paho.MQTTMessage) -> None:  # noqa: ARG001
        if message.topic.endswith("halt"):
            client.disconnect()
        else:
            pickle.loads(message.payload)
            publish()

    topics = [(f"{task.run}/{edge_id}/model", AUTHORS_QOS), (f"{task.run}/halt", AUTHORS_QOS)]
    client.on_connect = lambda client, *_: client.subscribe(topics)
    client.on_subscribe = lambda *_: publish()
    client.on_message = on_message
    thread = threading.Thread(target=client.loop_forever, daemon=True)
    thread.start()
    return thread


def take_part_as_authors(task: EdgeTask, ids: list[EdgeId]) -> dict[str, Any]:
    threads = [_authors_edge(task, edge_id) for edge_id in ids]
    for thread in threads:
        thread.join(task.patience)
    return {"ended": not any(thread.is_alive() for thread in threads), "refused": {}, "resent": 0}


if __name__ == "__main__":
    if sys.argv[1:]:
        print(json.dumps(take_part_for(sys.argv[1:])))
        sys.exit()
    for line in sys.stdin:
        given = EdgeTask(**json.loads(line))
        named = [EdgeId(f"edge-{k}") for k in range(given.first, given.first + given.count)]
        serve = take_part_as_authors if given.authors else take_part
        print(json.dumps(serve(given, named)), flush=True)

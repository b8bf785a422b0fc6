"""The yardstick: a bare paho client that answers every gradient with the same prepared model.

As fast as paho can: its loop in the main thread, QoS 0, TCP_NODELAY, no decoding, no update, no records.
"""

from __future__ import annotations

import socket
import threading
import time
from typing import Any

import numpy as np
import paho.mqtt.client as paho
from paho.mqtt.enums import CallbackAPIVersion

from common.errors import BrokerUnavailableError
from common.messages import Halt, Presence, SendModel, Welcome
from common.quantities import EdgeId
from common.transport.connection import BrokerAddress
from common.wire.codec import (
    decode_hello,
    encode_halt,
    encode_model,
    encode_presence,
    encode_welcome,
    new_nonce,
)
from common.wire.topics import EdgeTopic, edge_topic, every_edge, halt_topic, parse_edge_topic, presence_topic
from experiments.bench.wire_cloud import Pace, Segment, bench_scenario
from experiments.bench.wire_edges import PATIENCE
from experiments.bench.wire_fleet import BenchFleet


class EchoCloud:
    """Counts gradients from the first to the last."""

    def __init__(self, segment: Segment, broker: BrokerAddress) -> None:
        self.segment = segment
        self.echoed = 0
        self.first = self.last = 0.0
        self.halt = 0  # its message id
        zeros = np.zeros(segment.dimension, np.float32)
        self.model = encode_model(SendModel(EdgeId("any"), 1, 1.0, 0, zeros))
        self.scenario = bench_scenario(segment.edges, segment.updates)
        self.answers: dict[str, str] = {}  # gradient topic → model topic
        self.client = client = paho.Client(CallbackAPIVersion.VERSION2, client_id=f"{segment.run}::echo")
        client.on_connect = self._subscribe
        client.on_subscribe = self._announce
        client.on_message = self.on_message
        client.message_callback_add(every_edge(segment.run, EdgeTopic.HELLO), self._on_hello)
        client.connect(broker.host, broker.port)
        sock: Any = client.socket()
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def on_message(self, client: paho.Client, userdata: Any, message: paho.MQTTMessage) -> None:  # noqa: ARG002
        self.echoed += 1
        if self.echoed == 1:
            self.first = time.monotonic()
        if self.echoed < self.segment.updates:
            client.publish(self.answers[message.topic], self.model)
        elif self.echoed == self.segment.updates:
            self.last = time.monotonic()
            halt = encode_halt(Halt("finished", self.echoed))
            self.halt = client.publish(halt_topic(self.segment.run), halt, qos=1, retain=True).mid
            client.on_publish = self._end_after_halt

    def _end_after_halt(self, client: paho.Client, userdata: Any, mid: int, *_: Any) -> None:  # noqa: ARG002
        if mid == self.halt:  # the broker has it
            client.disconnect()

    def _subscribe(self, client: paho.Client, *_: Any) -> None:
        run = self.segment.run
        client.subscribe([(every_edge(run, EdgeTopic.GRADIENT), 0), (every_edge(run, EdgeTopic.HELLO), 1)])

    def _announce(self, client: paho.Client, *_: Any) -> None:
        presence = encode_presence(Presence(True, new_nonce()))
        client.publish(presence_topic(self.segment.run), presence, qos=1, retain=True)

    def _on_hello(self, client: paho.Client, userdata: Any, message: paho.MQTTMessage) -> None:  # noqa: ARG002
        """Welcome; the models go out when all have come, as the real cloud does it."""
        run, edge_id = self.segment.run, parse_edge_topic(message.topic).edge_id
        index = len(self.answers)
        hello = decode_hello(edge_id, bytes(message.payload))
        admission = Welcome(
            edge_id=edge_id,
            index=index,
            last_sequence=0,
            edges=self.segment.edges,
            scenario=self.scenario.for_edge(index),
            seed=None,
            nonce=hello.nonce,
            number=hello.number,
        )
        client.publish(edge_topic(run, edge_id, EdgeTopic.WELCOME), encode_welcome(admission), qos=1)
        gradient_topic = edge_topic(run, edge_id, EdgeTopic.GRADIENT)
        self.answers[gradient_topic] = edge_topic(run, edge_id, EdgeTopic.MODEL)
        if len(self.answers) == self.segment.edges:
            for topic in self.answers.values():
                client.publish(topic, self.model)


def timed_loop(client: paho.Client) -> float:
    """Run a client until it disconnects, or for PATIENCE; return the processor's seconds."""
    patience = threading.Timer(PATIENCE, client.disconnect)
    patience.start()
    began = time.process_time()
    client.loop_forever()
    spent = time.process_time() - began
    patience.cancel()
    return spent


def serve_echo(segment: Segment, broker: BrokerAddress, fleet: BenchFleet) -> Pace:
    """Echo T gradients."""
    cloud = EchoCloud(segment, broker)
    fleet.begin(segment.run, segment.edges, segment.dimension)
    spent = timed_loop(cloud.client)
    if cloud.echoed < segment.updates:
        raise BrokerUnavailableError(f"{segment}: {cloud.echoed} echoes in {PATIENCE:g} s")
    fleet.end()
    return Pace((segment.updates - 1) / (cloud.last - cloud.first), spent / segment.updates)

"""What NOT to do, measured: the same loop as the paper's authors did it.

Pickled torch tensors (whoever may publish may run code in the cloud), QoS 2 (four packets for one),
sockets and a Mosquitto as they come (Nagle's algorithm holds every small packet back). Nothing else
in the project works like this; `python -m experiments.bench.wire_pickled HOST:PORT` is its edges.
"""

from __future__ import annotations

import contextlib
import os
import pickle
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import paho.mqtt.client as paho
import torch
from paho.mqtt.enums import CallbackAPIVersion

from common.errors import BrokerUnavailableError, ConfigurationError
from common.quantities import EdgeId, RunId
from common.transport.connection import BrokerAddress, parse_address
from experiments.bench.wire_cloud import Pace, Segment
from experiments.bench.wire_echo import timed_loop
from experiments.bench.wire_edges import PATIENCE, serve_segments
from experiments.bench.wire_fleet import BenchFleet
from mapa.brokers import Broker, find_mosquitto, free_port

_QOS = 2


@contextlib.contextmanager
def default_mosquitto(directory: Path) -> Iterator[Broker]:
    """Run a Mosquitto with nothing set but where it listens and that anyone may."""
    binary = find_mosquitto()
    if binary is None:
        raise ConfigurationError("broker = 'mosquitto': no mosquitto found on PATH; install it")
    directory.mkdir(parents=True)
    address = BrokerAddress("127.0.0.1", free_port())
    lines = [f"listener {address.port} {address.host}", "allow_anonymous true"]
    if hasattr(os, "geteuid") and os.geteuid() == 0:
        lines.append("user root")
    configuration = directory / "mosquitto.conf"
    configuration.write_text("\n".join([*lines, ""]))
    broker = Broker(
        address=address,
        kind="mosquitto",
        command=[binary, "-c", str(configuration)],
        log=directory / "mosquitto.log",
    )
    broker.start()
    try:
        yield broker
    finally:
        broker.stop()


def _client(broker: BrokerAddress) -> paho.Client:
    client = paho.Client(CallbackAPIVersion.VERSION2)
    client.connect_async(broker.host, broker.port)
    return client


class PickledCloud:
    """x ← x − γg̃ on tensors, in paho's callback."""

    def __init__(self, segment: Segment, broker: BrokerAddress, fleet: BenchFleet) -> None:
        self.segment, self.fleet = segment, fleet
        self.model = torch.zeros(segment.dimension)
        self.updates = 0
        self.halt = 0  # its message id
        self.first = self.last = 0.0
        self.client = _client(broker)
        self.client.on_connect = lambda client, *_: client.subscribe(f"{segment.run}/+/gradient", _QOS)
        self.client.on_subscribe = lambda *_: fleet.begin(segment.run, segment.edges, segment.dimension)
        self.client.on_message = self._on_message
        self.client.on_publish = self._on_publish

    def _on_message(self, client: paho.Client, userdata: Any, message: paho.MQTTMessage) -> None:  # noqa: ARG002
        if self.updates == self.segment.updates:
            return
        self.model -= 1e-3 * pickle.loads(message.payload)
        self.updates += 1
        now = time.monotonic()
        self.first = self.first or now
        if self.updates < self.segment.updates:
            topic = message.topic.replace("gradient", "model")
            client.publish(topic, pickle.dumps(self.model), _QOS)
        else:
            self.last = now
            self.halt = client.publish(f"{self.segment.run}/halt", b"", _QOS).mid

    def _on_publish(self, client: paho.Client, userdata: Any, mid: int, *_: Any) -> None:  # noqa: ARG002
        if mid == self.halt:
            client.disconnect()


def serve_pickled(segment: Segment, broker: BrokerAddress, fleet: BenchFleet) -> Pace:
    """Serve T updates the authors' way."""
    cloud = PickledCloud(segment, broker, fleet)
    spent = timed_loop(cloud.client)
    if cloud.updates < segment.updates:
        raise BrokerUnavailableError(f"{segment}: {cloud.updates} updates in {PATIENCE:g} s")
    fleet.end()
    return Pace((segment.updates - 1) / (cloud.last - cloud.first), spent / segment.updates)


def pickled_edge(broker: BrokerAddress, run: RunId, edge_id: EdgeId, dimension: int) -> threading.Thread:
    """Serve one edge in a thread of its own until the halt."""
    gradient = torch.full((dimension,), 1e-3)
    client = _client(broker)

    def publish() -> None:
        client.publish(f"{run}/{edge_id}/gradient", pickle.dumps(gradient), _QOS)

    def on_message(client: paho.Client, userdata: Any, message: paho.MQTTMessage) -> None:  # noqa: ARG001
        if message.topic.endswith("halt"):
            client.disconnect()
        else:
            pickle.loads(message.payload)
            publish()

    topics = [(f"{run}/{edge_id}/model", _QOS), (f"{run}/halt", _QOS)]
    client.on_connect = lambda client, *_: client.subscribe(topics)
    client.on_subscribe = lambda *_: publish()
    client.on_message = on_message
    thread = threading.Thread(target=client.loop_forever, daemon=True)
    thread.start()
    return thread


def _take_part(broker: BrokerAddress, run: RunId, ids: list[EdgeId], dimension: int) -> None:
    threads = [pickled_edge(broker, run, edge_id, dimension) for edge_id in ids]
    for thread in threads:
        thread.join(PATIENCE)
        if thread.is_alive():
            raise BrokerUnavailableError(f"run {run}: no halt within {PATIENCE:g} s")


if __name__ == "__main__":
    torch.set_num_threads(1)
    address = parse_address(sys.argv[1])
    serve_segments(lambda run, ids, dimension: _take_part(address, run, ids, dimension))

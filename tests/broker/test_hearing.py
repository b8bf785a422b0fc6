"""Oversize packets of QoS 1 on any topic leave cloud and edges hearing (a real Mosquitto)."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from common.errors import RemoteProtocolError
from common.quantities import EdgeId
from common.wire.topics import (
    EdgeTopic,
    clouds_topic,
    edge_topic,
    halt_topic,
    presence_topic,
    run_id,
)
from mapa.brokers import Broker
from tests.broker.testbed_support import open_testbed, scenario

pytestmark = [pytest.mark.broker, pytest.mark.timeout(300)]
Connect = Callable[..., Any]
PACKETS, SIZE = 200, 300_000
RUN = run_id("test")


def flood(attacker: Any, *topics: str) -> None:
    """Publish, and wait until the broker has taken all of it; the attacker hears its own mark on `done`."""
    for number, topic in enumerate(topics, start=1):
        for _ in range(PACKETS):
            assert attacker.channel.publish(topic, b"x" * SIZE, qos=1)
        assert attacker.channel.publish("done", b"", qos=1)
        attacker.wait(lambda number=number: len(attacker.seen) == number)


@pytest.mark.parametrize("qos", [1, 2])
def test_a_client_hears_on_after_many_oversize_packets(mosquitto: Broker, connect: Connect, qos: int) -> None:
    """The window of Mosquitto has 100 places: 200 discarded messages used to fill it for good."""
    attacker = connect(mosquitto, "attacker")
    victim = connect(mosquitto, "victim", max_packet=65_536)
    seen = victim.seen
    victim.channel.subscribe("x", victim._take, qos=qos)
    victim.channel.publish("x", b"ready", qos=1)
    victim.wait(lambda: len(seen) == 1)  # the broker has the subscription
    for _ in range(PACKETS):
        attacker.channel.publish("x", b"x" * SIZE, qos=qos)
    attacker.channel.publish("x", b"small", qos=qos)
    victim.wait(lambda: len(seen) == 2)
    assert seen[-1] == ("x", b"small")
    assert victim.channel.violations == PACKETS
    assert victim.losses == 0


def test_messages_that_break_the_protocol_are_acknowledged_too(mosquitto: Broker, connect: Connect) -> None:
    client = connect(mosquitto, "client")

    def take(topic: str, payload: bytes) -> None:
        if payload == b"hostile":
            raise RemoteProtocolError("nonsense")
        client._take(topic, payload)

    client.channel.subscribe("x", take, qos=1)
    for _ in range(PACKETS):
        client.channel.publish("x", b"hostile", qos=1)
    client.channel.publish("x", b"good", qos=1)
    client.wait(lambda: client.seen == [("x", b"good")])
    assert client.channel.violations == PACKETS


def test_a_cloud_that_is_flooded_on_every_topic_welcomes_a_new_edge(
    mosquitto: Broker, tmp_path: Path, connect: Connect
) -> None:
    attacker = connect(mosquitto, "attacker", "done")
    leaves = (EdgeTopic.HELLO, EdgeTopic.LEAVE, EdgeTopic.WILL, EdgeTopic.GRADIENT)
    topics = [presence_topic(RUN), clouds_topic(RUN), *(edge_topic(RUN, EdgeId("nobody"), x) for x in leaves)]
    with open_testbed(mosquitto.address, tmp_path, scenario(edges=1, iterations=30)) as bed:
        flood(attacker, *topics)
        bed.edge()
        assert bed.finish()["reason"] == "finished"
        assert [child.returncode for child in bed.edges] == [0]
        assert bed.cloud.service.dropped == {"packet": PACKETS * len(topics)}


def test_an_edge_that_is_flooded_on_every_topic_gets_its_models_and_the_halt(
    mosquitto: Broker, tmp_path: Path, connect: Connect
) -> None:
    attacker = connect(mosquitto, "attacker", "done")
    values = scenario(edges=2, iterations=100, testbed={"edges_at_least": 2})
    with open_testbed(mosquitto.address, tmp_path, values, edges_at_least=2) as bed:
        bed.edge()
        bed.wait(lambda: len(bed.cloud.service.server.edges) == 1)  # it waits for the second one
        (waiting,) = bed.cloud.service.server.edges
        leaves = (EdgeTopic.WELCOME, EdgeTopic.MODEL)
        topics = [halt_topic(RUN), presence_topic(RUN), *(edge_topic(RUN, waiting, leaf) for leaf in leaves)]
        flood(attacker, *topics)
        bed.edge()
        assert bed.finish()["reason"] == "finished"
        assert [child.returncode for child in bed.edges] == [0, 0]
        assert bed.logs().count("dropped a message") <= 5, bed.logs()


@pytest.mark.parametrize("size", [0, 7, SIZE])
def test_a_new_edge_is_welcomed_although_somebody_else_has_written_over_the_presence(
    mosquitto: Broker, tmp_path: Path, connect: Connect, size: int
) -> None:
    """A retained message replaces the one before it, and an empty one removes it: an edge would wait for ever."""
    attacker = connect(mosquitto, "attacker", "done")
    with open_testbed(mosquitto.address, tmp_path, scenario(edges=1, iterations=30)) as bed:
        for topic in (presence_topic(RUN), halt_topic(RUN)):
            attacker.channel.publish(topic, b"x" * size, qos=1, retain=True)
        attacker.channel.publish("done", b"", qos=1)
        attacker.wait(lambda: len(attacker.seen) == 1)
        bed.edge()
        assert bed.finish()["reason"] == "finished"
        assert [child.returncode for child in bed.edges] == [0]

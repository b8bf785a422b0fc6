"""A broker that carries no message as large as a model is named, not waited for (a real Mosquitto)."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from common.errors import ConfigurationError
from common.wire.topics import EdgeTopic, every_edge, run_id
from mapa.brokers import mosquitto_configuration, private_mosquitto
from tests.broker.testbed_support import open_testbed, scenario
from tests.program_support import require_mosquitto

pytestmark = pytest.mark.broker
Connect = Callable[..., Any]
RUN = run_id("test")
SMALL = 3000  # bytes: a welcome passes, a gradient of LR (3,180 bytes and more) does not
SMALL_PACKETS = ["max_packet_size 3000"]


@pytest.fixture(autouse=True)
def _installed() -> None:
    require_mosquitto()


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"max_payload": SMALL}, "drops messages of 4096 bytes"),
        ({"extra": SMALL_PACKETS}, "closes the connection after a message of 4096 bytes"),
    ],
)
def test_a_cloud_ends_where_the_broker_does_not_carry_its_models(
    tmp_path: Path, options: dict[str, Any], words: str
) -> None:
    with (
        private_mosquitto(tmp_path / "broker", **options) as broker,
        pytest.raises(ConfigurationError, match=f"{words}.*message_size_limit"),
        open_testbed(broker.address, tmp_path, scenario()),
    ):
        pytest.fail("the cloud serves")


def test_a_cloud_ends_where_the_broker_does_not_carry_its_welcomes(tmp_path: Path) -> None:
    """Of a small model with long links the welcome is the largest message; without it every edge waits in silence."""
    links = [{"name": "lan"}, {"delay_ms": 1, "partitions": [[10.0 * k, 1.0] for k in range(1, 400)]}]
    with (
        private_mosquitto(tmp_path / "broker", max_payload=5000) as broker,
        pytest.raises(ConfigurationError, match=r"drops messages of \d{4,5} bytes.*message_size_limit"),
        open_testbed(broker.address, tmp_path, scenario(links=links)),
    ):
        pytest.fail("the cloud serves")


def test_an_edge_names_the_size_that_gets_no_answer_and_goes_on_when_it_passes(tmp_path: Path) -> None:
    with private_mosquitto(tmp_path / "broker") as broker:
        configuration = tmp_path / "broker" / "mosquitto.conf"

        def configure(max_payload: int) -> None:
            broker.stop()
            configuration.write_text(mosquitto_configuration(broker.address.port, max_payload))
            broker.start()

        values = scenario(edges=1, iterations=100, testbed={"resend_after": 0.1})
        with open_testbed(broker.address, tmp_path, values) as bed:
            channel, service, unheard = bed.cloud.channel, bed.cloud.service, threading.Event()
            gradients = every_edge(RUN, EdgeTopic.GRADIENT)
            # the first gradient is not applied, so the edge owes it whatever happens next
            channel.subscribe(gradients, lambda *_: unheard.set())
            bed.edge()
            assert unheard.wait(60)
            configure(SMALL)
            channel.subscribe(gradients, service.on_gradient)
            log = tmp_path / "edge-0.log"
            bed.wait(lambda: "may refuse messages of that size; then raise its limit" in log.read_text())
            assert bed.updates == 0
            configure(1 << 16)
            assert bed.finish()["reason"] == "finished"


def test_a_connection_that_ends_behind_one_size_again_and_again_is_named(
    tmp_path: Path, connect: Connect
) -> None:
    with private_mosquitto(tmp_path / "broker", extra=SMALL_PACKETS) as broker:
        edge = connect(broker, "edge")
        for count in (1, 2):
            edge.channel.publish("up", b"x" * 5000)
            edge.wait(lambda count=count: edge.losses == count and edge.connections == count + 1)
        edge.channel.publish("up", b"x" * 5000)
        edge.wait(lambda: edge.losses == 3)
        assert "refuse messages of that size" in edge.channel.last_error
        assert "5000 bytes" in edge.channel.last_error
        edge.close_channel(0)


def test_a_size_that_was_answered_before_is_not_blamed_for_a_cut_connection(
    tmp_path: Path, connect: Connect
) -> None:
    with private_mosquitto(tmp_path / "broker") as broker:
        edge = connect(broker, "edge", "up")
        for count in (1, 2, 3):
            edge.channel.publish("up", b"x" * 5000)
            edge.wait(lambda count=count: len(edge.seen) == count)
            edge.channel.publish("elsewhere", b"x" * 5000)
            broker.stop(
                signal.SIGKILL
            )  # the connection ends without a word, behind a message of the same size
            edge.wait(lambda count=count: edge.losses == count)
            assert "refuse" not in edge.channel.last_error
            broker.start()
            edge.wait(lambda count=count: edge.connections == count + 1)


def test_a_client_id_that_another_takes_is_explained(tmp_path: Path, connect: Connect) -> None:
    with private_mosquitto(tmp_path / "broker") as broker:
        first = connect(broker, "same", min_backoff=30.0, max_backoff=60.0)
        connect(broker, "same")
        first.wait(lambda: first.losses == 1)
        assert "disconnected by the broker" in first.channel.last_error
        assert "another client uses this client id" in first.channel.last_error
        assert "Unspecified" not in first.channel.last_error

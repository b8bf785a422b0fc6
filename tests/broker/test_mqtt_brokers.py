"""Brokers of our own: Mosquitto from PATH, the embedded one, and how a text chooses."""

from __future__ import annotations

import io
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from common.errors import BrokerUnavailableError, ConfigurationError
from common.transport.channel import Will
from common.transport.connection import BrokerAddress, parse_address
from mapa import brokers
from mapa.brokers import Broker, embedded_broker, private_mosquitto, resolve_broker

Connect = Callable[..., Any]


def alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def test_the_embedded_broker_echoes_retains_and_keeps_wills(tmp_path: Path, connect: Connect) -> None:
    with embedded_broker(tmp_path) as broker:
        taker = connect(broker, "taker", "x/#")
        sender = connect(broker, "sender", will=Will("x/will", b"lost"))
        for qos in (0, 1):
            sender.channel.publish("x/y", bytes([qos]) * 40_000, qos=qos)
        taker.wait(lambda: len(taker.seen) == 2)
        sender.channel.publish("x/halt", b"over", qos=1, retain=True)
        taker.wait(lambda: len(taker.seen) == 3)
        late = connect(broker, "late", "x/halt")
        late.wait(lambda: len(late.seen) > 0)
        assert set(late.seen) == {("x/halt", b"over")}  # amqtt may send a retained message twice
        sender.loop.post(sender.channel.abort)
        taker.wait(lambda: ("x/will", b"lost") in taker.seen)
        taker.close()
        late.close()
    assert (tmp_path / "embedded-broker.log").read_text() == ""


def test_the_embedded_broker_can_be_restarted(tmp_path: Path, connect: Connect) -> None:
    with embedded_broker(tmp_path) as broker:
        client = connect(broker, "c", "x")
        broker.stop()
        broker.start()
        client.wait(lambda: client.connections == 2)
        client.channel.publish("x", b"again")
        client.wait(lambda: client.seen == [("x", b"again")])
        client.close()


@pytest.mark.broker
def test_a_private_mosquitto_ends_with_its_block(mosquitto: Broker, tmp_path: Path) -> None:
    with private_mosquitto(tmp_path / "other") as broker:
        pid = broker.pid
        assert alive(pid)
        assert broker.address != mosquitto.address
        broker.stop()
        broker.start()
        assert broker.pid != pid
        assert not alive(pid)
        pid = broker.pid
    assert not alive(pid)
    assert alive(mosquitto.pid)


@pytest.mark.broker
@pytest.mark.usefixtures("mosquitto_installed")
def test_a_message_beyond_the_payload_limit_is_not_carried(tmp_path: Path, connect: Connect) -> None:
    with private_mosquitto(tmp_path, max_payload=1000) as broker:
        client = connect(broker, "c", "x")
        client.channel.publish("x", b"y" * 1001, qos=1)
        client.channel.publish("x", b"z" * 1000, qos=1)
        client.wait(lambda: len(client.seen) > 0)
        assert client.seen == [("x", b"z" * 1000)]
        client.close()


@pytest.mark.broker
def test_a_broker_that_cannot_start_says_why(mosquitto: Broker, tmp_path: Path) -> None:
    wrong = ["no_such_option true"]
    with pytest.raises(BrokerUnavailableError, match="no_such_option"):
        private_mosquitto(tmp_path, extra=wrong).__enter__()
    del mosquitto


def test_mosquitto_that_is_absent_is_a_configuration_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(brokers, "find_mosquitto", lambda: None)
    with (
        pytest.raises(ConfigurationError, match="apt install mosquitto"),
        resolve_broker("mosquitto", tmp_path, max_payload=1000),
    ):
        pass


def test_auto_falls_back_to_the_embedded_broker_and_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, connect: Connect
) -> None:
    monkeypatch.setattr(brokers, "find_mosquitto", lambda: None)
    said = io.StringIO()
    with resolve_broker("auto", tmp_path, max_payload=1000, say=said) as address:
        client = connect(address, "c")
        assert client.channel.connected
        client.close()
    assert "embedded" in said.getvalue()


@pytest.mark.broker
def test_auto_takes_mosquitto_where_it_is_found(mosquitto: Broker, tmp_path: Path, connect: Connect) -> None:
    del mosquitto
    said = io.StringIO()
    with resolve_broker("auto", tmp_path / "auto", max_payload=1000, say=said) as address:
        client = connect(address, "c")
        assert client.channel.connected
        client.close()
    assert "Mosquitto" in said.getvalue()


def test_a_running_broker_is_taken_by_its_address(tmp_path: Path) -> None:
    with resolve_broker("vm.example.org:8883", tmp_path, max_payload=1) as address:
        assert address == BrokerAddress("vm.example.org", 8883)


@pytest.mark.parametrize(
    ("text", "host", "port"),
    [
        ("localhost", "localhost", 1883),
        ("10.0.0.7:8883", "10.0.0.7", 8883),
        ("[::1]:1884", "::1", 1884),
        ("[::1]", "::1", 1883),
        ("/run/mosquitto.sock", "/run/mosquitto.sock", 1883),
    ],
)
def test_addresses_are_read(text: str, host: str, port: int) -> None:
    assert parse_address(text) == BrokerAddress(host, port)


@pytest.mark.parametrize(
    "text", ["", ":1883", "host:", "host:0", "host:65536", "host:x", "a b", "mqtt://h", "::1"]
)
def test_other_texts_are_refused(text: str) -> None:
    with pytest.raises(ConfigurationError, match="broker ="):
        parse_address(text)

"""Brokers of our own: Mosquitto from PATH, the embedded one, and how a text chooses; and what others do."""

from __future__ import annotations

import io
import os
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from common.errors import BrokerUnavailableError, ConfigurationError
from common.transport.channel import Will
from common.transport.connection import BrokerAddress, parse_address
from mapa import brokers
from mapa.brokers import Broker, embedded_broker, private_mosquitto, resolve_broker
from tests.broker.brokers_support import BROKERS
from tests.broker.testbed_support import open_testbed, scenario
from tests.program_support import ROOT, eventually

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
        resolve_broker("mosquitto", tmp_path, max_payload=1000, under_way=0),
    ):
        pass


def test_auto_falls_back_to_the_embedded_broker_and_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, connect: Connect
) -> None:
    monkeypatch.setattr(brokers, "find_mosquitto", lambda: None)
    said = io.StringIO()
    with resolve_broker("auto", tmp_path, max_payload=1000, under_way=0, say=said) as address:
        client = connect(address, "c")
        assert client.channel.connected
        client.close()
    assert "embedded" in said.getvalue()


@pytest.mark.broker
@pytest.mark.usefixtures("mosquitto_installed")
@pytest.mark.parametrize(
    ("under_way", "folder", "near"),
    [(0, "mapa", True), (1 << 30, "mapa", False), (0, "a b", False), (0, "long" * 30, False)],
)
def test_auto_takes_mosquitto_where_it_is_found_by_a_socket_of_this_user_where_models_are_light(
    under_way: int,
    folder: str,
    near: bool,
    tmp_path: Path,
    connect: Connect,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with tempfile.TemporaryDirectory() as short:
        place = Path(short) / folder
        place.mkdir()
        monkeypatch.setattr(tempfile, "tempdir", str(place))
        said = io.StringIO()
        with resolve_broker("auto", tmp_path, max_payload=1000, under_way=under_way, say=said) as address:
            assert address.is_unix is near
            if near:
                assert Path(address.host).parent.stat().st_mode & 0o077 == 0
            client = connect(address, "c")
            assert client.channel.connected
            client.close()
        assert "Mosquitto" in said.getvalue()
        assert list(place.iterdir()) == []


@pytest.mark.broker
@pytest.mark.usefixtures("mosquitto_installed")
def test_a_mosquitto_that_has_no_unix_sockets_is_reached_by_the_loopback_interface(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, connect: Connect
) -> None:
    monkeypatch.setattr(brokers, "_NEAR", "no_such_option {}")
    with resolve_broker("mosquitto", tmp_path, max_payload=1000, under_way=0) as address:
        assert not address.is_unix
        client = connect(address, "c")
        assert client.channel.connected
        client.close()


def test_a_running_broker_is_taken_by_its_address(tmp_path: Path) -> None:
    with resolve_broker("vm.example.org:8883", tmp_path, max_payload=1, under_way=0) as address:
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


# -- what docs/brokers.md says of four brokers ------------------------------------------------------------


def answers_of(name: str) -> dict[str, bool]:
    """Return what the page says of a broker, by the first words of the line."""
    lines = (
        (ROOT / "docs" / "brokers.md").read_text(encoding="utf-8").partition("<!-- tested:")[2].splitlines()
    )
    table = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines if line.startswith("|")]
    head, _, *rows = table[: next(at for at, row in enumerate(table) if row[0] == "")]
    column = head.index(name)
    return {row[0]: row[column].startswith("yes") for row in rows}


class Probe:
    """Asks a broker: what should come is awaited, and what should not has not come before a later message."""

    def __init__(self, broker: Broker, connect: Connect) -> None:
        self._broker, self._connect, self._marks = broker, connect, 0
        self.speaker = connect(broker, "speaker")

    def hearer(self, name: str, topics: str) -> Any:
        """Return a client that hears: a broker may take a while over a subscription."""
        client = self._connect(self._broker, name, topics)
        client.loop.post(lambda: client.channel.subscribe("mark", client._take, qos=1))
        self.marked(client)
        return client

    def marked(self, client: Any) -> None:
        self._marks += 1
        mark = ("mark", str(self._marks).encode())

        def told() -> bool:
            self.speaker.channel.publish(*mark, qos=1)
            return mark in client.seen

        eventually(told, "a later message")

    def sees(self, client: Any, message: tuple[str, bytes], expected: bool) -> bool:
        if expected:
            client.wait(lambda: message in client.seen)
        else:
            self.marked(client)
        return message in client.seen

    def retain(self, topic: str, payload: bytes) -> None:
        self.speaker.channel.publish(topic, payload, qos=1, retain=True)


@pytest.mark.broker
@pytest.mark.slow
@pytest.mark.extended
@pytest.mark.parametrize("name", BROKERS)
def test_a_broker_does_what_the_page_says(name: str, tmp_path: Path, connect: Connect) -> None:
    expected, found = answers_of(name), dict[str, bool]()

    def note(line: str, ask: Callable[[bool], bool]) -> None:
        (whole,) = (one for one in expected if one.startswith(line))
        found[whole] = ask(expected[whole])

    with BROKERS[name](tmp_path / "broker") as broker:
        probe = Probe(broker, connect)
        probe.retain("kept/a", b"kept")
        probe.retain("gone/a", b"kept")
        probe.retain("gone/a", b"")
        probe.marked(hearer := probe.hearer("hearer", "will/+"))
        note("a retained", lambda e: probe.sees(probe.hearer("late", "kept/a"), ("kept/a", b"kept"), e))
        note("and to one", lambda e: probe.sees(probe.hearer("later", "kept/+"), ("kept/a", b"kept"), e))
        note("an empty", lambda e: not probe.sees(probe.hearer("last", "gone/a"), ("gone/a", b"kept"), not e))
        lost = connect(broker, "lost", will=Will("will/lost", b"lost"))
        lost.loop.post(lost.channel.abort)
        note("a client that is lost", lambda e: probe.sees(hearer, ("will/lost", b"lost"), e))
        first = connect(
            broker, "same", will=Will("will/same", b"taken"), min_backoff=600.0, max_backoff=600.0
        )
        connect(broker, "same")
        note("a second client", lambda e: ended(first, e, probe, hearer))
        note("and then", lambda e: probe.sees(hearer, ("will/same", b"taken"), e))
        many = probe.hearer("many", "many")
        for number in range(3000):
            probe.speaker.channel.publish("many", b"%d" % number)
        many.wait(lambda: ("many", b"2999") in many.seen)
        numbers = [int(payload) for topic, payload in many.seen if topic == "many"]
        note("3,000", lambda _: numbers == list(range(3000)))
        large = ("many", b"x" * (1 << 24))
        probe.speaker.channel.publish(*large, qos=1)
        note("a message of 16 MiB", lambda e: probe.sees(many, large, e))
        note("a run reaches T", lambda _: trains(broker, tmp_path / "run"))
    assert found == expected


def ended(client: Any, expected: bool, probe: Probe, hearer: Any) -> bool:
    """Return whether a client's connection has ended."""
    if expected:
        client.wait(lambda: client.losses > 0)
    else:
        probe.marked(hearer)
    return bool(client.losses)


def trains(broker: Broker, folder: Path) -> bool:
    """Train with two edges of which one is killed on the way; return whether its will was told and T is reached."""
    values = scenario(edges=2, iterations=400, links=[{"delay_ms": 5.0}])  # else it ends before the kill
    with open_testbed(broker.address, folder, values, edges_at_least=2) as bed:
        killed, _ = bed.edge(), bed.edge()
        bed.at(lambda: bed.updates > 20, killed.kill)
        bed.wait(lambda: bool(bed.events("edge_gone")))
        summary = bed.finish()
        (gone,) = bed.events("edge_gone")
        return (gone["reason"], summary["reason"], summary["updates"]) == ("lost", "finished", 400)

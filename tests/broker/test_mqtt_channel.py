"""MqttChannel against a real Mosquitto."""

from __future__ import annotations

import contextlib
import socket
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from common.errors import BrokerUnavailableError, ConfigurationError, LocalProtocolError, RemoteProtocolError
from common.transport.channel import Will
from common.transport.connection import BrokerAddress, MqttOptions
from common.transport.link import LinkProfile
from common.transport.loop import SelectorLoop
from common.transport.mqtt import MqttChannel
from common.transport.relay import RelayLoop
from mapa.brokers import Broker, free_port, private_mosquitto
from tests.broker.loop_support import LoopThread
from tests.program_support import PATIENCE

pytestmark = pytest.mark.broker
Connect = Callable[..., Any]


def options(broker: Broker, client_id: str = "c", **more: Any) -> MqttOptions:
    return MqttOptions(address=broker.address, client_id=client_id, **more)


@pytest.mark.parametrize("qos", [0, 1])
@pytest.mark.parametrize("size", [0, 1, 120, 31_440, 3_000_000])
def test_what_is_published_comes_back_whole(mosquitto: Broker, qos: int, size: int) -> None:
    with SelectorLoop() as loop:
        channel = MqttChannel(options(mosquitto), loop)
        sent = [bytes([number]) * size for number in range(5)]
        seen: list[bytes] = []

        def take(topic: str, payload: bytes) -> None:
            assert topic == "mapa/v1/r/edge/e/gradient"
            seen.append(payload)
            if len(seen) == len(sent):
                loop.stop()

        channel.subscribe("mapa/v1/r/edge/+/gradient", take, qos=qos)
        channel.connect(PATIENCE)
        for payload in sent:
            assert channel.publish("mapa/v1/r/edge/e/gradient", payload, qos=qos)
        loop.run()
        channel.close()
        assert seen == sent
        assert channel.violations == 0


def test_sockets_have_no_delay_and_paho_runs_on_our_stream(mosquitto: Broker, connect: Connect) -> None:
    client = connect(mosquitto, "c")
    stream = client.channel._stream
    assert stream._sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
    assert client.channel._client.socket() is stream


def test_a_ping_pong_of_many_messages_loses_none(mosquitto: Broker, connect: Connect) -> None:
    cloud = connect(mosquitto, "cloud", "up/#")
    edges = [connect(mosquitto, f"e{k}", f"down/{k}") for k in range(5)]
    for k, edge in enumerate(edges):
        for number in range(200):
            assert edge.channel.publish(f"up/{k}", number.to_bytes(2, "big") * 2000)
    cloud.wait(lambda: len(cloud.seen) == 1000)
    for k in range(5):
        mine = [payload for topic, payload in cloud.seen if topic == f"up/{k}"]
        assert mine == [number.to_bytes(2, "big") * 2000 for number in range(200)]


def test_threads_may_publish_at_once(mosquitto: Broker, connect: Connect) -> None:
    taker, sender = connect(mosquitto, "taker", "t/+"), connect(mosquitto, "sender")

    def publish(name: int) -> None:
        for number in range(100):
            sender.channel.publish(f"t/{name}", bytes([number]) * 50_000, qos=number % 2)

    threads = [threading.Thread(target=publish, args=(name,)) for name in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    taker.wait(lambda: len(taker.seen) == 400)
    assert all(len(payload) == 50_000 and len(set(payload)) == 1 for _, payload in taker.seen)


def test_a_late_subscriber_gets_the_retained_halt(mosquitto: Broker, connect: Connect) -> None:
    connect(mosquitto, "cloud").channel.publish("mapa/v1/r/halt", b"over", qos=1, retain=True)
    first = connect(mosquitto, "first", "mapa/v1/r/halt")
    first.wait(lambda: len(first.seen) == 1)  # now the broker has it
    late = connect(mosquitto, "late", "mapa/v1/r/halt")
    late.wait(lambda: late.seen == [("mapa/v1/r/halt", b"over")])


def test_close_delivers_what_qos_1_still_owes(mosquitto: Broker, connect: Connect) -> None:
    taker = connect(mosquitto, "taker", "x")
    with SelectorLoop() as loop:
        channel = MqttChannel(options(mosquitto, "sender"), loop)
        channel.connect(PATIENCE)
        for _ in range(50):
            channel.publish("x", b"y" * 100_000, qos=1)
        channel.close()
    taker.wait(lambda: len(taker.seen) == 50)


def test_close_waits_for_a_broker_that_is_away_and_greets_it_no_more(
    mosquitto: Broker, connect: Connect
) -> None:
    """The cloud's halt at T must not be lost to a broker's restart."""
    cloud = connect(mosquitto, "cloud")
    mosquitto.stop()
    cloud.wait(lambda: cloud.losses == 1)
    assert cloud.channel.publish("mapa/v1/r/halt", b"over", qos=1, retain=True)
    assert cloud.channel.owing
    closing = threading.Thread(target=cloud.close_channel, args=(PATIENCE,))
    closing.start()
    assert not cloud.channel.closed
    mosquitto.start()
    closing.join(PATIENCE)
    assert cloud.channel.closed
    assert not cloud.channel.owing
    assert cloud.connections == 1  # on_connected would say hello after the goodbye
    edge = connect(mosquitto, "edge", "mapa/v1/r/halt")
    edge.wait(lambda: edge.seen == [("mapa/v1/r/halt", b"over")])


def test_close_gives_up_a_broker_that_stays_away(mosquitto: Broker, connect: Connect) -> None:
    cloud = connect(mosquitto, "cloud")
    mosquitto.stop()
    cloud.wait(lambda: cloud.losses == 1)
    cloud.channel.publish("x", b"never", qos=1)
    cloud.close_channel(0.3)
    assert cloud.channel.closed
    assert cloud.channel.owing


def test_close_does_not_wait_where_nothing_is_owed(mosquitto: Broker, connect: Connect) -> None:
    cloud = connect(mosquitto, "cloud")
    mosquitto.stop()
    cloud.wait(lambda: cloud.losses == 1)
    cloud.close_channel(1e6)  # a wait would not end
    assert cloud.channel.closed


CRASHING_EDGE = """
import os, sys
from common.transport.channel import Will
from common.transport.connection import BrokerAddress, MqttOptions
from common.transport.link import LinkProfile
from common.transport.loop import SelectorLoop
from common.transport.mqtt import MqttChannel
loop = SelectorLoop()
channel = MqttChannel(
    MqttOptions(address=BrokerAddress("127.0.0.1", int(sys.argv[1])), client_id="e", will=Will("will/e", b"lost")),
    loop,
)
channel.connect(600)
print("connected", flush=True)
loop.run()
"""


def test_a_killed_client_leaves_its_will(mosquitto: Broker, connect: Connect) -> None:
    taker = connect(mosquitto, "taker", "will/+")
    edge = subprocess.Popen(
        [sys.executable, "-c", CRASHING_EDGE, str(mosquitto.address.port)],
        stdout=subprocess.PIPE,
        cwd=Path(__file__).parents[2],
    )
    assert edge.stdout is not None
    with edge.stdout:
        assert edge.stdout.readline() == b"connected\n"
        edge.kill()
        edge.wait()
    taker.wait(lambda: taker.seen == [("will/e", b"lost")])


def test_a_goodbye_leaves_no_will(mosquitto: Broker, connect: Connect) -> None:
    taker = connect(mosquitto, "taker", "will/+")
    with SelectorLoop() as loop:
        channel = MqttChannel(options(mosquitto, "e", will=Will("will/e", b"lost")), loop)
        channel.connect(PATIENCE)
        channel.close()
    connect(mosquitto, "other").channel.publish("will/marker", b"", qos=1)
    taker.wait(lambda: len(taker.seen) > 0)
    assert taker.seen == [("will/marker", b"")]


def test_a_broker_restart_is_survived_with_subscriptions(mosquitto: Broker, connect: Connect) -> None:
    edge = connect(mosquitto, "edge", "down/e")
    cloud = connect(mosquitto, "cloud")
    mosquitto.stop()
    for client in (edge, cloud):
        client.wait(lambda client=client: client.losses == 1)
    assert edge.channel.publish("up", b"lost") is False
    assert cloud.channel.publish("down/e", b"kept", qos=1, retain=True) is True
    mosquitto.start()
    for client in (edge, cloud):
        client.wait(lambda client=client: client.connections == 2)
    edge.wait(lambda: len(edge.seen) > 0)  # whichever came back first: it is retained
    assert edge.seen[0] == ("down/e", b"kept")
    cloud.channel.publish("down/e", b"again")
    edge.wait(lambda: edge.seen[-1] == ("down/e", b"again"))
    assert edge.losses == 1


def count_pongs(client: Any) -> threading.Semaphore:
    pongs, paho = threading.Semaphore(0), client.channel._client
    handle = paho._handle_pingresp

    def counted() -> Any:
        pongs.release()
        return handle()

    paho._handle_pingresp = counted
    return pongs


def test_an_idle_connection_stays_and_a_silent_broker_is_noticed(mosquitto: Broker, connect: Connect) -> None:
    with RelayLoop() as relays:
        relay = relays.open(LinkProfile(delay_ms=0.1), mosquitto.address, np.random.default_rng(0))
        idle = connect(mosquitto, "idle", keepalive=4)
        pongs = count_pongs(idle)
        cut_off = connect(relay.address, "cut off", keepalive=2)
        relays.do(relay.partition(True))
        cut_off.wait(lambda: cut_off.losses == 1)
        assert "keep alive" in cut_off.channel.last_error.lower()
        cut_off.close()
    for _ in range(2):
        assert pongs.acquire(timeout=PATIENCE)
    assert idle.channel.connected
    assert idle.losses == 0


@pytest.mark.parametrize("qos", [0, 1])
def test_a_callbacks_messages_keep_their_order_whatever_their_qos(
    mosquitto: Broker, connect: Connect, qos: int
) -> None:
    """A model (QoS 0) must not overtake the welcome (QoS 1) before it."""
    edge = connect(mosquitto, "edge", "down/#")
    with SelectorLoop() as loop:
        cloud = MqttChannel(options(mosquitto, "cloud"), loop)

        def answer(_topic: str, payload: bytes) -> None:
            for number in range(6):
                cloud.publish(f"down/{number}", payload * 20_000, qos=(number + 1) % 2)

        cloud.subscribe("up", answer, qos=1)
        cloud.connect(PATIENCE)
        with LoopThread(loop):
            for count in range(1, 11):
                edge.channel.publish("up", b"x", qos=qos)
                edge.wait(lambda count=count: len(edge.seen) == 6 * count)
        cloud.close()
        assert (cloud._client._handed, cloud._client.owed) == (30, 0)
    assert [topic for topic, _ in edge.seen] == [f"down/{number}" for number in range(6)] * 10


def test_many_large_messages_behind_a_welcome_wait_and_never_cost_the_connection(mosquitto: Broker) -> None:
    """The first models of a run leave in one turn of the loop, each behind a QoS 1 welcome."""
    size, lost, seen = 3_000_000, list[str](), list[str]()
    with SelectorLoop() as loop:
        channel = MqttChannel(options(mosquitto, max_unsent=2 * size), loop, on_lost=lost.append)
        channel.subscribe("model/+", lambda topic, _payload: seen.append(topic), qos=0)
        channel.connect(PATIENCE)
        waiting = [f"model/{k}" for k in range(12)]

        def publish() -> None:
            for topic in list(waiting):
                channel.publish("welcome", b"w" * 1000, qos=1)
                if not channel.publish(topic, bytes(size)):
                    break
                waiting.remove(topic)
            if waiting:
                loop.call_later(0.01, publish)

        loop.post(publish)
        assert loop.serve(lambda: len(seen) == 12, until=loop.now() + PATIENCE)
        channel.close()
    assert sorted(seen) == sorted(f"model/{k}" for k in range(12))
    assert not lost


@pytest.mark.parametrize("_attempt", range(10))
def test_subscriptions_go_before_what_on_connected_publishes(mosquitto: Broker, _attempt: int) -> None:
    with SelectorLoop() as loop:
        channel = MqttChannel(
            options(mosquitto), loop, on_connected=lambda: channel.publish("echo", b"x") and None
        )
        channel.subscribe("echo", lambda *_: loop.stop())
        loop.call_later(PATIENCE, lambda: pytest.fail("the echo was published before the subscription"))
        channel.open()
        loop.run()
        channel.close()


def test_a_callback_cannot_wait_for_its_own_loop(mosquitto: Broker) -> None:
    with SelectorLoop() as loop:
        channel = MqttChannel(options(mosquitto), loop, on_connected=lambda: channel.connect(1))
        channel.open()
        with pytest.raises(LocalProtocolError, match="already running"):
            loop.run()
        channel.abort()


def test_one_loop_serves_many_channels(mosquitto: Broker) -> None:
    with SelectorLoop() as loop:
        seen: set[str] = set()
        channels = [MqttChannel(options(mosquitto, f"e{k}"), loop) for k in range(30)]

        def take(topic: str, _payload: bytes) -> None:
            seen.add(topic)
            if len(seen) == 30:
                loop.stop()

        for k, channel in enumerate(channels):
            channel.subscribe(f"down/{k}", take)
            channel.connect(PATIENCE)
        for k, channel in enumerate(channels):
            channel.publish(f"down/{(k + 1) % 30}", b"x")
        loop.run()
        for channel in channels:
            channel.close()
        assert len(seen) == 30


def test_an_error_in_a_callback_ends_the_loop_and_a_violation_does_not(mosquitto: Broker) -> None:
    for qos in (0, 1):
        with SelectorLoop() as loop:
            reported: list[str] = []
            channel = MqttChannel(
                options(mosquitto), loop, on_violation=lambda _topic, error, r=reported: r.append(str(error))
            )

            def take(_topic: str, payload: bytes) -> None:
                if payload == b"hostile":
                    raise RemoteProtocolError("nonsense")
                raise ZeroDivisionError("a bug")

            channel.subscribe("x", take, qos=1)
            channel.connect(PATIENCE)
            channel.publish("x", b"hostile", qos=qos)
            channel.publish("x", b"ours", qos=qos)
            with pytest.raises(ZeroDivisionError, match="a bug"):
                loop.run()
            assert reported == ["nonsense"]
            assert channel.violations == 1
            channel.abort()


def test_a_packet_beyond_the_cap_is_skipped_and_counted(mosquitto: Broker, connect: Connect) -> None:
    taker = connect(mosquitto, "taker", "x", max_packet=100_000)
    sender = connect(mosquitto, "sender")
    sender.channel.publish("x", b"before")
    sender.channel.publish("x", b"b" * 2_000_000)
    sender.channel.publish("x", b"after")
    taker.wait(lambda: len(taker.seen) == 2)
    assert [payload for _, payload in taker.seen] == [b"before", b"after"]
    assert taker.channel.violations == 1


def test_the_cap_follows_what_is_allowed_also_over_a_reconnect(mosquitto: Broker, connect: Connect) -> None:
    taker, sender = connect(mosquitto, "taker", "x", max_packet=200_000), connect(mosquitto, "sender")
    allowed = threading.Event()
    taker.loop.post(lambda: taker.channel.allow(500_000))
    taker.loop.post(allowed.set)
    assert allowed.wait(PATIENCE)
    sender.channel.publish("x", b"b" * 400_000)
    taker.wait(lambda: len(taker.seen) == 1)
    mosquitto.stop()
    for client in (taker, sender):
        client.wait(lambda client=client: client.losses == 1)
    mosquitto.start()
    for client in (taker, sender):
        client.wait(lambda client=client: client.connections == 2)
    for size in (600_000, 450_000):
        sender.channel.publish("x", b"b" * size)
    taker.wait(lambda: len(taker.seen) == 2)
    assert [len(payload) for _, payload in taker.seen] == [400_000, 450_000]
    assert taker.channel.violations == 1


def test_bytes_that_are_no_mqtt_do_not_end_the_service() -> None:
    """A peer that is no broker: the channel retries and says so."""
    with socket.create_server(("127.0.0.1", 0)) as server, SelectorLoop() as loop:

        def answer() -> None:
            connection, _ = server.accept()
            with connection, contextlib.suppress(OSError):  # whoever gave up is answered all the same
                connection.recv(1000)
                connection.sendall(b"\x30\xff\xff\xff\xff\xff HTTP/1.1 400 Bad Request")

        thread = threading.Thread(target=answer)
        thread.start()
        address = BrokerAddress("127.0.0.1", server.getsockname()[1])
        channel = MqttChannel(
            MqttOptions(address=address, client_id="c", connect_timeout=0.3, min_backoff=10), loop
        )
        with pytest.raises(BrokerUnavailableError):
            channel.connect(0.5)
        thread.join()


def test_no_broker_is_a_clear_error() -> None:
    with SelectorLoop() as loop:
        address = BrokerAddress("127.0.0.1", free_port())
        channel = MqttChannel(MqttOptions(address=address, client_id="c"), loop)
        with pytest.raises(BrokerUnavailableError, match=rf"127.0.0.1:{address.port}.*refused"):
            channel.connect(2.0)


@pytest.mark.usefixtures("mosquitto_installed")
def test_a_broker_that_comes_late_is_waited_for(tmp_path: Path) -> None:
    port = free_port()
    with SelectorLoop() as loop:
        channel = MqttChannel(
            MqttOptions(address=BrokerAddress("127.0.0.1", port), client_id="c", min_backoff=0.02), loop
        )
        serving = threading.Event()
        loop.call_later(0.1, serving.set)  # by then the first try has failed
        waiting = threading.Thread(target=channel.connect, args=(PATIENCE,))
        waiting.start()
        assert serving.wait(PATIENCE)
        with private_mosquitto(tmp_path, port=port):
            waiting.join(PATIENCE)
            assert channel.connected
            channel.close()


def test_a_topic_with_a_wildcard_cannot_be_published_to(mosquitto: Broker, connect: Connect) -> None:
    with pytest.raises(LocalProtocolError, match="cannot be published"):
        connect(mosquitto, "c").channel.publish("edge/+/model", b"x")


@pytest.mark.usefixtures("mosquitto_installed")
def test_a_unix_socket_serves_too(tmp_path: Path, connect: Connect) -> None:
    socket = tmp_path / "mosquitto.sock"
    with private_mosquitto(tmp_path, extra=[f"listener 0 {socket}"]) as broker:
        client = connect(BrokerAddress(str(socket)), "c", "x")
        client.channel.publish("x", b"over a unix socket")
        client.wait(lambda: client.seen == [("x", b"over a unix socket")])
        client.close()
        connect_again = connect(broker, "d")
        assert connect_again.channel.connected


def test_half_a_certificate_is_refused_before_anything_connects(tmp_path: Path) -> None:
    from common.transport.connection import TlsFiles

    with pytest.raises(ConfigurationError, match="go together"):
        TlsFiles(cert=tmp_path / "c.pem")
    with pytest.raises(ConfigurationError, match="no such file"):
        TlsFiles(ca=tmp_path / "ca.pem")

"""The relay on real sockets. Lower bounds are strict; upper bounds only catch what hangs."""

from __future__ import annotations

import contextlib
import gc
import socket
import threading
import time
from collections.abc import Iterator

import numpy as np
import pytest

from common.connection import BrokerAddress
from common.link import Distribution, LinkProfile
from common.relay import DelayRelay, RelayLoop, _Way

PATIENCE = 20.0  # seconds


class EchoServer:
    """Sends back what it gets, every connection in a thread."""

    def __init__(self) -> None:
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.address = BrokerAddress("127.0.0.1", self._listener.getsockname()[1])
        self.ended = threading.Semaphore(0)
        self._threads = [threading.Thread(target=self._accept)]
        self._threads[0].start()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                connection, _ = self._listener.accept()
                self._threads.append(threading.Thread(target=self._echo, args=(connection,)))
                self._threads[-1].start()

    def _echo(self, connection: socket.socket) -> None:
        with connection, contextlib.suppress(OSError):
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            while data := connection.recv(65536):
                connection.sendall(data)
        self.ended.release()

    def close(self) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        for thread in self._threads:
            thread.join(PATIENCE)
            assert not thread.is_alive()


@pytest.fixture
def echo() -> Iterator[EchoServer]:
    server = EchoServer()
    yield server
    server.close()


@pytest.fixture
def relays() -> Iterator[RelayLoop]:
    with RelayLoop() as loop:
        yield loop


def open_relay(relays: RelayLoop, echo: EchoServer, **fields: object) -> DelayRelay:
    profile = LinkProfile(**fields)  # type: ignore[arg-type]
    return relays.open(profile, echo.address, np.random.default_rng(3))


def dial(relay: DelayRelay) -> socket.socket:
    client = socket.create_connection((relay.address.host, relay.address.port), timeout=PATIENCE)
    client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return client


def read(client: socket.socket, size: int) -> bytes:
    got = bytearray()
    while len(got) < size:
        data = client.recv(size - len(got))
        assert data, "the relay closed early"
        got += data
    return bytes(got)


def test_a_round_trip_takes_the_delay_twice(relays: RelayLoop, echo: EchoServer) -> None:
    relay = open_relay(relays, echo, delay_ms=30)
    with dial(relay) as client:
        for _ in range(3):
            began = time.monotonic()
            client.sendall(b"ping")
            assert read(client, 4) == b"ping"
            assert 0.060 <= time.monotonic() - began < PATIENCE


def test_order_is_kept_under_heavy_jitter(relays: RelayLoop, echo: EchoServer) -> None:
    relay = open_relay(relays, echo, delay_ms=1, jitter_ms=5, distribution=Distribution.PARETO)
    sent = np.arange(20_000, dtype="<u4").tobytes()
    with dial(relay) as client:
        for at in range(0, len(sent), 997):
            client.sendall(sent[at : at + 997])
        assert read(client, len(sent)) == sent


def test_a_rate_limits_the_bytes_per_second(relays: RelayLoop, echo: EchoServer) -> None:
    relay = open_relay(relays, echo, rate_kbps=1600)  # 200,000 bytes per second
    with dial(relay) as client:
        began = time.monotonic()
        client.sendall(b"x" * 40_000)
        read(client, 40_000)
        assert 0.2 <= time.monotonic() - began < PATIENCE


def test_more_than_the_relay_may_hold_still_arrives_whole(relays: RelayLoop, echo: EchoServer) -> None:
    relay = open_relay(relays, echo, delay_ms=50)
    sent = np.random.default_rng(0).bytes(12 << 20)
    with dial(relay) as client:
        sender = threading.Thread(target=client.sendall, args=(sent,))
        sender.start()
        assert read(client, len(sent)) == sent
        sender.join()


def test_a_partition_holds_and_then_delivers(relays: RelayLoop, echo: EchoServer) -> None:
    before = time.monotonic()
    relay = open_relay(relays, echo, partitions=((0.0, 0.5),))
    after = time.monotonic()
    with dial(relay) as client:
        client.sendall(b"held")
        assert read(client, 4) == b"held"
        # a round trip inside it waits for its end; the relay opened between `before` and `after`
        assert before + 0.5 <= time.monotonic() < after + PATIENCE


def test_a_goodbye_follows_the_bytes_before_it(relays: RelayLoop, echo: EchoServer) -> None:
    relay = open_relay(relays, echo, delay_ms=20)
    with dial(relay) as client:
        client.sendall(b"last words")
        client.shutdown(socket.SHUT_WR)
        assert read(client, 10) == b"last words"
        assert client.recv(1) == b""
    assert echo.ended.acquire(timeout=PATIENCE)


def test_a_broker_that_is_away_ends_the_connection(relays: RelayLoop) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        nobody = BrokerAddress("127.0.0.1", taken.getsockname()[1])
    relay = relays.open(LinkProfile(delay_ms=1), nobody, np.random.default_rng(0))
    with dial(relay) as client, contextlib.suppress(ConnectionResetError):
        assert client.recv(1) == b""


@pytest.mark.parametrize("partitions", [(), ((0.0, 3600.0),)])
def test_attempts_while_the_broker_is_away_leave_nothing_behind(
    relays: RelayLoop, partitions: tuple[tuple[float, float], ...]
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        nobody = BrokerAddress("127.0.0.1", taken.getsockname()[1])
    relay = relays.open(LinkProfile(delay_ms=1, partitions=partitions), nobody, np.random.default_rng(0))
    for _ in range(30):
        with dial(relay) as client, contextlib.suppress(ConnectionError):
            client.sendall(b"x" * 100)
            assert client.recv(1) == b""
    gone = threading.Event()

    def look() -> None:
        if relay._ways or relay._calls or relay.transports:
            relay.loop.call_later(0.005, look)
        else:
            gone.set()

    relay.loop.call_soon_threadsafe(look)
    assert gone.wait(PATIENCE), f"{len(relay._ways)} ways are kept"
    gc.collect()
    # not isinstance: it asks every object for its class, and some of torch's answer with a warning
    kept = [thing for thing in gc.get_objects() if type(thing) is _Way and thing._relay is relay]
    assert len(kept) <= 2, "a timer keeps what an attempt left"


def test_closing_ends_the_port_the_connections_and_the_thread(echo: EchoServer) -> None:
    relays = RelayLoop()
    relay = open_relay(relays, echo, rate_kbps=8)  # 1,000 bytes per second
    client = dial(relay)
    client.sendall(b"x")
    assert read(client, 1) == b"x"
    client.sendall(b"never arrives" * 10_000)
    threads = {thread.name for thread in threading.enumerate()}
    assert "mapa-relays" in threads
    relays.close()
    relays.close()
    with client, contextlib.suppress(ConnectionResetError):
        assert client.recv(1) == b""
    with pytest.raises(OSError):
        dial(relay)
    assert echo.ended.acquire(timeout=PATIENCE)


def test_fifty_relays_share_one_thread(relays: RelayLoop, echo: EchoServer) -> None:
    before = threading.active_count()
    opened = [open_relay(relays, echo, delay_ms=20) for _ in range(50)]
    assert threading.active_count() == before
    with contextlib.ExitStack() as stack:
        clients = [stack.enter_context(dial(relay)) for relay in opened]
        began = time.monotonic()
        for number, client in enumerate(clients):
            client.sendall(bytes([number]) * 1000)
        for number, client in enumerate(clients):
            assert read(client, 1000) == bytes([number]) * 1000
        assert 0.040 <= time.monotonic() - began < PATIENCE

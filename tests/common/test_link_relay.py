"""The relay on real sockets: when each chunk came, was due and went on, by the clock of the relay's own loop."""

from __future__ import annotations

import contextlib
import gc
import socket
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np
import pytest

from common.transport.connection import BrokerAddress
from common.transport.link import Distribution, LinkClock, LinkProfile
from common.transport.relay import Relay, RelayLoop, Way

PATIENCE = 600.0  # seconds; reached only where something hangs
MOMENT = 1e-6  # seconds; sums of times are rounded


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


@dataclass
class Log:
    """What one way of a relay did."""

    came: list[float] = field(default_factory=list)
    due: list[float] = field(default_factory=list)
    sizes: list[int] = field(default_factory=list)
    went: list[float] = field(default_factory=list)

    def assert_nothing_early(self) -> None:
        assert self.went
        assert all(went >= due for went, due in zip(self.went, self.due, strict=False))


@pytest.fixture
def logs(monkeypatch: pytest.MonkeyPatch) -> dict[LinkClock, Log]:
    """A log for every way of every relay."""
    found: dict[LinkClock, Log] = {}
    due, send_on = LinkClock.due, Way._send_on

    def noted_due(clock: LinkClock, now: float, size: int) -> float:
        log = found.setdefault(clock, Log())
        log.came.append(now)
        log.sizes.append(size)
        log.due.append(due(clock, now, size))
        return log.due[-1]

    def noted_send(way: Way, data: bytes | None) -> None:
        assert isinstance(way._line, LinkClock)
        found[way._line].went.append(way._relay.loop.time())
        send_on(way, data)

    monkeypatch.setattr(LinkClock, "due", noted_due)
    monkeypatch.setattr(Way, "_send_on", noted_send)
    return found


def open_relay(relays: RelayLoop, echo: EchoServer, **fields: object) -> Relay:
    profile = LinkProfile(**fields)  # type: ignore[arg-type]
    return relays.open(profile, echo.address, np.random.default_rng(3))


def clocks(relay: Relay) -> list[LinkClock]:
    """Return those of the way up and of the way down."""
    found = [relay.line(upward) for upward in (True, False)]
    return [clock for clock in found if isinstance(clock, LinkClock)]


def dial(relay: Relay) -> socket.socket:
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


def test_a_round_trip_takes_the_delay_twice(
    relays: RelayLoop, echo: EchoServer, logs: dict[LinkClock, Log]
) -> None:
    relay = open_relay(relays, echo, delay_ms=30)
    with dial(relay) as client:
        for _ in range(3):
            client.sendall(b"ping")
            assert read(client, 4) == b"ping"
    up, down = (logs[clock] for clock in clocks(relay))
    for log in (up, down):
        log.assert_nothing_early()
        assert log.sizes[:3] == [4, 4, 4]
        for came, due in zip(log.came, log.due, strict=True):
            assert due - came == pytest.approx(0.030, abs=MOMENT)
    assert all(back > there for back, there in zip(down.came[:3], up.went[:3], strict=True))


def test_order_is_kept_under_heavy_jitter(relays: RelayLoop, echo: EchoServer) -> None:
    relay = open_relay(relays, echo, delay_ms=1, jitter_ms=5, distribution=Distribution.PARETO)
    sent = np.arange(20_000, dtype="<u4").tobytes()
    with dial(relay) as client:
        for at in range(0, len(sent), 997):
            client.sendall(sent[at : at + 997])
        assert read(client, len(sent)) == sent


def test_a_rate_limits_the_bytes_per_second(
    relays: RelayLoop, echo: EchoServer, logs: dict[LinkClock, Log]
) -> None:
    relay = open_relay(relays, echo, rate_kbps=1600)  # 200,000 bytes per second
    with dial(relay) as client:
        client.sendall(b"x" * 40_000)
        read(client, 40_000)
    for clock in clocks(relay):
        log = logs[clock]
        log.assert_nothing_early()
        so_far = np.cumsum(log.sizes)
        assert so_far[-1] == 40_000
        assert np.all(np.array(log.due) - log.came[0] >= so_far / 200_000 - MOMENT)


def test_more_than_the_relay_may_hold_still_arrives_whole(relays: RelayLoop, echo: EchoServer) -> None:
    relay = open_relay(relays, echo, delay_ms=50)
    sent = np.random.default_rng(0).bytes(12 << 20)
    with dial(relay) as client:
        sender = threading.Thread(target=client.sendall, args=(sent,))
        sender.start()
        assert read(client, len(sent)) == sent
        sender.join()


def test_a_partition_holds_and_then_delivers(
    relays: RelayLoop, echo: EchoServer, logs: dict[LinkClock, Log]
) -> None:
    before = relays._loop.time()
    relay = open_relay(relays, echo, partitions=((0.0, 0.5),))
    with dial(relay) as client:
        client.sendall(b"held")
        assert read(client, 4) == b"held"
    for clock in clocks(relay):
        logs[clock].assert_nothing_early()
        assert logs[clock].went[0] >= before + 0.5  # a round trip inside it waits for its end


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
    kept = [thing for thing in gc.get_objects() if type(thing) is Way and thing._relay is relay]
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


def test_fifty_relays_share_one_thread(
    relays: RelayLoop, echo: EchoServer, logs: dict[LinkClock, Log]
) -> None:
    before = threading.active_count()
    opened = [open_relay(relays, echo, delay_ms=20) for _ in range(50)]
    assert threading.active_count() == before
    with contextlib.ExitStack() as stack:
        clients = [stack.enter_context(dial(relay)) for relay in opened]
        for number, client in enumerate(clients):
            client.sendall(bytes([number]) * 1000)
        for number, client in enumerate(clients):
            assert read(client, 1000) == bytes([number]) * 1000
    for relay in opened:
        for clock in clocks(relay):
            logs[clock].assert_nothing_early()
            assert logs[clock].due[0] - logs[clock].came[0] == pytest.approx(0.020, abs=MOMENT)

"""Metrics: plain counts, closed labels, and an endpoint that cannot harm the service."""

from __future__ import annotations

import contextlib
import http.client
import socket
import threading
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client import generate_latest
from prometheus_client.parser import text_string_to_metric_families

from common.errors import ConfigurationError
from common.telemetry import server as server_module
from common.telemetry.family import OTHER, Buckets, Family, MetricKind, Readings, published
from common.telemetry.server import CONNECTIONS, LastReadings, MetricsServer, metrics_listener
from common.transport.loop import SelectorLoop
from tests.memory_broker import MemoryBroker

COUNT = Family("mapa_test_things_total", MetricKind.COUNTER, "Things.", "reason", ("a", "b"))
LEVEL = Family("mapa_test_level", MetricKind.GAUGE, "Level.")
TIMES = Family("mapa_test_wait_seconds", MetricKind.HISTOGRAM, "Waits.")


def read(text: bytes) -> dict[tuple[str, str], float]:
    """Return what Prometheus's own parser finds, by name and label value."""
    families = text_string_to_metric_families(text.decode())
    return {
        (one.name, ",".join(one.labels.values())): one.value for family in families for one in family.samples
    }


def exposition(readings: Readings) -> bytes:
    """Return the text that a scrape of these readings gets."""
    found = LastReadings(MemoryBroker(), lambda: readings, print, every=1.0)
    found.read()
    return generate_latest(found.registry)


@given(st.dictionaries(st.text(max_size=8), st.integers(1, 100), max_size=50))
def test_a_peer_makes_no_series(counted: dict[str, int]) -> None:
    found = read(exposition({COUNT: counted}))
    assert {label for _, label in found} <= {"a", "b", OTHER}
    assert sum(found.values()) == sum(counted.values())


def test_names_of_the_runs_own_are_few() -> None:
    family = Family("mapa_test_measured", MetricKind.GAUGE, "Measured.", "metric", most=3)
    assert len(read(exposition({family: {f"m{k}": k for k in range(100)}}))) == 3


@given(st.lists(st.floats(0, 10), max_size=50))
def test_a_histogram_counts_what_is_at_most_each_bound(values: list[float]) -> None:
    buckets = Buckets((0.5, 1.0, 5.0))
    for value in values:
        buckets.observe(value)
    found = read(exposition({TIMES: buckets}))
    for bound in (0.5, 1.0, 5.0):
        assert found["mapa_test_wait_seconds_bucket", f"{bound:g}"] == sum(v <= bound for v in values)
    assert found["mapa_test_wait_seconds_bucket", "+Inf"] == len(values)
    assert found["mapa_test_wait_seconds_count", ""] == len(values)
    assert found["mapa_test_wait_seconds_sum", ""] == pytest.approx(sum(values))


def test_a_copy_stays_as_it_was() -> None:
    buckets = Buckets((1.0,))
    buckets.observe(0.5)
    copy = buckets.copy()
    buckets.observe(0.5, times=3)
    assert (copy.cumulative(), buckets.cumulative()) == ([1, 1], [4, 4])


# -- the endpoint -----------------------------------------------------------------------------------------


@contextlib.contextmanager
def served(readings: Readings) -> Iterator[tuple[MetricsServer, int]]:
    listener = metrics_listener("127.0.0.1", 0)
    found = LastReadings(MemoryBroker(), lambda: readings, print, every=1.0)
    found.read()
    made = MetricsServer(listener, found.registry)
    made.start()
    try:
        yield made, listener.getsockname()[1]
    finally:
        made.close()


def get(port: int, path: str = "/metrics", method: str = "GET") -> tuple[int, bytes]:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=600)
    try:
        connection.request(method, path)
        answer = connection.getresponse()
        return answer.status, answer.read()
    finally:
        connection.close()


def client(port: int) -> socket.socket:
    return socket.create_connection(("127.0.0.1", port), timeout=600)


def test_metrics_are_served_and_nothing_is_changed() -> None:
    with served({LEVEL: 7.0}) as (_, port):
        status, text = get(port)
        assert (status, read(text)) == (200, {("mapa_test_level", ""): 7.0})
        assert get(port, "/metrics?x=1")[0] == 200
        assert get(port, "/metrics/../etc/passwd") == (200, text)
        assert get(port, method="POST")[0] == get(port, method="DELETE")[0] == 405


def test_what_cannot_be_read_is_an_error_of_that_request_alone(capfd: pytest.CaptureFixture[str]) -> None:
    readings: dict[Family, float] = {LEVEL: "no number"}  # type: ignore[dict-item]
    with served(readings) as (_, port):
        assert get(port)[0] == 500
        readings[LEVEL] = 1.0
        assert get(port)[0] == 200
    assert capfd.readouterr().err == ""


@pytest.mark.parametrize(
    "sent",
    [
        b"\x16\x03\x01\x02\x00" * 20 + b"\r\n\r\n",
        b"GET /metrics HTTP/x\r\n\r\n",
        b"\r\n\r\n",
        b"GET /metrics HTTP/1.1\r\nX: " + b"x" * 70_000,
        b"GET /metrics HTTP/1.1\r\n" + b"X: x\r\n" * 200,
    ],
)
def test_a_broken_request_ends_its_connection_alone(sent: bytes, capfd: pytest.CaptureFixture[str]) -> None:
    with served({}) as (_, port), client(port) as one:
        with contextlib.suppress(ConnectionError):
            one.sendall(sent)
            one.makefile("rb").read()
        assert get(port)[0] == 200
    assert capfd.readouterr().err == ""


@pytest.mark.slow
def test_connections_that_say_nothing_keep_no_client_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """Slowloris: more connections than are served at a time, each a byte of a request and no more."""
    monkeypatch.setattr(server_module, "A_SECOND", 10_000)
    with served({LEVEL: 1.0}) as (made, port), contextlib.ExitStack() as stack:
        for _ in range(4 * CONNECTIONS):
            stack.enter_context(client(port)).sendall(b"G")
        assert get(port)[0] == 200
        assert len(made.open) <= CONNECTIONS


def test_a_silent_connection_ends_by_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server_module, "SILENCE", 0.05)
    with served({}) as (_, port), client(port) as one:
        one.sendall(b"GET /metr")
        assert one.recv(1) == b""


def test_a_client_that_reads_nothing_of_a_long_answer_keeps_no_other_out(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(server_module, "SILENCE", 600.0)
    long = Family("mapa_test_long", MetricKind.GAUGE, "x" * (1 << 24))
    with served({long: 1.0}) as (_, port), client(port) as one:
        one.sendall(b"GET /metrics HTTP/1.1\r\n\r\n")
        one.recv(1)
        assert len(get(port)[1]) > 1 << 24


@pytest.mark.slow
def test_a_flood_of_connections_is_served_at_a_bounded_rate(monkeypatch: pytest.MonkeyPatch) -> None:
    waits: list[float] = []
    monkeypatch.setattr(server_module.time, "sleep", waits.append)
    with served({}) as (_, port):
        assert [get(port)[0] for _ in range(5)] == [200] * 5
    assert waits == [1 / server_module.A_SECOND] * 5


def test_the_port_is_free_again_after_the_end() -> None:
    with (
        served({}) as (_, port),
        pytest.raises(ConfigurationError, match=f"--metrics-port {port}: cannot"),
    ):
        metrics_listener("127.0.0.1", port)
    metrics_listener("127.0.0.1", port).close()


def test_an_address_that_is_none_of_this_machine_is_refused() -> None:
    with pytest.raises(ConfigurationError, match=r"cannot listen on '192\.0\.2\.1'"):
        metrics_listener("192.0.2.1", 0)


# -- from the service to the endpoint ---------------------------------------------------------------------


def test_a_reading_that_fails_does_not_end_the_service() -> None:
    loop, said = MemoryBroker(), list[str]()
    levels = iter([1.0, ValueError("no"), ValueError("no"), 4.0])

    def reading() -> Readings:
        level = next(levels)
        if isinstance(level, Exception):
            raise level
        return {LEVEL: level}

    found = LastReadings(loop, reading, said.append, every=1.0)
    found.read()
    assert b"mapa_test_level 1.0" in generate_latest(found.registry)
    loop.advance(1.5)
    assert b"mapa_test_level 1.0" in generate_latest(found.registry), "the last one that could be read"
    loop.advance(2.0)
    assert b"mapa_test_level 4.0" in generate_latest(found.registry)
    assert len(said) == 1
    assert "the run goes on" in said[0]


def test_a_scrape_does_not_wait_for_a_service_that_is_busy() -> None:
    """A scrape that waited for the loop would tell how long a gradient takes."""
    said: list[str] = []
    loop, busy, done = SelectorLoop(), threading.Event(), threading.Event()

    def gradient() -> None:
        busy.set()
        assert done.wait(600)
        loop.stop()

    listener = metrics_listener("127.0.0.1", 0)
    port = listener.getsockname()[1]
    with published(listener, loop, lambda: {LEVEL: 7}, said.append, every=0.01):
        loop.post(gradient)
        thread = threading.Thread(target=loop.run)
        thread.start()
        assert busy.wait(600)
        status, text = get(port)
        assert not done.is_set()
        done.set()
        thread.join()
    loop.close()
    assert (status, read(text)) == (200, {("mapa_test_level", ""): 7.0})
    assert said == [f"metrics on http://127.0.0.1:{port}/metrics, for everybody who reaches it"]


def test_without_a_port_nothing_is_served() -> None:
    with published(None, MemoryBroker(), dict, print, every=1.0):
        pass

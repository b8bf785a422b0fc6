"""GET /metrics by prometheus_client's own server: read in the service's loop now and then, shown by other threads.

A scrape gets the last readings at once and never waits for the service: a wait would tell how long a gradient takes.
"""

from __future__ import annotations

import contextlib
import io
import socket
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from common.errors import ConfigurationError
from common.telemetry.family import Buckets, Family, MetricKind, Readings
from common.transport.channel import Loop

try:
    from wsgiref.simple_server import WSGIRequestHandler

    from prometheus_client import CollectorRegistry, make_wsgi_app
    from prometheus_client.core import (
        CounterMetricFamily,
        GaugeMetricFamily,
        HistogramMetricFamily,
        Metric,
    )
    from prometheus_client.exposition import ThreadingWSGIServer
    from prometheus_client.registry import Collector
except ImportError as error:
    raise ConfigurationError(
        "--metrics-port: prometheus-client is not installed: pip install 'mapa-testbed[metrics]'"
    ) from error

CONNECTIONS = 16  # at a time
SILENCE = 5.0  # seconds
A_SECOND = 32  # connections


def metrics_listener(host: str, port: int) -> socket.socket:
    """Take the port; ConfigurationError where it cannot be had."""
    try:
        kind = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0][0]
        return socket.create_server((host, port), family=kind, backlog=16)
    except OSError as error:
        raise ConfigurationError(
            f"--metrics-port {port}: cannot listen on {host!r}: {error.strerror or error}"
        ) from error


class LastReadings(Collector):
    """What was read last; None of prometheus_client's own metrics, which tell processor time."""

    def __init__(
        self, loop: Loop, read: Callable[[], Readings], say: Callable[[str], None], *, every: float
    ) -> None:
        self._loop, self._read, self._say, self._every = loop, read, say, every
        self._readings: Readings = {}
        self._failed = self.ended = False
        self.registry = CollectorRegistry(auto_describe=False)
        self.registry.register(self)

    def read(self) -> None:
        """Read now, and then every so often; a reading that fails is said once and does not end the service."""
        if self.ended:
            return
        try:
            self._readings = self._read()
        except Exception as error:
            if not self._failed:
                self._say(f"metrics cannot be read, the run goes on: {error!r}")
            self._failed = True
        self._loop.call_later(self._every, self.read)

    def collect(self) -> Iterable[Metric]:
        return [_metric(family, reading) for family, reading in self._readings.items()]


def _metric(family: Family, reading: float | Mapping[str, float] | Buckets) -> Metric:
    if isinstance(reading, Buckets):
        ends = [*(f"{bound:g}" for bound in reading.bounds), "+Inf"]
        buckets = list(zip(ends, reading.cumulative(), strict=True))
        return HistogramMetricFamily(family.name, family.text, buckets=buckets, sum_value=reading.total)
    labels = [] if family.label is None else [family.label]
    kind = CounterMetricFamily if family.kind is MetricKind.COUNTER else GaugeMetricFamily
    made = kind(family.name.removesuffix("_total"), family.text, labels=labels)
    if isinstance(reading, Mapping):
        for value, number in family.samples(reading):
            made.add_metric([value], number)
    else:
        made.add_metric([], reading)
    return made


class MetricsServer(ThreadingWSGIServer):
    """The library's server with limits: few connections at a time, the oldest closed first; few new ones a second."""

    def __init__(self, listener: socket.socket, registry: Collector) -> None:
        super().__init__(listener.getsockname(), _Handler, bind_and_activate=False)
        self.socket.close()
        self.socket = listener
        self.server_name, self.server_port = listener.getsockname()[:2]
        self.setup_environ()
        self.set_app(make_wsgi_app(registry, disable_compression=True))
        self.open: dict[socket.socket, None] = {}  # the oldest first
        self._lock = threading.Lock()

    def start(self) -> None:
        threading.Thread(target=self.serve_forever, args=(0.1,), name="mapa-metrics", daemon=True).start()

    def close(self) -> None:
        """End the thread and every connection, and free the port."""
        self.shutdown()
        self.server_close()
        with self._lock:
            for connection in self.open:
                _hang_up(connection)

    def process_request(self, request: Any, client_address: Any) -> None:
        """Answer in a thread of its own. Called in the accepting thread, which is what limits the rate."""
        request.settimeout(SILENCE)
        with self._lock:
            if len(self.open) >= CONNECTIONS:
                oldest = next(iter(self.open))
                del self.open[oldest]
                _hang_up(oldest)
            self.open[request] = None
        super().process_request(request, client_address)
        time.sleep(1 / A_SECOND)

    def shutdown_request(self, request: Any) -> None:
        with self._lock:
            self.open.pop(request, None)
        super().shutdown_request(request)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Say nothing: what a client does wrong is no news of the run."""


class _Handler(WSGIRequestHandler):
    def log_message(self, format: str, *args: Any) -> None:
        """Log nothing."""

    def get_stderr(self) -> io.StringIO:
        return io.StringIO()


def _hang_up(connection: socket.socket) -> None:
    with contextlib.suppress(OSError):
        connection.shutdown(socket.SHUT_RDWR)


@contextlib.contextmanager
def serving(
    listener: socket.socket,
    loop: Loop,
    read: Callable[[], Readings],
    say: Callable[[str], None],
    *,
    every: float,
) -> Iterator[None]:
    """Serve metrics while the context lasts."""
    readings = LastReadings(loop, read, say, every=every)
    server = MetricsServer(listener, readings.registry)
    host, port = listener.getsockname()[:2]
    readings.read()
    server.start()
    shown = f"[{host}]" if ":" in host else host
    say(f"metrics on http://{shown}:{port}/metrics, for everybody who reaches it")
    try:
        yield
    finally:
        readings.ended = True
        server.close()

"""From a service's plain counts to its endpoint: read in the loop's thread, now and then; shown by another."""

from __future__ import annotations

import contextlib
import importlib
import socket
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from common.errors import ConfigurationError
from common.telemetry.family import Readings
from common.transport.channel import Loop


def metrics_listener(host: str, port: int) -> socket.socket:
    """Take the port; ConfigurationError where it cannot be had, or where the library is missing."""
    importlib.import_module("common.telemetry.exposition")
    try:
        kind = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0][0]
        return socket.create_server((host, port), family=kind, backlog=16)
    except OSError as error:
        raise ConfigurationError(
            f"--metrics-port {port}: cannot listen on {host!r}: {error.strerror or error}"
        ) from error


@dataclass(slots=True)
class Publication:
    """The last readings, and their text once somebody has asked for it."""

    loop: Loop
    read: Callable[[], Readings]
    every: float  # seconds between two readings
    say: Callable[[str], None]
    text_of: Callable[[Readings], bytes]
    _readings: Readings = field(default_factory=dict)
    _shown: tuple[Readings, bytes] | None = None
    _failed: bool = False
    _ended: bool = False

    def start(self) -> None:
        self._look()

    def end(self) -> None:
        self._ended = True

    def text(self) -> bytes:
        """Return the last readings; in any thread, and never waiting for the loop."""
        readings, shown = self._readings, self._shown
        if shown is None or shown[0] is not readings:
            shown = self._shown = (readings, self.text_of(readings))
        return shown[1]

    def _look(self) -> None:
        """Read. Whatever goes wrong with it is no reason to end the service."""
        if self._ended:
            return
        try:
            self._readings = self.read()
        except Exception as error:
            if not self._failed:
                self.say(f"metrics cannot be read, the run goes on: {error!r}")
            self._failed = True
        self.loop.call_later(self.every, self._look)


@contextlib.contextmanager
def published(
    listener: socket.socket | None,
    loop: Loop,
    read: Callable[[], Readings],
    say: Callable[[str], None],
    *,
    every: float,
) -> Iterator[int | None]:
    """Serve metrics while the context lasts; yield the port. No listener: do nothing."""
    if listener is None:
        yield None
        return
    from common.telemetry.endpoint import Endpoint
    from common.telemetry.exposition import exposition

    publication = Publication(loop, read, every, say, exposition)
    endpoint = Endpoint(listener, publication.text)
    host, port = listener.getsockname()[:2]
    try:
        publication.start()
        endpoint.start()
        say(
            f"metrics on http://{f'[{host}]' if ':' in host else host}:{port}/metrics, for everybody who reaches it"
        )
        yield port
    finally:
        publication.end()
        endpoint.close()

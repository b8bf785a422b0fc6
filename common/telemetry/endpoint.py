"""GET /metrics in a thread of its own. Whoever asks gets what was read last, at once: nobody waits for the service.

Slow and hostile clients cost little: few connections at a time, the oldest goes first; a few seconds and a few
kilobytes for each; so many a second, and no more.
"""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Callable
from functools import partial

from common.telemetry.exposition import CONTENT_TYPE
from common.transport.channel import Timer
from common.transport.loop import READ, WRITE, SelectorLoop

CONNECTIONS = 16  # at a time
PATIENCE = 5.0  # seconds for a request and its answer
REQUEST = 8192  # bytes
A_SECOND = 32  # connections
_PAUSE = 1.0  # seconds

Answer = Callable[[], bytes]


class Endpoint:
    """An HTTP server for one page."""

    def __init__(self, listener: socket.socket, answer: Answer) -> None:
        self._listener, self._answer = listener, answer
        listener.setblocking(False)
        self._loop = SelectorLoop()
        self._open: dict[socket.socket, _Exchange] = {}  # the oldest first
        self._accepted = 0  # in this second
        self._listening = False
        self._thread = threading.Thread(target=self._serve, name="mapa-metrics", daemon=True)

    @property
    def connections(self) -> int:
        """How many are open."""
        return len(self._open)

    def start(self) -> None:
        self._listen()
        self._thread.start()

    def close(self) -> None:
        """End the thread and free the port."""
        self._loop.stop()
        if self._thread.ident is not None:
            self._thread.join()
        for one in list(self._open.values()):
            one.end()
        self._listener.close()
        self._loop.close()

    def _serve(self) -> None:
        self._loop.call_later(_PAUSE, self._next_second)
        self._loop.run()

    def _next_second(self) -> None:
        self._accepted = 0
        self._listen()
        self._loop.call_later(_PAUSE, self._next_second)

    def _listen(self) -> None:
        if not self._listening:
            self._listening = True
            self._loop.watch(self._listener.fileno(), READ, self._accept)

    def _deafen(self) -> None:
        """Accept nothing until the next second."""
        self._listening = False
        self._loop.unwatch(self._listener.fileno())

    def _accept(self, _mask: int) -> None:
        try:
            connection, _ = self._listener.accept()
        except (BlockingIOError, ConnectionError, InterruptedError):
            return
        except OSError:  # no descriptor is free
            self._deafen()
            return
        self._accepted += 1
        if self._accepted >= A_SECOND:
            self._deafen()
        if len(self._open) >= CONNECTIONS:
            next(iter(self._open.values())).end()
        connection.setblocking(False)
        self._open[connection] = _Exchange(
            connection, self._loop, self._page, partial(self._open.pop, connection, None)
        )

    def _page(self, head: bytes) -> bytes:
        """Return the whole answer to a request."""
        words = head.partition(b"\r\n")[0].split(b" ")
        if len(words) != 3 or not words[2].startswith(b"HTTP/1."):
            return _response("400 Bad Request", b"not HTTP/1\n")
        method, target = words[0], words[1].partition(b"?")[0]
        if method not in (b"GET", b"HEAD"):
            return _response("405 Method Not Allowed", b"GET alone\n", "Allow: GET, HEAD\r\n")
        if target != b"/metrics":
            return _response("404 Not Found", b"see /metrics\n")
        try:
            body = self._answer()
        except Exception:
            return _response("500 Internal Server Error", b"not readable\n")
        whole = _response("200 OK", body, kind=CONTENT_TYPE)
        return whole if method == b"GET" else whole.partition(b"\r\n\r\n")[0] + b"\r\n\r\n"


def _response(status: str, body: bytes, more: str = "", *, kind: str = "text/plain; charset=utf-8") -> bytes:
    head = (
        f"HTTP/1.1 {status}\r\nContent-Type: {kind}\r\nContent-Length: {len(body)}\r\n{more}"
        "Cache-Control: no-store\r\nX-Content-Type-Options: nosniff\r\nConnection: close\r\n\r\n"
    )
    return head.encode() + body


class _Exchange:
    """One connection: a request, its answer, the end."""

    def __init__(
        self,
        connection: socket.socket,
        loop: SelectorLoop,
        page: Callable[[bytes], bytes],
        on_end: Callable[[], object],
    ) -> None:
        self._connection, self._loop, self._page, self._on_end = connection, loop, page, on_end
        self._request = bytearray()
        self._rest = memoryview(b"")
        self._deadline: Timer = loop.call_later(PATIENCE, self.end)
        loop.watch(connection.fileno(), READ, self._read)

    def end(self) -> None:
        if self._connection.fileno() < 0:
            return
        self._deadline.cancel()
        self._loop.unwatch(self._connection.fileno())
        self._connection.close()
        self._on_end()

    def _read(self, _mask: int) -> None:
        try:
            received = self._connection.recv(4096)
        except BlockingIOError:
            return
        except OSError:
            received = b""
        self._request += received
        if not received or len(self._request) > REQUEST:
            self.end()
        elif b"\r\n\r\n" in self._request:
            self._rest = memoryview(self._page(bytes(self._request)))
            self._loop.rewatch(self._connection.fileno(), WRITE, self._write)

    def _write(self, _mask: int) -> None:
        try:
            sent = self._connection.send(self._rest)
        except BlockingIOError:
            return
        except OSError:
            self.end()
            return
        self._rest = self._rest[sent:]
        if not self._rest:
            with contextlib.suppress(OSError):
                self._connection.shutdown(socket.SHUT_WR)
            self.end()

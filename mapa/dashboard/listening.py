"""The page's sockets: a free port, its address, and deadlines that close connections which ask nothing."""

from __future__ import annotations

import asyncio
import errno
import ipaddress
import os
import socket
from typing import Any

from uvicorn.protocols.http.h11_impl import H11Protocol

from common.errors import ConfigurationError

PORT = 8080
_TRIED = 20  # ports after the usual one
PATIENCE = 5.0  # seconds for the head of a request, from the connection's beginning or its last answer
LEAVING = 60.0  # seconds more for a client to read the rest of its answer
CONNECTIONS = 256  # beyond these, the one that has been idle for longest is closed
_MOST = 64  # more, whose answers are under way, before requests are refused with 503


def is_loopback(host: str) -> bool:
    """Tell whether only this machine reaches a server that listens there."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def bind(host: str, port: int | None) -> socket.socket:
    """Return a socket bound there; without a port, 8080 or the next one that is free."""
    try:
        family, _, _, _, place = socket.getaddrinfo(host, port or PORT, type=socket.SOCK_STREAM)[0]
    except OSError as error:
        raise ConfigurationError(f"--host {host!r}: {error}") from error
    both = family == socket.AF_INET6 and socket.has_dualstack_ipv6()  # `::` is IPv4's 0.0.0.0 too
    for candidate in [port] if port is not None else range(PORT, PORT + _TRIED):
        try:
            return socket.create_server(
                (place[0], candidate), family=family, backlog=128, dualstack_ipv6=both
            )
        except OSError as error:
            if error.errno != errno.EADDRINUSE or port is not None:
                raise ConfigurationError(
                    f"--host {host} --port {candidate}: {os.strerror(error.errno or 0)}"
                ) from error
    raise ConfigurationError(f"--port: {PORT} to {PORT + _TRIED - 1} are all in use; give another")


def page_address(host: str, port: int) -> str:
    """Return what to type into a browser on this machine."""
    name = f"[{host}]" if ":" in host else host
    return f"http://{'localhost' if host in ('0.0.0.0', '::') else name}:{port}/"


class PatientProtocol(H11Protocol):
    """HTTP/1.1 with a deadline for every request's head; an answer under way, such as a stream, takes its time.

    uvicorn's own deadline is for connections that have had an answer, and a single byte ends it.
    """

    _deadline: asyncio.TimerHandle | None = None
    _idle_since = 0.0

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._wait()
        if len(self.connections) > CONNECTIONS:
            idle = [one for one in self.connections if isinstance(one, PatientProtocol) and one.is_idle]
            min(idle, key=lambda one: one._idle_since).transport.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop()
        super().connection_lost(exc)

    def handle_events(self) -> None:
        super().handle_events()
        if not self.is_idle:
            self._stop()

    def on_response_complete(self) -> None:
        self._wait()  # before the next request is looked at, which may be here already
        super().on_response_complete()

    @property
    def is_idle(self) -> bool:
        """Whether no request of it is being answered."""
        return self.cycle is None or self.cycle.response_complete

    def _wait(self) -> None:
        self._stop()
        self._idle_since = self.loop.time()
        self._deadline = self.loop.call_later(PATIENCE, self._give_up)

    def _stop(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None

    def _give_up(self) -> None:
        if self.is_idle:
            self.transport.close()  # once what is left of an answer is read
            self._deadline = self.loop.call_later(LEAVING, self.transport.abort)


def limits() -> dict[str, Any]:
    """Return these bounds as options of uvicorn."""
    return {"http": PatientProtocol, "limit_concurrency": CONNECTIONS + _MOST}

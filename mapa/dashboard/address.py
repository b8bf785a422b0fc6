"""Where the page is served: a port that is free, and what to type into a browser."""

from __future__ import annotations

import errno
import ipaddress
import socket

from common.errors import ConfigurationError

PORT = 8080
_TRIED = 20  # ports after the usual one


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
    for candidate in [port] if port is not None else range(PORT, PORT + _TRIED):
        listener = socket.socket(family, socket.SOCK_STREAM)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listener.bind((place[0], candidate))
            listener.listen(128)
        except OSError as error:
            listener.close()
            if error.errno != errno.EADDRINUSE or port is not None:
                raise ConfigurationError(f"--host {host} --port {candidate}: {error.strerror}") from error
        else:
            return listener
    raise ConfigurationError(f"--port: {PORT} to {PORT + _TRIED - 1} are all in use; give another")


def page_address(host: str, port: int) -> str:
    """Return what to type into a browser on this machine."""
    name = f"[{host}]" if ":" in host else host
    return f"http://{'localhost' if host in ('0.0.0.0', '::') else name}:{port}/"

"""A bare echo with TLS and without: what sending and reading cost a Python program that does nothing else.

As a program it listens, prints its port, sends back every message of one client, and prints the processor time of one.
"""

from __future__ import annotations

import socket
import ssl
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from common.errors import MapaError
from experiments.bench.bed import MEGA, on_cores, program

_HOST = "127.0.0.1"
_UNCOUNTED = 50  # messages at the beginning


def echo_turn(
    files: Path | None, size: int, seconds: float, core: Sequence[int], rest: Sequence[int]
) -> float:
    """Return µs of processor that a message of so many bytes costs, there and back; `files`: of a TLS server."""
    words = ("-m", "experiments.bench.echo", str(size), *([] if files is None else [str(files)]))
    with on_cores(core):
        child = program(*words, stdout=subprocess.PIPE)
        with child as echo, on_cores(rest):
            assert echo.stdout is not None
            port = echo.stdout.readline().strip()
            if not port:
                raise MapaError("bench: the echo did not begin")
            plain = socket.create_connection((_HOST, int(port)))
            if files is not None:
                plain = ssl.create_default_context(cafile=files / "services.pem").wrap_socket(
                    plain, server_hostname=_HOST
                )
            with plain as connection:
                connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                message, room, until = bytes(size), bytearray(size), time.monotonic() + seconds
                while time.monotonic() < until:
                    connection.sendall(message)
                    _read(connection, memoryview(room))
            return float(echo.stdout.readline())


def _read(connection: socket.socket, room: memoryview) -> bool:
    """Fill the room; False: the other side has ended."""
    at = 0
    while at < len(room):
        read = connection.recv_into(room[at:])
        if not read:
            return False
        at += read
    return True


def serve(size: int, files: Path | None) -> float:
    """Send back each message of one client; return µs of processor for one."""
    with socket.create_server((_HOST, 0)) as listener:
        print(listener.getsockname()[1], flush=True)
        connection, _ = listener.accept()
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    if files is not None:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(files / "server.pem", files / "server.key")
        connection = context.wrap_socket(connection, server_side=True)
    room, count, began = memoryview(bytearray(size)), 0, time.process_time()
    with connection:
        while _read(connection, room):
            connection.sendall(room)
            count += 1
            if count == _UNCOUNTED:
                began = time.process_time()
    return MEGA * (time.process_time() - began) / max(1, count - _UNCOUNTED)


if __name__ == "__main__":
    print(serve(int(sys.argv[1]), Path(sys.argv[2]) if len(sys.argv) > 2 else None), flush=True)

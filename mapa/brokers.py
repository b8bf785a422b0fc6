"""A broker for a run: a private Mosquitto, an embedded one in Python, or one that is already running."""

from __future__ import annotations

import contextlib
import importlib.util
import logging
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import IO

from common.errors import BrokerUnavailableError, ConfigurationError
from common.quantities import RunId
from common.transport.channel import Channel, Loop
from common.transport.connection import SIZE_HINT, BrokerAddress, parse_address
from common.wire.topics import probe_topic
from mapa.processes import last_lines, start_child, stop_children

_CONNECT = b"\x10\x0c\x00\x04MQTT\x04\x02\x00\x05\x00\x00"  # MQTT 3.1.1, clean session, no client id
_ECHO = 20.0  # seconds for a message as large as a model to come back
OWN = ("auto", "mosquitto", "embedded")  # what we start ourselves
_QUEUED = 1 << 26  # bytes that may wait for one client; beyond it messages are dropped
_NEAR = "listener 0 {}"  # of a unix socket
_LONGEST_PLACE = 100  # bytes of a unix socket's path
# Bytes of models under way at once that a unix socket's buffers hold; beyond them it is slower than TCP.
_LIGHT = 1 << 17
_OTHER_PLACES = ("/usr/sbin", "/usr/local/sbin", "/opt/homebrew/sbin", "/usr/local/bin")


# glibc gives large buffers back at every message and faults them in again at the next: at 21,840 parameters
# that was most of the broker's time (64 page faults an update, 395 µs; kept: none, 105–140 µs).
KEEP_PAGES = {"MALLOC_TRIM_THRESHOLD_": str(64 << 20), "MALLOC_MMAP_THRESHOLD_": str(32 << 20)}


@dataclass
class Broker:
    """A broker that we started, by its process id."""

    address: BrokerAddress
    kind: str  # `mosquitto` or `embedded`
    command: list[str]
    log: Path
    needs_greeting: bool = True  # TLS and passwords keep the probe out
    _child: subprocess.Popen[bytes] | None = field(default=None, init=False)

    @property
    def pid(self) -> int:
        if self._child is None:
            raise BrokerUnavailableError(f"{self.kind} on {self.address} is not running")
        return self._child.pid

    def start(self, timeout: float = 60.0) -> None:
        """Start, and wait until it accepts an MQTT client."""
        with self.log.open("ab") as log:
            # A closed stdin tells the embedded broker that we are gone, where the kernel does not.
            pipes = {"stdin": subprocess.PIPE, "stdout": log, "stderr": log}
            self._child = start_child(self.command, **pipes, env={**os.environ, **KEEP_PAGES})
        until = time.monotonic() + timeout
        while not accepts(self.address, greeting=self.needs_greeting):
            if self._child.poll() is not None or time.monotonic() > until:
                self.stop()
                said = last_lines(self.log) or "no output"
                raise BrokerUnavailableError(f"{self.kind} on {self.address} did not start: {said}")
            time.sleep(0.02)

    def stop(self, number: signal.Signals = signal.SIGTERM) -> None:
        """Stop it; SIGKILL if it does not react. What it retained is lost."""
        child, self._child = self._child, None
        if child is not None:
            if child.stdin is not None:
                child.stdin.close()
            stop_children(child, number=number)

    def kill(self) -> None:
        self.stop(signal.SIGKILL)

    def pause(self, on: bool) -> None:
        os.kill(self.pid, signal.SIGSTOP if on else signal.SIGCONT)

    @contextlib.contextmanager
    def running(self) -> Iterator[Broker]:
        self.start()
        try:
            yield self
        finally:
            self.stop()


def accepts(address: BrokerAddress, *, greeting: bool = True) -> bool:
    """Return whether something listens there; with `greeting`: a broker that accepts a client without a password."""
    try:
        with socket.create_connection((address.host, address.port), timeout=2.0) as probe:
            if not greeting:
                return True
            probe.sendall(_CONNECT)
            accepted = probe.recv(4) == b"\x20\x02\x00\x00"
            probe.sendall(b"\xe0\x00")
            return accepted
    except OSError:
        return False


def find_mosquitto() -> str | None:
    """Return the path of Mosquitto; on Debian it is not in a user's PATH."""
    places = os.pathsep.join((os.environ.get("PATH", os.defpath), *_OTHER_PLACES))
    return shutil.which("mosquitto", path=places)


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


def mosquitto_configuration(port: int, max_payload: int, extra: Sequence[str] = ()) -> str:
    lines = [
        "per_listener_settings false",
        "persistence false",
        "set_tcp_nodelay true",  # without it on both ends small messages fall to a tenth of the rate
        f"message_size_limit {max_payload}",
        "max_inflight_messages 100",
        "max_queued_messages 10000",
        f"max_queued_bytes {max(_QUEUED, 64 * max_payload)}",  # of one client that reads slowly
        "sys_interval 0",
        "log_type error",
        "log_type warning",
        "allow_anonymous true",
    ]
    if hasattr(os, "geteuid") and os.geteuid() == 0:
        lines.append("user root")  # else it becomes `mosquitto`, who cannot read the caller's files
    return "\n".join([*lines, f"listener {port} 127.0.0.1", *extra, ""])


@contextlib.contextmanager
def near_mosquitto(directory: Path, *, max_payload: int) -> Iterator[BrokerAddress]:
    """Run a private Mosquitto; its address is a unix socket, which takes less time than the loopback interface.

    Only this user comes to the socket. Where there can be none, the loopback interface it is.
    """
    with tempfile.TemporaryDirectory(prefix="mapa-") as folder, contextlib.ExitStack() as stack:
        place = f"{folder}/broker"
        address = None
        if (
            hasattr(socket, "AF_UNIX")
            and len(os.fsencode(place)) <= _LONGEST_PLACE
            and not re.search(r"\s", place)
        ):
            extra = [_NEAR.format(place)]
            with contextlib.suppress(
                BrokerUnavailableError
            ):  # Mosquitto has them since 2.0, if built with them
                stack.enter_context(private_mosquitto(directory, max_payload=max_payload, extra=extra))
                address = BrokerAddress(place)
        if address is None:
            address = stack.enter_context(private_mosquitto(directory, max_payload=max_payload)).address
        yield address


def private_mosquitto(
    directory: Path, *, max_payload: int = 1 << 26, extra: Sequence[str] = (), port: int | None = None
) -> AbstractContextManager[Broker]:
    """Run a Mosquitto of our own on the loopback interface; `extra` are further lines of its mosquitto.conf."""
    binary = find_mosquitto()
    if binary is None:
        raise ConfigurationError(
            "broker = 'mosquitto': no mosquitto found on PATH; install it (Debian: apt install mosquitto), "
            "or use `embedded`, or HOST:PORT of a running broker"
        )
    port = free_port() if port is None else port
    directory.mkdir(parents=True, exist_ok=True)
    configuration = directory / "mosquitto.conf"
    configuration.write_text(mosquitto_configuration(port, max_payload, extra))
    return Broker(
        address=BrokerAddress("127.0.0.1", port),
        kind="mosquitto",
        command=[binary, "-c", str(configuration)],
        log=directory / "mosquitto.log",
        needs_greeting=not any(line.startswith(("password_file ", "certfile ")) for line in extra),
    ).running()


def embedded_broker(directory: Path) -> AbstractContextManager[Broker]:
    """Run amqtt in a child: in this process it would share one core with the training."""
    if importlib.util.find_spec("amqtt") is None:
        raise ConfigurationError(
            "broker = 'embedded': the package amqtt is not installed; pip install 'mapa-testbed[broker]', "
            "or use `mosquitto`, or HOST:PORT of a running broker"
        )
    port = free_port()
    directory.mkdir(parents=True, exist_ok=True)
    return Broker(
        address=BrokerAddress("127.0.0.1", port),
        kind="embedded",
        command=[sys.executable, "-P", "-m", "mapa.brokers", str(port)],
        log=directory / "embedded-broker.log",
    ).running()


def private(text: str) -> bool:
    """Return whether the broker is started here; ConfigurationError if the text is not an address either."""
    if text in OWN:
        return True
    parse_address(text)
    return False


@contextlib.contextmanager
def resolve_broker(
    text: str, directory: Path, *, max_payload: int, under_way: int, say: IO[str] | None = None
) -> Iterator[BrokerAddress]:
    """Turn `auto`, `mosquitto`, `embedded` or HOST[:PORT] into the address of a running broker.

    `auto` is a private Mosquitto where one is found, else the embedded broker; it says which. `under_way`: bytes of
    models at once.
    """
    if not private(text):
        yield parse_address(text)
        return
    mosquitto = text == "mosquitto" or (text == "auto" and find_mosquitto() is not None)
    if text == "auto" and say is not None:
        why = "a private Mosquitto" if mosquitto else "embedded (slower; no Mosquitto found)"
        say.write(f"broker: {why}\n")
    if mosquitto and under_way <= _LIGHT:
        with near_mosquitto(directory, max_payload=max_payload) as address:
            yield address
        return
    start = partial(private_mosquitto, max_payload=max_payload) if mosquitto else embedded_broker
    with start(directory) as broker:
        yield broker.address


@dataclass(slots=True)
class SizeProbe:
    """Sends itself a large message, and behind it a small one that tells when to stop waiting.

    A broker drops a message beyond its limit without a word (Mosquitto's message_size_limit) or ends the connection
    (max_packet_size); either way the models would never arrive and the run would stand still.
    """

    run: RunId
    nonce: str  # another cloud's probe is not ours
    channel: Channel
    size: int  # bytes of the large one
    passed: bool = False  # the large one came back
    settled: bool = False  # the small one came back, so there is nothing to wait for

    def __post_init__(self) -> None:
        self.channel.subscribe(probe_topic(self.run), self._on_echo)

    def send(self) -> None:
        """Send both, without acknowledgement, as models are sent; in the loop's thread, behind the subscription."""
        mark = self.nonce.encode()
        self.channel.publish(probe_topic(self.run), mark.ljust(self.size, b"\0"))
        self.channel.publish(probe_topic(self.run), mark)

    def _on_echo(self, topic: str, payload: bytes) -> None:  # noqa: ARG002
        mark = self.nonce.encode()
        if payload == mark:
            self.settled = True
        elif len(payload) == self.size and payload.startswith(mark):
            self.passed = True


def check_message_size(
    probe: SizeProbe, address: BrokerAddress, loop: Loop, say: Callable[[str], None]
) -> None:
    """Raise ConfigurationError where the broker does not deliver messages of a run's size."""
    channel, size = probe.channel, probe.size
    for _attempt in range(2):  # one connection may be lost for another reason
        loop.post(probe.send)
        until = loop.now() + _ECHO
        loop.serve(lambda: probe.settled or not channel.connected, until=until)
        if probe.passed:
            return
        if probe.settled:
            raise ConfigurationError(
                f"broker {address}: drops messages of {size} bytes, which this run needs; {SIZE_HINT}"
            )
        if channel.connected:
            say(
                f"no echo of a message of {size} bytes within {_ECHO:g} s: the broker or the connection is slow"
            )
            return
        loop.serve(lambda: channel.connected, until=until)
    raise ConfigurationError(
        f"broker {address}: closes the connection after a message of {size} bytes, which this run needs; {SIZE_HINT}"
    )


def serve_embedded(port: int) -> None:
    """Serve MQTT to any client on this machine until stdin ends or a signal comes: the embedded broker's program."""
    import asyncio  # megabytes, that a cloud does not need

    async def serve() -> None:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)
            from amqtt.broker import Broker as Amqtt

            # Naming the plugins leaves out the loggers and $SYS, which cost and say too much.
            plugins = {"amqtt.plugins.authentication.AnonymousAuthPlugin": {"allow_anonymous": True}}
            listener = {"type": "tcp", "bind": f"127.0.0.1:{port}"}
            broker = Amqtt({"listeners": {"default": listener}, "plugins": plugins})
            await broker.start()
        loop = asyncio.get_running_loop()
        over = loop.run_in_executor(None, sys.stdin.buffer.read)
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, over.cancel)
        with contextlib.suppress(asyncio.CancelledError):
            await over
        os._exit(0)  # nothing to save; amqtt's own shutdown waits seconds for its clients

    asyncio.run(serve())


if __name__ == "__main__":
    logging.disable(logging.CRITICAL)
    serve_embedded(int(sys.argv[1]))

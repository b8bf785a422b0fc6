"""A real broker for each test that asks, on a port of its own."""

from __future__ import annotations

import os
import secrets
import shutil
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from common.transport.connection import BrokerAddress, MqttOptions
from common.transport.loop import SelectorLoop
from common.transport.mqtt import MqttChannel
from mapa.brokers import Broker, private_mosquitto
from tests.broker.host_support import Host, ip
from tests.broker.loop_support import LoopThread
from tests.program_support import PATIENCE, require_mosquitto, start_mapa


@pytest.fixture
def mosquitto_installed() -> None:
    require_mosquitto()


@pytest.fixture
def mosquitto(mosquitto_installed: None, tmp_path: Path) -> Iterator[Broker]:  # noqa: ARG001
    with private_mosquitto(tmp_path / "broker") as broker:
        yield broker


class Client:
    """A channel with a loop in a thread of its own, and what it has seen."""

    def __init__(self, address: BrokerAddress, client_id: str, topic_filter: str | None, **more: Any) -> None:
        self.loop = SelectorLoop()
        self.seen: list[tuple[str, bytes]] = []
        self.changed = threading.Condition()
        self.connections = self.losses = 0
        options = MqttOptions(address=address, client_id=client_id, **{"min_backoff": 0.02, **more})
        self.channel = MqttChannel(options, self.loop, on_connected=self._up, on_lost=self._down)
        if topic_filter is not None:
            self.channel.subscribe(topic_filter, self._take, qos=1, retained=True)
        try:
            self.channel.connect(PATIENCE)
        except BaseException:
            self.loop.close()
            raise
        self._served = LoopThread(self.loop)

    def _note(self, change: Callable[[], None]) -> None:
        with self.changed:
            change()
            self.changed.notify_all()

    def _take(self, topic: str, payload: bytes) -> None:
        self._note(lambda: self.seen.append((topic, payload)))

    def _up(self) -> None:
        self._note(lambda: setattr(self, "connections", self.connections + 1))

    def _down(self, _reason: str) -> None:
        self._note(lambda: setattr(self, "losses", self.losses + 1))

    def wait(self, condition: Callable[[], bool]) -> None:
        with self.changed:
            assert self.changed.wait_for(condition, PATIENCE), f"in vain; seen {len(self.seen)} messages"

    def close_channel(self, timeout: float = 5.0) -> None:
        """Close it in its loop, and wait for that."""
        until = time.monotonic() + PATIENCE
        self.loop.post(lambda: self.channel.close(timeout))
        while not self.channel.closed and time.monotonic() < until:
            time.sleep(0.005)

    def close(self) -> None:
        self.close_channel()
        self.loop.stop()
        self._served.join(PATIENCE)
        self.loop.close()


@pytest.fixture
def start() -> Iterator[Callable[..., subprocess.Popen[Any]]]:
    """Start `mapa` commands as processes, as `start_mapa` does; kill those that are left at the end."""
    children: list[subprocess.Popen[Any]] = []

    def one(*words: str, **more: Any) -> subprocess.Popen[Any]:
        children.append(start_mapa(*words, **more))
        return children[-1]

    yield one
    for child in children:
        child.kill()
        child.communicate()


@pytest.fixture
def connect() -> Iterator[Callable[..., Client]]:
    clients: list[Client] = []

    def make(
        broker: Broker | BrokerAddress, client_id: str, topic_filter: str | None = None, **more: Any
    ) -> Client:
        address = broker.address if isinstance(broker, Broker) else broker
        clients.append(Client(address, client_id, topic_filter, **more))
        return clients[-1]

    yield make
    for client in clients:
        client.close()


@pytest.fixture
def network(tmp_path: Path) -> Iterator[Any]:
    """Make hosts; remove them, and what runs on them, afterwards."""
    for tool in ("ip", "mosquitto"):
        if shutil.which(tool, path=os.environ["PATH"] + ":/usr/sbin:/sbin") is None:
            pytest.skip(f"no {tool} on PATH (Debian: apt install iproute2 mosquitto)")
    token, made = secrets.token_hex(3), []

    def host(name: str, **hosts: str) -> Host:
        folder = tmp_path / name
        folder.mkdir()
        one = Host(f"mapa-{token}-{name}", folder, hosts)
        done = subprocess.run(["ip", "netns", "add", one.name], capture_output=True, text=True)
        if done.returncode != 0:
            pytest.skip(f"no network namespace can be made here (root can): {done.stderr.strip()}")
        made.append(one)
        ip("-n", one.name, "link", "set", "lo", "up")
        return one

    try:
        yield host
    finally:
        for one in made:
            for child in one.children:
                if child.poll() is None:
                    child.send_signal(signal.SIGKILL)
                child.wait()
            subprocess.run(["ip", "netns", "del", one.name], check=False)

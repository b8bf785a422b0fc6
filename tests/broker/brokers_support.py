"""Brokers that are not ours to configure for users, each started on a free port of the loopback interface."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

import pytest

from common.transport.connection import BrokerAddress
from mapa.brokers import Broker, embedded_broker, free_port, private_mosquitto
from mapa.processes import start_child, stop_children
from tests.program_support import ROOT, require_mosquitto

RABBITMQ = Path("/usr/lib/rabbitmq/bin/rabbitmq-server")
AEDES = Path(os.environ.get("MAPA_NODE_MODULES", ROOT / "build" / "node" / "node_modules")) / "aedes"
_AEDES_PROGRAM = """
import net from "node:net";
const { Aedes } = await import(process.argv[1]);
const broker = await Aedes.createBroker();
const server = net.createServer((socket) => { socket.setNoDelay(true); broker.handle(socket); });
server.listen(Number(process.argv[2]), "127.0.0.1");
process.stdin.on("end", () => process.exit(0)).resume();
"""


def mosquitto(folder: Path) -> AbstractContextManager[Broker]:
    require_mosquitto()
    return private_mosquitto(folder)


@contextmanager
def aedes(folder: Path) -> Iterator[Broker]:
    node = shutil.which("node")
    if node is None or not AEDES.is_dir():
        pytest.skip(f"no aedes (npm install --prefix {AEDES.parents[1]} aedes@1.2.0)")
    folder.mkdir(parents=True)
    port = free_port()
    words = [node, "--input-type=module", "--eval", _AEDES_PROGRAM, "--", str(AEDES / "aedes.js"), str(port)]
    with Broker(BrokerAddress("127.0.0.1", port), "aedes", words, folder / "log").running() as broker:
        yield broker


@contextmanager
def rabbitmq(folder: Path) -> Iterator[Broker]:
    """Run a node of its own with the MQTT plugin: its own names, ports and files, and an epmd of its own."""
    epmd, env = shutil.which("epmd"), shutil.which("env")
    if epmd is None or env is None or not RABBITMQ.is_file():
        pytest.skip("no RabbitMQ (Debian: apt install rabbitmq-server)")
    folder.mkdir(parents=True)
    (folder / "plugins").write_text("[rabbitmq_mqtt].\n")
    port, names, between = free_port(), free_port(), free_port()
    lines = (
        "listeners.tcp = none",
        f"mqtt.listeners.tcp.default = 127.0.0.1:{port}",
        "mqtt.allow_anonymous = true",
    )
    (folder / "rabbitmq.conf").write_text("\n".join(lines) + "\n")
    given = {
        "HOME": folder,
        "RUNNING_UNDER_SYSTEMD": 1,  # no shell between us and the node
        "RABBITMQ_CONF_ENV_FILE": "/dev/null",
        "RABBITMQ_NODENAME": f"mapa-{port}@localhost",
        "RABBITMQ_DIST_PORT": between,
        "RABBITMQ_MNESIA_BASE": folder / "mnesia",
        "RABBITMQ_LOG_BASE": folder / "logs",
        "RABBITMQ_LOGS": "-",
        "RABBITMQ_PID_FILE": folder / "pid",
        "RABBITMQ_ENABLED_PLUGINS_FILE": folder / "plugins",
        "RABBITMQ_CONFIG_FILE": folder / "rabbitmq",
        "RABBITMQ_GENERATED_CONFIG_DIR": folder / "config",
        "RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS": "-kernel inet_dist_use_interface {127,0,0,1}",
        "ERL_EPMD_PORT": names,
        "ERL_EPMD_ADDRESS": "127.0.0.1",
    }
    server = RABBITMQ.resolve()
    words = [env, *(f"{name}={value}" for name, value in given.items()), str(server)]
    registry = start_child([epmd, "-port", str(names), "-address", "127.0.0.1"])
    try:
        with Broker(BrokerAddress("127.0.0.1", port), "rabbitmq", words, folder / "log").running() as broker:
            yield broker
    finally:
        stop_children(registry)


BROKERS: dict[str, Callable[[Path], AbstractContextManager[Broker]]] = {
    "Mosquitto": mosquitto,
    "amqtt": embedded_broker,
    "aedes": aedes,
    "RabbitMQ": rabbitmq,
}

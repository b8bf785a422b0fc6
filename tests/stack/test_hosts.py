"""Cloud and edges on separate networks that meet only at the broker's TLS port: cloud.yml and edge.yml."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from common.errors import BrokerUnavailableError, ConfigurationError
from common.transport.connection import BrokerAddress, Credentials, MqttOptions, TlsFiles
from common.transport.loop import SelectorLoop
from common.transport.mqtt import MqttChannel
from mapa.brokers import free_port
from tests.program_support import eventually
from tests.stack.compose_support import MARKS, PATIENCE, ROOT, Compose, assert_applied_exactly_once, compose

pytestmark = [*MARKS, pytest.mark.usefixtures("images")]
GATEWAY = "host.docker.internal"  # this machine, as its containers call it
CERTS = (sys.executable, "-m", "mapa.cli", "certs")


def certs(folder: Path, *words: str) -> None:
    subprocess.run(
        [*CERTS, *words, "--folder", str(folder)], check=True, capture_output=True, timeout=PATIENCE
    )


@pytest.fixture
def secrets_folder(tmp_path: Path) -> Path:
    folder = tmp_path / "secrets"
    certs(folder, "init", "localhost", "127.0.0.1", GATEWAY)
    certs(folder, "cloud")
    return folder


@pytest.fixture
def vm(engine: Any, tmp_path: Path, secrets_folder: Path) -> Iterator[Compose]:
    environment = {"PORT": str(free_port()), "WEBSOCKET_PORT": str(free_port()), "RUN": "hosts", "EDGES": "3"}
    environment["SECRETS_DIR"] = str(secrets_folder)
    with compose(engine, tmp_path / "runs", ITERATIONS="300", EDGES_AT_LEAST="3", **environment) as project:
        project.file = ROOT / "docker" / "cloud.yml"
        yield project


@pytest.fixture
def token(secrets_folder: Path, tmp_path: Path) -> Iterator[str]:
    """Let three edges enrol, and return what they need for it."""
    printed = tmp_path / "enrol.log"
    words = ("enrol", "lab=3", "--host", GATEWAY, "--port", str(free_port()), "--folder", str(secrets_folder))
    with printed.open("w") as log, subprocess.Popen([*CERTS, *words], stdout=log, stderr=log) as child:
        try:
            eventually(lambda: "--enrol" in printed.read_text(), "the token is printed")
            (found,) = re.findall(r"--enrol (\S+)", printed.read_text())
            yield found
        finally:
            child.kill()


def enters(vm: Compose, files: TlsFiles, client_id: str) -> bool:
    address = BrokerAddress("localhost", int(vm.environment["PORT"]))
    options = MqttOptions(address=address, client_id=client_id, credentials=Credentials(tls=files))
    with SelectorLoop() as loop:
        channel = MqttChannel(options, loop)
        try:
            channel.connect(5.0)
        except (ConfigurationError, BrokerUnavailableError):
            return False
        channel.close()
        return True


def test_edges_of_another_network_enrol_and_train_over_tls(
    engine: Any, vm: Compose, tmp_path: Path, token: str
) -> None:
    vm("up", "--detach", "--no-build")
    place = {"BROKER": GATEWAY, "PORT": vm.environment["PORT"], "RUN": "hosts", "EDGES": "3", "ENROL": token}
    with compose(engine, tmp_path / "none", **place) as lab:
        lab.file = ROOT / "docker" / "edge.yml"
        lab("up", "--detach", "--no-build")
        networks = [
            set(engine.containers.get(name).attrs["NetworkSettings"]["Networks"])
            for name in (vm.stack.container("broker").id, lab.stack.container("edge-1").id)
        ]
        assert not networks[0] & networks[1], "they share a network: the port proves nothing"
        vm.finish()
        for number in (1, 2, 3):
            assert lab.stack.wait(f"edge-{number}", PATIENCE) == 0, lab.stack.last_lines()
    per_edge = assert_applied_exactly_once(vm.records, 300)
    assert set(per_edge) == {0, 1, 2}
    joined = {event["edge_id"] for event in vm.records.named("edge_joined")}
    assert joined == {"lab-0", "lab-1", "lab-2"}, "an edge's id must be its certificate's name"


def test_at_the_published_port_a_certificate_is_needed_and_can_be_revoked(
    vm: Compose, secrets_folder: Path
) -> None:
    certs(secrets_folder, "edge", "desk", "north")
    vm("up", "--detach", "--no-build", "broker")
    vm.until_healthy("broker")
    desk, north = (TlsFiles.identity(secrets_folder / "edges" / name) for name in ("desk", "north"))
    assert enters(vm, desk, "hosts:desk")
    assert not enters(vm, TlsFiles(ca=desk.ca), "hosts:desk")
    certs(secrets_folder, "revoke", "desk")
    eventually(
        lambda: enters(vm, north, "hosts:north") and not enters(vm, desk, "hosts:desk"), "it is revoked"
    )

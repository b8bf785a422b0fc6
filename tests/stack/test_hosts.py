"""Cloud and edges on separate networks that meet only at the broker's TLS port: cloud.yml and edge.yml."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from common.errors import ConfigurationError
from common.quantities import EdgeId, RunId
from common.transport.connection import BrokerAddress, Credentials, MqttOptions, TlsFiles
from common.transport.loop import SelectorLoop
from common.transport.mqtt import MqttChannel
from common.wire.topics import EdgeTopic, edge_topic, halt_topic
from mapa.brokers import free_port
from tests.program_support import ROOT, run_program
from tests.stack.compose_support import MARKS, PATIENCE, Compose, assert_applied_exactly_once, compose

pytestmark = [*MARKS, pytest.mark.usefixtures("images")]
GATEWAY = "host.docker.internal"  # this machine, as its containers call it


@pytest.fixture(scope="module")
def secrets_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("deploy") / "secrets"
    recipe = ROOT / "docker" / "mosquitto" / "secrets.sh"
    names = f"localhost,127.0.0.1,{GATEWAY}"
    done = run_program(recipe, folder, names, "lab=3", "desk=1")
    assert done.returncode == 0, done.stderr
    return folder


@pytest.fixture
def vm(engine: Any, tmp_path: Path, secrets_folder: Path) -> Iterator[Compose]:
    port = str(free_port())
    environment = {"PORT": port, "SECRETS_DIR": str(secrets_folder), "RUN": "hosts", "EDGES": "3"}
    with compose(engine, tmp_path / "runs", ITERATIONS="300", EDGES_AT_LEAST="3", **environment) as project:
        project.file = ROOT / "docker" / "cloud.yml"
        yield project


def test_edges_of_another_network_train_over_tls(
    engine: Any, vm: Compose, tmp_path: Path, secrets_folder: Path
) -> None:
    vm("up", "--detach", "--no-build")
    environment = {
        "BROKER": GATEWAY,
        "PORT": vm.environment["PORT"],
        "RUN": "hosts",
        "EDGES": "3",
        "SECRETS_DIR": str(secrets_folder / "edges" / "lab"),
    }
    with compose(engine, tmp_path / "none", **environment) as lab:
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
    assert joined == {"lab-0", "lab-1", "lab-2"}, "an edge's id must be its user's name"


class Intruder:
    """A client with an edge's account, and what it hears."""

    def __init__(
        self,
        address: BrokerAddress,
        secrets: Path,
        user: str,
        password: Path | None,
        topic_filter: str | None = None,
    ) -> None:
        self.loop = SelectorLoop()
        self.heard: list[tuple[str, bytes]] = []
        options = MqttOptions(
            address=address,
            client_id=f"test:{user}",
            credentials=Credentials(
                username=user,
                password=None if password is None else password.read_text().strip(),
                tls=TlsFiles(ca=secrets / "ca.pem"),
            ),
        )
        self.channel = MqttChannel(options, self.loop)
        if topic_filter is not None:
            self.channel.subscribe(topic_filter, lambda *heard: self.heard.append(heard), qos=1)
        try:
            self.channel.connect(PATIENCE)
        except ConfigurationError:
            self.loop.close()
            raise

    def __enter__(self) -> Intruder:
        return self

    def __exit__(self, *_: object) -> None:
        self.channel.close()
        self.loop.close()

    def settle(self, until: Callable[[], bool]) -> None:
        assert self.loop.serve(until, until=self.loop.now() + PATIENCE)

    def delivered(self) -> bool:
        return not self.channel.owing


def test_an_edge_can_neither_read_nor_write_what_is_anothers(vm: Compose, secrets_folder: Path) -> None:
    vm("up", "--detach", "--no-build", "broker")
    vm.until_healthy("broker")
    address = BrokerAddress("localhost", int(vm.environment["PORT"]))
    accounts = secrets_folder / "edges" / "lab" / "accounts"
    run, own, other, everything = RunId(vm.environment["RUN"]), EdgeId("lab-0"), EdgeId("lab-1"), "mapa/v1/#"
    with (
        Intruder(
            address, secrets_folder, "cloud", secrets_folder / "cloud" / "password", everything
        ) as cloud,
        Intruder(address, secrets_folder, own, accounts / own, everything) as edge,
    ):
        for leaf in (EdgeTopic.GRADIENT, EdgeTopic.HELLO, EdgeTopic.MODEL, EdgeTopic.WELCOME):
            edge.channel.publish(edge_topic(run, other, leaf), b"forged", qos=1)
        for topic in (edge_topic(run, own, EdgeTopic.MODEL), halt_topic(run)):
            edge.channel.publish(topic, b"forged", qos=1)
        edge.channel.publish(edge_topic(run, own, EdgeTopic.GRADIENT), b"own", qos=1)
        edge.settle(edge.delivered)
        cloud.settle(lambda: bool(cloud.heard))  # a forgery would have come before: one connection, in order
        assert cloud.heard == [(edge_topic(run, own, EdgeTopic.GRADIENT), b"own")]
        for whom in (other, own):
            cloud.channel.publish(edge_topic(run, whom, EdgeTopic.MODEL), b"for " + whom.encode(), qos=1)
        cloud.settle(cloud.delivered)
        edge.settle(lambda: bool(edge.heard))
        assert edge.heard == [(edge_topic(run, own, EdgeTopic.MODEL), b"for lab-0")]
    for user, password in ((own, accounts / other), ("nobody", accounts / own), ("cloud", None)):
        with pytest.raises(ConfigurationError, match="refused user"):
            Intruder(address, secrets_folder, user, password)

"""TLS, passwords and per-edge ACLs on a real Mosquitto."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from common.errors import BrokerUnavailableError, ConfigurationError
from common.quantities import EdgeId, RunId
from common.transport.connection import BrokerAddress, Credentials, MqttOptions, TlsFiles
from common.transport.loop import SelectorLoop
from common.transport.mqtt import MqttChannel
from common.wire.topics import EdgeTopic, edge_topic, halt_topic
from mapa.broker_files import write_passwords
from mapa.brokers import Broker, find_mosquitto, private_mosquitto
from tests.broker.site_support import Site
from tests.broker.testbed_support import open_testbed, scenario
from tests.program_support import PATIENCE, eventually

pytestmark = [
    pytest.mark.broker,
    pytest.mark.skipif(
        find_mosquitto() is None, reason="no mosquitto on PATH (Debian: apt install mosquitto)"
    ),
]
Connect = Callable[..., Any]


def openssl(folder: Path, *words: str) -> None:
    subprocess.run(["openssl", *words], cwd=folder, check=True, capture_output=True)


@pytest.fixture
def certificates(tmp_path: Path) -> Path:
    folder = tmp_path / "tls"
    folder.mkdir()
    key = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes")
    openssl(folder, "req", "-x509", *key, "-keyout", "ca.key", "-out", "ca.pem", "-subj", "/CN=test ca")
    openssl(folder, "req", *key, "-keyout", "server.key", "-out", "server.csr", "-subj", "/CN=localhost")
    (folder / "names").write_text("subjectAltName=DNS:localhost,IP:127.0.0.1\n")
    signing = ("-CA", "ca.pem", "-CAkey", "ca.key", "-CAcreateserial", "-extfile", "names", "-days", "2")
    openssl(folder, "x509", "-req", "-in", "server.csr", *signing, "-out", "server.pem")
    openssl(
        folder, "req", "-x509", *key, "-keyout", "other.key", "-out", "other.pem", "-subj", "/CN=other ca"
    )
    for path in folder.iterdir():
        path.chmod(0o644)
    return folder


def tls_lines(certificate: Path, key: Path, ca: Path) -> list[str]:
    return [f"certfile {certificate}", f"keyfile {key}", f"cafile {ca}"]


@pytest.fixture
def tls_broker(tmp_path: Path, certificates: Path) -> Any:
    tls = tls_lines(certificates / "server.pem", certificates / "server.key", certificates / "ca.pem")
    with private_mosquitto(tmp_path / "broker", extra=tls) as broker:
        yield broker


@pytest.mark.parametrize("size", [10, 2_000_000])
def test_a_tls_listener_with_its_ca_carries_messages(
    tls_broker: Broker, certificates: Path, connect: Connect, size: int
) -> None:
    client = connect(tls_broker, "c", "x", credentials=Credentials(tls=TlsFiles(ca=certificates / "ca.pem")))
    for qos in (0, 1):
        client.channel.publish("x", bytes([qos]) * size, qos=qos)
    client.wait(lambda: len(client.seen) == 2)
    assert [payload for _, payload in client.seen] == [bytes([qos]) * size for qos in (0, 1)]


def try_connect(broker: Broker, seconds: float = PATIENCE, **more: Any) -> None:
    with SelectorLoop() as loop:
        options = MqttOptions(
            address=broker.address, client_id="c", connect_timeout=seconds, credentials=Credentials(**more)
        )
        MqttChannel(options, loop).connect(1.5 * seconds)


def test_a_certificate_of_another_ca_is_refused_clearly(tls_broker: Broker, certificates: Path) -> None:
    with pytest.raises(ConfigurationError, match="certificate is not trusted"):
        try_connect(tls_broker, tls=TlsFiles(ca=certificates / "other.pem"))


def test_plain_mqtt_to_a_tls_listener_ends_in_a_clear_error(tls_broker: Broker) -> None:
    with pytest.raises(BrokerUnavailableError, match=f"{tls_broker.address}.*TLS port.*--tls-ca"):
        try_connect(tls_broker, 1)


def test_tls_to_a_plain_listener_ends_in_a_clear_error(mosquitto: Broker, certificates: Path) -> None:
    with pytest.raises(
        BrokerUnavailableError, match=f"{mosquitto.address}.*does the broker use TLS at this port"
    ):
        try_connect(mosquitto, 1, tls=TlsFiles(ca=certificates / "ca.pem"))


def test_a_file_that_is_no_certificate_is_refused(mosquitto: Broker, tmp_path: Path) -> None:
    nonsense = tmp_path / "ca.pem"
    nonsense.write_text("nonsense")
    with pytest.raises(ConfigurationError, match=r"ca\.pem"):
        try_connect(mosquitto, tls=TlsFiles(ca=nonsense))


def test_the_password_is_never_shown() -> None:
    given = Credentials(username="u", password="secret")
    assert "secret" not in repr(MqttOptions(address=BrokerAddress("h"), client_id="c", credentials=given))


@pytest.fixture
def shipped(tmp_path: Path) -> Iterator[Site]:
    """Start a broker with passwords as docker/cloud.yml does."""
    site = Site(tmp_path / "site", {"cloud": "c", "e1": "1", "e2": "2"}, run="test")
    with site.running():
        yield site


def test_a_wrong_password_is_refused_clearly_and_nobody_is_anonymous(shipped: Site, connect: Connect) -> None:
    right = shipped.credentials("e1")
    for user, password in (("e1", "wrong"), ("e2", "1"), ("e1", ""), (None, None)):
        given = replace(right, username=user, password=password)
        for port in (shipped.edges, shipped.clouds):
            with pytest.raises(ConfigurationError, match="refused user") as caught:
                connect(port, "e1", credentials=given)
            assert "wrong" not in str(caught.value)
    assert connect(shipped.edges, "e1", credentials=right).channel.connected


def test_no_edge_account_throws_the_cloud_or_another_edge_out_by_its_client_id(
    shipped: Site, tmp_path: Path, connect: Connect
) -> None:
    for name in ("cloud", "1"):
        (tmp_path / name).mkdir()
    (tmp_path / "1" / "e1").write_text("1\n")
    values, credentials = scenario(edges=2, iterations=3000), shipped.credentials("cloud")
    with open_testbed(shipped.clouds, tmp_path / "cloud", values, credentials=credentials) as bed:
        ca = ("--tls-ca", str(shipped.authority.folder / "services.pem"))
        bed.edge("--accounts", str(tmp_path / "1"), *ca, broker=shipped.edges)
        service = bed.cloud.service
        bed.wait(lambda: bed.updates > 10)
        thrown_out = [f"test::{service.presence.nonce}", "cloud", "test:e1", "e1"]
        for client_id in thrown_out:  # what the presence and the topics tell every edge
            connect(shipped.edges, client_id, credentials=shipped.credentials("e2")).close()
        assert bed.finish()["updates"] == 3000
        assert service.traffic.lost_connections == 0
        assert not bed.events("edge_gone")


def test_an_edge_account_can_retain_in_its_branch_of_the_run_alone(shipped: Site, connect: Connect) -> None:
    edge = connect(shipped.edges, "e1", credentials=shipped.credentials("e1"))
    for number in range(20):
        edge.channel.publish(f"mapa/v1/other-{number}/edge/e1/hello", b"x", qos=1, retain=True)
    edge.channel.publish("mapa/v1/test/edge/e1/leave", b"x", qos=1, retain=True)
    cloud = connect(shipped.clouds, "cloud", "mapa/v1/#", credentials=shipped.credentials("cloud"))
    cloud.wait(lambda: len(cloud.seen) > 0)
    cloud.channel.publish("mapa/v1/test/mark", b"x", qos=1)
    cloud.wait(lambda: cloud.seen[-1][0].endswith("mark"))
    assert [topic for topic, _ in cloud.seen] == ["mapa/v1/test/edge/e1/leave", "mapa/v1/test/mark"]


def test_an_acl_by_user_name_keeps_each_edge_to_its_own_branch(shipped: Site, connect: Connect) -> None:
    run, one, two = RunId("test"), EdgeId("e1"), EdgeId("e2")
    cloud = connect(shipped.clouds, "cloud", "mapa/v1/#", credentials=shipped.credentials("cloud"))
    edge = connect(shipped.edges, "test:e1", "mapa/v1/#", credentials=shipped.credentials("e1"))
    # what e1 must not write: another's branch, its own welcome and model, halt
    edge.channel.publish(edge_topic(run, two, EdgeTopic.GRADIENT), b"forged", qos=1)
    edge.channel.publish(edge_topic(run, one, EdgeTopic.MODEL), b"forged", qos=1)
    edge.channel.publish(halt_topic(run), b"forged", qos=1, retain=True)
    edge.channel.publish(edge_topic(run, one, EdgeTopic.GRADIENT), b"own", qos=1)
    cloud.wait(lambda: len(cloud.seen) > 0)
    assert cloud.seen == [(edge_topic(run, one, EdgeTopic.GRADIENT), b"own")]
    # what e1 must not read: another's model
    cloud.channel.publish(edge_topic(run, two, EdgeTopic.MODEL), b"for e2", qos=1)
    cloud.channel.publish(edge_topic(run, one, EdgeTopic.MODEL), b"for e1", qos=1)
    edge.wait(lambda: len(edge.seen) > 0)
    assert edge.seen == [(edge_topic(run, one, EdgeTopic.MODEL), b"for e1")]


def test_an_edges_password_is_worth_nothing_at_the_clouds_port(shipped: Site, connect: Connect) -> None:
    """There its client id would be its own choice: a cloud's, or another edge's, which it would throw out."""
    cloud = connect(shipped.clouds, "cloud", "mapa/v1/#", credentials=shipped.credentials("cloud"))
    with pytest.raises(ConfigurationError, match="refuse"):
        connect(shipped.clouds, "cloud", credentials=shipped.credentials("e1"))
    connect(shipped.edges, "cloud", credentials=shipped.credentials("e1"))
    cloud.channel.publish("mapa/v1/test/mark", b"x", qos=1)
    cloud.wait(lambda: len(cloud.seen) > 0)
    assert cloud.losses == 0


def test_what_else_lies_among_the_secrets_keeps_no_broker_from_starting(
    tmp_path: Path, connect: Connect
) -> None:
    site = Site(tmp_path, {"cloud": "c", "e1": "1"})
    (site.files / "lost+found").mkdir(parents=True)
    (site.files / "link").symlink_to("nowhere")
    for name in ("-rf", "a b", "*", ".hidden"):
        (site.files / name).write_text("x")
    with site.running():
        connect(site.edges, "e1", credentials=site.credentials("e1"))


@pytest.mark.slow
def test_a_new_password_is_known_at_sighup_or_by_the_containers_own_look(tmp_path: Path) -> None:
    for in_container in (False, True):
        site = Site(tmp_path / str(in_container), {"cloud": "c", "e1": "1"})

        def enters(name: str, site: Site = site) -> bool:
            options = MqttOptions(address=site.edges, client_id=name, credentials=site.credentials(name))
            with SelectorLoop() as loop:
                channel = MqttChannel(options, loop)
                try:
                    channel.connect(PATIENCE)
                except ConfigurationError:
                    return False
                channel.close()
                return True

        with site.running(in_container=in_container) as broker:
            assert enters("e1")
            site.passwords = {**(site.passwords or {}), "e2": "2"}
            assert not enters("e2")
            write_passwords(site.files, site.passwords)
            if not in_container:
                os.kill(broker.pid, signal.SIGHUP)
            eventually(lambda: enters("e2"), "the new account is known")
            assert enters("e1")


def certificate_of_localhost(folder: Path) -> Path:
    """Return a key and a certificate, its own authority, that names localhost and no address."""
    folder.mkdir()
    words = "req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 2 -subj /CN=localhost"
    words += " -addext subjectAltName=DNS:localhost -keyout key.pem -out cert.pem"
    subprocess.run(["openssl", *words.split()], cwd=folder, check=True, capture_output=True)
    for path in folder.iterdir():
        path.chmod(0o644)
    return folder


def test_an_edge_behind_a_link_trusts_the_broker_by_its_own_name(tmp_path: Path) -> None:
    tls = certificate_of_localhost(tmp_path / "tls")
    ca = tls / "cert.pem"
    lines = tls_lines(ca, tls / "key.pem", ca)
    with private_mosquitto(tmp_path / "broker", extra=lines) as broker:
        address = BrokerAddress("localhost", broker.address.port)
        values = scenario(edges=1, iterations=200, links=[{"delay_ms": 5.0}])
        with open_testbed(
            address, tmp_path / "run", values, credentials=Credentials(tls=TlsFiles(ca=ca))
        ) as bed:
            child = bed.edge("--tls-ca", str(ca), "--connect-timeout", "5")
            bed.wait(lambda: bed.updates > 0 or child.poll() is not None)
            assert bed.updates > 0, bed.logs()
            (row,) = bed.finish()["network"]
    assert row["round_trip_ms"] >= 10.0

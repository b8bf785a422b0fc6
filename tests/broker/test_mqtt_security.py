"""TLS, passwords and per-edge ACLs on a real Mosquitto."""

from __future__ import annotations

import signal
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from common.errors import BrokerUnavailableError, ConfigurationError
from common.quantities import EdgeId, RunId
from common.transport.connection import BrokerAddress, MqttOptions, TlsFiles
from common.transport.loop import SelectorLoop
from common.transport.mqtt import MqttChannel
from common.wire.topics import EdgeTopic, edge_topic, halt_topic
from mapa.brokers import Broker, MosquittoOptions, find_mosquitto, free_port, private_mosquitto
from tests.program_support import PATIENCE, ROOT, eventually

pytestmark = [
    pytest.mark.broker,
    pytest.mark.skipif(
        find_mosquitto() is None, reason="no mosquitto on PATH (Debian: apt install mosquitto)"
    ),
]
Connect = Callable[..., Any]

ACL = """
user cloud
topic readwrite mapa/v1/#

pattern write mapa/v1/+/edge/%u/hello
pattern write mapa/v1/+/edge/%u/gradient
pattern write mapa/v1/+/edge/%u/leave
pattern write mapa/v1/+/edge/%u/will
pattern read mapa/v1/+/edge/%u/welcome
pattern read mapa/v1/+/edge/%u/model
pattern read mapa/v1/+/halt
pattern read mapa/v1/+/cloud
"""


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


@pytest.fixture
def tls_broker(tmp_path: Path, certificates: Path) -> Any:
    options = MosquittoOptions(
        certificate=certificates / "server.pem", key=certificates / "server.key", ca=certificates / "ca.pem"
    )
    with private_mosquitto(tmp_path / "broker", options) as broker:
        yield broker


def passwords(folder: Path, **users: str) -> Path:
    path = folder / "passwords"
    path.touch(mode=0o644)
    for name, password in users.items():
        subprocess.run(["mosquitto_passwd", "-b", str(path), name, password], check=True, capture_output=True)
    path.chmod(0o644)
    return path


@pytest.mark.parametrize("size", [10, 2_000_000])
def test_a_tls_listener_with_its_ca_carries_messages(
    tls_broker: Broker, certificates: Path, connect: Connect, size: int
) -> None:
    client = connect(tls_broker, "c", "x", tls=TlsFiles(ca=certificates / "ca.pem"))
    for qos in (0, 1):
        client.channel.publish("x", bytes([qos]) * size, qos=qos)
    client.wait(lambda: len(client.seen) == 2)
    assert [payload for _, payload in client.seen] == [bytes([qos]) * size for qos in (0, 1)]


def try_connect(broker: Broker, seconds: float = PATIENCE, **more: Any) -> None:
    with SelectorLoop() as loop:
        options = MqttOptions(address=broker.address, client_id="c", connect_timeout=seconds, **more)
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


def test_a_wrong_password_is_refused_clearly(tmp_path: Path, connect: Connect) -> None:
    options = MosquittoOptions(password_file=passwords(tmp_path, e1="right"))
    with private_mosquitto(tmp_path / "broker", options) as broker:
        assert connect(broker, "c", username="e1", password="right").channel.connected
        for more in ({"username": "e1", "password": "wrong"}, {"username": "e2", "password": "right"}, {}):
            with pytest.raises(ConfigurationError, match="refused user") as caught:
                try_connect(broker, **more)
            assert "wrong" not in str(caught.value)


def test_the_password_is_never_shown() -> None:
    options = MqttOptions(address=BrokerAddress("h"), client_id="c", username="u", password="secret")
    assert "secret" not in repr(options)


def test_an_acl_by_user_name_keeps_each_edge_to_its_own_branch(tmp_path: Path, connect: Connect) -> None:
    acl = tmp_path / "acl"
    acl.write_text(ACL)
    acl.chmod(0o600)
    options = MosquittoOptions(
        password_file=passwords(tmp_path, cloud="c", e1="1", e2="2"),
        acl_file=acl,
    )
    run, one, two = RunId("r"), EdgeId("e1"), EdgeId("e2")
    with private_mosquitto(tmp_path / "broker", options) as broker:
        cloud = connect(broker, "cloud", "mapa/v1/#", username="cloud", password="c")
        edge = connect(broker, "r:e1", "mapa/v1/#", username="e1", password="1")
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


@pytest.mark.slow
def test_the_recipes_broker_without_a_container_knows_a_new_account_after_a_sighup(tmp_path: Path) -> None:
    folder, port = tmp_path / "secrets", free_port()

    def recipe(*groups: str) -> None:
        words = [ROOT / "docker" / "mosquitto" / "secrets.sh", folder, "localhost", *groups]
        subprocess.run(words, check=True, capture_output=True)

    def enter(name: str) -> bool:
        path = next(folder.glob(f"*/*/accounts/{name}"))
        tls = TlsFiles(ca=path.parents[1] / "ca.pem")
        options = MqttOptions(
            address=BrokerAddress("localhost", port),
            client_id=name,
            username=name,
            password=path.read_text().strip(),
            tls=tls,
        )
        with SelectorLoop() as loop:
            channel = MqttChannel(options, loop)
            try:
                channel.connect(PATIENCE)
            except ConfigurationError:
                return False
            channel.close()
            return True

    recipe("lab=1")
    configuration = folder / "broker" / "mosquitto.conf"
    configuration.write_text(configuration.read_text().replace("listener 8883", f"listener {port}"))
    broker = subprocess.Popen([str(find_mosquitto()), "-c", str(configuration)], stderr=subprocess.DEVNULL)
    try:
        assert enter("lab-0")
        recipe("desk=1")
        assert f"listener {port}" in configuration.read_text(), "what is there stays"
        assert not enter("desk-0")
        broker.send_signal(signal.SIGHUP)
        eventually(lambda: enter("desk-0"), "the new account is known")
    finally:
        broker.kill()
        broker.wait()

"""A real Mosquitto with what `mapa certs` writes: who gets in, as whom, and what each may do there.

Each test shows that the same action succeeds with the right credentials.
"""

from __future__ import annotations

import os
import signal
import socket
import ssl
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from dataclasses import replace
from datetime import datetime, tzinfo
from pathlib import Path
from typing import Any

import pytest

import mapa.authority
from common.errors import BrokerUnavailableError, ConfigurationError
from common.transport.channel import Will
from common.transport.connection import BrokerAddress, Credentials, MqttOptions, TlsFiles
from common.transport.loop import SelectorLoop
from common.transport.mqtt import MqttChannel
from mapa.authority import Authority, Role
from mapa.brokers import accepts, find_mosquitto
from tests.broker.site_support import Session, Site, context, text
from tests.program_support import PATIENCE, eventually

pytestmark = [
    pytest.mark.broker,
    pytest.mark.skipif(
        find_mosquitto() is None, reason="no mosquitto on PATH (Debian: apt install mosquitto)"
    ),
]


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    made = Site(tmp_path)
    with made.running():
        yield made


def refused(at: BrokerAddress, tls: ssl.SSLContext | None, user: str = "") -> str:
    """Return why a client is kept out, as the broker says it; "": it is let in."""
    there = (at.host, at.port)
    socket.create_connection(there, timeout=PATIENCE).close()  # somebody listens there
    try:
        with Session(at, tls, user=user):
            return ""
    except (ssl.SSLError, ConnectionError):
        if tls is None:
            return "no tls"
    try:  # again, and only to listen: who writes first may not hear
        with (
            socket.create_connection(there, timeout=PATIENCE) as plain,
            tls.wrap_socket(plain, server_hostname="localhost") as secured,
        ):
            return repr(secured.recv(1))
    except ssl.SSLError as error:
        return str(error.reason).partition("ALERT_")[2].replace("_", " ").lower()


def test_an_edge_without_a_certificate_or_without_tls_is_kept_out(site: Site) -> None:
    assert not refused(site.edges, context(site.identity("e1"), site))
    assert refused(site.edges, context(None, site)) == "certificate required"
    assert refused(site.edges, None) == "no tls"


def test_a_certificate_of_another_authority_is_worth_nothing(site: Site, tmp_path: Path) -> None:
    other = Authority.create(tmp_path / "other", ["localhost"])
    assert refused(site.edges, context(site.identity("e1", authority=other), site)) == "unknown ca"
    forged = context(site.identity("cloud", Role.CLOUD, authority=other), site)
    assert refused(site.clouds, forged) == "unknown ca"
    assert not refused(site.edges, context(site.identity("e2"), site))


def test_a_broker_of_another_authority_is_not_trusted(site: Site, tmp_path: Path) -> None:
    edge = context(site.identity("e1"), site)
    other = Site(tmp_path / "impostor")
    with other.running(), pytest.raises(ssl.SSLCertVerificationError):
        Session(other.edges, edge)
    assert not refused(site.edges, edge)


def test_an_identity_opens_the_listener_of_its_role_alone(site: Site) -> None:
    edge, cloud = context(site.identity("e1"), site), context(site.identity("cloud", Role.CLOUD), site)
    assert not refused(site.edges, edge)
    assert refused(site.clouds, edge) == "unknown ca"
    assert refused(site.clouds, edge, user="cloud") == "unknown ca"
    assert not refused(site.clouds, cloud)
    assert refused(site.edges, cloud) == "unknown ca"


def test_the_brokers_own_key_is_no_clouds(site: Site, tmp_path: Path) -> None:
    stolen = tmp_path / "stolen"
    stolen.mkdir()
    for name, source in (("cert.pem", "server.pem"), ("key.pem", "server.key")):
        (stolen / name).write_bytes((tmp_path / "broker" / source).read_bytes())
    assert refused(site.clouds, context(stolen, site)) == "unsupported certificate"
    assert not refused(site.clouds, context(site.identity("cloud", Role.CLOUD), site))


def test_an_expired_certificate_is_refused(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    class LongAgo(datetime):
        @classmethod
        def now(cls, tz: tzinfo | None = None) -> datetime:
            return datetime(2015, 1, 1, tzinfo=tz)

    monkeypatch.setattr(mapa.authority, "datetime", LongAgo)
    old = site.identity("e1")
    monkeypatch.undo()
    assert refused(site.edges, context(old, site)) == "certificate expired"
    assert not refused(site.edges, context(site.identity("e1"), site))


def test_revocation_ends_a_session_and_lets_the_others_come_back(site: Site) -> None:
    one, two = context(site.identity("e1"), site), context(site.identity("e2"), site)
    with Session(site.edges, one) as session:
        site.revoke("e1")
        with pytest.raises((ConnectionError, ssl.SSLError)):
            session.receive()
    eventually(lambda: accepts(site.edges, greeting=False), "the broker is back")
    assert refused(site.edges, one) == "certificate revoked"
    assert not refused(site.edges, two)
    site.identity("e1")  # a new one of the same name
    assert not refused(site.edges, context(site.folder / "e1", site))


def test_without_a_container_the_broker_is_started_in_its_folder_and_reads_the_list_at_sighup(
    tmp_path: Path,
) -> None:
    site = Site(tmp_path)
    with site.running(in_container=False) as broker:
        one, two = context(site.identity("e1"), site), context(site.identity("e2"), site)
        assert not refused(site.edges, one)
        site.revoke("e1")
        os.kill(broker.pid, signal.SIGHUP)
        eventually(lambda: refused(site.edges, one) == "certificate revoked", "the list is read")
        assert not refused(site.edges, two)


@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_1, ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
def test_tls_below_1_2_is_refused(site: Site, version: ssl.TLSVersion) -> None:
    client = context(site.identity("e1"), site)
    client.set_ciphers("DEFAULT:@SECLEVEL=0")  # else it is the client that refuses
    with (
        pytest.warns(DeprecationWarning, match="TLSv1_1")
        if version < ssl.TLSVersion.TLSv1_2
        else nullcontext()
    ):
        client.minimum_version = client.maximum_version = version
    assert refused(site.edges, client) == ("protocol version" if version < ssl.TLSVersion.TLSv1_2 else "")


def test_a_client_id_is_its_certificates_name_whatever_the_client_says(site: Site) -> None:
    own, other = context(site.identity("e1"), site), context(site.identity("e2"), site)
    with Session(site.edges, own, "run:e1") as first:
        for stolen in ("run:e1", "e1", "me"):
            assert not refused(site.edges, other), stolen
            with Session(site.edges, other, stolen):
                first.subscribe("mapa/v1/r/edge/e1/model")  # it is still there
        assert not refused(site.edges, other, user="e1"), "the name that it gives counts for nothing"
        first.subscribe("mapa/v1/r/edge/e1/model")
        with Session(site.edges, own, "another"), pytest.raises((ConnectionError, ssl.SSLError)):
            first.receive()  # of one identity the later client remains


OWNERS = {
    "edge/e2/hello": "e2",
    "edge/e2/gradient": "e2",
    "edge/e2/leave": "e2",
    "edge/e2/will": "e2",
    "edge/e2/welcome": "cloud",
    "edge/e2/model": "cloud",
    "edge/e1/welcome": "cloud",
    "edge/e1/model": "cloud",
    "halt": "cloud",
    "cloud": "cloud",
    "clouds": "cloud",
    "probe": "cloud",
}


@pytest.mark.parametrize("retained", [False, True], ids=["once", "retained"])
@pytest.mark.parametrize("leaf", OWNERS)
def test_what_another_has_to_say_is_not_passed_on(site: Site, leaf: str, retained: bool) -> None:
    topic, by_cloud = f"mapa/v1/r/{leaf}", OWNERS[leaf] == "cloud"
    cloud = context(site.identity("cloud", Role.CLOUD), site)
    right = (site.clouds, cloud) if by_cloud else (site.edges, context(site.identity(OWNERS[leaf]), site))
    with (
        Session(site.clouds, cloud, "listener") as listener,
        Session(site.edges, context(site.identity("e1"), site)) as forger,
        Session(*right, "owner") as owner,
    ):
        listener.subscribe("mapa/v1/#")
        forger.publish(topic, b"forged", retained=retained)
        owner.publish(topic, b"true", retained=retained)
        assert listener.message() == (topic, b"true")


def test_a_last_will_is_told_in_its_edges_own_branch_alone(site: Site, connect: Callable[..., Any]) -> None:
    cloud = connect(site.clouds, "c", "mapa/v1/#", credentials=site.credentials("cloud", Role.CLOUD))
    for owner in ("e2", "e1"):
        will = Will(f"mapa/v1/r/edge/{owner}/will", b"lost")
        edge = connect(site.edges, "r:e1", credentials=site.credentials("e1"), will=will)
        edge.loop.post(edge.channel.abort)
    cloud.wait(lambda: len(cloud.seen) > 0)
    assert cloud.seen == [("mapa/v1/r/edge/e1/will", b"lost")]


def test_an_edge_reads_its_own_branch_alone(site: Site) -> None:
    tls = context(site.identity("cloud", Role.CLOUD), site)
    with (
        Session(site.clouds, tls, "cloud-nonce") as cloud,
        Session(site.edges, context(site.identity("e1"), site)) as edge,
    ):
        edge.subscribe("#")
        edge.subscribe("mapa/v1/r/edge/e2/model")
        for leaf in ("edge/e2/model", "edge/e2/gradient", "edge/e1/model"):
            cloud.publish(f"mapa/v1/r/{leaf}", b"x")
        assert edge.message() == ("mapa/v1/r/edge/e1/model", b"x")


def test_a_helper_writes_and_reads_its_own_branch_alone(site: Site) -> None:
    with (
        Session(site.clouds, context(site.identity("cloud", Role.CLOUD), site), "cloud-nonce") as cloud,
        Session(site.clouds, context(site.identity("h1", Role.HELPER), site)) as helper,
    ):
        cloud.subscribe("mapa/v1/#")
        for leaf in (
            "helper/h2/reply",
            "helper/h2/hello",
            "helper/h1/ask",
            "edge/e1/gradient",
            "halt",
            "cloud",
        ):
            helper.publish(f"mapa/v1/r/{leaf}", b"forged")
        for leaf in ("hello", "reply"):
            helper.publish(f"mapa/v1/r/helper/h1/{leaf}", b"own")
            assert cloud.message() == (f"mapa/v1/r/helper/h1/{leaf}", b"own")
        helper.subscribe("#")
        for leaf in ("helper/h2/ask", "edge/e1/gradient", "helper/h1/reply", "helper/h1/ask"):
            cloud.send(0x30, text(f"mapa/v1/r/{leaf}") + b"x")
        assert helper.message() == ("mapa/v1/r/helper/h1/ask", b"x")


def test_a_packet_beyond_the_limit_ends_its_connection_before_it_is_read(site: Site) -> None:
    client = context(site.identity("e1"), site)
    for announced, fits in ((b"\x80\x80\x40", True), (b"\x80\x80\x41", False), (b"\xff\xff\xff\x7f", False)):
        with Session(site.edges, client) as edge:
            edge.socket.sendall(b"\x30" + announced + text("x"))
            if fits:  # 2²⁰ bytes: the broker waits for them
                edge.socket.settimeout(0.5)
                with pytest.raises(TimeoutError):
                    edge.receive()
            else:
                with pytest.raises((ConnectionError, ssl.SSLError)):
                    edge.receive()


@pytest.mark.parametrize("size", [10, 20_000])
def test_edges_behind_a_firewall_have_the_same_identities_over_websocket(
    site: Site, connect: Callable[..., Any], size: int
) -> None:
    cloud = connect(
        site.clouds, "c", "mapa/v1/+/edge/+/gradient", credentials=site.credentials("cloud", Role.CLOUD)
    )
    edge = connect(site.websocket, "r:e1", "mapa/v1/r/edge/e1/model", credentials=site.credentials("e1"))
    for qos in (0, 1):
        edge.channel.publish("mapa/v1/r/edge/e2/gradient", b"forged", qos=qos)
        edge.channel.publish("mapa/v1/r/edge/e1/gradient", bytes([qos]) * size, qos=qos)
        cloud.channel.publish("mapa/v1/r/edge/e1/model", bytes([qos]) * size, qos=qos)
    for side, leaf in ((cloud, "gradient"), (edge, "model")):
        side.wait(lambda side=side: len(side.seen) >= 2)
        assert side.seen == [(f"mapa/v1/r/edge/e1/{leaf}", bytes([qos]) * size) for qos in (0, 1)]
    other = site.identity("e3", authority=Authority.create(site.folder / "other", ["localhost"]))
    files = replace(TlsFiles.identity(other), ca=site.authority.folder / "services.pem")
    stranger = MqttOptions(address=site.websocket, client_id="x", credentials=Credentials(tls=files))
    with SelectorLoop() as loop, pytest.raises((BrokerUnavailableError, ConfigurationError)):
        MqttChannel(stranger, loop).connect(1.0)

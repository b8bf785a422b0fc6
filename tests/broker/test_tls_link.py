"""TLS through a link's relay: the certificate bears the broker's name, not the relay's address."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from common.transport.connection import BrokerAddress, Credentials, TlsFiles
from mapa.brokers import MosquittoOptions, find_mosquitto, private_mosquitto
from tests.broker.testbed_support import open_testbed, scenario

pytestmark = [
    pytest.mark.broker,
    pytest.mark.skipif(
        find_mosquitto() is None, reason="no mosquitto on PATH (Debian: apt install mosquitto)"
    ),
]


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
    options = MosquittoOptions(certificate=ca, key=tls / "key.pem", ca=ca)
    with private_mosquitto(tmp_path / "broker", options) as broker:
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

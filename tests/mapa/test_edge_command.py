"""mapa edge, mapa cloud and a broker: passwords need TLS, and what is waited for is said."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from common.errors import BrokerUnavailableError, ConfigurationError
from common.transport.connection import BrokerAddress, MqttOptions, advised, parse_address
from common.transport.loop import SelectorLoop
from common.transport.mqtt import MqttChannel
from mapa.commands.options import Connection
from tests.program_support import Mapa


@pytest.fixture
def password(tmp_path: Path) -> Path:
    path = tmp_path / "accounts" / "lab-0"
    path.parent.mkdir()
    path.write_text("secret\n")
    return path


REMOTE = (
    "192.0.2.7",
    "vm.example.org:8883",
    "[2001:db8::1]",
    "10.0.0.1",
    "localhost.example.org",
    "127.example.org",
)
HERE = ("localhost", "LOCALHOST:1884", "127.0.0.1", "127.3.2.1:99", "[::1]", "/run/mosquitto.socket")


@pytest.mark.parametrize("broker", REMOTE)
def test_a_password_leaves_for_another_host_only_under_tls_or_by_a_switch(
    broker: str, password: Path
) -> None:
    given: dict[str, Any] = {
        "broker": broker,
        "run": "r",
        "broker_username": "lab-0",
        "broker_password_file": password,
    }
    for accounts, option in ((False, "--password-file"), (True, "--accounts")):
        with pytest.raises(ConfigurationError) as caught:
            Connection(**given).credentials(accounts=accounts)
        for words in (option, str(parse_address(broker)), "--tls-ca", "--plain-password"):
            assert words in str(caught.value)
        assert "secret" not in str(caught.value)
        for switch in ("plain_password", "tls"):
            assert Connection(**given | {switch: True}).credentials(accounts=accounts).password == "secret"
    only_a_name = Connection(broker=broker, run="r", broker_username="lab-0")
    assert only_a_name.credentials().password is None


@pytest.mark.parametrize("broker", HERE)
def test_a_password_that_stays_on_this_machine_needs_no_tls(broker: str, password: Path) -> None:
    connection = Connection(broker=broker, run="r", broker_username="a", broker_password_file=password)
    assert connection.credentials(accounts=True).password == "secret"


def test_a_password_without_tls_is_refused_before_anything_starts(
    mapa: Mapa, password: Path, tmp_path: Path
) -> None:
    state, runs = tmp_path / "state", tmp_path / "runs"
    to = ("--broker", "192.0.2.7", "--run", "r")
    shared = ("--username", "lab", "--password-file", str(password))
    for words in (
        ("edge", *to, "--state-dir", str(state), "--accounts", str(password.parent)),
        ("edge", *to, "--state-dir", str(state), *shared),
        ("cloud", "quickstart", *to, "--runs-dir", str(runs), *shared),
        ("observe", *to, "--out", str(runs), *shared),
        ("doctor", "--broker", "192.0.2.7", *shared),
    ):
        done = mapa(*words)
        assert done.code == 2
        assert "--plain-password" in done.err
        assert not state.exists()
        assert not runs.exists()


@contextlib.contextmanager
def answering(answer: bytes | None) -> Iterator[BrokerAddress]:
    """Serve a port that ends every connection with this answer; None: that never answers."""
    listener = socket.create_server(("127.0.0.1", 0))

    def serve() -> None:
        with contextlib.suppress(OSError):
            while True:
                client, _ = listener.accept()
                client.recv(4096)
                if answer is not None:
                    client.sendall(answer)
                    client.close()

    threading.Thread(target=serve, daemon=True).start()
    try:
        yield BrokerAddress("127.0.0.1", listener.getsockname()[1])
    finally:
        listener.shutdown(socket.SHUT_RDWR)
        listener.close()


@pytest.mark.parametrize("answer", [b"", b"\x15\x03\x01\x00\x02\x02\x46"], ids=["end", "alert"])
def test_a_plain_connection_to_a_tls_port_hints_at_tls(answer: bytes) -> None:
    said: list[str] = []
    with (
        answering(answer) as address,
        SelectorLoop() as loop,
        pytest.raises(BrokerUnavailableError, match=r"before MQTT's CONNACK; if it is a TLS port.*--tls-ca"),
    ):
        MqttChannel(MqttOptions(address=address, client_id="c"), loop).connect(0.5, said.append)
    (waiting,) = said  # once, however often it is tried
    assert "--tls-ca" in waiting
    assert "trying again for up to 0.5 s (--connect-timeout)" in waiting


def test_an_edge_says_what_it_waits_for_and_how_long(mapa: Mapa, tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    words = ("edge", "--broker", f"127.0.0.1:{port}", "--run", "doesnotexist", "--state-dir", str(tmp_path))
    done = mapa(*words, "--connect-timeout", "0.5")
    first, trying, *_, last = done.err.splitlines()
    assert done.code == 1
    assert first == f"waiting for run 'doesnotexist' at 127.0.0.1:{port}"
    for words_of, said in ((trying, "trying again for up to 0.5 s"), (last, "no connection within 0.5 s")):
        assert said in words_of
        assert "nothing listens there; is the broker running" in words_of
    quiet = mapa(*words, "--connect-timeout", "0.5", "--quiet")
    assert "waiting for run" not in quiet.err
    assert "no connection within" in quiet.err


def test_a_cloud_says_what_it_waits_for_and_how_long(mapa: Mapa, tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    done = mapa(
        *("cloud", "quickstart", "--broker", f"127.0.0.1:{port}", "--run", "r"),
        *("--runs-dir", str(tmp_path), "--connect-timeout", "0.5"),
    )
    assert done.code == 1
    assert "trying again for up to 0.5 s (--connect-timeout)" in done.err
    assert done.err.count("nothing listens there; is the broker running") == 2


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (socket.gaierror(-2, "Name or service not known"), "does not know the name"),
        (ConnectionRefusedError(111, "Connection refused"), "nothing listens there"),
        (TimeoutError("timed out"), "firewalls"),
        (OSError(113, "No route to host"), "firewalls"),
        (FileNotFoundError(2, "No such file or directory"), "no such socket"),
        (ConnectionResetError(104, "Connection reset by peer"), "does the broker use TLS at this port"),
    ],
)
def test_a_failure_comes_with_advice(error: OSError, words: str) -> None:
    said = advised(error, tls=isinstance(error, ConnectionResetError))
    assert said.startswith(str(error))
    assert words in said

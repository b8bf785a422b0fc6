"""mapa doctor --broker: a real broker connected to and measured."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from common.transport.connection import MqttOptions
from mapa.brokers import Broker, free_port, private_mosquitto
from mapa.commands.doctor import NOTE, OK, check_broker
from tests.program_support import Mapa, require_mosquitto

pytestmark = pytest.mark.broker


def test_a_broker_is_measured(mosquitto: Broker, mapa: Mapa) -> None:
    done = mapa(
        "doctor", "--no-checksums", "--json", "--broker", str(mosquitto.address), "--connect-timeout", "60"
    )
    document = json.loads(done.out)
    found = {one["name"]: one for one in document["findings"]}
    assert "round trip" in found[f"broker {mosquitto.address}"]["found"]
    assert (
        "takes 16,777,216 bytes; no larger one was tried"
        in found[f"broker {mosquitto.address}, message size"]["found"]
    )
    assert "this-broker" in document["purposes"]
    assert done.code == 0, document["wrong"]


@pytest.mark.parametrize("extra", [(), ("max_packet_size 300000",)], ids=["drops", "closes"])
def test_the_largest_message_that_it_takes_is_found(tmp_path: Path, extra: tuple[str, ...]) -> None:
    require_mosquitto()
    limit = 1 << 26 if extra else 300_000
    with private_mosquitto(tmp_path / "broker", max_payload=limit, extra=extra) as broker:
        options = MqttOptions(address=broker.address, client_id="doctor", min_backoff=0.02)
        trip, size = check_broker(options, 60.0, 1 << 20)
    assert (trip.state, size.state) == (OK, NOTE)
    taken = int(size.found.split()[1].replace(",", ""))
    assert 290_000 <= taken <= 300_000
    assert "message_size_limit" in size.fix


def test_a_broker_that_is_not_there_is_broken_and_exits_with_1(mapa: Mapa) -> None:
    done = mapa(
        "doctor",
        "--no-checksums",
        "--json",
        "--broker",
        f"127.0.0.1:{free_port()}",
        "--connect-timeout",
        "0.2",
    )
    assert done.code == 1
    assert json.loads(done.out)["wrong"][-1].startswith("broker 127.0.0.1:")

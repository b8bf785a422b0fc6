"""docker/mosquitto/start.sh writes the limit that the environment asks for (a real Mosquitto)."""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from common.transport.connection import BrokerAddress
from mapa.broker_files import CONFIGURATION
from mapa.brokers import Broker, find_mosquitto, free_port
from mapa.scenario_files import load_scenario
from tests.program_support import require_mosquitto, run_program

pytestmark = pytest.mark.broker
ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "docker" / "mosquitto"
Connect = Callable[..., Any]


def home(tmp_path: Path, port: int) -> dict[str, str]:
    """Lay out a container's folders with our configuration on a port of its own; return the environment."""
    for part in ("config", "data"):
        (tmp_path / part).mkdir(exist_ok=True)
    text = (FOLDER / "mosquitto.conf").read_text().replace("listener 1883", f"listener {port} 127.0.0.1")
    user = "user root\n" if os.geteuid() == 0 else ""
    (tmp_path / "config" / "mosquitto.conf").write_text(user + text)
    path = f"{os.environ['PATH']}:{Path(find_mosquitto() or '/').parent}"
    return {"MOSQUITTO_HOME": str(tmp_path), "PATH": path}


def test_a_message_beyond_the_environments_limit_is_dropped(tmp_path: Path, connect: Connect) -> None:
    require_mosquitto()
    port = free_port()
    environment = {**home(tmp_path, port), "MESSAGE_SIZE_LIMIT": "2000"}
    words = [f"{key}={value}" for key, value in environment.items()]
    command = ["/usr/bin/env", *words, "/bin/sh", str(FOLDER / "start.sh")]
    broker = Broker(BrokerAddress("127.0.0.1", port), "mosquitto", command, tmp_path / "log")
    broker.start()
    try:
        client = connect(broker, "c", "x")
        client.channel.publish("x", b"b" * 2001, qos=1)
        client.channel.publish("x", b"b" * 2000, qos=1)
        client.wait(lambda: len(client.seen) == 1)
        assert len(client.seen[0][1]) == 2000
    finally:
        broker.stop()


@pytest.mark.parametrize(("limit", "queued"), [("2000", 67_108_864), ("4004096", 64 * 4_004_096)])
def test_the_queue_of_a_client_has_room_for_many_large_messages(
    tmp_path: Path, limit: str, queued: int
) -> None:
    environment = home(tmp_path, 1)
    stand_in = tmp_path / "mosquitto"  # only what the script writes is looked at
    stand_in.write_text("#!/bin/sh\n")
    stand_in.chmod(0o755)
    environment["PATH"] = f"{tmp_path}:{environment['PATH']}"
    command = ["/bin/sh", FOLDER / "start.sh"]
    subprocess.run(command, env={**environment, "MESSAGE_SIZE_LIMIT": limit}, check=True, timeout=60)
    written = (tmp_path / "data" / "mosquitto.conf").read_text()
    assert f"\nmessage_size_limit {limit}\n" in written
    assert f"\nmax_queued_bytes {queued}\n" in written


@pytest.mark.parametrize("limit", ["64MB", "0", "-1", "1e6", "9999999999"])
def test_a_limit_that_is_no_number_of_bytes_is_refused(tmp_path: Path, limit: str) -> None:
    env = {**home(tmp_path, 1), "MESSAGE_SIZE_LIMIT": limit}
    done = run_program("/bin/sh", FOLDER / "start.sh", env=env)
    assert done.returncode == 2
    assert f"MESSAGE_SIZE_LIMIT = '{limit}': must be" in done.stderr


def test_every_deployment_has_the_limit_and_the_default_admits_what_is_shipped() -> None:
    for file in ("docker-compose.yml", "docker/cloud.yml", "docker/stack.yml"):
        text = (ROOT / file).read_text()
        assert "MESSAGE_SIZE_LIMIT: ${MESSAGE_SIZE_LIMIT:-1048576}" in text, file
        assert "start.sh" in text, file
    for text in ((FOLDER / "mosquitto.conf").read_text(), CONFIGURATION):
        assert re.findall(r"^message_size_limit .*", text, re.M) == ["message_size_limit 1048576"]
        assert re.findall(r"^max_packet_size .*", text, re.M) in ([], ["max_packet_size 1052672"])
    for path in (ROOT / "mapa" / "scenarios").glob("*.toml"):
        _, scenario = load_scenario(str(path), [])
        landmarks = scenario.model.options.get("landmarks", 1000) or 3969
        parameters = {"scattering": 10 * (landmarks + 1)}.get(scenario.model.name, 10 * 785)
        assert 1024 + 4 * parameters < 1048576 / 4

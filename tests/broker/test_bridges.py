"""Three brokers on three hosts, two of them bridged to the cloud's: a run, and a line that is cut for a minute."""

from __future__ import annotations

import json
import re
import shutil
import signal
import time
from pathlib import Path
from typing import Any

import pytest

from common.errors import ConfigurationError
from common.records.reader import read_events
from common.transport.connection import BrokerAddress
from mapa.authority import Authority, Role
from mapa.broker_files import write_bridge, write_broker
from tests.broker.host_support import Host, cable, ip
from tests.program_support import PATIENCE, assert_each_once, eventually, require_mosquitto

pytestmark = [pytest.mark.broker, pytest.mark.timeout(900)]
_CUT = 60.0  # seconds
_UPDATES = 8000


def test_a_site_speaks_for_its_own_edges_alone(tmp_path: Path) -> None:
    authority = Authority.create(tmp_path / "authority", ["vm.example.org"])
    write_broker(tmp_path / "broker", authority)
    address = BrokerAddress("vm.example.org", 8883)
    place = write_bridge(tmp_path / "broker", authority, "north", ["n-0", "n-1"], "10.0.0.5", address)
    granted = (tmp_path / "broker" / "acl").read_text().partition("user bridge-north\n")[2].splitlines()
    of_edges = {re.sub(r"topic \w+ mapa/v1/\+/edge/([\w-]+)/\w+", r"\1", line) for line in granted}
    assert of_edges == {"n-0", "n-1"}
    assert not [
        line for line in granted if line.startswith("topic write") and line.endswith(("model", "welcome"))
    ]
    configuration = (place / "mosquitto.conf").read_text()
    assert "address vm.example.org:8883\n" in configuration
    assert "topic mapa/v1/+/edge/n-1/gradient out 1\n" in configuration
    roles = {entry.name: entry.role for entry in authority.register().entries}
    assert roles == {"broker": Role.BROKER, "bridge-north": Role.EDGE, "broker-north": Role.BROKER}
    with pytest.raises(ConfigurationError, match="speaks for its edges already"):
        write_bridge(tmp_path / "broker", authority, "north", ["n-2"], "10.0.0.5", address)


def test_a_sites_broker_cannot_pose_as_the_clouds(tmp_path: Path) -> None:
    from cryptography import x509

    authority = Authority.create(tmp_path / "authority", ["vm.example.org"])
    write_broker(tmp_path / "broker", authority)
    place = write_bridge(
        tmp_path / "broker",
        authority,
        "north",
        ["n-0"],
        "gw.example.org",
        BrokerAddress("vm.example.org", 8883),
    )
    served = x509.load_pem_x509_certificate((place / "server.pem").read_bytes()).extensions
    names = served.get_extension_for_class(x509.SubjectAlternativeName).value.get_values_for_type(
        x509.DNSName
    )
    assert "gw.example.org" in names
    assert "vm.example.org" not in names


def site(vm: Host, host: Host, name: str, number: int) -> None:
    """Start a site's broker, and its two edges with identities of their own."""
    place = vm.folder / "secrets"
    shutil.copytree(place / "sites" / name, host.folder / "broker")
    for edge in range(2):
        identity = f"{name}-{edge}"
        shutil.copytree(place / "edges" / identity, host.folder / "accounts" / identity)
    host.start("env -C broker mosquitto -c mosquitto.conf")
    host.start(
        "mapa edge --count 2 --accounts accounts --broker localhost:8883 --run first --state-dir state --verbose"
    )
    cable(vm, host, f"10.78.{number}")


@pytest.mark.extended
def test_a_bridge_is_cut_for_a_minute_and_every_update_counts_once(network: Any) -> None:
    require_mosquitto()
    vm, north, south = (network(name) for name in ("vm", "north", "south"))
    for once in (
        "mapa certs init 10.78.1.1 10.78.2.1 localhost",
        "mapa certs cloud",
        "mapa certs edge north-0 north-1 south-0 south-1",
        "mapa certs bridge north north=2 --host localhost --to 10.78.1.1",
        "mapa certs bridge south south=2 --host localhost --to 10.78.2.1",
    ):
        assert vm.start(once).wait(PATIENCE) == 0, vm.log(len(vm.children) - 1)
    vm.start("env -C secrets/broker mosquitto -c mosquitto.conf")
    settings = f"--edges 4 --edges-at-least 4 --iterations {_UPDATES} --set 'links=[{{delay_ms = 20.0}}]'"
    identity = "--broker localhost:8884 --identity secrets/cloud --authentic"
    cloud = vm.start(f"mapa cloud quickstart {settings} --run first {identity}")
    for number, host in enumerate((north, south), start=1):
        site(vm, host, host.folder.name, number)

    def applied(name: str = "") -> list[dict[str, Any]]:
        paths = list((vm.folder / "runs").glob("*"))
        events = read_events(paths[0]) if paths else ()
        return [e for e in events if e["event"] == "gradient_applied" and e["edge_id"].startswith(name)]

    eventually(lambda: len({event["edge_id"] for event in applied()}) == 4, "all four train")
    # The cloud is killed and comes back: its will and its presence reach the edges over the bridges.
    cloud.send_signal(signal.SIGKILL)
    cloud.wait()
    for host in (north, south):
        eventually(lambda host=host: "offline" in host.log(1), f"{host.name} learns that the cloud is away")
    (run,) = (vm.folder / "runs").glob("*")
    cloud = vm.start(f"mapa cloud --resume {run} {identity}")
    before = len(applied())
    eventually(lambda: len(applied()) > before + 200, "the run goes on")

    ip("-n", vm.name, "link", "set", "to-1", "down")
    time.sleep(_CUT / 2)
    quiet, others = len(applied("north")), len(applied("south"))
    time.sleep(_CUT / 2)
    assert len(applied("north")) <= quiet + 2
    assert len(applied("south")) > others + 100
    ip("-n", vm.name, "link", "set", "to-1", "up")
    eventually(lambda: len(applied("north")) > quiet + 100, "the site that was cut off trains again")

    assert cloud.wait(PATIENCE) == 0, vm.log(len(vm.children) - 1)
    assert [host.children[1].wait(PATIENCE) for host in (north, south)] == [0, 0], (
        north.log(1),
        south.log(1),
    )
    assert_each_once(applied(), _UPDATES)
    summary = json.loads((run / "summary.json").read_text())
    assert summary["reason"] == "finished"

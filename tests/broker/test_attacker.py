"""One valid account tries each verb on each topic, and floods: the others' run reaches T, and nothing is falsified."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from common.transport.connection import Credentials
from mapa.authority import Role
from mapa.brokers import find_mosquitto
from tests.broker.attacker import ATTACKS, Account, order
from tests.broker.site_support import Site
from tests.broker.testbed_support import Testbed, assert_applied_exactly_once, open_testbed, scenario
from tests.program_support import PATIENCE, ROOT

pytestmark = [
    pytest.mark.broker,
    pytest.mark.slow,
    pytest.mark.skipif(
        find_mosquitto() is None, reason="no mosquitto on PATH (Debian: apt install mosquitto)"
    ),
]
ATTACKER, HONEST = "mallory", [f"e{number}" for number in range(5)]
ITERATIONS = 1600


def site_of(folder: Path, *, certificates: bool) -> Site:
    """Return a site whose three edges have certificates, or passwords."""
    passwords = {name: f"password-{name}" for name in ("cloud", ATTACKER, *HONEST)}
    return Site(folder, None if certificates else passwords, run="test")


def account_of(site: Site, bed: Testbed) -> Account:
    """Return the attacker's account, with what it may know."""
    server = bed.cloud.service.server
    account = Account(
        site.edges.host,
        site.edges.port,
        site.clouds.port,
        str(site.authority.folder / "services.pem"),
        ATTACKER,
        HONEST,
        bed.run,
        bed.cloud.service.presence.nonce,
        server.incarnation,
        server.model.size,
    )
    if site.passwords is None:
        account.identity = str(site.identity(ATTACKER))
    else:
        account.password = site.passwords[ATTACKER]
    return account


def credentials_of_cloud(site: Site) -> Credentials:
    """Return what the cloud brings; with certificates it takes proven messages alone."""
    credentials = site.credentials("cloud", Role.CLOUD)
    return credentials if site.passwords else replace(credentials, identity=site.folder / "cloud")


def accounts_folder(site: Site, folder: Path, names: list[str]) -> list[str]:
    """Return the options of the process of these edges."""
    if site.passwords is None:
        for name in names:
            site.authority.issue(name, Role.EDGE).write(folder / name)
        return ["--accounts", str(folder)]
    folder.mkdir()
    for name in names:
        (folder / name).write_text(site.passwords[name] + "\n")
    return ["--accounts", str(folder), "--tls-ca", str(site.authority.folder / "services.pem")]


@pytest.mark.parametrize("certificates", [True, False], ids=["certificates", "passwords"])
def test_a_valid_account_neither_stops_nor_falsifies_the_others_run(
    tmp_path: Path, connect: Callable[..., Any], *, certificates: bool
) -> None:
    site = site_of(tmp_path / "site", certificates=certificates)
    with site.running():
        cloud = credentials_of_cloud(site)
        values = scenario(edges=3, iterations=ITERATIONS, links=[{"delay_ms": 5.0}])
        with open_testbed(site.clouds, tmp_path / "run", values, credentials=cloud, edges_at_least=2) as bed:
            bed.edge(
                *accounts_folder(site, tmp_path / "accounts", HONEST[:2]), "--count", "2", broker=site.edges
            )
            bed.wait(lambda: bed.updates > 20)
            command = order(
                tmp_path / "attack.json", account_of(site, bed), [(name, 0.25) for name in ATTACKS]
            )
            done = subprocess.run(
                command, cwd=ROOT, capture_output=True, text=True, timeout=10 * PATIENCE, check=False
            )
            assert done.returncode == 0, done.stderr
            struck = {
                name: count for line in done.stdout.splitlines() for name, count in json.loads(line).items()
            }
            heard = struck.pop("listen_everywhere")
            assert (heard, set(struck) | {"listen_everywhere"}) == (0, set(ATTACKS))
            assert min(struck.values()) > 0
            assert bed.updates < ITERATIONS, "the run was over before the attacks were"
            summary = bed.finish()
            assert (summary["reason"], summary["updates"]) == ("finished", ITERATIONS)
            assert [child.returncode for child in bed.edges] == [0]
            assert_applied_exactly_once(bed, ITERATIONS)
            assert {event["edge_id"] for event in bed.events("gradient_applied")} == set(HONEST[:2])
            gone = {event["edge_id"]: event["reason"] for event in bed.events("edge_gone")}
            assert gone.keys() <= {ATTACKER}
            assert (gone.get(ATTACKER) == "banned-malformed") is certificates
            service = bed.cloud.service
            assert service.traffic.lost_connections == 0
            assert service.dropped["halt"] + service.dropped["presence"] == 0
        last = connect(site.clouds, "other", "#", credentials=cloud)
        last.channel.publish("mapa/v1/mark", b"x", qos=1)
        last.wait(lambda: any(topic == "mapa/v1/mark" for topic, _ in last.seen))
        branch = f"mapa/v1/test/edge/{ATTACKER}/"
        assert {topic for topic, _ in last.seen if not topic.startswith(branch)} == {
            "mapa/v1/mark",
            "mapa/v1/test/cloud",
            "mapa/v1/test/halt",
        }
        assert len([topic for topic, _ in last.seen if topic.startswith(branch)]) <= 4

"""Secure sums in real runs: processes of edges and helpers on a real Mosquitto, some of them killed."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path
from typing import Any

import pytest

from common.datasets.catalogue import data_directory
from common.errors import ConfigurationError
from common.scenario.scenario import parse_scenario
from common.wire.topics import run_id
from mapa.brokers import Broker
from mapa.cloud_run import Setting
from mapa.helper.helper import KeysDestroyed, SetSigned
from mapa.helper.signed_sets import SignedSets
from mapa.process_run import helper_arguments
from mapa.processes import one_thread_each
from tests.broker.testbed_support import (
    Testbed,
    assert_applied_exactly_once,
    open_testbed,
    scenario,
)
from tests.program_support import PATIENCE, ROOT, run_as_user, summary_of

pytestmark = pytest.mark.slow
TABLES: dict[str, Any] = {
    "edges": 5,
    "iterations": 60,
    "model": {"name": "softmax"},
    "algorithm": {"name": "constant", "first_clip": 1.0, "rate": 0.5},
    "privacy": {"noise_multiplier": 1.0, "colluding": 2},
    "secure": {"at_least": 3},
}


def secure(**changes: Any) -> dict[str, Any]:
    values = scenario(**TABLES)
    for key, value in changes.items():
        values[key] = {**values.get(key, {}), **value} if isinstance(value, dict) else value
    return values


class Helpers:
    """The helper processes of a run."""

    def __init__(self, bed: Testbed) -> None:
        self.bed, self.processes = bed, dict[int, subprocess.Popen[bytes]]()
        for place in range(4):
            self.start(place)

    def start(self, place: int) -> None:
        command = helper_arguments(
            run_id(self.bed.run), self.bed.broker, place, self.bed.directory / "helpers"
        )
        log = (self.bed.directory / f"edge-helper-{place}.log").open("ab")
        with log:
            child = subprocess.Popen(command, stdout=log, stderr=log, env=one_thread_each(), cwd=ROOT)
        self.processes[place] = child
        self.bed.edges.append(child)

    def kill(self, place: int) -> None:
        child = self.processes[place]
        child.kill()
        child.wait(PATIENCE)

    def signed(self) -> list[set[Any]]:
        """Return what each helper has signed, by its file; no release is in two sets of one helper."""
        found = []
        for path in sorted((self.bed.directory / "helpers").rglob("*.sets")):
            incarnation = int(path.stem.rpartition("-")[2])
            place = int(path.parent.name.rpartition("-")[2])
            sets = SignedSets(path.parent, run_id(self.bed.run), incarnation, place, lambda n: bytes(n))
            records, key = sets.records, sets.secrets.box
            sets.close()
            releases = [one for record in records if isinstance(record, SetSigned) for one in record.releases]
            assert len(releases) == len(set(releases))
            assert KeysDestroyed() in records
            assert not any(key)
            found.append(set(releases))
        return found


def test_a_run_with_secure_sums_trains_and_destroys_its_helpers_keys(
    mosquitto: Broker, tmp_path: Path
) -> None:
    with open_testbed(mosquitto.address, tmp_path, secure(), edges_at_least=5) as bed:
        helpers = Helpers(bed)
        bed.edge("--count", "5")
        summary = bed.finish()
        assert_applied_exactly_once(bed, 60)
        summing = bed.cloud.service.summing
        assert summing is not None
        assert summing.sums is not None
        assert summary["reason"] == "finished"
        assert summing.sums.opened >= 10
        assert sum(summing.link.dropped.values()) == 0
        assert [child.wait(PATIENCE) for child in helpers.processes.values()] == [0] * 4
        assert len(helpers.signed()) == 4


def test_helpers_and_edges_that_are_killed_come_back_and_nothing_is_signed_twice(
    mosquitto: Broker, tmp_path: Path
) -> None:
    values = secure(iterations=150, testbed={"silent_after": 60.0})
    with open_testbed(mosquitto.address, tmp_path, values, edges_at_least=5) as bed:
        helpers = Helpers(bed)
        edges = bed.edge("--count", "4")
        bed.edge("--count", "1", state="other")
        for number in range(4):
            at = 30 * (number + 1)
            bed.wait(lambda at=at: bed.updates >= at)  # type: ignore[misc]
            helpers.kill(number % 4)
            if number % 4 == 1:
                edges.kill()
                edges.wait(PATIENCE)
                edges = bed.edge("--count", "4")
            helpers.start(number % 4)
        bed.finish()
        assert_applied_exactly_once(bed, 150)
        summing = bed.cloud.service.summing
        assert summing is not None
        assert summing.sums is not None
        assert summing.sums.opened >= 30
        assert [child.wait(PATIENCE) for child in helpers.processes.values()] == [0] * 4
        helpers.signed()


def test_fewer_edges_than_a_sum_has_end_the_run_by_name(mosquitto: Broker, tmp_path: Path) -> None:
    values = secure(iterations=100_000, testbed={"silent_after": 1.0})
    with open_testbed(mosquitto.address, tmp_path, values, edges_at_least=2) as bed:
        Helpers(bed)
        bed.edge("--count", "2")
        assert bed.finish()["reason"] == "too-few-edges"


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"privacy": {"colluding": 0}}, "privacy.colluding = 0: must be 2"),
        ({"records": {"keep_gradients": True}}, "records.keep_gradients = true"),
    ],
)
def test_what_a_run_with_sums_on_a_network_does_not_do_yet_is_refused_by_name(
    changes: dict[str, Any], named: str
) -> None:
    with pytest.raises(ConfigurationError, match=named):
        Setting.of(parse_scenario(secure(**changes)), data_directory(os.environ))


def test_mapa_run_starts_the_helpers_too(tmp_path: Path) -> None:
    changes = [
        "secure.at_least=3",
        "privacy.colluding=2",
        "algorithm.name=constant",
        "algorithm.first_clip=1",
    ]
    changes += ["algorithm.rate=0.5", "privacy.noise_multiplier=2", "privacy.noise=gaussian", "iterations=30"]
    words = [word for change in changes for word in ("--set", change)]
    done = run_as_user(tmp_path, "run", "quickstart", *words, "--json")
    assert summary_of(done)["reason"] == "finished"
    (records,) = (tmp_path / "runs").iterdir()
    assert len(list(records.glob("helper-*.log"))) == 4
    for log in records.glob("helper-*.log"):
        assert "its keys are destroyed" in log.read_text()


@pytest.mark.parametrize("command", ["containers", "kubernetes", "chaos"])
def test_a_command_that_starts_no_helpers_refuses_sums_by_name(tmp_path: Path, command: str) -> None:
    words = ["--set", "secure.at_least=3", "--set", "privacy.colluding=2"]
    words += [
        "--set",
        "algorithm.name=constant",
        "--set",
        "algorithm.first_clip=1",
        "--set",
        "algorithm.rate=1",
    ]
    words += ["--set", "privacy.noise_multiplier=2", "--set", "privacy.noise=gaussian"]
    done = run_as_user(tmp_path, command, "quickstart", *words)
    assert done.returncode == 2, done.stderr
    assert f"`mapa {command}` starts no helpers yet" in done.stderr

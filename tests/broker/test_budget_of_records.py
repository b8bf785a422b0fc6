"""`mapa edge --count 5 --total-epsilon 2`: the records' total stays within 2, whatever the cloud deals."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from cloud.admission import ShardIndices
from mapa.brokers import Broker
from mapa.commands.ledger import ledger_command
from tests.broker.testbed_support import PATIENCE, open_testbed, scenario

pytestmark = [pytest.mark.broker, pytest.mark.timeout(300)]

BUDGET = ("--count", "5", "--total-epsilon", "2")


def stated(directory: Path, capsys: pytest.CaptureFixture[str]) -> dict[str, Any]:
    ledger_command(str(directory), as_json=True)
    document: dict[str, Any] = json.loads(capsys.readouterr().out)
    return document


def spend(broker: Broker, directory: Path, code: int, **changes: Any) -> str:
    """Let a fleet of five spend its budget in a run; return what it said."""
    values = scenario(**{"edges": 5, "iterations": 100_000, "privacy": {"noise_multiplier": 4.0}, **changes})
    with open_testbed(broker.address, directory / "run", values, edges_at_least=1) as bed:
        bed.directory = directory
        assert bed.edge(*BUDGET).wait(PATIENCE) == code, bed.logs()
    return (directory / "edge-0.log").read_text()


def test_five_edges_on_the_same_records_spend_one_budget(
    mosquitto: Broker, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    said = spend(mosquitto, tmp_path, 2, data={"partition": "shared", "sampler": "shuffled"}, batch_size=1000)
    assert said.count("no two edges release the same records at the same time") == 4
    assert said.count("the privacy budget is spent") == 1
    document = stated(tmp_path / "state", capsys)
    assert 0 < document["epsilon"] <= 2


def test_a_cloud_that_deals_one_shard_to_all_finds_one_edge(
    mosquitto: Broker, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ShardIndices, "deal", lambda *_: 0)
    said = spend(mosquitto, tmp_path, 2, data={"sampler": "shuffled"}, batch_size=200)
    assert said.count("no two edges release the same records at the same time") == 4
    document = stated(tmp_path / "state", capsys)
    assert 0 < document["epsilon"] <= 2


def test_another_cut_of_the_same_data_finds_what_is_left(
    mosquitto: Broker, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    terms: dict[str, Any] = {
        "batch_size": 200,
        "data": {"sampler": "shuffled"},
        "privacy": {"noise_multiplier": 6.0},
    }
    first = scenario(edges=5, iterations=60, **terms)
    with open_testbed(mosquitto.address, tmp_path / "first", first, run="first", edges_at_least=5) as bed:
        bed.directory = tmp_path
        bed.edge("--count", "5", "--total-epsilon", "4")
        bed.finish()
    before = stated(tmp_path / "state", capsys)["epsilon"]
    assert 0 < before <= 4
    again = scenario(edges=2, iterations=100_000, **terms)
    with open_testbed(mosquitto.address, tmp_path / "second", again, run="second", edges_at_least=2) as bed:
        bed.directory = tmp_path
        assert bed.edge("--count", "2", "--total-epsilon", "4").wait(PATIENCE) == 0
    document = stated(tmp_path / "state", capsys)
    assert before < document["epsilon"] <= 4
    assert "different cuts of the same data" in document["composed_because"]

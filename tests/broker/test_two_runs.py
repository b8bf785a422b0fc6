"""Two runs at once on one broker, twenty edges each: nothing of one reaches the other."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from common.records.reader import read_events
from mapa.brokers import Broker
from tests.program_support import PATIENCE, assert_each_once, run_mapa

pytestmark = [pytest.mark.broker, pytest.mark.slow, pytest.mark.timeout(600)]
_EDGES = 20
_UPDATES = {"first": 1200, "second": 900}


def test_two_runs_on_one_broker_do_not_mix(
    mosquitto: Broker, start: Callable[..., subprocess.Popen[Any]], tmp_path: Path
) -> None:
    """The same edge ids in both, and two models: the names of the runs alone keep them apart."""
    clouds, edges = {}, {}
    models = {"first": "lr", "second": "softmax"}
    for run, updates in _UPDATES.items():
        reached = ("--broker", str(mosquitto.address), "--run", run)
        folder = ("--runs-dir", str(tmp_path / f"{run}-records"))
        settings = ("--edges", str(_EDGES), "--edges-at-least", str(_EDGES), "--iterations", str(updates))
        model = ("--set", f"model.name={models[run]}", "--set", "links=[{delay_ms = 5.0}]")
        clouds[run] = start("cloud", "quickstart", *settings, *model, *reached, *folder)
        accounts = tmp_path / f"{run}-accounts"
        accounts.mkdir()
        for number in range(_EDGES):
            (accounts / f"lab-{number}").write_text("any: this broker asks nobody\n")
        state = ("--count", str(_EDGES), "--state-dir", str(tmp_path / f"{run}-state"))
        edges[run] = start("edge", *reached, *state, "--accounts", str(accounts))
    for run in _UPDATES:
        assert clouds[run].wait(PATIENCE) == 0
        assert edges[run].wait(PATIENCE) == 0
    joined: dict[str, set[str]] = {}
    for run, updates in _UPDATES.items():
        (path,) = (tmp_path / f"{run}-records").iterdir()
        events = list(read_events(path))
        counted = assert_each_once([e for e in events if e["event"] == "gradient_applied"], updates)
        assert len(counted) == _EDGES
        joined[run] = {event["edge_id"] for event in events if event["event"] == "edge_joined"}
        summary = json.loads((path / "summary.json").read_text())
        assert not any(summary["dropped"].values()), (run, summary["dropped"])
        done = run_mapa("verify", str(path))
        assert done.returncode == 0, done.stdout + done.stderr
    assert joined["first"] == joined["second"] == {f"lab-{number}" for number in range(_EDGES)}

"""mapa containers: one command, a fleet of containers, faults by name."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.pages_support import write_project
from tests.program_support import run_mapa, summary_of
from tests.stack.compose_support import MARKS, names_on

pytestmark = [*MARKS, pytest.mark.usefixtures("images")]


def mapa(*words: str) -> subprocess.CompletedProcess[str]:
    environment = {key: value for key, value in os.environ.items() if key != "MAPA_DATA_DIR"}
    return run_mapa(*words, env=environment)


def test_a_scenario_on_containers_with_faults(engine: Any, tmp_path: Path) -> None:
    before = names_on(engine, "mapa-")  # a run that was killed may have left some
    scenario = tmp_path / "mine.toml"
    scenario.write_text(
        "# a scenario of my own\nedges = 4\niterations = 1600\nbatch_size = 16\n"
        '[data]\nset = "mnist-5k"\n[model]\nname = "lr"\n[algorithm]\nfirst_clip = 6.0\n'
        "[privacy]\nnoise_multiplier = 2.0\n[evaluation]\nevery = 0\n[testbed]\nresend_after = 0.5\n"
    )
    faults = ["kill edge-1 at t=100 for 1s", "pause broker at t=250 for 1s", "scale 2 at t=500"]
    faults += ["crash cloud at t=700", "kill cloud at t=1000 for 1s"]  # a policy has it back, or we start it
    words = [word for fault in faults for word in ("--fault", fault)]
    done = mapa(
        *("containers", str(scenario), "--set", "links=[{delay_ms = 20.0}]", *words),
        *("--edge-image", "mapa-edge", "--runs-dir", str(tmp_path / "runs"), "--json"),
    )
    summary = summary_of(done)
    assert (summary["reason"], summary["updates"]) == ("finished", 1600)
    (records,) = (tmp_path / "runs").iterdir()
    assert records.stat().st_uid == os.getuid()
    assert summary["path"] == str(records)
    events = [json.loads(line) for line in (records / "events.jsonl").read_text().splitlines()]
    applied = [event for event in events if event["event"] == "gradient_applied"]
    assert [event["t"] for event in applied] == list(range(1, 1601))
    assert {event["edge"] for event in applied} == {0, 1, 2, 3}
    assert len({event["edge"] for event in applied[-100:]}) == 2
    assert any(event["returned"] for event in events if event["event"] == "edge_joined")
    assert sum(event["event"] == "resumed" for event in events) == 2
    assert names_on(engine, "mapa-") <= before


@pytest.mark.parametrize("fault", ["drown edge-1 at t=5", "scale 99 at t=5", "kill edge-6 at t=5"])
def test_a_wrong_fault_is_refused_before_anything_starts(fault: str) -> None:
    done = mapa("containers", "quickstart", "--fault", fault)
    assert done.returncode == 2
    assert "fault" in done.stderr


def test_a_torch_module_of_ones_own_trains_in_four_containers(tmp_path: Path) -> None:
    """The page's file, mounted from its folder; the model itself asks for the image with all of torch."""
    project = write_project(tmp_path)
    short = ("--set", "iterations=30", "--set", "privacy.releases=20", "--set", "data.set=my_data:Tints")
    done = mapa(
        "containers", str(project / "my.toml"), *short, "--runs-dir", str(tmp_path / "runs"), "--json"
    )
    summary = summary_of(done)
    assert (summary["reason"], summary["updates"]) == ("finished", 30)
    assert 0 < summary["privacy"]["epsilon"] <= 8

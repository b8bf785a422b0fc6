"""Records read back: of simulations, of the network, of runs that were cut off."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from common.errors import ConfigurationError
from common.records.reader import read_run
from mapa.recording import record_simulation
from tests.core_support import small_world
from tests.dashboard_support import applied, evaluated


def write(path: Path, events: list[dict[str, Any]], *, tail: str = "") -> Path:
    path.mkdir()
    lines = [json.dumps(event) for event in events]
    (path / "events.jsonl").write_text("\n".join(lines) + "\n" + tail, encoding="utf-8")
    (path / "manifest.json").write_text('{"engine": "testbed", "scenario": {"edges": 2}}', encoding="utf-8")
    return path


def test_a_simulation_reads_back_as_its_summary_says(tmp_path: Path) -> None:
    summary = record_simulation(small_world(), name="small", runs=tmp_path)
    run = read_run(Path(summary["path"]))
    counted = run.tally.summary()
    assert len(counted["evaluations"]) > 1
    assert counted == {key: summary[key] for key in counted}
    assert [seen.updates for seen in run.evaluations] == [row["updates"] for row in summary["evaluations"]]
    assert run.scenario["edges"] == summary["edges_configured"]
    assert not run.timed  # the cyclic delay has no clock


def test_seconds_count_from_the_first_update_and_leave_out_what_evaluating_took(tmp_path: Path) -> None:
    events = [applied(1, time=10.0), applied(2, 0, 1, 12.5), {**evaluated(2, 0.5), "time": 99.0}]
    (seen,) = read_run(write(tmp_path / "run", events)).evaluations
    assert seen.seconds == 2.5


def test_a_run_that_was_cut_off_reads_as_far_as_it_got(tmp_path: Path) -> None:
    path = write(tmp_path / "run", [applied(1, time=0.0), evaluated(1, 0.4)], tail='{"event": "gradi')
    run = read_run(path)
    assert run.summary == {}
    assert [seen.accuracy for seen in run.evaluations] == [0.4]


def test_a_broken_line_within_the_records_is_named(tmp_path: Path) -> None:
    path = write(tmp_path / "run", [])
    (path / "events.jsonl").write_text('{"event": \n{"event": "halted"}\n', encoding="utf-8")
    with pytest.raises(ConfigurationError, match="line 1"):
        read_run(path)


def test_without_events_the_summary_speaks(tmp_path: Path) -> None:
    path = tmp_path / "run"
    path.mkdir()
    (path / "manifest.json").write_text("{}", encoding="utf-8")
    rows = [{"updates": 5, "accuracy": 0.7, "loss": None}]
    (path / "summary.json").write_text(json.dumps({"evaluations": rows}), encoding="utf-8")
    (seen,) = read_run(path).evaluations
    assert (seen.updates, seen.accuracy, seen.loss, seen.seconds) == (5, 0.7, None, None)

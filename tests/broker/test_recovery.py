"""A cloud that ended goes on: what a resume refuses, a full disk, a missing halt, summary or statement.

Kills at every step and at random instants are in test_chaos.py.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import resource
import shlex
import signal
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from common.datasets.catalogue import data_directory
from common.records.gradient_log import LogReader
from edge.own_data import REGISTRY_VARIABLE
from mapa.brokers import Broker
from tests.broker.test_run_endings import only_run
from tests.local_support import local_values, write_csv, write_toml
from tests.program_support import PATIENCE, assert_each_once, environment, eventually, journal_has, start_mapa
from tests.program_support import run_mapa as mapa

pytestmark = [pytest.mark.broker, pytest.mark.timeout(900)]


@contextlib.contextmanager
def lab(
    broker: Broker, directory: Path, *arguments: str, limit: int | None = None
) -> Iterator[tuple[subprocess.Popen[str], subprocess.Popen[str]]]:
    """Start `mapa cloud` and two edges in one process; kill whoever is left.

    `limit` is the most bytes of one file of the cloud. It stands for a full disk: it fails in the midst of a write too,
    for any user.
    """
    reached = ["--broker", str(broker.address), "--run", "lab"]
    data = ["--data-dir", str(data_directory(os.environ))]

    def limited() -> None:
        if limit is not None:
            resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))

    settings = ["--set", "iterations=1000000", "--edges", "2", "--runs-dir", str(directory / "runs")]
    pipes: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    cloud = start_mapa(
        "cloud", "quickstart", *reached, *data, *settings, *arguments, preexec_fn=limited, **pipes
    )
    state = ("--count", "2", "--state-dir", str(directory / "state"))
    children = (cloud, start_mapa("edge", *reached, *data, *state, **pipes))
    try:
        yield children
    finally:
        for child in children:
            if child.poll() is None:
                child.kill()
            child.communicate()


def test_resuming_is_refused_where_it_makes_no_sense(mosquitto: Broker, tmp_path: Path) -> None:
    reached = ["--broker", str(mosquitto.address)]
    with lab(mosquitto, tmp_path) as (cloud, _):
        eventually(lambda: journal_has(tmp_path / "runs", '"gradient_applied"'), "an update")
        run = str(only_run(tmp_path / "runs"))
        alive = mapa("cloud", "--resume", run, *reached)
        assert alive.returncode == 2
        assert "another program is writing this run's records" in alive.stderr
        changed = mapa("cloud", "--resume", run, *reached, "--edges", "3")
        assert changed.returncode == 2
        assert "a run goes on as it began" in changed.stderr
        other = mapa("cloud", "--resume", run, *reached, "--run", "other")
        assert other.returncode == 2
        assert "the run that is resumed is called 'lab'" in other.stderr
        cloud.send_signal(signal.SIGINT)
        cloud.wait(PATIENCE)
    ended = mapa("cloud", "--resume", run, *reached)
    assert ended.returncode == 130
    assert "has ended, interrupted: nothing to resume" in ended.stderr


def test_a_suspended_cloud_leaves_its_run_to_the_next_one(mosquitto: Broker, tmp_path: Path) -> None:
    """SIGTERM, by which an engine moves a container, twice; without --suspend it would end the run."""
    reached = ("--broker", str(mosquitto.address))
    slowly = ("--set", "links=[{delay_ms = 5.0}]")  # else it ends before the signal comes
    with lab(mosquitto, tmp_path, "--suspend", "--set", "iterations=800", *slowly) as (cloud, edges):
        eventually(lambda: journal_has(tmp_path / "runs", '"t": 100,'), "a hundred updates")
        cloud.send_signal(signal.SIGTERM)
        assert cloud.wait(PATIENCE) == 143
        run = only_run(tmp_path / "runs")
        assert not (run / "summary.json").exists()
        second = start_mapa("cloud", "--suspend", "--resume", str(run), *reached)
        try:
            eventually(lambda: journal_has(tmp_path / "runs", '"t": 500,'), "five hundred updates")
            second.send_signal(signal.SIGTERM)
            assert second.wait(PATIENCE) == 143
        finally:
            second.kill()
            second.wait()
        last = mapa("cloud", "--resume", str(run), *reached)
        assert last.returncode == 0, last.stderr
        _, heard = edges.communicate(timeout=PATIENCE)
        assert edges.returncode == 0, heard
    events = [json.loads(line) for line in (run / "events.jsonl").read_text().splitlines()]
    assert_each_once([event for event in events if event["event"] == "gradient_applied"], 800)


def test_a_full_disk_stops_the_run_and_with_room_it_goes_on(mosquitto: Broker, tmp_path: Path) -> None:
    settings = ("--set", "iterations=300", "--set", "model.name=softmax")
    with lab(mosquitto, tmp_path, *settings, limit=1_500_000) as (cloud, edges):
        _, said = cloud.communicate(timeout=PATIENCE)
        assert cloud.returncode == 1, said
        assert "Traceback" not in said
        run = only_run(tmp_path / "runs")
        assert "000001.seg: cannot be written: File too large; the run has stopped" in said
        assert f"make room, then go on with mapa cloud --resume {run} --broker" in said
        assert not (run / "summary.json").exists()
        reader = LogReader(run)
        logged = sum(entry.kind == 1 for entry in reader)
        assert reader.torn is None
        assert 0 < logged < 300
        assert edges.poll() is None  # they wait for their cloud
        again = mapa("cloud", "--resume", str(run), "--broker", str(mosquitto.address))
        assert again.returncode == 0, again.stderr
        assert f"resumed at t = {logged + 1}: " in again.stderr
        _, heard = edges.communicate(timeout=PATIENCE)
        assert edges.returncode == 0, heard
    events = [json.loads(line) for line in (run / "events.jsonl").read_text().splitlines()]
    assert [event["t"] for event in events if event["event"] == "gradient_applied"] == list(range(1, 301))


def test_a_cloud_whose_edges_bring_their_records_goes_on_with_the_command_that_it_prints(
    mosquitto: Broker, tmp_path: Path, start: Callable[..., subprocess.Popen[Any]]
) -> None:
    """On a full disk, from another folder, and its edge too; the test data are not said again."""
    scenario = write_toml(tmp_path / "local.toml", local_values(edges=1, iterations=300))
    test, own = write_csv(tmp_path / "test.csv", 50, seed=2), write_csv(tmp_path / "own.csv", 200)
    reached = ("--broker", str(mosquitto.address), "--run", "lab")
    env = {**environment(), REGISTRY_VARIABLE: str(tmp_path / "registry.sqlite3")}
    cloud = start(
        *("cloud", str(scenario), *reached, "--test-data", "test.csv", "--runs-dir", str(tmp_path / "runs")),
        env=env,
        cwd=tmp_path,
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (30_000, 30_000)),
    )
    edge = start(*("edge", *reached, "--data", str(own), "--state-dir", str(tmp_path / "state")), env=env)
    _, said = cloud.communicate(timeout=PATIENCE)
    assert cloud.returncode == 1, said
    printed = re.search(r"go on with mapa (cloud --resume .*)", said)
    assert printed is not None, said
    test.rename(tmp_path / "elsewhere.csv")
    gone = mapa(*shlex.split(printed[1]))
    assert gone.returncode == 2, gone.stderr
    assert f"no longer in {test}; say where with --test-data" in gone.stderr
    (tmp_path / "elsewhere.csv").rename(test)
    again = mapa(*shlex.split(printed[1]))
    assert again.returncode == 0, again.stderr
    assert edge.wait(PATIENCE) == 0
    run = only_run(tmp_path / "runs")
    summary = json.loads((run / "summary.json").read_text())
    assert summary["updates"] == 300
    assert 0 <= summary["final_accuracy"] <= 1


def test_a_halt_that_the_broker_did_not_take_is_told_by_a_resume(mosquitto: Broker, tmp_path: Path) -> None:
    with lab(mosquitto, tmp_path) as (cloud, edges):
        eventually(lambda: journal_has(tmp_path / "runs", '"gradient_applied"'), "an update")
        run = only_run(tmp_path / "runs")
        mosquitto.stop()
        cloud.send_signal(signal.SIGINT)
        eventually(lambda: journal_has(tmp_path / "runs", '"halted"'), "the halt")
        cloud.send_signal(signal.SIGINT)  # it waits for no broker
        _, said = cloud.communicate(timeout=PATIENCE)
        assert cloud.returncode == 5, said
        command = f"mapa cloud --resume {run} --broker {mosquitto.address}"
        assert f"once the broker is back, tell them with {command}" in said
        first = json.loads((run / "summary.json").read_text())
        assert edges.poll() is None  # they wait for their cloud
        mosquitto.start()
        again = mapa(*shlex.split(command)[1:])
        assert again.returncode == 130, again.stderr
        _, heard = edges.communicate(timeout=PATIENCE)
        assert edges.returncode == 0, heard
    assert json.loads((run / "summary.json").read_text())["privacy"] == first["privacy"]
    last = mapa(*shlex.split(command)[1:])
    assert "has ended, interrupted: nothing to resume" in last.stderr


def test_a_run_that_was_killed_while_it_accounted_gets_its_statement(
    mosquitto: Broker, tmp_path: Path
) -> None:
    """The summary is written before the accounting, which takes seconds, and a log that is not kept goes last."""
    settings = ("--set", "iterations=60", "--set", "records.keep_gradients=false")
    with lab(mosquitto, tmp_path, *settings) as (cloud, edges):
        assert cloud.wait(PATIENCE) == 0
        assert edges.wait(PATIENCE) == 0
    run = only_run(tmp_path / "runs")
    summary = json.loads((run / "summary.json").read_text())
    stated = summary.pop("privacy")
    (run / "summary.json").write_text(json.dumps(summary))
    again = mapa("cloud", "--resume", str(run), "--broker", str(mosquitto.address))
    assert again.returncode == 0, again.stderr
    assert json.loads((run / "summary.json").read_text())["privacy"] == stated
    assert not (run / "log").exists()
    last = mapa("cloud", "--resume", str(run), "--broker", str(mosquitto.address))
    assert "has ended, finished: nothing to resume" in last.stderr


def test_a_run_that_was_killed_on_its_way_out_gets_its_summary(mosquitto: Broker, tmp_path: Path) -> None:
    """Between the halt and the summary a run has ended, and nobody has said so."""
    with lab(mosquitto, tmp_path, "--set", "iterations=60") as (cloud, edges):
        assert cloud.wait(PATIENCE) == 0
        assert edges.wait(PATIENCE) == 0
    run = only_run(tmp_path / "runs")
    before = json.loads((run / "summary.json").read_text())
    (run / "summary.json").unlink()
    (run / "model.safetensors").unlink()
    again = mapa("cloud", "--resume", str(run), "--broker", str(mosquitto.address))
    assert again.returncode == 0, again.stderr
    after = json.loads((run / "summary.json").read_text())
    for key in ("updates", "final_accuracy", "staleness", "stages", "edges", "evaluations", "releases"):
        assert after[key] == before[key], key
    halted = [line for line in (run / "events.jsonl").read_text().splitlines() if '"halted"' in line]
    assert len(halted) == 1


def test_without_the_log_only_the_last_checkpoints_and_their_segments_stay(
    mosquitto: Broker, tmp_path: Path
) -> None:
    settings = ("--set", "records.keep_gradients=false", "--set", "iterations=100")
    with lab(mosquitto, tmp_path, *settings) as (cloud, _):
        assert cloud.wait(PATIENCE) == 0
    run = only_run(tmp_path / "runs")
    assert not (run / "log").exists()
    assert len(list((run / "checkpoints").iterdir())) in (1, 2)


# -- what a killed cloud leaves ------------------------------------------------------------------------------


def test_what_a_killed_cloud_leaves_is_told_by_the_ledger_and_by_the_next_cloud(
    mosquitto: Broker, tmp_path: Path
) -> None:
    runs = tmp_path / "runs"
    with lab(mosquitto, tmp_path) as (cloud, _):
        eventually(lambda: journal_has(runs, '"gradient_applied"'), "an update")
        cloud.send_signal(signal.SIGKILL)
        cloud.wait(PATIENCE)
    killed = only_run(runs)
    stated = mapa("ledger", str(killed), "--json")
    assert stated.returncode == 0, stated.stderr
    assert f"{killed}: unfinished: events up to t = " in stated.stderr
    assert "no summary: the cloud has not ended normally" in stated.stderr
    assert "edges may have released more" in stated.stderr
    document = json.loads(stated.stdout)
    shown = [
        json.loads(line) for line in (killed / "events.jsonl").read_bytes().splitlines(keepends=True)[:-1]
    ]
    for row in document["edges"]:
        sequences = [
            e["sequence"] for e in shown if e["event"] == "gradient_applied" and e["edge"] == row["edge"]
        ]
        assert (
            row["releases"] >= max(sequences, default=0) >= row["releases"] - 1
        )  # the last line may be whole
    assert document["unfinished"] in stated.stderr
    with lab(mosquitto, tmp_path) as (cloud, _):
        eventually(lambda: len([*runs.glob("*/manifest.json")]) == 2, "a second run")
        eventually(lambda: any(trained_in(path) for path in runs.iterdir() if path != killed), "an update")
        cloud.send_signal(signal.SIGINT)
        _, said = cloud.communicate(timeout=PATIENCE)
    assert f"{killed}: unfinished: events up to t = " in said
    assert "this cloud starts a new run at t = 1" in said
    (second,) = (path for path in runs.iterdir() if path != killed)
    compared = mapa("compare", str(killed), str(second), "--out", str(tmp_path / "both"), "--json")
    assert compared.returncode == 0, compared.stderr
    ends = {
        Path(row["run"]).name: (row["end"], row["updates"]) for row in json.loads(compared.stdout)["runs"]
    }
    assert ends[killed.name][0] == "unfinished"
    assert ends[killed.name][1] > 0
    assert ends[second.name][0] == "interrupted"
    assert compared.stderr.count("unfinished") == 1


def trained_in(run: Path) -> bool:
    return '"gradient_applied"' in (run / "events.jsonl").read_text()

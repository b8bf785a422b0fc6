"""Runs over a real broker, verified: one as it comes, and one whose cloud was killed on its way."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from common.datasets.catalogue import data_directory
from edge.own_data import REGISTRY_VARIABLE
from mapa.brokers import Broker
from tests.local_support import local_values, write_csv, write_toml
from tests.program_support import PATIENCE, environment, eventually, journal_has
from tests.program_support import run_mapa as mapa

pytestmark = pytest.mark.broker
Start = Callable[..., subprocess.Popen[Any]]


def failed(done: subprocess.CompletedProcess[str]) -> list[str]:
    checks = json.loads(done.stdout)["checks"]
    return [f"{one['part']}: {one['detail']}" for one in checks if one["status"] == "failed"]


@pytest.mark.usefixtures("mosquitto")
def test_a_run_is_replayed_bundled_and_verified_by_somebody_without_the_data(tmp_path: Path) -> None:
    words = ("--edges", "3", "--iterations", "90", "--seed", "5", "--runs-dir", str(tmp_path), "--json")
    ran = mapa("run", "quickstart", *words, "--broker", "mosquitto")
    assert ran.returncode == 0, ran.stderr
    path, out = json.loads(ran.stdout)["path"], tmp_path / "run.mapa.zip"
    replayed = mapa("replay", path, "--json")
    assert replayed.returncode == 0, replayed.stdout
    told = json.loads(replayed.stdout)
    assert told["same_model"]
    assert told["agrees_with_data"]
    assert told["gradients"]["same"] == 90
    assert mapa("bundle", path, "--out", str(out)).returncode == 2  # seeded
    assert mapa("bundle", path, "--out", str(out), "--not-private").returncode == 0
    nowhere = {**os.environ, "MAPA_DATA_DIR": str(tmp_path / "nothing")}
    verified = mapa("verify", str(out), "--json", env=nowhere)
    assert verified.returncode == 0, failed(verified)
    whole = bytearray(out.read_bytes())
    whole[len(whole) // 2] ^= 4
    out.write_bytes(whole)
    assert mapa("verify", str(out), "--json", env=nowhere).returncode == 1


def test_a_run_whose_cloud_was_killed_and_resumed_elsewhere_passes(
    mosquitto: Broker, tmp_path: Path, start: Start
) -> None:
    runs, broker = tmp_path / "runs", str(mosquitto.address)
    words = ["cloud", "quickstart", "--broker", broker, "--run", "lab", "--runs-dir", str(runs)]
    cloud = start(*words, "--edges", "2", "--iterations", "4000", "--edges-at-least", "2")
    edge_words = ["edge", "--broker", broker, "--run", "lab", "--state-dir", str(tmp_path / "state")]
    edge = start(*edge_words, "--count", "2", "--data-dir", str(data_directory(os.environ)))
    eventually(lambda: journal_has(runs, '"gradient_applied"', "lab-*/events.jsonl"), "an update")
    cloud.send_signal(signal.SIGKILL)
    cloud.wait(PATIENCE)
    [began] = runs.iterdir()
    path = began.rename(tmp_path / "elsewhere")  # its id is in its manifest
    cloud = start("cloud", "--resume", str(path), "--broker", broker, "--runs-dir", str(runs))
    assert cloud.wait(PATIENCE) == 0
    assert edge.wait(PATIENCE) == 0
    ledgers = [word for one in ("0", "1") for word in ("--ledger", str(tmp_path / "state" / one))]
    verified = mapa("verify", str(path), *ledgers, "--json")
    assert verified.returncode == 0, failed(verified)
    told = [one for one in json.loads(verified.stdout)["checks"] if one["name"] == "ledgers"]
    assert [one["status"] for one in told] == ["passed"]
    assert json.loads((path / "summary.json").read_text())["run"] == began.name
    assert mapa("replay", str(path), "--json").returncode == 0


def test_a_run_whose_edges_bring_records_of_their_own_passes_and_counts_each_refusal_once(
    mosquitto: Broker, tmp_path: Path, start: Start
) -> None:
    """Of these n_k the cloud knows a bound alone; and what edges send at the end is counted by all records alike."""
    broker = str(mosquitto.address)
    algorithm = {"name": "constant", "rate": 0.1, "first_clip": 2.0}
    own = local_values(iterations=60)
    write_toml(tmp_path / "own.toml", {**own, "algorithm": algorithm})
    environ = {**environment(), REGISTRY_VARIABLE: str(tmp_path / "registry.sqlite3")}
    words = ["cloud", str(tmp_path / "own.toml"), "--broker", broker, "--run", "own", "--edges-at-least", "2"]
    running = [start(*words, "--runs-dir", str(tmp_path / "runs"), env=environ)]
    for name, rows in (("north", 137), ("south", 215)):
        data = write_csv(tmp_path / f"{name}.csv", rows)
        state = ["--state-dir", str(tmp_path / name), "--data", str(data)]
        running.append(start("edge", "--broker", broker, "--run", "own", *state, env=environ))
    assert [process.wait(PATIENCE) for process in running] == [0, 0, 0]
    [path] = (tmp_path / "runs").iterdir()
    ledgers = [word for name in ("north", "south") for word in ("--ledger", str(tmp_path / name))]
    verified = mapa("verify", str(path), *ledgers, "--json")
    assert verified.returncode == 0, failed(verified)
    told = {(one["name"], one["status"]) for one in json.loads(verified.stdout)["checks"]}
    assert {("ε", "passed"), ("ledgers", "passed"), ("summary", "passed"), ("end", "passed")} <= told

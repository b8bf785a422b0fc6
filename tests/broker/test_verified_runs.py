"""Runs over a real broker, verified: one as it comes, and one whose cloud was killed on its way."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from pathlib import Path

import pytest

from common.datasets.catalogue import data_directory
from mapa.brokers import Broker
from tests.program_support import PATIENCE, eventually, journal_has, start_mapa
from tests.program_support import run_mapa as mapa

pytestmark = pytest.mark.broker


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


def test_a_run_whose_cloud_was_killed_and_resumed_elsewhere_passes(mosquitto: Broker, tmp_path: Path) -> None:
    runs, broker = tmp_path / "runs", str(mosquitto.address)
    words = ["cloud", "quickstart", "--broker", broker, "--run", "lab", "--runs-dir", str(runs)]
    cloud = start_mapa(*words, "--edges", "2", "--iterations", "4000", "--edges-at-least", "2")
    edge_words = ["edge", "--broker", broker, "--run", "lab", "--state-dir", str(tmp_path / "state")]
    edge = start_mapa(*edge_words, "--count", "2", "--data-dir", str(data_directory(os.environ)))
    try:
        eventually(lambda: journal_has(runs, '"gradient_applied"', "lab-*/events.jsonl"), "an update")
        cloud.send_signal(signal.SIGKILL)
        cloud.wait(PATIENCE)
        [began] = runs.iterdir()
        path = began.rename(tmp_path / "elsewhere")  # its id is in its manifest
        cloud = start_mapa("cloud", "--resume", str(path), "--broker", broker, "--runs-dir", str(runs))
        assert cloud.wait(PATIENCE) == 0
        assert edge.wait(PATIENCE) == 0
    finally:
        for process in (cloud, edge):
            if process.poll() is None:
                process.kill()
                process.wait()
    ledgers = [word for one in ("0", "1") for word in ("--ledger", str(tmp_path / "state" / one))]
    verified = mapa("verify", str(path), *ledgers, "--json")
    assert verified.returncode == 0, failed(verified)
    told = [one for one in json.loads(verified.stdout)["checks"] if one["name"] == "ledgers"]
    assert [one["status"] for one in told] == ["passed"]
    assert json.loads((path / "summary.json").read_text())["run"] == began.name
    assert mapa("replay", str(path), "--json").returncode == 0

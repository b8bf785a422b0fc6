"""A cloud that was killed: what is left, and what is said of it. A full disk: see test_recovery.py."""

from __future__ import annotations

import contextlib
import json
import os
import resource
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from common.datasets.catalogue import data_directory
from mapa.brokers import Broker
from tests.broker.test_run_endings import only_run
from tests.program_support import PATIENCE, ROOT, environment, eventually, journal_has
from tests.program_support import run_mapa as mapa

pytestmark = pytest.mark.broker


@contextlib.contextmanager
def lab(
    broker: Broker, directory: Path, *arguments: str, limit: int | None = None
) -> Iterator[tuple[subprocess.Popen[str], subprocess.Popen[str]]]:
    """Start `mapa cloud` and two edges in one process; kill whoever is left.

    `limit` is the most bytes of one file of the cloud. It stands for a full disk: it fails in the midst of a write too,
    for any user.
    """
    program = [sys.executable, "-m", "mapa.cli"]
    reached = ["--broker", str(broker.address), "--run", "lab"]
    data = ["--data-dir", str(data_directory(os.environ))]

    def limited() -> None:
        if limit is not None:
            resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))

    settings = [
        "--set",
        "iterations=1000000",
        "--edges",
        "2",
        "--runs-dir",
        str(directory / "runs"),
        *arguments,
    ]
    children = [
        subprocess.Popen(
            [*program, *words],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=environment(),
            cwd=ROOT,
            preexec_fn=before,
        )
        for words, before in (
            (["cloud", "quickstart", *reached, *data, *settings], limited),
            (["edge", *reached, *data, "--count", "2", "--state-dir", str(directory / "state")], None),
        )
    ]
    try:
        yield children[0], children[1]
    finally:
        for child in children:
            if child.poll() is None:
                child.kill()
            child.communicate()


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

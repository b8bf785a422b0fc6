"""Options that mean nothing are refused before anything is done; --version; a table that nobody has to guess at."""

from __future__ import annotations

import json
import signal
from pathlib import Path
from typing import Any

import pytest
from safetensors.numpy import load_file

from common.metrics import ACCURACY
from common.records.directory import versions
from common.records.reader import read_run
from experiments.reproduce.report import as_markdown
from mapa import recording
from mapa.commands.compare import compare_command, describe
from tests.core_support import small_world
from tests.program_support import Mapa

EDGE = ("edge", "--broker", "127.0.0.1:1", "--run", "r")
CLOUD = ("cloud", "quickstart", "--broker", "b")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ((*EDGE, "--epsilon", "-1"), ["epsilon = -1.0"]),
        ((*EDGE, "--noise", "foo"), ["--noise = 'foo'", "gamma-norm", "gaussian"]),
        ((*EDGE, "--noise", "laplace", "--noise-parameter", "epsilon=0"), ["epsilon = 0.0"]),
        ((*EDGE, "--epsilon", "1", "--noise-parameter", "epsilon=2"), ["epsilon = [2.0, 1.0]", "one value"]),
        ((*EDGE, "--noise-parameter", "scale=2"), ["scale", "no law is meant"]),
        ((*EDGE, "--noise-multiplier", "0"), ["noise_multiplier = 0.0"]),
        ((*EDGE, "--noise", "gaussian", "--epsilon", "1"), ["epsilon"]),
        ((*EDGE, "--connect-timeout", "-1"), ["--connect-timeout -1.0", "at least 0"]),
        ((*EDGE, "--connect-timeout", "nan"), ["--connect-timeout nan"]),
        (("attack", "quickstart", "--releases", "0"), ["--releases"]),
        (("attack", "quickstart", "--releases", "-3"), ["--releases"]),
        (("attack", "quickstart", "--batch-size", "0"), ["--batch-size"]),
        (("attack", "quickstart", "--iterations", "1.5"), ["iterations = '1.5'", "whole"]),
        (("attack", "quickstart", "--iterations", "inf"), ["iterations = 'inf'", "finite"]),
        (("audit", "quickstart", "--dimension", "0"), ["--dimension"]),
        (("audit", "quickstart", "--canaries", "0"), ["--canaries"]),
        (("audit", "quickstart", "--iterations", "0"), ["--iterations"]),
        (("ledger", ".", "--delta", "1"), ["delta = 1.0"]),
        (("ledger", ".", "--delta", "-0.1"), ["delta = -0.1"]),
        (("data", "get"), ["names or --scenario", "mnist-5k"]),
        (("data", "get", "mnist", "--scenario", "quickstart"), ["names or --scenario"]),
        (("data", "get", "mnist", "--set", "data.set=usps"), ["--set", "--scenario"]),
        ((*CLOUD, "--run", "r", "--connect-timeout", "nan"), ["nan", "at least 0"]),
        ((*CLOUD, "--run=-x"), ["--run", "'-x'", "begin with a letter"]),
        (("observe", "--broker", "b:0", "--run", "r", "--out", "o"), ["'b:0'", "HOST:PORT"]),
        (("observe", "--broker", "b", "--run", "r", "--out", "o", "--cert", "c"), ["cert and key"]),
        ((*EDGE, "--replace-budget"), ["--total-epsilon"]),
        (("simulate", "quickstart", "--engine", "synchronous"), ["delays.kind = 'cyclic'"]),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else "",
)
def test_it_is_refused_with_2_and_its_name(
    mapa: Mapa, tmp_path: Path, words: tuple[str, ...], said: list[str]
) -> None:
    done = mapa(*words)
    assert done.code == 2, (done.out, done.err)
    for word in said:
        assert word in done.err
    assert "Traceback" not in done.err
    assert list(tmp_path.iterdir()) == []


def test_a_delta_of_nought_is_nought(mapa: Mapa, tmp_path: Path) -> None:
    privacy = {"noise": "gamma-norm", "epsilon": 0.01}
    summary = recording.record_simulation(small_world(privacy=privacy), name="pure", runs=tmp_path / "runs")
    done = mapa("ledger", summary["path"], "--delta", "0", "--json")
    assert done.code == 0, done.err
    stated = json.loads(done.out)
    assert stated["delta"] == 0
    assert stated["epsilon"] is not None


def test_it_says_its_version(mapa: Mapa) -> None:
    done = mapa("--version")
    assert (done.code, done.out) == (0, f"mapa {versions()['mapa-testbed']}\n")


def test_a_manifest_names_whatever_decides_the_numbers() -> None:
    assert {"numpy", "scipy", "dp-accounting", "safetensors", "mlxtend"} <= versions().keys()


def test_a_comparison_is_never_folded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    summary = recording.record_simulation(small_world(), name="a-rather-long-name", runs=tmp_path)
    row = describe(read_run(Path(summary["path"])), ACCURACY)
    compare_command([summary["run"]], out=tmp_path / "one", runs=tmp_path)
    lines = capsys.readouterr().out.splitlines()
    header = next(line for line in lines if "algorithm" in line)
    assert all(column in header for column in row)
    assert any(summary["run"] in line and "finished" in line for line in lines)


def test_columns_of_a_markdown_table_are_escaped_as_cells_are() -> None:
    head, rule, line = as_markdown([{"|r|": "a|b", "t": "1"}]).splitlines()
    assert head == r"| \|r\| | t |"
    assert rule == "|---|---|"
    assert line == r"| a\|b | 1 |"


@pytest.mark.parametrize("engine", ["events", "vectorised", "block"])
def test_a_run_that_is_interrupted_before_its_first_update_has_all_of_its_records(
    mapa: Mapa, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, engine: str
) -> None:
    write = recording.write_manifest

    def interrupted(*arguments: Any, **named: Any) -> None:
        write(*arguments, **named)
        signal.raise_signal(signal.SIGINT)

    monkeypatch.setattr(recording, "write_manifest", interrupted)
    before = signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)
    changes = ("--set", "data.sampler=with-replacement", "--runs-dir", str(tmp_path), "--json")
    done = mapa("simulate", "quickstart", "--engine", engine, *changes)
    assert done.code == 130, done.err
    (run,) = tmp_path.iterdir()
    summary = json.loads((run / "summary.json").read_text())
    assert summary == {**json.loads(done.out), "path": "."}  # a file says nothing of where it is
    assert (summary["reason"], summary["updates"]) == ("interrupted", 0)
    assert [seen["stage"] for seen in summary["evaluations"]] == [1]
    assert not load_file(run / "model.safetensors")["x"].any()
    assert (signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)) == before


def test_a_cloud_refuses_a_scenario_that_it_could_not_tell_its_edges(mapa: Mapa) -> None:
    options = 'model.options={"a\\nb" = 1}'
    ended = mapa("cloud", "quickstart", "--set", options, "--broker", "127.0.0.1:1", "--run", "odd")
    assert ended.code == 2
    assert "must be printable" in ended.err

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
from tests.mapa.test_cli import BARE, SMALL
from tests.program_support import Mapa

EDGE = ("edge", "--broker", "127.0.0.1:1", "--run", "r")
CLOUD = ("cloud", "quickstart", "--broker", "b")


# behind `mapa schedule` with the paper's constants
OF_SCHEDULE = [
    ("", ["epsilon", "required"]),
    ("--epsilon 0", ["epsilon = 0.0", "≥ 1e-09 and ≤ 1e+09"]),
    ("--epsilon nan", ["epsilon = nan", "≥ 1e-09"]),
    ("--epsilon 0.1 --epsilon -1", ["epsilon = -1.0"]),
    ("--epsilon 1e-200", ["epsilon = 1e-200", "≥ 1e-09"]),
    (
        "--epsilon 0.1 --noise gaussian --dimension 5 --noise-multiplier 1",
        ["epsilon: requires", "gamma-norm", "takes noise_multiplier"],
    ),
    ("--epsilon 0.1 --noise gaussian --dimension 5", ["epsilon"]),
    ("--noise gaussian --dimension 5", ["noise_multiplier", "required"]),
    ("--noise gaussian --noise-multiplier 1", ["dimension", "required"]),
    ("--noise gamma-norm --epsilon 1", ["dimension", "required"]),
    ("--noise gamma-norm --epsilon 1 --dimension 0", ["dimension = 0", "at least 1"]),
    ("--noise-multiplier 1", ["noise_multiplier", "gaussian"]),
    ("--noise laplace --epsilon 1", ["dimension", "required"]),
    ("--noise cauchy --epsilon 1", ["cauchy", "'exponential-norm'", "'laplace'", "package.module:Class"]),
    ("--noise-parameter epsilon", ["--noise-parameter 'epsilon'", "NAME=VALUE"]),
    ("--noise-parameter epsilon=much", ["epsilon=much", "number"]),
    ("--noise-parameter scale=1", ["scale: requires", "exponential-norm, which takes epsilon"]),
    ("--epsilon 0.1 --theta 1", ["theta = 1.0", "between 0 and 1"]),
    ("--epsilon 0.1 --delta 0", ["delta = 0.0", "between 0 and 1"]),
    ("--epsilon 0.1 --tau-max -1", ["tau_max = -1", "at least 0"]),
    ("--epsilon 0.1 --batch-size 0", ["batch_size = 0", "at least 1"]),
    ("--epsilon 0.1 --sigma 1e200", ["float64"]),
    ("--epsilon 0.1 --rule halve", ["rule = 'halve'", "theta", "table"]),
    ("--noise laplace", ["epsilon: required with --noise laplace"]),
    ("--epsilon 0.1 --batch-size many", ["--batch-size", "integer"]),
    ("--epsilon 0.1 --colour red", ["--colour"]),
]
# behind `mapa simulate` with a small scenario
OF_SIMULATE = [
    (["--set", "edge=5"], ["edge = 5", "unknown key", "edges"]),
    (["--set", "edges=0"], ["edges = 0", "≥ 1"]),
    (["--set", "edges=five"], ["edges = 'five'", "integer"]),
    (["--set", "edges=true"], ["edges = True", "integer"]),
    (["--set", "algorithm.theta=2"], ["algorithm.theta = 2", "< 1"]),
    (["--set", "algorithm.name=fedavg"], ["algorithm.name = 'fedavg'", "'csgd'"]),
    (["--set", "privacy.noise=cauchy"], ["privacy.noise = 'cauchy'", "'gaussian'"]),
    (["--noise-parameter", "scale=1"], ["privacy.scale = 1: unknown key", "epsilon"]),
    (["--set", "privacy.noise=gaussian"], ["noise_multiplier"]),
    (["--set", "iterations="], ["iterations: missing"]),
    (["--set", "iterations"], ["--set 'iterations'", "KEY=VALUE"]),
    (["--set", "iterations.many=1"], ["iterations is not a table"]),
    (["--set", "delays.kind=recorded", "--set", "delays.file=no.csv"], ["delays.file = 'no.csv'"]),
    (["--set", "batch_size=5000", "--set", "data.sampler=poisson"], ["batch_size = 5000", "shard"]),
    (["--set", "privacy.epsilon_floor=2"], ["epsilon = 1.0", "floor"]),
    (["--set", "algorithm.first_clip=1e-200"], ["algorithm.first_clip = 1e-200", "≥ 1e-09"]),
    (["--set", "model.name=nobody"], ["model.name = 'nobody'", "lr"]),
    (["--set", "data.set=nobody"], ["data.set = 'nobody'", "mnist-5k"]),
    (["--engine", "quick"], ["engine = 'quick'", "vectorised"]),
    (["--engine", "vectorised", "--set", "delays.kind=constant"], ["engine = 'vectorised'", "cyclic"]),
    (["--engine", "block", "--set", "data.sampler=shuffled"], ["data.sampler = 'shuffled'"]),
    (["--seed", "-1"], ["seed = -1", "≥ 0"]),
    (["--edges", "0"], ["edges = 0", "≥ 1"]),
]


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
        *(((*BARE, *options.split(), "--json"), said) for options, said in OF_SCHEDULE),
        *((("simulate", "small.toml", "--json", *options), said) for options, said in OF_SIMULATE),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else "",
)
def test_it_is_refused_with_2_and_its_name(
    mapa: Mapa, tmp_path: Path, words: tuple[str, ...], said: list[str]
) -> None:
    (tmp_path / "small.toml").write_text(SMALL)
    done = mapa(*words)
    assert (done.code, done.out) == (2, ""), done.err
    for word in said:
        assert word in done.err
    assert "Traceback" not in done.err
    assert [path.name for path in tmp_path.iterdir()] == ["small.toml"]


def test_a_delta_of_nought_is_nought(mapa: Mapa, tmp_path: Path) -> None:
    privacy = {"noise": "gamma-norm", "epsilon": 0.01}
    summary = recording.record_simulation(small_world(privacy=privacy), name="pure", runs=tmp_path / "runs")
    stated = mapa.rows("ledger", summary["path"], "--delta", "0")
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
    assert "must be printable" in mapa.refusal(
        "cloud", "quickstart", "--set", options, "--broker", "127.0.0.1:1", "--run", "odd"
    )

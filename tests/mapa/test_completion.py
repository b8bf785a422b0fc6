"""Completion in a real bash; zsh and fish are read where they are installed."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path

import pytest

from common.algorithms import algorithm_names
from common.datasets.catalogue import DATA_SETS
from mapa.command_tree import command_tree
from mapa.completion import script
from mapa.scenario_files import shipped_names
from tests.program_support import PATIENCE, Mapa

DRIVER = """
source "$1"; shift
COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1))
_mapa
printf '%s\\n' "${COMPREPLY[@]}"
"""


@pytest.fixture(scope="module")
def bash_script(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("completion") / "mapa.bash"
    path.write_text(script("bash"))
    return path


class Shell:
    """A bash that has sourced the script, in a folder with runs."""

    def __init__(self, source: Path, folder: Path) -> None:
        self._source, self._folder = source, folder

    def __call__(self, line: str) -> list[str]:
        words = line.split(" ")
        done = subprocess.run(
            ["bash", "--norc", "-c", DRIVER, "bash", str(self._source), *words],
            cwd=self._folder,
            capture_output=True,
            text=True,
            timeout=PATIENCE,
            env={"PATH": "/usr/bin:/bin"},  # no mapa there: it is not called
        )
        assert done.returncode == 0, done.stderr
        assert done.stderr == ""
        return sorted(done.stdout.split("\n")[:-1]) if done.stdout.strip() else []


@pytest.fixture
def tab(bash_script: Path, tmp_path: Path) -> Shell:
    for name in ("quick-1", "quick-2", "slow-3"):
        (tmp_path / "runs" / name).mkdir(parents=True)
        (tmp_path / "runs" / name / "manifest.json").write_text("{}")
    (tmp_path / "runs" / "no-run").mkdir()
    (tmp_path / "own.toml").write_text("")
    (tmp_path / "other").mkdir()
    return Shell(bash_script, tmp_path)


def test_commands_and_those_of_groups_are_completed(tab: Shell) -> None:
    top = sorted(one.words[0] for one in command_tree() if len(one.words) == 1)
    assert tab("mapa ") == top
    assert tab("mapa ru") == ["run", "runs"]
    assert tab("mapa runs ") == ["list", "rm", "show"]
    assert tab("mapa --debug runs s") == ["show"]
    assert tab("mapa nothing ") == []


def test_options_are_those_of_the_command(tab: Shell) -> None:
    for command in command_tree():
        wanted = {name for option in command.options for name in option.options if name.startswith("--")}
        assert set(tab(" ".join(["mapa", *command.words, "--"]))) == wanted | {"--help"}, command.words


def test_names_are_completed(tab: Shell) -> None:
    assert set(tab("mapa simulate ")) == {*shipped_names(), "own.toml", "runs", "other"}
    assert tab("mapa run --seed 1 quick") == ["quickstart"]
    assert set(tab("mapa replay quick-1 --algorithm ")) == set(algorithm_names())
    assert set(tab("mapa data get ")) == set(DATA_SETS)
    assert tab("mapa run --links w") == ["wan", "wifi"]
    assert tab("mapa export quick-1 --to ") == ["csv", "mlflow", "parquet", "tensorboard"]
    assert tab("mapa completion ") == ["bash", "fish", "zsh"]
    assert tab("mapa run --seed ") == []


def test_run_ids_are_those_of_the_folder(tab: Shell, tmp_path: Path) -> None:
    assert tab("mapa verify ") == ["latest", "quick-1", "quick-2", "slow-3"]
    assert tab("mapa runs rm ") == ["quick-1", "quick-2", "slow-3"]  # removed by whole ids alone
    assert tab("mapa compare quick-1 sl") == ["slow-3"]
    (tmp_path / "elsewhere" / "far-1").mkdir(parents=True)
    (tmp_path / "elsewhere" / "far-1" / "manifest.json").write_text("{}")
    assert tab("mapa runs show --runs-dir elsewhere f") == ["far-1"]
    assert tab("mapa cloud --resume qu") == ["quick-1", "quick-2"]
    assert tab("mapa export sl") == ["slow-3"]
    (tmp_path / "runs" / "slow-4").symlink_to(tmp_path / "elsewhere" / "far-1")
    assert tab("mapa verify slow") == ["slow-3"]  # a link is no run


def test_a_hostile_run_id_runs_nothing(tab: Shell, tmp_path: Path) -> None:
    for name in ("$(touch hacked)", "`touch hacked`", "a;touch hacked", "-rf"):
        (tmp_path / "runs" / name).mkdir()
        (tmp_path / "runs" / name / "manifest.json").write_text("{}")
    found = tab("mapa verify ")
    assert "\\$\\(touch\\ hacked\\)" in found
    assert not (tmp_path / "hacked").exists()


def test_the_command_prints_the_script_and_names_the_shells(mapa: Mapa, bash_script: Path) -> None:
    assert mapa("completion", "bash").out == bash_script.read_text()
    wrong = mapa("completion", "tcsh")
    assert wrong.code == 2
    assert "bash, zsh, fish" in wrong.err


@pytest.mark.parametrize("shell", ["zsh", "fish"])
def test_the_other_shells_know_every_command(shell: str, tmp_path: Path) -> None:
    text = script(shell)
    for command in command_tree():
        assert " ".join(command.words) in text
    for name in shipped_names():
        assert name in text
    if shutil.which(shell) is not None:  # read, not run: CI has bash alone
        (tmp_path / "script").write_text(text)
        subprocess.run([shell, "-n", str(tmp_path / "script")], check=True, timeout=PATIENCE)


def test_the_tree_has_every_command_with_its_types() -> None:
    by_words = {one.words: one for one in command_tree()}
    run = {option.name: option for option in by_words["run",].options}
    assert run["seed"].value == "INTEGER"
    assert run["runs"].value == "PATH"
    assert run["as_json"].value == ""
    assert run["runs"].default == "runs"
    cloud = {option.name: option for option in by_words["cloud",].options}
    assert cloud["broker"].required
    assert cloud["broker"].variable == "MAPA_BROKER"
    assert json.dumps([one.about for one in by_words.values()]).count('""') == 0

"""Completion in a real bash; zsh and fish are read where they are installed."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from common.algorithms import algorithm_names
from common.datasets.catalogue import DATA_SETS
from mapa.commands.completion import SHELLS, WORDS, loaded
from mapa.reference import commands
from mapa.scenario_files import shipped_names
from tests.program_support import PATIENCE, Mapa, environment, run_program

DRIVER = """
source "$1"; shift
COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1))
_mapa_completion mapa
printf '%s\\n' "${COMPREPLY[@]}"
"""


class Shell:
    """A bash that has sourced the script, in a folder with runs."""

    def __init__(self, source: Path, folder: Path) -> None:
        self._source, self._folder = source, folder

    def __call__(self, line: str) -> list[str]:
        programs = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
        command = ("bash", "--norc", "-c", DRIVER, "bash", str(self._source), *line.split(" "))
        done = run_program(*command, env={**environment(), "PATH": programs}, cwd=self._folder)
        assert done.returncode == 0, done.stderr
        assert done.stderr == ""
        return sorted(done.stdout.split("\n")[:-1]) if done.stdout.strip() else []


@pytest.fixture
def tab(mapa: Mapa, tmp_path: Path) -> Shell:
    hostile = ("$(touch hacked)", "`touch hacked`", "a;touch hacked", "-rf")
    for name in ("quick-1", "quick-2", "slow-3", *hostile):
        (tmp_path / "runs" / name).mkdir(parents=True)
        (tmp_path / "runs" / name / "manifest.json").write_text("{}")
    (tmp_path / "runs" / "no-run").mkdir()
    (tmp_path / "runs" / "slow-4").symlink_to(tmp_path / "runs" / "slow-3")
    (tmp_path / "own.toml").write_text("")
    script = tmp_path / "runs" / "mapa.bash"
    script.write_text(mapa("completion", "bash").out)
    return Shell(script, tmp_path)


@pytest.mark.slow
def test_commands_options_and_names_are_completed(tab: Shell) -> None:
    assert tab("mapa ") == sorted(words for words in commands() if words and " " not in words)
    assert tab("mapa runs ") == ["list", "rm", "show"]
    assert tab("mapa --debug runs s") == ["show"]
    assert {"--seed", "--links", "--help"} <= set(tab("mapa run --"))
    assert set(tab("mapa simulate ")) == {*shipped_names(), "own.toml", "runs/"}
    assert tab("mapa run --seed 1 quick") == ["quickstart"]
    assert set(tab("mapa replay quick-1 --algorithm ")) == set(algorithm_names())
    assert set(tab("mapa data get ")) == set(DATA_SETS)
    assert tab("mapa run --links w") == ["wan", "wifi"]
    assert tab("mapa export quick-1 --to ") == ["csv", "mlflow", "parquet", "tensorboard"]
    assert tab("mapa run --seed ") == []


@pytest.mark.slow
def test_run_ids_are_those_of_the_folder_but_hostile_ones_and_links(tab: Shell, tmp_path: Path) -> None:
    assert tab("mapa verify ") == ["latest", "quick-1", "quick-2", "slow-3"]
    assert tab("mapa runs rm ") == ["quick-1", "quick-2", "slow-3"]  # removed by whole ids alone
    assert tab("mapa compare quick-1 sl") == ["slow-3"]
    (tmp_path / "elsewhere" / "far-1").mkdir(parents=True)
    (tmp_path / "elsewhere" / "far-1" / "manifest.json").write_text("{}")
    assert tab("mapa runs show --runs-dir elsewhere f") == ["far-1"]
    assert tab("mapa cloud --resume qu") == ["quick-1", "quick-2"]
    assert not (tmp_path / "hacked").exists()


def test_every_word_that_is_loaded_is_there_and_belongs_to_a_parameter() -> None:
    known = {(words, one.name) for words, command in commands().items() for one in command.params}
    for (words, name), found in WORDS.items():
        assert all(isinstance(word, str) for word in loaded(found))
        assert (words, name) in known or (not words and any(name == other for _, other in known))


@pytest.mark.parametrize("shell", SHELLS)
def test_the_command_prints_a_script_for_every_shell(shell: str, mapa: Mapa, tmp_path: Path) -> None:
    (tmp_path / "script").write_text(mapa("completion", shell).out)
    if shutil.which(shell) is not None:  # read, not run: CI has bash alone
        subprocess.run([shell, "-n", str(tmp_path / "script")], check=True, timeout=PATIENCE)
    assert "bash, zsh, fish" in mapa.refusal("completion", "tcsh")

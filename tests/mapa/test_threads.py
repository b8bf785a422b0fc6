"""Cloud, edges and simulations keep to one BLAS thread, unless the user says otherwise."""

from __future__ import annotations

import os
import sys

import pytest

from mapa.processes import VARIABLES, one_thread, one_thread_each
from tests.program_support import run_program

# a command that only says what it found, in the place of the one that is asked for
SCRIPT = """
import os, sys, types
from mapa import cli
name = sys.argv[1]
assert "numpy" not in sys.modules
probe = types.ModuleType("probe")
probe.command = lambda: print(os.environ.get("OPENBLAS_NUM_THREADS"), os.environ.get("OMP_NUM_THREADS"))
sys.modules["probe"] = probe
cli.COMMANDS = dict.fromkeys((name, "schedule"), ("", ""))
cli._PLACES = dict.fromkeys(cli.COMMANDS, "probe:command")
cli.main()
"""


def threads(command: str, **said: str) -> str:
    environ = {key: value for key, value in os.environ.items() if key not in VARIABLES}
    return run_program(sys.executable, "-c", SCRIPT, command, env={**environ, **said}).stdout.strip()


@pytest.mark.parametrize("command", ["run", "cloud", "edge", "simulate"])
def test_what_trains_takes_one_thread_before_numpy_is_there(command: str) -> None:
    assert threads(command) == "1 1"


def test_the_users_word_stays_and_other_commands_are_left_alone() -> None:
    assert threads("cloud", OMP_NUM_THREADS="4") == "None 4"
    assert threads("export") == "None None"


def test_children_get_one_thread_or_what_the_user_said(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in VARIABLES:
        monkeypatch.delenv(name, raising=False)
    assert {name: one_thread_each()[name] for name in VARIABLES} == dict.fromkeys(VARIABLES, "1")
    assert not any(name in os.environ for name in VARIABLES)
    monkeypatch.setenv("MKL_NUM_THREADS", "2")
    assert "OMP_NUM_THREADS" not in one_thread_each()
    environ: dict[str, str] = {"OMP_NUM_THREADS": ""}
    one_thread(environ)
    assert environ["OMP_NUM_THREADS"] == "1"

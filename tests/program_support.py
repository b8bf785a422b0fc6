"""The program as tests run it: in this process, or as a process of its own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from common.datasets.catalogue import data_directory
from mapa.brokers import find_mosquitto
from mapa.cli import main
from mapa.processes import VARIABLES, one_thread_each

ROOT = Path(__file__).parents[1]
PATIENCE = 600.0  # seconds; reached only where something hangs, also where the machine does ten other things
MAPA = (sys.executable, "-m", "mapa.cli")
# As a non-interactive shell starts its background jobs.
SIGINT_IGNORED = ("sh", "-c", 'trap "" INT; exec "$@"', "sh")


def environment() -> dict[str, str]:
    """Return the environment of a child: one thread each, and data where this process finds it."""
    return {**one_thread_each(), "MAPA_DATA_DIR": str(data_directory(os.environ))}


def require_mosquitto() -> None:
    """Skip where this machine has no Mosquitto."""
    if find_mosquitto() is None:
        pytest.skip("no mosquitto on PATH (Debian: apt install mosquitto)")


def run_program(
    *command: str | Path, env: Mapping[str, str] | None = None, cwd: Path = ROOT
) -> subprocess.CompletedProcess[str]:
    """Run a program to its end, whatever that is."""
    env = environment() if env is None else env
    told = {"stdin": subprocess.DEVNULL, "capture_output": True, "text": True, "timeout": PATIENCE}
    return subprocess.run(command, env=env, cwd=cwd, **told)


def run_mapa(*words: str, env: Mapping[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    """Run `mapa` in a process of its own."""
    return run_program(*MAPA, *words, env=env)


def run_as_user(folder: Path, *words: str, **environ: str) -> subprocess.CompletedProcess[str]:
    """Run `mapa` in a folder where this repository is but an installed package."""
    env = {**environment(), "PYTHONPATH": str(ROOT), **environ}
    return run_program(MAPA[0], "-P", *MAPA[1:], *words, env=env, cwd=folder)


def summary_of(done: subprocess.CompletedProcess[str]) -> dict[str, Any]:
    """Return what a command has printed as JSON; it must have ended with 0."""
    assert done.returncode == 0, done.stderr[-3000:]
    printed: dict[str, Any] = json.loads(done.stdout)
    return printed


def run_over_mosquitto(scenario: str, directory: Path) -> dict[str, Any]:
    """Run a scenario, given as TOML, between real processes; return what `mapa run --json` says of it."""
    directory.mkdir(exist_ok=True)
    file = directory / "scenario.toml"
    file.write_text(scenario, encoding="utf-8")
    words = ("run", str(file), "--broker", "mosquitto", "--runs-dir", str(directory), "--json")
    return summary_of(run_mapa(*words))


def start_mapa(*words: str, program: Sequence[str] = MAPA, **more: Any) -> subprocess.Popen[Any]:
    """Start a command; `more` goes to Popen."""
    return subprocess.Popen([*program, *words], **{"env": environment(), "cwd": ROOT, **more})


def eventually(condition: Callable[[], bool], what: str) -> None:
    """Wait for another process's doing where there is no event to await."""
    until = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < until, f"in vain: {what}"
        time.sleep(0.02)


def journal_has(runs: Path, words: str, pattern: str = "*/events.jsonl") -> bool:
    """Whether a record of some run below `runs` contains these words."""
    return any(words in path.read_text() for path in runs.glob(pattern))


def assert_each_once(applied: Sequence[Mapping[str, Any]], updates: int) -> Counter[int]:
    """Check the records of all updates: t from 1 to T, no (edge, sequence) twice, none left out; count by edge."""
    assert [event["t"] for event in applied] == list(range(1, updates + 1))
    sequences: dict[int, list[int]] = {}
    for event in applied:
        assert event["staleness"] == event["t"] - event["version"] >= 0
        sequences.setdefault(event["edge"], []).append(event["sequence"])
    for edge, seen in sequences.items():
        assert seen == list(range(1, len(seen) + 1)), f"edge {edge}: a gradient was lost or applied twice"
    assert len({(event["edge_id"], event["sequence"]) for event in applied}) == updates
    return Counter({edge: len(seen) for edge, seen in sequences.items()})


class Done(NamedTuple):
    """How a command ended."""

    code: int
    out: str
    err: str


class Mapa:
    """The program, run in this process."""

    def __init__(self, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
        self._capsys = capsys
        self._monkeypatch = monkeypatch
        for name in VARIABLES:  # which a command may set: put back after the test
            monkeypatch.setenv(name, os.environ.get(name, ""))

    def __call__(self, *words: str) -> Done:
        self._monkeypatch.setattr(sys, "argv", ["mapa", *words])
        with pytest.raises(SystemExit) as end:
            main()
        return Done(int(end.value.code or 0), *self._capsys.readouterr())

    def rows(self, *words: str) -> Any:
        """Return the JSON of a command that must succeed."""
        done = self(*words, "--json")
        assert done.code == 0, done.err
        return json.loads(done.out)

    def refusal(self, *words: str, code: int = 2) -> str:
        """Return what a command that must fail says."""
        done = self(*words)
        assert done.code == code, (done.out, done.err)
        return done.err

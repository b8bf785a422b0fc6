"""A container whose engine starts again whatever ends: it stays after its program's own end, and says the code."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from common.errors import ConfigurationError
from mapa.container import restarts_always, service
from mapa.resume import to_go_on_with
from tests.program_support import PATIENCE, ROOT, eventually

pytestmark = pytest.mark.slow
_PROGRAM = "import os, sys, time; from mapa.container import outlast; outlast(sys.argv[1], os.environ); "
Started = Callable[..., subprocess.Popen[str]]


@pytest.fixture
def started(tmp_path: Path) -> Iterator[Started]:
    """Start a container's first process, whose child does something."""
    running: list[subprocess.Popen[str]] = []

    def start(does: str, name: str = "edge") -> subprocess.Popen[str]:
        env = {
            **os.environ,
            "MAPA_HEALTH_FILE": str(tmp_path / "health"),
            "MAPA_RUNS_DIR": str(tmp_path / "runs"),
        }
        env |= {"RESTARTS": "always", "RUN": "lab"}
        words = [sys.executable, "-c", _PROGRAM + does, name]
        running.append(subprocess.Popen(words, env=env, cwd=ROOT, stdout=subprocess.PIPE, text=True))
        return running[-1]

    yield start
    for one in running:
        one.kill()
        one.communicate()


@pytest.mark.parametrize("code", [0, 2, 3])
def test_a_container_outlasts_an_end_that_no_other_start_would_change(
    started: Started, tmp_path: Path, code: int
) -> None:
    one = started(f"sys.exit({code})")
    assert one.stdout is not None
    assert one.stdout.readline().startswith(f"edge: ended with exit code {code};")
    assert (tmp_path / "ended").read_text() == f"{code}\n"
    eventually((tmp_path / "health").exists, "a heartbeat")  # else the engine would end what stays on purpose
    assert one.poll() is None
    one.terminate()
    assert one.wait(PATIENCE) == 0


@pytest.mark.parametrize(
    ("does", "code"),
    [("sys.exit(1)", 1), ("sys.exit(4)", 4), ("sys.exit(5)", 5), ("os.kill(os.getpid(), 9)", 137)],
)
def test_it_ends_with_what_another_start_may_heal(
    started: Started, tmp_path: Path, does: str, code: int
) -> None:
    assert started(does).wait(PATIENCE) == code
    assert not (tmp_path / "ended").exists()


def test_a_signal_reaches_the_program_and_ends_both(started: Started, tmp_path: Path) -> None:
    leaves = "import signal; signal.signal(15, lambda *_: sys.exit(0)); print('ready', flush=True); time.sleep(600)"
    one = started(leaves)
    assert one.stdout is not None
    assert one.stdout.readline() == "ready\n"
    one.send_signal(signal.SIGTERM)
    assert one.wait(PATIENCE) == 0
    assert not (tmp_path / "ended").exists()


def _ended(runs: Path, reason: str) -> Path:
    path = runs / "lab-20260101-120000-0123abcd"
    path.mkdir(parents=True)
    (path / "manifest.json").write_text(json.dumps({"started": "2026-01-01T12:00:00"}))
    (path / "summary.json").write_text(json.dumps({"reason": reason, "privacy": {}}))
    return path


def test_a_cloud_whose_run_diverged_is_not_started_for_ever(started: Started, tmp_path: Path) -> None:
    _ended(tmp_path / "runs", "diverged")
    one = started("sys.exit(1)", "cloud")
    assert one.stdout is not None
    assert one.stdout.readline().startswith("cloud: ended with exit code 1;")


def test_a_run_of_one_name_is_run_once_where_the_engine_starts_whatever_ends(tmp_path: Path) -> None:
    path = _ended(tmp_path, "finished")
    asked = {"runs": tmp_path, "run": "lab", "started_by": "", "now": 1e12}
    assert to_go_on_with(**asked, once=True) == path
    assert to_go_on_with(**asked) is None
    assert to_go_on_with(**{**asked, "run": "another"}, once=True) is None
    environ = {"MAPA_RUNS_DIR": str(tmp_path), "RUN": "lab", "RESTARTS": "always"}
    arguments, options = service("cloud", environ)
    assert arguments[-2:] == ["--resume", str(path)]
    assert options["MAPA_SUSPEND"] == "true"


def test_an_unknown_word_of_the_engine_is_refused() -> None:
    assert not restarts_always({"RESTARTS": " "})
    with pytest.raises(ConfigurationError, match="RESTARTS"):
        restarts_always({"RESTARTS": "never"})

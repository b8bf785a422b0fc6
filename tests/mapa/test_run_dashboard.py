"""`mapa run --dashboard`: the page is there with the run, stays for a person, and ends by itself without one."""

from __future__ import annotations

import os
import pty
import re
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from tests.program_support import PATIENCE, environment, run_mapa, start_mapa

pytestmark = pytest.mark.slow
SMALL = "--edges 2 --broker embedded --links lan --dashboard --set evaluation.every=10"


def words(runs: Path, iterations: int) -> list[str]:
    return [*f"run quickstart {SMALL} --iterations {iterations} --runs-dir".split(), str(runs)]


def address_in(lines: Iterator[str]) -> str:
    for line in lines:
        if found := re.search(r"http://\S+", line):
            return found[0]
    raise AssertionError("no address was printed")


def test_without_a_terminal_it_ends_by_itself_and_the_page_with_it(tmp_path: Path) -> None:
    run = start_mapa(
        *words(tmp_path / "runs", 60), stdin=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
    )
    try:
        assert run.stderr is not None
        address = address_in(iter(run.stderr.readline, ""))
        assert httpx.get(f"{address}api/runs", timeout=PATIENCE).status_code == 200  # before the run is over
        run.communicate(timeout=PATIENCE)
        assert run.returncode == 0
        with pytest.raises(httpx.ConnectError):
            httpx.get(address, timeout=PATIENCE)
    finally:
        run.kill()
        run.wait()


def test_in_a_terminal_the_page_stays_until_ctrl_c(tmp_path: Path) -> None:
    ours, theirs = pty.openpty()
    run = start_mapa(*words(tmp_path / "runs", 20), stdin=theirs, stderr=theirs, stdout=subprocess.DEVNULL)
    os.close(theirs)
    said = ""
    try:
        while "stays at" not in said:
            said += os.read(ours, 4096).decode()
        address = address_in(iter(said.splitlines()))
        (line,) = httpx.get(f"{address}api/runs", timeout=PATIENCE).json()["runs"]
        assert (line["state"], line["updates"]) == ("ended", 20)
        run.send_signal(signal.SIGINT)
        assert run.wait(PATIENCE) == 0
        with pytest.raises(httpx.ConnectError):
            httpx.get(address, timeout=PATIENCE)
    finally:
        run.kill()
        run.wait()
        os.close(ours)


def test_without_the_page_s_packages_nothing_is_started(tmp_path: Path) -> None:
    (tmp_path / "uvicorn.py").write_text("raise ImportError('not here')\n")
    env = {**environment(), "PYTHONPATH": str(tmp_path)}
    done = run_mapa(*words(tmp_path / "runs", 20), env=env)
    assert done.returncode == 2
    assert "mapa-testbed[dashboard]" in done.stderr
    assert list((tmp_path / "runs").iterdir()) == []

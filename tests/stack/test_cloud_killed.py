"""The cloud's process is killed inside its container: it comes back by itself, and the run goes on to its end."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from tests.stack.compose_support import MARKS, PATIENCE, Compose, assert_applied_exactly_once, compose

pytestmark = [*MARKS, pytest.mark.usefixtures("images")]
EDGES = 20
UPDATES = 3000
# /proc, because the image has no ps; the first process is the engine's init
KILL = """
import os, signal
for name in os.listdir("/proc"):
    if name.isdecimal() and int(name) not in (1, os.getpid()):
        words = open(f"/proc/{name}/cmdline", "rb").read().split(b"\\0")
        if b"mapa.container" in words and b"cloud" in words:
            os.kill(int(name), signal.SIGKILL)
            print("killed", name)
"""


def kill_inside(project: Compose) -> None:
    """Kill the cloud's process as the kernel would, not by the engine: that would be a person's word.

    As the caller, whom the cloud's process has become: another user would need a privilege that not every host gives.
    """
    cloud = project.stack.container("cloud")
    done = cloud.exec_run(["python", "-c", KILL], user=str(os.getuid()))
    assert b"killed" in done.output, done.output


def test_a_cloud_killed_in_its_container_comes_back_and_the_run_ends_with_0(
    engine: Any, tmp_path: Path
) -> None:
    given = {"EDGES": str(EDGES), "ITERATIONS": str(UPDATES), "SET": "testbed.resend_after=0.5"}
    with compose(engine, tmp_path / "runs", **given) as project:
        project.up(EDGES)
        for reached in (UPDATES // 4, UPDATES // 2):
            project.until_updates(reached)
            kill_inside(project)
            project.until_updates(reached + 200)
        project.stack.until(lambda: project.records.summary() is not None, PATIENCE, "the end")
        summary = project.finish()
        assert len(project.records.named("resumed")) == 2
        assert_applied_exactly_once(project.records, UPDATES)
    assert (summary["updates"], summary["reason"]) == (UPDATES, "finished")
    assert len(list((tmp_path / "runs").iterdir())) == 1  # one run, in one directory

"""Sweeps on this machine's cores."""

from __future__ import annotations

import multiprocessing
import os
import select
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from common.errors import ConfigurationError
from experiments import harness
from experiments.harness import ONE_THREAD, sweep
from tests.program_support import PATIENCE
from tests.sweep_support import die_if_negative, one_thread_here, square, where_it_ran


def test_every_task_comes_back_with_its_value() -> None:
    done = list(sweep(square, range(7), jobs=2))
    assert {one.task: one.value for one in done} == {n: n * n for n in range(7)}
    assert all(one.error is None for one in done)


def test_a_task_that_fails_is_told_in_words_and_the_others_go_on() -> None:
    done = {one.task: one for one in sweep(square, [1, -1, 3], jobs=2)}
    assert done[-1].value is None
    assert done[-1].error == "ValueError: -1: no square of a negative"
    assert (done[1].value, done[3].value) == (1, 9)


def test_a_worker_that_is_killed_costs_its_own_task_alone() -> None:
    done = {one.task: one for one in sweep(die_if_negative, [1, -1, 2, 3, 4], jobs=2)}
    assert done[-1].error == "the process that ran it was killed"
    assert {task: one.value for task, one in done.items() if task > 0} == {1: 1, 2: 4, 3: 9, 4: 16}


def test_tasks_run_in_other_processes_with_one_blas_thread() -> None:
    before = {name: os.environ.get(name) for name in ONE_THREAD}
    done = list(sweep(one_thread_here, range(2), jobs=2))
    assert [one.value for one in done] == [dict.fromkeys(ONE_THREAD, "1")] * 2
    assert {name: os.environ.get(name) for name in ONE_THREAD} == before
    assert os.getpid() not in {one.value for one in sweep(where_it_ran, range(2), jobs=1)}


def test_a_sweep_takes_every_core_that_its_process_may_use(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[int] = []

    def on_cores(_: object, tasks: Sequence[int], jobs: int) -> Iterator[object]:
        asked.append(jobs)
        return iter(tasks)

    monkeypatch.setattr("os.sched_getaffinity", lambda _: {0, 2, 3})
    monkeypatch.setattr(harness, "_on_cores", on_cores)
    for jobs in (None, 5):
        list(sweep(square, [1], jobs=jobs))
    assert asked == [3, 5]


def test_a_sweep_that_is_no_longer_read_leaves_no_process_behind() -> None:
    before = set(multiprocessing.active_children())
    running = sweep(square, range(50), jobs=2)
    next(running)
    running.close()  # type: ignore[attr-defined]
    assert set(multiprocessing.active_children()) == before


@pytest.mark.slow
def test_a_sweep_whose_parent_is_killed_leaves_no_process_behind(tmp_path: Path) -> None:
    script = (
        "from experiments.harness import sweep\n"
        "from tests.sweep_support import say_and_wait\n"
        f"list(sweep(say_and_wait, [{str(tmp_path / 'pid')!r}], jobs=1))\n"
    )
    os.mkfifo(tmp_path / "pid")  # the child's word comes through a pipe: nothing is polled
    parent = subprocess.Popen([sys.executable, "-c", f"if __name__ == '__main__':\n  exec({script!r})"])
    try:
        child = int((tmp_path / "pid").read_text())
        watched = os.pidfd_open(child)
    finally:
        parent.kill()
        parent.wait()
    ended, _, _ = select.select([watched], [], [], PATIENCE)
    os.close(watched)
    assert ended, f"process {child} outlived the sweep"


@pytest.mark.slow
def test_an_interrupted_sweep_ends_at_once_and_begins_no_other_task(tmp_path: Path) -> None:
    pipes = [str(tmp_path / name) for name in "abcd"]
    script = (
        "from experiments.harness import sweep\n"
        "from tests.sweep_support import stop_when_terminated\n"
        f"list(sweep(stop_when_terminated, {pipes!r}, jobs=1))\n"
    )
    for pipe in pipes:
        os.mkfifo(pipe)
    parent = subprocess.Popen(
        [sys.executable, "-c", f"if __name__ == '__main__':\n  exec({script!r})"],
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        child = int(Path(pipes[0]).read_text())
        watched = os.pidfd_open(child)
        parent.send_signal(signal.SIGINT)
        _, said = parent.communicate(timeout=PATIENCE)  # the second task would never end
    finally:
        parent.kill()
        parent.communicate()
    ended, _, _ = select.select([watched], [], [], 0)
    os.close(watched)
    assert ended, f"process {child} is still there"
    assert said.rstrip().endswith("KeyboardInterrupt")


def test_no_task_needs_no_process() -> None:
    assert list(sweep(square, [])) == []


def test_an_unknown_engine_is_refused_by_name() -> None:
    with pytest.raises(ConfigurationError, match="engine = 'slurm': allowed are cores, ray"):
        list(sweep(square, [1], engine="slurm"))

"""A reproduction from points to report: what is cached is taken, the rest is run, then judged and drawn."""

from __future__ import annotations

import platform
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from common.errors import MapaError
from experiments.reproduce.catalogue import Experiment
from experiments.reproduce.containers import choose_containers, lacking_here
from experiments.reproduce.engines import Task, run_task
from experiments.reproduce.plots import draw_all
from experiments.reproduce.points import Point, all_points, blocks_of
from experiments.reproduce.report import Story, write_report
from experiments.reproduce.results import Cache, Result, Results
from experiments.reproduce.tasks import ALONE, make_tasks
from experiments.reproduce.verdicts import Judged, judge_all
from experiments.sweep import Done, sweep


@dataclass(frozen=True, slots=True, kw_only=True)
class Order:
    """What is to be reproduced, and how."""

    experiments: Sequence[Experiment]
    size: str
    out: Path
    data_dir: Path
    command: str
    engine: str = "cores"
    jobs: int | None = None
    ray_address: str | None = None
    resume: bool = True
    most_seeds: int | None = None  # for every point, whatever the size says
    testbed: str = "auto"
    only: Sequence[str] = ()  # globs of lines; none: all


@dataclass(frozen=True, slots=True)
class Outcome:
    judged: list[Judged]
    files: list[Path]
    failures: dict[str, str]
    runs: int  # made now; the others were in the cache
    cached: int


Watch = Callable[[float, float, str], None]  # cost done, cost in all, what ended last


def reproduce(order: Order, watch: Watch | None = None) -> Outcome:
    """Run what is missing, then write the report. Interrupted, it goes on where it stopped."""
    began = time.perf_counter()
    containers, no_containers = _containers(order)
    points = all_points(
        order.experiments,
        order.size,
        order.data_dir,
        most_seeds=order.most_seeds,
        containers=containers,
        only=order.only,
    )
    cache = Cache(order.out / "cache")
    found: dict[str, Result] = {}
    if order.resume:
        for key in {point.key for point in points}:
            result = cache.get(key)
            if result is not None:
                found[key] = result
    cached = len(found)
    tasks = make_tasks([p for p in points if p.key not in found], order.data_dir, order.out / "runs")
    total, spent = sum(task.cost for task in tasks), 0.0
    failures: dict[str, str] = {}
    for done in _run(tasks, order):
        for result in done.value or []:
            cache.put(result)
            found[result.key] = result
        if done.error is not None:
            failures.update((point.line, done.error) for point in done.task.points)
        spent += done.task.cost
        if watch is not None:
            watch(spent, total, done.task.points[0].line)
    results = Results(points, found)
    names = [experiment.name for experiment in order.experiments]
    judged = judge_all(results, names)
    story = Story(
        command=order.command,
        size=order.size,
        seconds=time.perf_counter() - began,
        machine=machine(),
        experiments=order.experiments,
        results=results,
        judged=judged,
        pictures=draw_all(results, names, order.out / "figures"),
        failures=failures,
        notes=[
            *notes(order, points, no_containers),
            *([f"{cached} results were taken from the cache."] if cached else []),
            *shortcomings(results, failures),
        ],
    )
    files = write_report(story, order.out)
    return Outcome(judged, files, failures, len(found) - cached, cached)


def _run(tasks: Sequence[Task], order: Order) -> Iterator[Done[Task, list[Result]]]:
    """Run tasks on the chosen engine, and after them, one at a time, those that need the machine alone."""
    together = [task for task in tasks if task.points[0].engine not in ALONE]
    alone = [task for task in tasks if task.points[0].engine in ALONE]
    yield from sweep(run_task, together, engine=order.engine, jobs=order.jobs, ray_address=order.ray_address)
    for task in alone:
        try:
            yield Done(task, run_task(task))
        except MapaError as error:
            yield Done(task, error=f"{type(error).__name__}: {error}")


def machine() -> dict[str, str]:
    return {
        "Python": platform.python_version(),
        "numpy": np.__version__,
        "on": platform.platform(),
    }


def _containers(order: Order) -> tuple[bool, str]:
    """Choose between containers and processes; nobody is asked for an engine that no run needs."""
    blocks = blocks_of(order.experiments)
    live = any(block.engine_at(block.size(order.size)) == "testbed" for block in blocks)
    return choose_containers(order.testbed, order.size, lacking_here if live else lambda: None)


def notes(order: Order, points: Sequence[Point], no_containers: str = "") -> list[str]:
    """Return what a reader must know of the runs before the verdicts."""
    said = []
    if order.size == "tiny":
        said.append("This size only shows that everything runs: its verdicts mean nothing.")
    if order.only:
        said.append(f"Only the lines {', '.join(order.only)} were asked for.")
    replaced = sorted({point.asked for point in points if point.stands_in})
    if replaced:
        said.append(
            f"The embedded 5,000 MNIST images stand in for {' and '.join(name.upper() for name in replaced)}: "
            "panels of different names may show the same runs."
        )
    live = {point.experiment: point.run_as for point in points if point.engine in ALONE}
    if live:
        why = f" instead of containers: {no_containers}" if no_containers else ""
        (kind,) = set(live.values())
        said.append(f"Runs of the testbed ({', '.join(live)}) were {kind} of this machine{why}.")
    fewer = _fewer_seeds(order)
    if fewer:
        said.append(
            f"Seeds were reduced to at most {order.most_seeds} for a point: {', '.join(fewer)}. "
            "One seed alone says nothing of a difference of a point or two."
        )
    return said


def _fewer_seeds(order: Order) -> list[str]:
    """Return the experiments that --seeds has cut, with the seeds of their size."""
    cut: dict[str, int] = {}
    for block in blocks_of(order.experiments):
        seeds = block.size(order.size).seeds
        if order.most_seeds is not None and seeds > order.most_seeds:
            cut[block.experiment] = max(seeds, cut.get(block.experiment, 0))
    return [f"{name} (of {seeds})" for name, seeds in cut.items()]


def shortcomings(results: Results, failures: dict[str, str]) -> list[str]:
    """Return what is missing, and which runs failed."""
    said = []
    if results.missing:
        lines = sorted({point.line for point in results.missing})
        said.append(f"{len(results.missing)} points are missing, of: {', '.join(lines)}.")
    return said + [f"Failed: {line}: {error}" for line, error in sorted(failures.items())]

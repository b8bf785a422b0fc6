"""A reproduction from points to report: what is cached is taken, the rest is run, then judged and drawn."""

from __future__ import annotations

import platform
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from common.errors import ConfigurationError, MapaError
from experiments.harness import Done, sweep
from experiments.reproduce.catalogue import Experiment, Point, all_points, blocks_of
from experiments.reproduce.plots import draw_all
from experiments.reproduce.report import ReportContent, write_report
from experiments.reproduce.results import Cache, Result, Results
from experiments.reproduce.runs import ALONE, Task, choose_containers, lacking_here, make_tasks, run_task
from experiments.reproduce.verdicts import Judged, judge_all

_NAMED = 12  # lines with missing points that a note names one by one


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
    cached_only: bool = False  # run nothing: the cache may have been filled in parts


@dataclass(frozen=True, slots=True)
class Reproduction:
    judged: list[Judged]
    files: list[Path]
    failures: dict[str, str]  # by the label of the point
    runs: int  # made now; the others were in the cache
    cached: int


Watch = Callable[[float, float, str], None]  # cost done, cost in all, what ended last; at first (0, …, "")


def reproduce(order: Order, watch: Watch | None = None) -> Reproduction:
    """Run what is missing, then write the report. Interrupted, it goes on where it stopped."""
    began = time.perf_counter()
    cache = Cache(order.out / "cache")
    points, no_containers = _points(order, cache)
    found: dict[str, Result] = {}
    if order.resume or order.cached_only:
        for key in {point.key for point in points}:
            result = cache.get(key)
            if result is not None:
                found[key] = result
    cached = len(found)
    if order.cached_only and not found:
        raise ConfigurationError(f"--cached: {cache.directory} holds no result of this at size {order.size}")
    missing = [] if order.cached_only else [point for point in points if point.key not in found]
    tasks = make_tasks(missing, order.data_dir, order.out / "runs")
    total, spent = sum(task.cost for task in tasks), 0.0
    failures: dict[str, str] = {}
    if watch is not None and tasks:
        watch(spent, total, "")
    for done in _run(tasks, order):
        for result in done.value or []:
            cache.put(result)
            found[result.key] = result
        if done.error is not None:
            failures.update((point.label, done.error) for point in done.task.points)
        spent += done.task.cost
        if watch is not None:
            watch(spent, total, done.task.points[0].line)
    results = Results(points, found)
    names = [experiment.name for experiment in order.experiments]
    judged = judge_all(results, names)
    content = ReportContent(
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
            *notes(order, [e.point for e in results.entries] if order.cached_only else points, no_containers),
            *([f"{cached} results were taken from the cache."] if cached else []),
            *shortcomings(results, failures),
        ],
    )
    files = write_report(content, order.out)
    return Reproduction(judged, files, failures, len(found) - cached, cached)


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


def _points(order: Order, cache: Cache) -> tuple[list[Point], str]:
    """Return the points, and why those of the testbed are no containers where one might expect them."""

    def points(containers: bool) -> list[Point]:
        return all_points(
            order.experiments,
            order.size,
            order.data_dir,
            most_seeds=order.most_seeds,
            containers=containers,
            only=order.only,
        )

    if not order.cached_only:
        containers, why_not = _containers(order)
        return points(containers), why_not
    containers, _ = choose_containers(order.testbed, order.size, lambda: None)  # none is started
    if order.testbed != "auto":
        return points(containers), ""
    chosen = []
    for inside, outside in zip(points(containers=True), points(containers=False), strict=True):
        live = inside.engine in ALONE
        other = live and cache.get(inside.key) is None and cache.get(outside.key) is not None
        chosen.append(outside if other else inside)
    return chosen, ""


def _containers(order: Order) -> tuple[bool, str]:
    """Choose between containers and processes; nobody is asked for an engine that no run needs."""
    blocks = blocks_of(order.experiments)
    live = any(block.engine_at(block.size(order.size)) == "testbed" for block in blocks)
    return choose_containers(order.testbed, order.size, lacking_here if live else lambda: None)


def notes(order: Order, points: Sequence[Point], no_containers: str = "") -> list[str]:
    """Return what a reader must know of the runs before the verdicts."""
    said = []
    if order.size == "tiny":
        said.append("This size is a smoke test: its verdicts mean nothing.")
    if order.only:
        said.append(f"Restricted to the lines {', '.join(order.only)}.")
    replaced = sorted({point.asked for point in points if point.stands_in})
    if replaced:
        said.append(
            f"The embedded 5,000 MNIST images stand in for {' and '.join(name.upper() for name in replaced)}: "
            "lines of different panels may be the same runs, and a panel that has no other is left out."
        )
    live: dict[str, set[str]] = {}
    for point in points:
        if point.engine in ALONE:
            live.setdefault(point.experiment, set()).add(point.run_as)
    kinds = {name: " and ".join(sorted(some)) for name, some in live.items()}
    for kind in dict.fromkeys(kinds.values()):
        why = f" instead of containers: {no_containers}" if no_containers else ""
        names = ", ".join(name for name in kinds if kinds[name] == kind)
        said.append(f"Runs of the testbed ({names}) were {kind} on this machine{why}.")
    if order.cached_only:
        said.append(f"Nothing was run: this is what the cache holds. Seeds of a point: {_seeds(points)}.")
        return said
    fewer = _fewer_seeds(order)
    if fewer:
        said.append(
            f"Seeds were reduced to at most {order.most_seeds} for a point: {', '.join(fewer)}. "
            "One seed cannot resolve a difference of one or two points."
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


def _seeds(points: Sequence[Point]) -> str:
    """Return how many seeds the points of each experiment have, at least and at most."""
    seeds = Counter((p.experiment, p.line, p.engine not in ALONE and p.engine, p.sweep, p.x) for p in points)
    counts: dict[str, list[int]] = {}
    for (experiment, *_), count in seeds.items():
        counts.setdefault(experiment, []).append(count)
    return ", ".join(
        f"{name} {min(some)}" + (f" to {max(some)}" if min(some) < max(some) else "")
        for name, some in counts.items()
    )


def shortcomings(results: Results, failures: dict[str, str]) -> list[str]:
    """Return what is missing, and which runs failed."""
    said = []
    if results.missing:
        lines = sorted({point.line for point in results.missing})
        if len(lines) > _NAMED:  # a reader wants to know where, not every name
            lines = list(dict.fromkeys(point.experiment for point in results.missing))
        said.append(f"{len(results.missing)} points are missing, of: {', '.join(lines)}.")
    return said + [f"Failed: {line}: {error}" for line, error in sorted(failures.items())]

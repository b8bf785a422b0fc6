"""A reproduction from points to report: run what the cache lacks, judge the claims, draw and write the report."""

from __future__ import annotations

import platform
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from common.errors import ConfigurationError
from experiments.harness import Harness, OnProgress, Order, ResultCache
from experiments.reproduce.catalogue import (
    Experiment,
    FigurePoint,
    Result,
    Results,
    all_points,
    blocks_of,
    result_cache,
)
from experiments.reproduce.claims import Judged, judge_all
from experiments.reproduce.plots import draw_all
from experiments.reproduce.report import ReportContent, write_report
from experiments.reproduce.runs import LIVE, choose_containers, jobs_of, lacking_here

_NAMED = 12  # lines with missing points that a note names one by one


@dataclass(frozen=True, slots=True, kw_only=True)
class ReproductionOrder(Order):
    experiments: Sequence[Experiment]
    command: str
    testbed: str = "auto"
    cached_only: bool = False  # run nothing: the cache may have been filled in parts


@dataclass(frozen=True, slots=True)
class Reproduction:
    judged: list[Judged]
    files: list[Path]
    failures: dict[str, str]  # by the label of the point
    runs: int  # made now; the others were in the cache
    cached: int


def reproduce(order: ReproductionOrder, on_progress: OnProgress | None = None) -> Reproduction:
    """Run what is missing, then write the report. After an interruption it resumes from the cache."""
    began = time.perf_counter()
    cache = result_cache(order.out / "cache")
    harness = Harness(order, cache, on_progress)
    points, no_containers = _points(order, cache)
    if order.resume or order.cached_only:
        harness.recall(point.key for point in points)
    if not order.cached_only:
        missing = [point for point in points if point.key not in harness.results]
        harness.run(jobs_of(missing, order.data_dir, order.out / "runs"))
    elif not harness.results:
        raise ConfigurationError(f"--cached: {cache.directory} holds no result of this at size {order.size}")
    results = Results(points, harness.results)
    names = [experiment.name for experiment in order.experiments]
    judged = judge_all(results, names)
    shown = [entry.point for entry in results.entries] if order.cached_only else points
    content = ReportContent(
        command=order.command,
        size=order.size,
        seconds=time.perf_counter() - began,
        machine=machine(),
        experiments=order.experiments,
        results=results,
        judged=judged,
        pictures=draw_all(results, names, order.out / "figures"),
        notes=[
            *notes(order, shown, no_containers),
            *([f"{harness.cached} results were taken from the cache."] if harness.cached else []),
            *shortcomings(results, harness.failures),
        ],
    )
    files = write_report(content, order.out)
    return Reproduction(judged, files, harness.failures, harness.runs, harness.cached)


def machine() -> dict[str, str]:
    return {"Python": platform.python_version(), "numpy": np.__version__, "on": platform.platform()}


def _points(order: ReproductionOrder, cache: ResultCache[Result]) -> tuple[list[FigurePoint], str]:
    """Return the points, and why those of the testbed are no containers where one might expect them."""

    def points(containers: bool) -> list[FigurePoint]:
        return all_points(
            order.experiments,
            order.size,
            order.data_dir,
            most_seeds=order.seeds,
            containers=containers,
            only=order.only,
        )

    blocks = blocks_of(order.experiments)
    live = any(block.engine_at(block.size(order.size)) == "testbed" for block in blocks)
    starts = live and not order.cached_only  # Docker is looked for only where a run needs it
    lacking = lacking_here if starts else lambda: None
    containers, why_not = choose_containers(order.testbed, order.size, lacking)
    if not order.cached_only or order.testbed != "auto":
        return points(containers), why_not
    chosen = []
    for inside, outside in zip(points(containers=True), points(containers=False), strict=True):
        missing = inside.engine in LIVE and cache.get(inside.key) is None
        chosen.append(outside if missing and cache.get(outside.key) is not None else inside)
    return chosen, ""


def notes(order: ReproductionOrder, points: Sequence[FigurePoint], no_containers: str = "") -> list[str]:
    """Return what a reader must know of the runs before the verdicts."""
    lines = []
    if order.size == "tiny":
        lines.append("This size is a smoke test: its verdicts mean nothing.")
    if order.only:
        lines.append(f"Restricted to the lines {', '.join(order.only)}.")
    replaced = sorted({point.asked for point in points if point.stands_in})
    if replaced:
        lines.append(
            f"The embedded 5,000 MNIST images stand in for {' and '.join(name.upper() for name in replaced)}: "
            "lines of different panels may be the same runs, and a panel that has no other is left out."
        )
    live: dict[str, set[str]] = {}
    for point in points:
        if point.engine in LIVE:
            live.setdefault(point.experiment, set()).add(point.run_as)
    kinds = {name: " and ".join(sorted(some)) for name, some in live.items()}
    for kind in dict.fromkeys(kinds.values()):
        why = f" instead of containers: {no_containers}" if no_containers else ""
        names = ", ".join(name for name in kinds if kinds[name] == kind)
        lines.append(f"Runs of the testbed ({names}) were {kind} on this machine{why}.")
    if order.cached_only:
        lines.append(f"Nothing was run: this is what the cache holds. Seeds of a point: {_seeds(points)}.")
        return lines
    cut: dict[str, int] = {}  # the experiments that --seeds has cut, with the seeds of their size
    for block in blocks_of(order.experiments):
        seeds = block.size(order.size).seeds
        if order.seeds is not None and seeds > order.seeds:
            cut[block.experiment] = max(seeds, cut.get(block.experiment, 0))
    if cut:
        fewer = ", ".join(f"{name} (of {seeds})" for name, seeds in cut.items())
        lines.append(
            f"Seeds were reduced to at most {order.seeds} for a point: {fewer}. "
            "One seed cannot resolve a difference of one or two points."
        )
    return lines


def _seeds(points: Sequence[FigurePoint]) -> str:
    """Return how many seeds the points of each experiment have, at least and at most."""
    seeds = Counter((p.experiment, p.line, p.engine not in LIVE and p.engine, p.sweep, p.x) for p in points)
    counts: dict[str, list[int]] = {}
    for (experiment, *_), count in seeds.items():
        counts.setdefault(experiment, []).append(count)
    spans = {name: " to ".join(map(str, sorted({min(some), max(some)}))) for name, some in counts.items()}
    return ", ".join(f"{name} {span}" for name, span in spans.items())


def shortcomings(results: Results, failures: dict[str, str]) -> list[str]:
    texts = []
    if results.missing:
        lines = sorted({point.line for point in results.missing})
        if len(lines) > _NAMED:  # a reader wants to know where, not every name
            lines = list(dict.fromkeys(point.experiment for point in results.missing))
        texts.append(f"{len(results.missing)} points are missing, of: {', '.join(lines)}.")
    return texts + [f"Failed: {line}: {error}" for line, error in sorted(failures.items())]

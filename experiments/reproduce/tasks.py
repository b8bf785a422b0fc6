"""Points grouped into tasks: what can run as one product does, and nothing takes so long that the bar stands."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from experiments.reproduce.engines import Task
from experiments.reproduce.points import Point

ALONE = ("testbed", "containers")  # need the whole machine, or their seconds would be somebody else's
_TOGETHER = 8  # runs of one product; more gain nothing
_LONGEST = 40.0  # seconds of one task of several runs
_HELD_BYTES = 200e6  # K models of every run
_OUTPUTS = {"lr": 1, "svm": 10, "softmax": 10}
_SECONDS = {"lr": 45e-6, "svm": 180e-6, "softmax": 180e-6, "cnn": 4e-3}  # an update


def make_tasks(points: Sequence[Point], data_dir: Path, runs: Path) -> list[Task]:
    """Return the tasks, the longest first: the last ones should be short where several cores share them."""
    alone: list[list[Point]] = []
    shapes: dict[tuple[object, ...], list[Point]] = {}
    for point in {point.key: point for point in points}.values():
        if point.engine == "block":
            s = point.scenario
            data = (s.data.set, s.data.holdout)
            shape = (data, s.model.name, s.workers, s.batch_size, s.iterations, s.evaluate_every)
            shapes.setdefault(shape, []).append(point)
        else:
            alone.append([point])
    groups = alone
    for together in shapes.values():
        width = _width(together[0])
        groups += [together[i : i + width] for i in range(0, len(together), width)]
    tasks = [Task(tuple(group), data_dir, runs, sum(map(cost, group))) for group in groups]
    return sorted(tasks, key=lambda task: -task.cost)


def cost(point: Point) -> float:
    """Return how long a point takes, roughly: it only moves the progress bar."""
    s = point.scenario
    seconds = _SECONDS.get(s.model.name, 1e-3) * max(1.0, s.batch_size / 24)
    work = s.iterations * (seconds if point.engine == "block" else max(seconds, 120e-6))
    if point.engine in ALONE:
        return (12 if point.engine == "testbed" else 30 + 2 * s.workers) + 2 * work
    return 1 + work


def _width(point: Point) -> int:
    s = point.scenario
    held = s.workers * 785 * _OUTPUTS.get(s.model.name, 1) * 4
    return max(1, min(_TOGETHER, int(_HELD_BYTES // held), int(_LONGEST // cost(point))))

"""Points, orders and results for tests of `mapa reproduce`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from experiments.reproduce.catalogue import Point, all_points, catalogue
from experiments.reproduce.reproduction import ReproductionOrder
from experiments.reproduce.results import Result, Results
from experiments.reproduce.verdicts import Judgement, claims, judge

NOWHERE = Path("/nonexistent")  # no data but the embedded images


def points(size: str, *names: str, **more: Any) -> list[Point]:
    return all_points(catalogue().chosen(list(names)), size, NOWHERE, **more)


def order(out: Path, *names: str, size: str = "tiny", **more: Any) -> ReproductionOrder:
    return ReproductionOrder(
        experiments=catalogue().chosen(list(names)),
        size=size,
        out=out,
        data_dir=NOWHERE,
        command="mapa reproduce",
        **{"jobs": 1, **more},
    )


def ends_at(accuracy: float, point: Point) -> Result:
    return Result(
        key=point.key, digest="d", engine=point.engine, t=[1], accuracy=[accuracy], loss=[1.0], seconds=[1.0]
    )


def judged(name: str, results: Results) -> Judgement:
    (claim,) = (claim for claim in claims() if claim.name == name)
    return judge(claim, results)

"""Points, orders and results for tests of `mapa reproduce`; commands as they are typed."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from click.testing import Result as Ended
from typer.testing import CliRunner

from experiments.reproduce.catalogue import FigurePoint, Result, Results, all_points, catalogue
from experiments.reproduce.claims import Judgement, claims, judge
from experiments.reproduce.reproduction import ReproductionOrder
from mapa.cli import build

NOWHERE = Path("/nonexistent")  # no data but the embedded images


def points(size: str, *names: str, **more: Any) -> list[FigurePoint]:
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


def result_of(point: FigurePoint, **fields: Any) -> Result:
    """Return a made-up result of a point: one evaluation, unless the fields say otherwise."""
    usual: dict[str, Any] = {"t": [100], "accuracy": [0.5], "loss": [1.0], "engine": point.engine}
    return Result(key=point.key, digest="d", **{**usual, **fields})


def ends_at(accuracy: float, point: FigurePoint) -> Result:
    return result_of(point, t=[1], accuracy=[accuracy], seconds=[1.0])


def made_up(accuracy: Callable[[FigurePoint], float | None], some: Sequence[FigurePoint]) -> Results:
    """Return results in which every point ends at the accuracy given for it; None: it was not run."""
    return Results(some, {p.key: ends_at(value, p) for p in some if (value := accuracy(p)) is not None})


def judged(name: str, results: Results) -> Judgement:
    (claim,) = (claim for claim in claims() if claim.name == name)
    return judge(claim, results)


def invoked(*words: str) -> Ended:
    """Run a command of mapa in this process; an error other than its exit is raised."""
    return CliRunner().invoke(build(words), words, catch_exceptions=False)

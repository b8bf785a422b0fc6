"""Results of the runs of a reproduction: curves and counts, and queries over them."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from experiments.harness import ResultCache
from experiments.reproduce.catalogue import FORMAT, Point

WINDOW = 5  # successive evaluations whose mean loss decides on convergence, as in the paper


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """Curves and counts of one finished run."""

    key: str
    digest: str  # of the scenario
    engine: str
    t: list[int]  # updates done at each evaluation
    accuracy: list[float]
    loss: list[float | None]  # None: not finite
    seconds: list[float] | None = None  # of each evaluation: virtual, or of the network
    staleness: dict[int, int] = field(default_factory=dict)
    clips: list[tuple[int, float]] = field(default_factory=list)  # (first update, C)
    norms: dict[str, list[float]] | None = None
    cells: list[dict[str, Any]] | None = None  # of the attack
    run: str | None = None  # directory of its records
    wall: float = 0.0  # seconds it took to make

    @property
    def final(self) -> float:
        return self.accuracy[-1]

    @property
    def floor(self) -> int | None:
        """The least count that `reached` can give; None: too few evaluations for any."""
        return self.t[WINDOW - 1] if len(self.t) >= WINDOW else None

    def reached(self, threshold: float) -> int | None:
        """Return the first update at which the mean loss of WINDOW evaluations is at most the threshold."""
        for end in range(WINDOW, len(self.loss) + 1):
            window = self.loss[end - WINDOW : end]
            finite = [loss for loss in window if loss is not None]
            if len(finite) == WINDOW and math.fsum(finite) / WINDOW <= threshold:
                return self.t[end - 1]
        return None

    def seconds_to(self, accuracy: float) -> float | None:
        """Return when an evaluation first showed that accuracy."""
        for when, seen in zip(self.seconds or [], self.accuracy, strict=False):
            if seen >= accuracy:
                return when
        return None


def result_cache(directory: Path) -> ResultCache[Result]:
    """Return the cache of a reproduction, which outlives an interruption."""
    return ResultCache(directory, lambda result: {"format": FORMAT, **asdict(result)}, _read)


def _read(key: str, values: dict[str, Any]) -> Result:
    if values.pop("format") != FORMAT or values["key"] != key:
        raise ValueError(f"{key}: the result of another format or run")
    values["staleness"] = {int(k): n for k, n in values["staleness"].items()}
    values["clips"] = [(int(t), float(c)) for t, c in values["clips"]]
    return Result(**values)


@dataclass(frozen=True, slots=True)
class FinishedPoint:
    point: Point
    result: Result


class Results:
    """The finished points of a reproduction, asked for by what they are."""

    def __init__(self, points: Sequence[Point], by_key: Mapping[str, Result]) -> None:
        self.entries = [FinishedPoint(p, by_key[p.key]) for p in points if p.key in by_key]
        self.missing = [p for p in points if p.key not in by_key]

    def of(self, experiment: str, **wanted: object) -> list[FinishedPoint]:
        """Return the entries whose point has all these attributes; a line without x fits every x."""

        def fits(point: Point) -> bool:
            values = {key: getattr(point, key) for key in wanted}
            return all(values[k] == v or (k == "x" and values[k] is None) for k, v in wanted.items())

        return [e for e in self.entries if e.point.experiment == experiment and fits(e.point)]

    def panels(self, experiment: str) -> list[str]:
        """Return the panels, without those whose runs are all in an earlier one: images that stand in count once."""
        keys: dict[str, set[str]] = {}
        for entry in self.of(experiment):
            keys.setdefault(entry.point.panel, set()).add(entry.point.key)
        names = list(keys)
        return [
            name for i, name in enumerate(names) if not any(keys[name] <= keys[other] for other in names[:i])
        ]

    def title(self, panel: str) -> str:
        """Return a panel's name, and the data where the embedded images alone stood for its own."""
        model, _, asked = panel.partition("-")
        used = {e.point.scenario.data.set for e in self.entries if e.point.panel == panel}
        return f"{model.upper()} {asked.upper()}" + (" (mnist-5k)" if used == {"mnist-5k"} else "")

    def xs(self, experiment: str, **wanted: object) -> list[float]:
        """Return the x at which anything was run, in order."""
        return sorted({e.point.x for e in self.of(experiment, **wanted) if e.point.x is not None})

    def variants(self, experiment: str, panel: str) -> list[str]:
        return list(dict.fromkeys(entry.point.variant for entry in self.of(experiment, panel=panel)))

    def finals(self, experiment: str, **wanted: object) -> list[float]:
        """Return the final accuracies, one for each seed."""
        return [entry.result.final for entry in self.of(experiment, **wanted)]

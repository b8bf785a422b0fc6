"""A case: things that are measured in turns, round after round, and the ratios of one to another with their bars."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from rich.console import Console, Group
from rich.table import Table
from rich.text import Text

from common.errors import ConfigurationError, MapaError

_ABREAST = 9  # figures in one row of a table; where there are more, each has a row of its own
Figures = Mapping[
    str, float
]  # what one turn brought: "rate" is in 1/s, "cpu" and all times in their own unit
Turn = Callable[[], Figures]


@dataclass(frozen=True, slots=True)
class Ratio:
    """One figure of one contestant, divided by that of another in the same round; none: the figure itself."""

    figure: str
    of: str
    over: str | None = None
    at_most: float | None = None  # its bar
    at_least: float | None = None

    def met(self, value: float) -> bool:
        above = self.at_least is None or value >= self.at_least
        return above and (self.at_most is None or value <= self.at_most)

    @property
    def bar(self) -> str:
        parts = (("≤", self.at_most), ("≥", self.at_least))
        return " ".join(f"{sign} {limit:g}" for sign, limit in parts if limit is not None)


@dataclass(frozen=True, slots=True)
class Case:
    """What takes part, by name, and what is asked of it."""

    name: str
    turns: Mapping[str, Turn]
    ratios: Sequence[Ratio] = ()
    rounds: int = 6
    warm: bool = False  # a first turn of each is not counted


@dataclass(frozen=True, slots=True)
class Measurement:
    """A case after its rounds."""

    case: Case
    rounds: Sequence[Mapping[str, Figures]]  # a turn that failed is missing
    failures: Mapping[str, str] = field(default_factory=dict)

    def each(self, ratio: Ratio) -> list[float]:
        """Return a ratio's value in every round that has it."""
        values = []
        for took in self.rounds:
            one = took.get(ratio.of, {}).get(ratio.figure)
            other = 1.0 if ratio.over is None else took.get(ratio.over, {}).get(ratio.figure)
            if one is not None and other:
                values.append(one / other)
        return values

    def held(self) -> bool:
        """Tell whether nothing failed and no bar that could be measured was missed."""
        values = ((ratio, self.each(ratio)) for ratio in self.case.ratios)
        return not self.failures and all(not v or ratio.met(statistics.median(v)) for ratio, v in values)

    def plain(self) -> dict[str, Any]:
        """Return everything as JSON can hold it."""
        ratios = []
        for ratio in self.case.ratios:
            if values := self.each(ratio):
                low, middle, high = spread(values)
                told = {"low": low, "median": middle, "high": high, "met": ratio.met(middle)}
                ratios.append(asdict(ratio) | told)
        turns = {name: [dict(took[name]) for took in self.rounds if name in took] for name in self.case.turns}
        return {"case": self.case.name, "turns": turns, "failures": dict(self.failures), "ratios": ratios}

    def tables(self) -> Group:
        """Return the medians of all figures, and the ratios with their quartiles."""
        named = {name: [took[name] for took in self.rounds if name in took] for name in self.case.turns}
        heads = list(dict.fromkeys(figure for took in named.values() for turn in took for figure in turn))
        cells = {
            (name, head): shown(statistics.median(values))
            for name, took in named.items()
            for head in heads
            if (values := [turn[head] for turn in took if head in turn])
        }
        rows, columns = (list(named), heads) if len(heads) <= _ABREAST else (heads, list(named))
        figures = Table("", *columns)
        for row in rows:
            pairs = ((row, column) if rows is not heads else (column, row) for column in columns)
            figures.add_row(row, *(cells.get(pair, "") for pair in pairs))
        for name, said in self.failures.items():
            figures.add_row(name, f"[red]{said}[/]")
        ratios = Table("ratio", "median (quartiles)", "bar", "")
        for ratio in self.case.ratios:
            if values := self.each(ratio):
                low, middle, high = spread(values)
                by = "" if ratio.over is None else f" / {ratio.over}"
                verdict = "" if not ratio.bar else "met" if ratio.met(middle) else "[red]MISSED[/]"
                text = f"{shown(middle)} ({shown(low)} … {shown(high)})" if len(values) > 1 else shown(middle)
                ratios.add_row(f"{ratio.figure}: {ratio.of}{by}", text, ratio.bar, verdict)
        return Group(Text(f"\n{self.case.name}"), figures, *([ratios] if ratios.row_count else []))


def spread(values: Sequence[float]) -> tuple[float, float, float]:
    """Return lower quartile, median and upper quartile."""
    if len(values) == 1:
        return values[0], values[0], values[0]
    low, middle, high = statistics.quantiles(values, n=4, method="inclusive")
    return low, middle, high


def shown(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:,.1f}" if abs(value) >= 100 else f"{value:.3g}"


def measure(case: Case, rounds: int | None = None, console: Console | None = None) -> Measurement:
    """Take turns forwards, then backwards, and so on: what disturbs one disturbs its neighbour."""
    if rounds is not None and rounds < 1:
        raise ConfigurationError(f"--rounds {rounds}: must be at least 1")
    took: list[dict[str, Figures]] = []
    failures: dict[str, str] = {}
    for number in range(-int(case.warm), rounds or case.rounds):
        here: dict[str, Figures] = {}
        for name in case.turns if number % 2 == 0 else reversed(list(case.turns)):
            try:
                here[name] = case.turns[name]()
            except MapaError as error:
                failures[name] = str(error)
        if number >= 0:
            took.append(here)
    outcome = Measurement(case, took, failures)
    if console is not None:
        console.print(outcome.tables())
    return outcome


def work(do: Callable[[], object], count: int) -> Turn:
    """Return a turn that does this process's own work, `count` of it, timed by its processor in µs for one."""

    def turn() -> Figures:
        began, spent = time.perf_counter(), time.process_time()
        do()
        wall, cpu = (time.perf_counter() - began) / count, (time.process_time() - spent) / count
        return {"rate": 1 / cpu, "cpu": 1e6 * cpu, "wall": 1e6 * wall}

    return turn

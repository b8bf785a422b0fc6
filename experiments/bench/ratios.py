"""Ratios measured in one run: the machine may be shared and noisy, so two things are timed in turns."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Ratio:
    """A limit and what was measured against it."""

    name: str
    value: float
    bar: float
    at_most: bool  # the bar is a ceiling, else a floor
    detail: str

    @property
    def met(self) -> bool:
        return self.value <= self.bar if self.at_most else self.value >= self.bar


@dataclass(frozen=True, slots=True)
class Pace:
    """How fast one of the two was."""

    rate: float  # iterations a second
    cpu: float  # seconds of processor time an iteration


Race = Callable[[], Pace]


def work(do: Callable[[], object], iterations: int) -> Race:
    """Return work of this process alone, timed by its processor."""

    def race() -> Pace:
        began = time.process_time()
        do()
        spent = (time.process_time() - began) / iterations
        return Pace(1 / spent, spent)

    return race


def compare(
    name: str, bar: float, first: Race, second: Race, other: str, *, at_most: bool = False, rounds: int = 9
) -> Ratio:
    """Run both in turns, A B B A: what disturbs one disturbs its neighbour. Return the median of their ratios.

    A floor is one of rates, a ceiling one of processor time; `other` is what the detail calls the second.
    """
    first(), second()  # warm
    pairs = []
    for number in range(rounds):
        if number % 2:
            b, a = second(), first()
        else:
            a, b = first(), second()
        pairs.append((a, b))
    ratios = [a.cpu / b.cpu if at_most else a.rate / b.rate for a, b in pairs]
    low, _, high = statistics.quantiles(ratios, n=4, method="inclusive")
    rates = [statistics.median(pace.rate for pace in paces) for paces in zip(*pairs, strict=True)]
    cpu = [statistics.median(pace.cpu for pace in paces) * 1e6 for paces in zip(*pairs, strict=True)]
    detail = (
        f"{rates[0]:,.0f}/s, {other} {rates[1]:,.0f}/s; quartiles {low:.2f} … {high:.2f}; "
        f"processor time {cpu[0]:,.0f} and {cpu[1]:,.0f} µs"
    )
    return Ratio(name, statistics.median(ratios), bar, at_most, detail)

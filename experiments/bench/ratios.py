"""Ratios measured in one run: the machine may be shared and noisy, so two things are timed in turns."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass

Work = Callable[[], int]  # does some work and returns how many iterations that was


@dataclass(frozen=True, slots=True)
class Ratio:
    """A bar and what was measured against it."""

    name: str
    value: float
    bar: float
    at_most: bool  # the bar is a ceiling, else a floor
    detail: str

    @property
    def met(self) -> bool:
        return self.value <= self.bar if self.at_most else self.value >= self.bar


def seconds_per_iteration(work: Work) -> float:
    began = time.process_time()
    count = work()
    return (time.process_time() - began) / count


def compare(first: Work, second: Work, rounds: int = 7) -> tuple[float, float, float]:
    """Return median CPU seconds of each per iteration, and the median of their ratio, first over second."""
    first(), second()  # warm
    pairs = [(seconds_per_iteration(first), seconds_per_iteration(second)) for _ in range(rounds)]
    ratio = statistics.median(a / b for a, b in pairs)
    return statistics.median(a for a, _ in pairs), statistics.median(b for _, b in pairs), ratio

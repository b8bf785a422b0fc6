"""Metrics for an operator: families of numbers, and their values as plain counts. No library is loaded for them.

Labels are closed: a family with one lists its values, and anything else counts as `other`, so that peers cannot
add series.
"""

from __future__ import annotations

import socket
from bisect import bisect_left
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from enum import Enum
from itertools import accumulate

from common.transport.channel import Loop

OTHER = "other"


class MetricKind(Enum):
    COUNTER = "counter"  # goes up; starts at 0 with its process
    GAUGE = "gauge"
    HISTOGRAM = "histogram"


@dataclass(frozen=True, slots=True)
class Family:
    """One metric."""

    name: str  # as Prometheus shows it: a counter's ends in _total
    kind: MetricKind
    text: str  # what it says, in one sentence
    label: str | None = None
    values: tuple[str, ...] | None = None  # of the label; None: the run's own names, at most `most` of them
    most: int = 16

    def samples(self, value: Mapping[str, float]) -> Iterator[tuple[str, float]]:
        """Yield (label value, number), one for each value of a closed label, `other` where something is there."""
        if self.values is None:
            yield from list(value.items())[: self.most]
            return
        yield from ((name, value.get(name, 0)) for name in self.values)
        rest = sum(number for name, number in value.items() if name not in self.values)
        if rest:
            yield OTHER, rest


class Buckets:
    """A histogram: a few integers, counted up in the hot path."""

    __slots__ = ("bounds", "counts", "total")

    def __init__(self, bounds: tuple[float, ...]) -> None:
        self.bounds = bounds  # largest value of each bucket but the last, which has none
        self.counts = [0] * (len(bounds) + 1)
        self.total = 0.0  # of the values

    def observe(self, value: float, times: int = 1) -> None:
        self.counts[bisect_left(self.bounds, value)] += times
        self.total += value * times

    def cumulative(self) -> list[int]:
        """Return how many values are at most each bound; the last: all of them."""
        return list(accumulate(self.counts))

    def copy(self) -> Buckets:
        """Return what is counted so far, for another thread."""
        made = Buckets(self.bounds)
        made.counts, made.total = list(self.counts), self.total
        return made


# A number; several by the value of the family's label; a histogram. What is not known is left out.
Reading = float | Mapping[str, float] | Buckets
Readings = Mapping[Family, Reading]


def published(
    listener: socket.socket | None,
    loop: Loop,
    read: Callable[[], Readings],
    say: Callable[[str], None],
    *,
    every: float,
) -> AbstractContextManager[None]:
    """Return a context in which metrics are served; without a listener it does nothing."""
    if listener is None:
        return nullcontext()
    from common.telemetry.server import serving  # prometheus_client

    return serving(listener, loop, read, say, every=every)

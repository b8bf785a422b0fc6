"""When simulated gradients arrive: the paper's cyclic order, or times drawn in virtual seconds.

Every draw depends on (seed, k, n) alone, like batches and noise.
"""

from __future__ import annotations

import csv
import heapq
import math
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import Protocol

import numpy as np

from common.errors import ConfigurationError
from common.messages import GradientArrived
from common.randomness import CounterStreams, Purpose
from common.scenario.tables import DelaysTable

Trip = tuple[float, float, float]  # downlink, compute, uplink in seconds


class Arrivals(Protocol):
    """Gradients on their way to the cloud."""

    def send(self, edge: int, now: float, arrived: GradientArrived) -> None:
        """Edge k was sent a model at `now`; this is what comes back."""

    def next(self) -> tuple[float | None, GradientArrived] | None:
        """Return the arrival time (None: time means nothing) and the gradient that comes next."""


class CyclicArrivals:
    """The cyclic delayed method: edges take turns, so K edges give a staleness of K − 1."""

    def __init__(self) -> None:
        self._turns: deque[GradientArrived] = deque()

    def send(self, edge: int, now: float, arrived: GradientArrived) -> None:  # noqa: ARG002 - order is all
        self._turns.append(arrived)

    def next(self) -> tuple[float | None, GradientArrived] | None:
        return (None, self._turns.popleft()) if self._turns else None


class TimedArrivals:
    """Arrivals in order of virtual time; equal times keep the order in which they were sent."""

    def __init__(self, trip: Callable[[int, int], Trip]) -> None:
        self._trip = trip
        self._heap: list[tuple[float, int, GradientArrived]] = []
        self._sent = 0

    def send(self, edge: int, now: float, arrived: GradientArrived) -> None:
        due = now + sum(self._trip(edge, arrived.sequence))
        self._sent += 1
        heapq.heappush(self._heap, (due, self._sent, arrived))

    def next(self) -> tuple[float | None, GradientArrived] | None:
        if not self._heap:
            return None
        due, _, arrived = heapq.heappop(self._heap)
        return due, arrived


def arrivals_for(table: DelaysTable, streams: CounterStreams, steps: int = 1) -> Arrivals:
    if table.kind == "cyclic":
        return CyclicArrivals()
    if table.kind == "recorded":
        assert table.file is not None
        return TimedArrivals(recorded_trips(Path(table.file)))
    return TimedArrivals(drawn_trips(table, streams, steps))


def drawn_trips(table: DelaysTable, streams: CounterStreams, steps: int = 1) -> Callable[[int, int], Trip]:
    """Return the law of an edge's n-th trip; every kind has the configured mean, of a gradient for each local step."""
    factor = _factor(table)

    def trip(edge: int, n: int) -> Trip:
        speed = table.speeds[edge % len(table.speeds)]
        down = table.network * factor(streams.at(edge, Purpose.DOWNLINK_TIME, n))
        compute = steps * table.compute / speed * factor(streams.at(edge, Purpose.COMPUTE_TIME, n))
        up = table.network * factor(streams.at(edge, Purpose.UPLINK_TIME, n))
        return down, compute, up

    return trip


def _factor(table: DelaysTable) -> Callable[[np.random.Generator], float]:
    """Return a draw of mean 1 in the table's kind."""
    spread = table.spread
    match table.kind:
        case "uniform":
            return lambda rng: float(rng.uniform(1 - spread, 1 + spread))
        case "exponential":
            return lambda rng: float(rng.standard_exponential())
        case "lognormal":
            return lambda rng: math.exp(spread * float(rng.standard_normal()) - spread**2 / 2)
        case _:
            return lambda rng: 1.0  # noqa: ARG005


def recorded_trips(path: Path) -> Callable[[int, int], Trip]:
    """Read CSV columns edge,compute,up,down; an edge's rows are cycled, unknown edges take the file's in turn."""
    trips: dict[int, list[Trip]] = {}
    try:
        with path.open(newline="", encoding="utf-8") as stream:
            for row in csv.DictReader(stream):
                times = (float(row["down"]), float(row["compute"]), float(row["up"]))
                if not all(math.isfinite(part) and part >= 0 for part in times):
                    raise ValueError(f"times {times} must be finite and at least 0")
                trips.setdefault(int(row["edge"]), []).append(times)
    except (OSError, ValueError, KeyError, TypeError, csv.Error) as error:
        raise ConfigurationError(
            f"delays.file = {str(path)!r}: {error}; needed is CSV with columns edge,compute,up,down"
        ) from error
    if not trips:
        raise ConfigurationError(f"delays.file = {str(path)!r}: holds no row")
    known = sorted(trips)

    def trip(edge: int, n: int) -> Trip:
        rows = trips.get(edge) or trips[known[edge % len(known)]]
        return rows[(n - 1) % len(rows)]

    return trip

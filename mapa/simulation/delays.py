"""When simulated gradients arrive: the paper's cyclic order, or times drawn in virtual seconds, and who is away.

Every draw depends on (seed, k, n) alone, like batches and noise.
"""

from __future__ import annotations

import csv
import heapq
import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import numpy as np

from common.devices import Attendance, DeviceProfile
from common.errors import ConfigurationError
from common.messages import GradientArrived, Hello, Leave
from common.randomness import CounterStreams, Purpose
from common.scenario.tables import DelaysTable

Trip = tuple[float, float, float]  # downlink, compute, uplink in seconds
Trips = Callable[[int, int], Trip]  # of edge k's n-th gradient
Arrival = GradientArrived | Leave | Hello
_MOST_ABSENCES = 10_000  # one after the other without a gradient between them


def at_once(edge: int, n: int) -> Trip:  # noqa: ARG001
    """The cyclic delayed method: edges take turns, so K edges give a staleness of K − 1."""
    return 0.0, 0.0, 0.0


class Arrivals:
    """What is on its way to the cloud, in order of virtual time; equal times keep the order of sending.

    As on the testbed an edge leaves between two gradients: one that it began in its time it finishes. A model that
    comes when it is away is made nothing of: it has left, says hello when it is back, and is sent a newer one.
    """

    def __init__(self, trip: Trips, attendances: Mapping[int, Attendance] | None = None) -> None:
        self._trip = trip
        self._attendances = attendances or {}
        self._heap: list[tuple[float, int, Arrival]] = []
        self._sent = 0
        self._absences = 0

    def away(self, edge: int, now: float, sequence: int) -> float | None:
        """Return when edge k is back, where a model that is sent at `now` would find it away; None: it is there."""
        attendance = self._attendances.get(edge)
        if attendance is None:
            return None
        down, _, up = self._trip(edge, sequence)
        here, until = attendance.at(now + down)
        if here:
            return None
        self._absences += 1
        if self._absences > _MOST_ABSENCES:
            raise ConfigurationError(
                "devices.availability: no edge is there for long enough to be sent a model; its times must be longer"
                f" than the way there and back, {up + down:g} s here"
            )
        return until + up

    def come(self, due: float, arrival: Arrival) -> None:
        """Let it arrive at that time."""
        self._sent += 1
        heapq.heappush(self._heap, (due, self._sent, arrival))

    def send(self, edge: int, now: float, arrived: GradientArrived) -> None:
        """Edge k was sent a model at `now`; this is what comes back."""
        self._absences = 0
        self.come(now + sum(self._trip(edge, arrived.sequence)), arrived)

    def next(self) -> tuple[float, Arrival] | None:
        """Return the arrival time and what comes next."""
        if not self._heap:
            return None
        due, _, arrival = heapq.heappop(self._heap)
        return due, arrival


def arrivals_for(
    table: DelaysTable, streams: CounterStreams, steps: int = 1, devices: Sequence[DeviceProfile] = ()
) -> Arrivals:
    """Return arrivals by a scenario's delays, and by the devices of its edges where it names any."""
    if table.kind == "cyclic":
        if devices:
            raise ConfigurationError(
                "delays.kind = 'cyclic': has no time that devices could take; simulate them with delays.kind ="
                " 'constant', 'uniform', 'exponential', 'lognormal' or 'recorded'"
            )
        return Arrivals(at_once)
    spans = ((k, device.availability) for k, device in enumerate(devices))
    attendances = {k: Attendance(span, streams, k) for k, span in spans if span is not None}
    return Arrivals(trips_for(table, streams, steps, devices), attendances)


def trips_for(
    table: DelaysTable, streams: CounterStreams, steps: int = 1, devices: Sequence[DeviceProfile] = ()
) -> Trips:
    """Return how long an edge's n-th trip takes; computing takes as long as its device does, where it has one."""
    if table.kind == "recorded":
        assert table.file is not None
        trips = recorded_trips(Path(table.file))
    else:
        trips = drawn_trips(table, streams, steps)
    if not devices:
        return trips

    def trip(edge: int, n: int) -> Trip:
        down, compute, up = trips(edge, n)
        device = devices[edge]
        if device.reference_ms is not None:
            compute = steps * device.reference_ms / 1000
        return down, compute * device.factor(streams.at(edge, Purpose.DEVICE, n)), up

    return trip


def drawn_trips(table: DelaysTable, streams: CounterStreams, steps: int = 1) -> Trips:
    """Return the law of an edge's n-th trip; every kind has the configured mean, of a gradient for each local step."""

    def trip(edge: int, n: int) -> Trip:
        speed = table.speeds[edge % len(table.speeds)]
        down = table.network * _factor(table, streams.at(edge, Purpose.DOWNLINK_TIME, n))
        compute = steps * table.compute / speed * _factor(table, streams.at(edge, Purpose.COMPUTE_TIME, n))
        up = table.network * _factor(table, streams.at(edge, Purpose.UPLINK_TIME, n))
        return down, compute, up

    return trip


def _factor(table: DelaysTable, rng: np.random.Generator) -> float:
    """Draw a factor of mean 1 in the table's kind."""
    spread = table.spread
    match table.kind:
        case "uniform":
            return float(rng.uniform(1 - spread, 1 + spread))
        case "exponential":
            return float(rng.standard_exponential())
        case "lognormal":
            return math.exp(spread * float(rng.standard_normal()) - spread**2 / 2)
        case _:
            return 1.0


def recorded_trips(path: Path) -> Trips:
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

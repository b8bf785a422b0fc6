"""What a page shows of one run, counted once from its records for all who watch, in bounded memory.

Records are taken as hostile: a field of another type or out of range makes a record unreadable, and it is counted.
"""

from __future__ import annotations

import itertools
import math
from collections import Counter, OrderedDict, deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from common.metrics import CLASSIFICATION, RESERVED, Metric
from common.records.tally import EdgeTally
from mapa.dashboard.series import Counts, Durations, Envelope, HeatMap

EDGES = 10_000  # lanes kept
STAGES, METRICS, REASONS = 1000, 16, 32
KEPT, KEPT_UPDATES = 2000, 500  # events for the list: all but updates, and updates
TEXT = 200  # characters of a name or a reason
FIELDS = 32  # of a record that is kept
_LARGEST = 2**53
_TIMES = 4096  # updates whose time is remembered until their evaluation comes
_VARY = frozenset({"event", "t", "time", "returned"})  # what differs between two joins of one edge anyway
GRID = sorted({n for power in range(30) for n in (2**power, 3 * 2**power)})  # releases whose ε is computed
_GRID = frozenset(GRID)


@dataclass(slots=True)
class Lane:
    """One edge."""

    tally: EdgeTally
    strip: Counts = field(
        default_factory=lambda: Counts(48, 0.125)
    )  # updates over time, or over t without times
    recent: deque[float] = field(default_factory=lambda: deque(maxlen=32))  # times of its last updates
    turns: Durations = field(default_factory=Durations)  # from one of its updates to the next
    joined: dict[str, Any] = field(default_factory=dict)  # the record of its last join
    returned: bool = False  # since its last update: the pause is no turn
    mixed: bool = False  # it noised in several ways: its releases are of several kinds
    last_staleness: int | None = None
    last: tuple[int, float | None] | None = None  # (t, seconds) of its last update
    marks: list[tuple[int, int, float | None]] = field(default_factory=list)  # (releases, t, seconds)

    @property
    def joined_at(self) -> float | None:
        """When it joined last, by the clock of the records."""
        return _time(self.joined)

    @property
    def pace(self) -> float | None:
        """Updates a second, of its last ones."""
        if len(self.recent) < 2 or self.recent[-1] <= self.recent[0]:
            return None
        return (len(self.recent) - 1) / (self.recent[-1] - self.recent[0])


@dataclass(slots=True)
class Gathered:
    """The counts of one run."""

    updates: int = 0
    applied: int = 0
    first_time: float | None = None  # of an update; seconds count from it
    last_time: float | None = None
    lanes: dict[int, Lane] = field(default_factory=dict)
    staleness: Counter[int] = field(default_factory=Counter)
    stale_beyond: int = 0  # updates whose staleness is in no bin of its own
    heat: HeatMap = field(default_factory=lambda: HeatMap(96, 24))
    stages: list[dict[str, Any]] = field(default_factory=list)
    metrics: dict[str, Envelope] = field(default_factory=dict)
    latest: dict[str, Any] = field(default_factory=dict)  # the last evaluation
    best: tuple[float, int] | None = None  # of the headline metric
    rate: Counts = field(default_factory=lambda: Counts(240, 0.25))
    turns: Durations = field(default_factory=Durations)  # of all edges
    refused: Counter[str] = field(default_factory=Counter)
    refused_over: dict[str, Counts] = field(default_factory=dict)
    halted: str = ""
    resumed: int = 0
    seen: Counter[str] = field(default_factory=Counter)  # records by event
    unreadable: int = 0
    number: int = 0  # of records
    events: deque[tuple[int, dict[str, Any]]] = field(default_factory=lambda: deque(maxlen=KEPT))
    last_updates: deque[tuple[int, dict[str, Any]]] = field(
        default_factory=lambda: deque(maxlen=KEPT_UPDATES)
    )
    _times: OrderedDict[int, float] = field(default_factory=OrderedDict)

    def take(self, records: Iterable[Mapping[str, Any]]) -> None:
        """Count records, in their order."""
        for record in records:
            self.number += 1
            event = record.get("event")
            known = event == "gradient_applied" and self._applied(record)
            if not known and not (isinstance(event, str) and self._other(event, record)):
                self.unreadable += 1

    def _applied(self, record: Mapping[str, Any]) -> bool:
        edge, t, staleness, sequence = (record.get(key) for key in ("edge", "t", "staleness", "sequence"))
        if not (
            type(edge) is int
            and type(t) is int
            and type(staleness) is int
            and type(sequence) is int
            and 0 <= edge < EDGES
            and 0 < t < _LARGEST
            and 0 <= staleness < _LARGEST
            and 0 <= sequence < _LARGEST
        ):
            return False
        time = _time(record)
        self.applied += 1
        self.updates = t
        self.seen["gradient_applied"] += 1
        if staleness in self.staleness or len(self.staleness) < 10_000:
            self.staleness[staleness] += 1
        else:
            self.stale_beyond += 1
        self.heat.add(t - 1, staleness)
        lane = self.lanes.get(edge)
        if lane is None:
            lane = self.lanes[edge] = Lane(EdgeTally(_text(record.get("edge_id"))))
        tally = lane.tally
        tally.applied += 1
        tally.last_sequence = sequence
        tally.staleness_sum += staleness
        tally.staleness_max = max(tally.staleness_max, staleness)
        lane.last_staleness = staleness
        seconds = None
        if time is not None:
            if self.first_time is None:
                self.first_time = time
            self.last_time = time if self.last_time is None else max(self.last_time, time)
            seconds = max(0.0, time - self.first_time)
            if lane.recent and not lane.returned:
                self.turns.add(time - lane.recent[-1])
                lane.turns.add(time - lane.recent[-1])
            lane.returned = False
            lane.recent.append(time)
            self._times[t] = seconds
            if len(self._times) > _TIMES:
                self._times.popitem(last=False)
            self.rate.add(seconds)
        lane.last = (t, seconds)
        lane.strip.add(t - 1 if seconds is None else seconds)
        if sequence in _GRID and len(lane.marks) < 100:
            lane.marks.append((sequence, t, seconds))
        self.last_updates.append((self.number, _kept(record)))
        return True

    def _other(self, event: str, record: Mapping[str, Any]) -> bool:
        if event == "gradient_applied":
            return False
        if event in self.seen or len(self.seen) < REASONS:
            self.seen[event] += 1
        taken = True
        if event == "evaluated":
            taken = self._evaluated(record)
        elif event == "edge_joined":
            taken = self._joined(record)
        elif event == "edge_gone":
            edge = record.get("edge")
            if taken := type(edge) is int and edge in self.lanes:
                self.lanes[edge].tally.gone = _text(record.get("reason")) or "gone"
        elif event == "gradient_refused":
            self._refused(record)
        elif event == "stage_opened":
            taken = self._opened(record)
        elif event == "halted":
            self.halted = _text(record.get("reason"))
        elif event == "resumed":
            self.resumed += 1
            self.halted = ""
        self.events.append((self.number, _kept(record)))
        return taken

    def _joined(self, record: Mapping[str, Any]) -> bool:
        edge, edge_id = record.get("edge"), record.get("edge_id")
        if type(edge) is not int or not 0 <= edge < EDGES or not isinstance(edge_id, str):
            return False
        if record.get("returned") is True:  # a shard assigned anew before anything was applied from there
            for k, lane in list(self.lanes.items()):
                if lane.tally.edge_id == _text(edge_id) and k != edge and not lane.tally.applied:
                    del self.lanes[k]
        lane = self.lanes.setdefault(edge, Lane(EdgeTally(_text(edge_id))))
        lane.tally.edge_id = _text(edge_id)
        lane.tally.joins += 1
        lane.tally.gone = ""
        lane.returned = True
        ways = [{k: v for k, v in r.items() if k not in _VARY} for r in (lane.joined, _kept(record))]
        lane.mixed = lane.mixed or (bool(lane.joined) and ways[0] != ways[1])
        lane.joined = _kept(record)
        return True

    def _refused(self, record: Mapping[str, Any]) -> None:
        reason = _text(record.get("reason")) or "?"
        if reason not in self.refused and len(self.refused) >= REASONS:
            reason = "other"
        self.refused[reason] += 1
        time = _time(record)
        if time is not None and self.first_time is not None:
            counts = self.refused_over.setdefault(reason, Counts(240))
            counts.add(max(0.0, time - self.first_time))

    def _opened(self, record: Mapping[str, Any]) -> bool:
        keys = ("stage", "t", "sensitivity", "variance", "p", "learning_rate", "length", "tau_max")
        stage: dict[str, Any] = {key: number(record.get(key)) for key in keys}
        if stage["t"] is None or stage["stage"] is None:
            return False
        stage["reopened"] = record.get("reopened") is True
        if len(self.stages) < STAGES:
            self.stages.append(stage)
        return True

    def _evaluated(self, record: Mapping[str, Any]) -> bool:
        t = record.get("t")
        if type(t) is not int or not 0 <= t < _LARGEST:
            return False
        seconds = self._times.get(t)
        time = _time(record)
        if t == 0 and time is not None:  # x₁ was there before any update
            seconds = 0.0
        elif seconds is None and time is not None and self.first_time is not None:
            seconds = max(0.0, time - self.first_time)
        values = {_text(key): number(value) for key, value in record.items() if key not in RESERVED}
        self.add_evaluation(t, values, seconds)
        return True

    def add_evaluation(self, t: int, values: Mapping[str, float | None], seconds: float | None) -> None:
        self.latest = {"t": t, "seconds": seconds, "values": dict(list(values.items())[:METRICS])}
        for place, (name, value) in enumerate(values.items()):
            if value is None or (name not in self.metrics and len(self.metrics) >= METRICS):
                continue
            self.metrics.setdefault(name, Envelope(300)).add(t, value, seconds)
            metric = metric_named(name)
            if place == 0 and (self.best is None or metric.is_better(value, self.best[0])):
                self.best = (value, t)


def metric_named(name: str, declared: Iterable[Metric] = CLASSIFICATION) -> Metric:
    """Return what is known of a metric; of an unknown one, that less is better, as of a loss."""
    known = {metric.name: metric for metric in (*CLASSIFICATION, *declared)}
    return known.get(name) or Metric(name, CLASSIFICATION[1].better)


def number(value: object) -> float | None:
    """Return a number that JSON can hold; None for anything else."""
    if type(value) is int:
        return value if -_LARGEST < value < _LARGEST else None
    return value if type(value) is float and math.isfinite(value) else None


def _text(value: object) -> str:
    return value[:TEXT] if isinstance(value, str) else ""


def _kept(record: Mapping[str, Any]) -> dict[str, Any]:
    """Return a record in little memory: its numbers and short texts."""
    fields = ((_text(key), _text(one) if isinstance(one, str) else one) for key, one in record.items())
    small = ((key, one) for key, one in fields if one is None or isinstance(one, str | bool | int | float))
    return dict(itertools.islice(small, FIELDS))


def _time(record: Mapping[str, Any]) -> float | None:
    time = number(record.get("time"))
    return time if time is not None and -1e12 < time < 1e12 else None

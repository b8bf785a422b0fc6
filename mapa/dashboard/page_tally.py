"""What a page shows of one run, counted once from its records for all viewers, in bounded memory.

Records are taken as hostile: one that `check_record` refuses, or of an edge beyond the bounds, counts as unreadable.
"""

from __future__ import annotations

import itertools
from collections import Counter, deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from common.records.tally import Evaluation, Tally, check_record, metric_named
from mapa.dashboard.series import Counts, Durations, Envelope, HeatMap

EDGES = 10_000  # lanes kept
STAGES, METRICS, REASONS = 1000, 16, 32
BINS = 10_000  # values of staleness, each counted by itself; larger ones share the last
KEPT, KEPT_UPDATES = 2000, 500  # events for the list: all but updates, and updates
FIELDS, TEXT = 32, 200  # of a record that is kept: keys, characters of a text
_PLAIN = (str, int, float, bool, type(None))
_VARY = frozenset({"event", "t", "time", "returned"})  # what differs between two joins of one edge anyway
GRID = sorted({n for power in range(30) for n in (2**power, 3 * 2**power)})  # releases whose ε is computed
_GRID = frozenset(GRID)


@dataclass(slots=True)
class Lane:
    """One edge over time; the tally has its counts."""

    strip: Counts = field(default_factory=lambda: Counts(48, 0.125))  # updates over time, or over t
    recent: deque[float] = field(default_factory=lambda: deque(maxlen=32))  # times of its last updates
    turns: Durations = field(default_factory=Durations)  # from one of its updates to the next
    joined: dict[str, Any] = field(default_factory=dict)  # the record of its last join
    returned: bool = False  # since its last update: the pause is no turn
    mixed: bool = False  # it noised in several ways: its releases are of several kinds
    last_staleness: int | None = None
    last: tuple[int, float | None] | None = None  # (t, seconds) of its last update
    marks: list[tuple[int, int, float | None]] = field(default_factory=list)  # (releases, t, seconds)

    @property
    def pace(self) -> float | None:
        """Updates a second, of its last ones."""
        if len(self.recent) < 2 or self.recent[-1] <= self.recent[0]:
            return None
        return (len(self.recent) - 1) / (self.recent[-1] - self.recent[0])


@dataclass(slots=True)
class PageTally:
    """The counts of one run, and their course over time."""

    tally: Tally = field(default_factory=Tally)  # without evaluations: they are kept as envelopes
    lanes: dict[int, Lane] = field(default_factory=dict)  # of the tally's edges
    stale_beyond: int = 0  # updates whose staleness is in no bin of its own
    heat: HeatMap = field(default_factory=lambda: HeatMap(96, 24))
    metrics: dict[str, Envelope] = field(default_factory=dict)
    latest: dict[str, Any] = field(default_factory=dict)  # the last evaluation
    best: tuple[float, int] | None = None  # of the headline metric
    rate: Counts = field(default_factory=lambda: Counts(240, 0.25))
    turns: Durations = field(default_factory=Durations)  # of all edges
    refused_over: dict[str, Counts] = field(default_factory=dict)
    seen: Counter[str] = field(default_factory=Counter)  # records by event
    unreadable: int = 0
    number: int = 0  # of records
    events: deque[tuple[int, dict[str, Any]]] = field(default_factory=lambda: deque(maxlen=KEPT))
    last_updates: deque[tuple[int, dict[str, Any]]] = field(
        default_factory=lambda: deque(maxlen=KEPT_UPDATES)
    )

    def take(self, records: Iterable[Mapping[str, Any]]) -> None:
        for whole in records:
            self.number += 1
            record = small(whole)
            event = record.get("event")
            if isinstance(event, str) and (event in self.seen or len(self.seen) < REASONS):
                self.seen[event] += 1
            kept = self.last_updates if event == "gradient_applied" else self.events
            kept.append((self.number, record))
            try:
                check_record(record)
                self._count(record)
            except ValueError:
                self.unreadable += 1

    def _count(self, record: dict[str, Any]) -> None:
        tally = self.tally
        match record["event"]:
            case "gradient_applied" | "edge_joined" | "edge_gone" if record["edge"] >= EDGES:
                raise ValueError(f"edge {record['edge']}: the page shows {EDGES}")
            case "gradient_applied":
                self._applied(record)
            case "evaluated":
                evaluation = Evaluation.of(record)
                self.evaluated(evaluation, tally.times.evaluated(evaluation.updates, record.get("time")))
            case "edge_joined":
                tally.take(record)
                lane = self.lanes.setdefault(record["edge"], Lane())
                if len(self.lanes) > len(tally.edges):  # it moved
                    for moved in self.lanes.keys() - tally.edges.keys():
                        del self.lanes[moved]
                lane.returned = True
                ways = [{k: v for k, v in r.items() if k not in _VARY} for r in (lane.joined, record)]
                lane.mixed = lane.mixed or (bool(lane.joined) and ways[0] != ways[1])
                lane.joined = record
            case "gradient_refused":
                self._refused(record)
            case "stage_opened" if len(tally.stages) >= STAGES:
                pass
            case _:
                tally.take(record)

    def _applied(self, record: dict[str, Any]) -> None:
        tally, k, t, staleness = self.tally, record["edge"], record["t"], record["staleness"]
        if staleness >= BINS:
            self.stale_beyond += 1
            staleness = BINS
        tally.add_update(k, record.get("edge_id") or "", record["sequence"], t, staleness)
        seconds = tally.times.applied(t, record.get("time"))
        self.heat.add(max(0, t - 1), staleness)
        lane = self.lanes.setdefault(k, Lane())
        lane.last_staleness = record["staleness"]
        if seconds is not None:
            time = record["time"]
            if lane.recent and not lane.returned:
                self.turns.add(time - lane.recent[-1])
                lane.turns.add(time - lane.recent[-1])
            lane.returned = False
            lane.recent.append(time)
            self.rate.add(seconds)
        lane.last = (t, seconds)
        lane.strip.add(t - 1 if seconds is None else seconds)
        if record["sequence"] in _GRID and len(lane.marks) < 100:
            lane.marks.append((record["sequence"], t, seconds))

    def _refused(self, record: dict[str, Any]) -> None:
        refused, first, time = self.tally.refused, self.tally.times.first, record.get("time")
        reason = record["reason"] or "?"
        if reason not in refused and len(refused) >= REASONS:
            reason = "other"
        refused[reason] += 1
        if time is not None and first is not None:
            self.refused_over.setdefault(reason, Counts(240)).add(max(0.0, time - first))

    def evaluated(self, evaluation: Evaluation, seconds: float | None) -> None:
        t, values = evaluation.updates, evaluation.named()
        self.latest = {"t": t, "seconds": seconds, "values": dict(list(values.items())[:METRICS])}
        for place, (name, value) in enumerate(values.items()):
            if value is None or (name not in self.metrics and len(self.metrics) >= METRICS):
                continue
            self.metrics.setdefault(name, Envelope(300)).add(t, value, seconds)
            if place == 0 and (self.best is None or metric_named(name).is_better(value, self.best[0])):
                self.best = (value, t)


def small(record: Mapping[str, Any]) -> dict[str, Any]:
    """Return a record in little memory: its numbers and short texts."""
    return {
        key[:TEXT]: value[:TEXT] if isinstance(value, str) else value
        for key, value in itertools.islice(record.items(), FIELDS)
        if isinstance(value, _PLAIN)
    }

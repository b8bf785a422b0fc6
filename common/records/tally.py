"""A line of events.jsonl, and the counts of a run: fed by the recorder or by a reader; the body of summary.json."""

from __future__ import annotations

import bisect
import itertools
import math
import re
from collections import Counter, OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Self

from common.messages import Fact, GradientApplied
from common.metrics import ACCURACY, CLASSIFICATION, LOSS, RESERVED, Metric
from common.records.regular import LARGEST, number, text

_QUANTILES = {"p50": 0.5, "p90": 0.9, "p99": 0.99}
_TIMES = 1 << 14  # updates whose time is remembered until their evaluation comes
_BESIDE = ("event", "time")  # keys of a line beside those of its fact
_COUNTS = {  # keys that readers count by
    "gradient_applied": ("edge", "t", "staleness", "sequence"),
    "edge_joined": ("edge",),
    "edge_gone": ("edge",),
    "stage_opened": ("stage", "t"),
    "evaluated": ("t",),
}
_TEXTS = {"edge_joined": ("edge_id",), "edge_gone": ("reason",), "gradient_refused": ("reason",)}


def event_name(kind: type) -> str:
    """Return `gradient_applied` for a GradientApplied, and so on."""
    return re.sub(r"(?<!^)(?=[A-Z])", "_", kind.__name__).lower()


def record_of(fact: Fact) -> dict[str, Any]:
    """Return a fact as the keys of its line; a law's other parameters stand beside the other keys."""
    fields = fact._asdict() if isinstance(fact, GradientApplied) else asdict(fact)
    parameters = fields.pop("parameters", {})
    if fields.get("device", "") is None:
        del fields["device"]  # a key that came later: only where it says something
    return {"event": event_name(type(fact)), **fields, **parameters}


def check_record(record: Mapping[str, Any]) -> None:
    """Raise ValueError if a key that readers count by is missing or of another type."""
    event, time = record.get("event"), record.get("time")
    if not isinstance(event, str):
        raise ValueError(f"event = {event!r:.40}: must be the name of an event")
    for key in _COUNTS.get(event, ()):
        value = record.get(key)
        if type(value) is not int or not 0 <= value < LARGEST:
            raise ValueError(f"{event}: {key} = {value!r:.40}: must be a whole number, 0 or more")
    for key in _TEXTS.get(event, ()):
        if not isinstance(record.get(key), str):
            raise ValueError(f"{event}: {key} = {record.get(key)!r:.40}: must be a text")
    if time is not None and (type(time) not in (int, float) or not -1e12 < time < 1e12):
        raise ValueError(f"{event}: time = {time!r:.40}: must be seconds")


@dataclass(frozen=True, slots=True)
class Evaluation:
    """The model's metrics on the test set after `updates` updates; `loss` includes the regulariser."""

    updates: int
    stage: int
    values: Mapping[Metric, float]  # the headline metric first
    seconds: float | None = None  # since the first update, virtual in a simulation; None: not counted here

    def __getitem__(self, name: str) -> float:
        return next(value for metric, value in self.values.items() if metric.name == name)

    @classmethod
    def of(cls, row: Mapping[str, Any]) -> Self:
        """Return the evaluation of a line of events.jsonl (`t`), or of a row of summary.json (`updates`)."""
        values = {
            metric_named(key): math.nan if number(value) is None else value
            for key, value in row.items()
            if key not in RESERVED
        }
        return cls(row["t"] if "t" in row else row["updates"], row.get("stage", 0), values)

    @property
    def headline(self) -> Metric:
        return next(iter(self.values))

    @property
    def accuracy(self) -> float:
        """The accuracy of a classifier; NaN: none."""
        return next((value for metric, value in self.values.items() if metric == ACCURACY), math.nan)

    @property
    def loss(self) -> float | None:
        return self.named().get("loss")

    def named(self) -> dict[str, float | None]:
        """Return the values by name, as JSON can hold them."""
        return {metric.name: finite_or_none(value) for metric, value in self.values.items()}


@dataclass(slots=True)
class UpdateTimes:
    """Seconds since the first update, of the newest updates: the line of an evaluation comes later than its update."""

    first: float | None = None  # by the clock of the records
    last: float | None = None
    _newest: OrderedDict[int, float] = field(default_factory=OrderedDict)

    def applied(self, t: int, time: float | None) -> float | None:
        if time is None:
            return None
        if self.first is None or self.last is None:
            self.first = self.last = time
        self.last = max(self.last, time)
        seconds = self._newest[t] = max(0.0, time - self.first)
        if len(self._newest) > _TIMES:
            self._newest.popitem(last=False)
        return seconds

    def evaluated(self, t: int, time: float | None) -> float | None:
        """Return the seconds of the update: evaluating takes time that the training does not wait for."""
        if t in self._newest:
            return self._newest[t]
        if time is None or (t and self.first is None):
            return None
        return max(0.0, time - self.first) if t and self.first is not None else 0.0  # x₁ was there before


@dataclass(slots=True)
class EdgeTally:
    edge_id: str
    applied: int = 0
    staleness_sum: int = 0
    staleness_max: int = 0
    last_sequence: int = 0
    joins: int = 0
    gone: str = ""  # reason, while it is gone

    def plain(self) -> dict[str, Any]:
        """Return what `asdict` would, in a third of the time."""
        return {name: getattr(self, name) for name in self.__slots__}

    def row(self, edge: int) -> dict[str, Any]:
        return {
            "edge": edge,
            "edge_id": self.edge_id,
            "applied": self.applied,
            "last_sequence": self.last_sequence,
            "staleness_mean": self.staleness_sum / self.applied if self.applied else None,
            "staleness_max": self.staleness_max,
            "joins": self.joins,
            "gone": self.gone,
        }


@dataclass(slots=True)
class Tally:
    staleness: Counter[int] = field(default_factory=Counter)
    edges: dict[int, EdgeTally] = field(default_factory=dict)
    refused: Counter[str] = field(default_factory=Counter)
    stages: list[dict[str, Any]] = field(default_factory=list)
    evaluations: list[Evaluation] = field(default_factory=list)
    updates: int = 0
    halted: str = ""  # why the run has ended
    resumed: int = 0
    times: UpdateTimes = field(default_factory=UpdateTimes)
    _joined_at: dict[str, int] = field(default_factory=dict)  # edge id → the shard that it joined with last

    def observe(self, fact: Fact) -> None:
        if type(fact) is GradientApplied:
            edge, edge_id, sequence, _, t, staleness, _, _ = fact  # quicker than by name
            self.add_update(edge, edge_id, sequence, t, staleness)
        else:
            self.take(record_of(fact))

    def take(self, record: Mapping[str, Any]) -> None:
        """Count one record, which `check_record` has passed."""
        match record["event"]:
            case "gradient_applied":
                k, t = record["edge"], record["t"]
                self.add_update(k, record.get("edge_id", ""), record["sequence"], t, record["staleness"])
                self.times.applied(t, record.get("time"))
            case "evaluated":
                seconds = self.times.evaluated(record["t"], record.get("time"))
                self.evaluated(replace(Evaluation.of(record), seconds=seconds))
            case "edge_joined":
                self._joined(record)
            case "edge_gone" if record["edge"] in self.edges:
                self.edges[record["edge"]].gone = record["reason"]
            case "gradient_refused":
                self.refused[record["reason"]] += 1
            case "stage_opened":
                self.stages.append({key: value for key, value in record.items() if key not in _BESIDE})
            case "halted":
                self.halted = text(record.get("reason")) or ""
            case "resumed":
                self.resumed += 1
                self.halted = ""

    def add_update(self, k: int, edge_id: str, sequence: int, t: int, staleness: int) -> None:
        self.updates = t
        self.staleness[staleness] += 1
        edge = self.edges.get(k)
        if edge is None:
            edge = self.edges[k] = EdgeTally(edge_id)
        edge.applied += 1
        # a record may be out of order where it is not ours
        edge.last_sequence = max(edge.last_sequence, sequence)
        edge.staleness_sum += staleness
        if staleness > edge.staleness_max:
            edge.staleness_max = staleness

    def counted(self, first: int, sequence: int, start: int, staleness: Sequence[int]) -> None:
        """Add what GradientApplied of edges first, first+1, … at updates start, start+1, … would."""
        if not staleness:
            return
        self.updates = start + len(staleness) - 1
        self.staleness.update(staleness)
        for k, stale in enumerate(staleness, first):
            edge = self.edges[k]
            edge.applied += 1
            edge.last_sequence = sequence
            edge.staleness_sum += stale
            if stale > edge.staleness_max:
                edge.staleness_max = stale

    def _joined(self, record: Mapping[str, Any]) -> None:
        edge_id = record["edge_id"]
        former = self._joined_at.get(edge_id, record["edge"])
        if record.get("returned") and former != record["edge"]:
            left = self.edges.get(former)  # assigned again before anything was applied from there: no row
            if left is not None and left.edge_id == edge_id and not left.applied:
                del self.edges[former]
        self._joined_at[edge_id] = record["edge"]
        edge = self.edges.setdefault(record["edge"], EdgeTally(edge_id))
        edge.edge_id = edge_id
        edge.joins += 1
        edge.gone = ""

    def evaluated(self, evaluation: Evaluation) -> None:
        self.evaluations.append(evaluation)

    def plain(self) -> dict[str, Any]:
        """Return all counts in plain values, for a checkpoint."""
        return {
            "updates": self.updates,
            "staleness": [list(pair) for pair in self.staleness.items()],
            "edges": [[k, edge.plain()] for k, edge in self.edges.items()],
            "refused": [list(pair) for pair in self.refused.items()],
            "stages": self.stages,
            "evaluations": [
                [one.updates, one.stage, [[m.as_dict(), value] for m, value in one.values.items()]]
                for one in self.evaluations
            ],
        }

    @classmethod
    def from_plain(cls, plain: Mapping[str, Any]) -> Self:
        return cls(
            staleness=Counter(dict(plain["staleness"])),
            edges={k: EdgeTally(**edge) for k, edge in plain["edges"]},
            refused=Counter(dict(plain["refused"])),
            stages=list(plain["stages"]),
            evaluations=[
                Evaluation(updates, stage, {Metric.from_dict(m): value for m, value in values})
                for updates, stage, values in plain["evaluations"]
            ],
            updates=plain["updates"],
            _joined_at={edge["edge_id"]: k for k, edge in plain["edges"]},
        )

    def summary(self, metrics: Sequence[Metric] = CLASSIFICATION) -> dict[str, Any]:
        """Return the part of summary.json that facts decide; no timings.

        `metrics` are the model's; without an evaluation their values are null, never a number.
        """
        last = self.evaluations[-1] if self.evaluations else None
        best = last and self.evaluations[0]  # the first of the best
        for one in self.evaluations:
            if best is not None and one.headline.is_better(one[one.headline.name], best[one.headline.name]):
                best = one
        metrics = tuple(metrics if last is None else last.values)
        headline = metrics[0].name
        return {
            "updates": self.updates,
            "metrics": [metric.as_dict() for metric in metrics],
            **{f"final_{m.name}": None if last is None else last.named()[m.name] for m in metrics},
            f"best_{headline}": None if best is None else best.named()[headline],
            f"best_{headline}_at": None if best is None else best.updates,
            "staleness": staleness_summary(self.staleness),
            "stages": self.stages,
            "refused": dict(sorted(self.refused.items())),
            "edges": [edge.row(k) for k, edge in sorted(self.edges.items())],
            "evaluations": [
                {"updates": one.updates, "stage": one.stage, **one.named()} for one in self.evaluations
            ],
        }


def headline(evaluation: Evaluation) -> str:
    """Return the metric that matters most, for a person."""
    metric = evaluation.headline
    return f"{metric.name} {metric.text(evaluation[metric.name])}"


def metric_named(name: str) -> Metric:
    """Return what is known of a metric; of an unknown one, that less is better, as of a loss."""
    return next((metric for metric in CLASSIFICATION if metric.name == name), Metric(name, LOSS.better))


def finite_or_none(value: float) -> float | None:
    """Return what JSON can hold: the loss of a diverged model is not finite."""
    return value if math.isfinite(value) else None


def staleness_summary(counts: Mapping[int, int]) -> dict[str, float | int | None]:
    """Return mean, quantiles (the smallest staleness that reaches the share) and maximum."""
    values = sorted(counts)
    reached = list(itertools.accumulate(counts[value] for value in values))
    if not reached or not reached[-1]:
        return dict.fromkeys(("mean", *_QUANTILES, "max"))
    total = reached[-1]
    return {
        "mean": sum(value * count for value, count in counts.items()) / total,
        **{name: values[bisect.bisect_left(reached, share * total)] for name, share in _QUANTILES.items()},
        "max": values[-1],
    }

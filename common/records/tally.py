"""What a run amounts to, counted from its facts as they come: the body of summary.json."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Self

from common.messages import EdgeGone, EdgeJoined, Fact, GradientApplied, GradientRefused, StageOpened
from common.metrics import CLASSIFICATION, Metric


@dataclass(frozen=True, slots=True)
class Evaluation:
    """The model's metrics on the test set after `updates` updates; `loss` includes the regulariser."""

    updates: int
    stage: int
    values: Mapping[Metric, float]  # the headline metric first

    def __getitem__(self, name: str) -> float:
        return next(value for metric, value in self.values.items() if metric.name == name)

    @property
    def headline(self) -> Metric:
        return next(iter(self.values))

    def named(self) -> dict[str, float | None]:
        """Return the values by name, as JSON can hold them."""
        return {metric.name: finite_or_none(value) for metric, value in self.values.items()}


@dataclass(slots=True)
class EdgeTally:
    edge_id: str
    applied: int = 0
    staleness_sum: int = 0
    staleness_max: int = 0
    last_sequence: int = 0
    joins: int = 0
    gone: str = ""  # reason, while it is gone


@dataclass(slots=True)
class Tally:
    """Counts of one run."""

    staleness: Counter[int] = field(default_factory=Counter)
    edges: dict[int, EdgeTally] = field(default_factory=dict)
    refused: Counter[str] = field(default_factory=Counter)
    stages: list[dict[str, Any]] = field(default_factory=list)
    evaluations: list[Evaluation] = field(default_factory=list)
    updates: int = 0

    def observe(self, fact: Fact) -> None:
        if type(fact) is GradientApplied:
            self.updates = fact.t
            self.staleness[fact.staleness] += 1
            edge = self.edges[fact.edge]
            edge.applied += 1
            edge.last_sequence = fact.sequence
            edge.staleness_sum += fact.staleness
            if fact.staleness > edge.staleness_max:
                edge.staleness_max = fact.staleness
        elif isinstance(fact, EdgeJoined):
            if fact.returned:
                self._forget_former_shard(fact)
            edge = self.edges.setdefault(fact.edge, EdgeTally(fact.edge_id))
            edge.edge_id = fact.edge_id
            edge.joins += 1
            edge.gone = ""
        elif isinstance(fact, EdgeGone):
            self.edges[fact.edge].gone = fact.reason
        elif isinstance(fact, GradientRefused):
            self.refused[fact.reason] += 1
        elif isinstance(fact, StageOpened):
            self.stages.append(asdict(fact))

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

    def _forget_former_shard(self, joined: EdgeJoined) -> None:
        """Drop the row of a shard that was assigned anew before anything was applied from there."""
        for k, edge in list(self.edges.items()):
            if edge.edge_id == joined.edge_id and k != joined.edge and not edge.applied:
                del self.edges[k]

    def evaluated(self, evaluation: Evaluation) -> None:
        self.evaluations.append(evaluation)

    def plain(self) -> dict[str, Any]:
        """Return all counts in plain values, for a checkpoint."""
        return {
            "updates": self.updates,
            "staleness": [list(pair) for pair in self.staleness.items()],
            "edges": [[k, asdict(edge)] for k, edge in self.edges.items()],
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
        )

    @property
    def best(self) -> Evaluation | None:
        """The evaluation whose headline metric is best; the first of them where several are."""
        best: Evaluation | None = None
        for one in self.evaluations:
            headline = one.headline
            if best is None or headline.is_better(one[headline.name], best[headline.name]):
                best = one
        return best

    def summary(self, metrics: Sequence[Metric] = CLASSIFICATION) -> dict[str, Any]:
        """Return the part of summary.json that facts decide; no timings.

        `metrics` are the model's; without an evaluation their values are null, never a number.
        """
        last = self.evaluations[-1] if self.evaluations else None
        best = self.best
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
            "edges": [
                {
                    "edge": k,
                    "edge_id": edge.edge_id,
                    "applied": edge.applied,
                    "last_sequence": edge.last_sequence,
                    "staleness_mean": edge.staleness_sum / edge.applied if edge.applied else None,
                    "staleness_max": edge.staleness_max,
                    "joins": edge.joins,
                    "gone": edge.gone,
                }
                for k, edge in sorted(self.edges.items())
            ],
            "evaluations": [
                {"updates": evaluation.updates, "stage": evaluation.stage, **evaluation.named()}
                for evaluation in self.evaluations
            ],
        }


def headline(evaluation: Evaluation) -> str:
    """Return the metric that matters most, for a person."""
    metric = evaluation.headline
    return f"{metric.name} {metric.text(evaluation[metric.name])}"


def finite_or_none(value: float) -> float | None:
    """Return what JSON can hold: the loss of a diverged model is not finite."""
    return value if math.isfinite(value) else None


def staleness_summary(counts: Counter[int]) -> dict[str, float | int | None]:
    """Return mean, quantiles (the smallest staleness that reaches the share) and maximum."""
    total = sum(counts.values())
    if total == 0:
        return {"mean": None, "p50": None, "p90": None, "p99": None, "max": None}
    quantiles: dict[str, float | int | None] = {
        "mean": sum(value * count for value, count in counts.items()) / total
    }
    for name, share in (("p50", 0.5), ("p90", 0.9), ("p99", 0.99)):
        seen = 0
        for value in sorted(counts):
            seen += counts[value]
            if seen >= share * total:
                quantiles[name] = value
                break
    quantiles["max"] = max(counts)
    return quantiles

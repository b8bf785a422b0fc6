"""What a model is measured by: named numbers, each with the direction that is better."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import Enum

from common.errors import ConfigurationError


class Better(Enum):
    HIGHER = "higher"
    LOWER = "lower"


@dataclass(frozen=True, slots=True)
class Metric:
    """One number of an evaluation."""

    name: str
    better: Better
    share: bool = False  # between 0 and 1: shown as a percentage

    def is_better(self, value: float, than: float) -> bool:
        """Return whether one value is better than another; anything is better than no number."""
        if math.isnan(than):
            return not math.isnan(value)
        return value > than if self.better is Better.HIGHER else value < than

    def text(self, value: float | None) -> str:
        """Return the value as a person reads it."""
        if value is None or not math.isfinite(value):
            return "-"
        return f"{value:.2%}" if self.share else f"{value:.4g}"

    def as_dict(self) -> dict[str, object]:
        return {"name": self.name, "better": self.better.value, "share": self.share}

    @classmethod
    def from_dict(cls, fields: Mapping[str, object]) -> Metric:
        return cls(str(fields["name"]), Better(fields["better"]), bool(fields.get("share")))


ACCURACY = Metric("accuracy", Better.HIGHER, share=True)
LOSS = Metric("loss", Better.LOWER)
RMSE = Metric("rmse", Better.LOWER)  # in the units of the target
CLASSIFICATION = (ACCURACY, LOSS)  # the headline metric comes first
RESERVED = frozenset({"event", "t", "time", "stage", "updates"})  # keys of the records beside the metrics


def check_metrics(metrics: Iterable[Metric], model: str) -> tuple[Metric, ...]:
    """Return what a model declares; raise ConfigurationError where records could not hold it."""
    found = tuple(metrics)
    names = [metric.name for metric in found]
    if LOSS not in found:
        raise ConfigurationError(f"model {model!r}: metrics = {names}: must include common.metrics.LOSS")
    for name in names:
        if names.count(name) > 1 or name in RESERVED or not name.replace("_", "").isalnum():
            raise ConfigurationError(
                f"model {model!r}: metric {name!r}: names are distinct words of letters, digits and '_',"
                f" and not {', '.join(sorted(RESERVED))}"
            )
    return found


def check_values(metrics: tuple[Metric, ...], values: Mapping[str, float], model: str) -> dict[Metric, float]:
    """Return a value for each declared metric; raise ConfigurationError where any is missing or undeclared."""
    declared = {metric.name for metric in metrics}
    if values.keys() != declared:
        raise ConfigurationError(
            f"model {model!r}: evaluate returned {sorted(values)}: must be {sorted(declared)}, as its metrics declare"
        )
    return {metric: float(values[metric.name]) for metric in metrics}

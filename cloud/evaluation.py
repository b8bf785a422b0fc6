"""The metrics of x on the test set, off the hot path."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from common.datasets.dataset import Samples
from common.metrics import LOSS, check_values
from common.models.features import FeatureCache, features_of
from common.models.model import Features, Model, Targets
from common.quantities import Vector
from common.records.tally import Evaluation


@dataclass(frozen=True, slots=True)
class Evaluator:
    """The model's metrics on public test data; without any, no number."""

    model: Model
    features: Features | None  # None: there is no test data
    targets: Targets | None
    regularization: float  # λ

    @classmethod
    def of(
        cls, model: Model, test: Samples | None, regularization: float, cache: FeatureCache | None = None
    ) -> Evaluator:
        if test is None:
            return cls(model, None, None, regularization)
        return cls(model, features_of(model, test, cache), model.targets(test.labels), regularization)

    def evaluate(self, x: Vector, updates: int, stage: int) -> Evaluation:
        if self.features is None or self.targets is None:
            return Evaluation(updates, stage, dict.fromkeys(self.model.metrics, math.nan))
        with np.errstate(over="ignore", invalid="ignore"):  # a run that diverges is evaluated too
            found = self.model.evaluate(x, self.features, self.targets)
            values = check_values(self.model.metrics, found, self.model.name)
            values[LOSS] += self.regularization / 2 * float(x @ x)
        return Evaluation(updates, stage, values)

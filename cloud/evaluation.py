"""Loss and accuracy of x on the test set, off the hot path."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from common.datasets.dataset import Samples
from common.models.model import Features, Model, Targets
from common.quantities import Vector
from common.tally import Evaluation


@dataclass(frozen=True, slots=True)
class Evaluator:
    """f and accuracy on public test data."""

    model: Model
    features: Features
    targets: Targets
    regularization: float  # λ

    @classmethod
    def of(cls, model: Model, test: Samples, regularization: float) -> Evaluator:
        return cls(model, model.features(test.pixels()), model.targets(test.labels), regularization)

    def evaluate(self, x: Vector, updates: int, stage: int) -> Evaluation:
        with np.errstate(over="ignore", invalid="ignore"):  # a run that diverges is evaluated too
            loss, accuracy = self.model.evaluate(x, self.features, self.targets)
            penalty = self.regularization / 2 * float(x @ x)
        return Evaluation(updates, stage, loss + penalty, accuracy)

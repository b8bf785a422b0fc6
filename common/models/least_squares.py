"""Linear regression: real targets, in closed form on numpy."""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt

from common.errors import ConfigurationError
from common.metrics import LOSS, RMSE, Metric
from common.models.linear import LinearModel, Losses, Scores
from common.models.model import Features, Labels, Targets, cannot_take
from common.quantities import Vector

_CHUNK = 8192  # rows that evaluate() scores at a time


class LeastSquares(LinearModel):
    """F = ½ (s − y)², with y in [−1, 1]: the target seen from the middle of its declared range.

    λ of the scenario makes it ridge regression. `rmse` is in the target's own units, `loss` in those of y.
    """

    name = "least-squares"
    metrics: tuple[Metric, ...] = (RMSE, LOSS)

    def __init__(
        self, *, shape: tuple[int, ...], classes: int, target_range: tuple[float, float] | None = None
    ) -> None:
        if classes:
            raise cannot_take(self.name, shape, classes, "any shape, real targets (classes = 0)")
        if target_range is None:
            raise ConfigurationError(
                f"model.name = {self.name!r}: needs a target_range, declared with the data"
            )
        self._lay_out(shape, outputs=1)
        low, high = target_range
        self._middle, self._half = (low + high) / 2, (high - low) / 2

    def targets(self, labels: Labels) -> Targets:
        if labels.dtype != np.float32:
            raise ConfigurationError(f"labels are {labels.dtype}: {self.name} takes float32 targets")
        return ((labels.astype(np.float64) - self._middle) / self._half).astype(np.float32)

    def losses(self, scores: Scores, targets: Targets) -> Losses:
        losses: Losses = np.square(scores[..., 0] - targets) / 2
        return losses

    def score_gradient(self, scores: Scores, targets: Targets) -> Scores:
        slopes: Scores = scores - targets.astype(np.float32, copy=False)[..., None]
        return slopes

    def correct(self, scores: Scores, targets: Targets) -> npt.NDArray[np.bool_]:
        raise NotImplementedError("a real target is never right or wrong")

    def evaluate(self, x: Vector, features: Features, targets: Targets) -> dict[str, float]:
        if not len(targets):
            return {"rmse": math.nan, "loss": math.nan}
        loss = 0.0
        for start in range(0, len(targets), _CHUNK):
            rows = slice(start, start + _CHUNK)
            scores = self.scores(x, features[rows])
            loss += float(self.losses(scores, targets[rows]).sum(dtype=np.float64))
        loss /= len(targets)
        return {"rmse": self._half * math.sqrt(2 * loss), "loss": loss}

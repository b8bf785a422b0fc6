"""Models that are linear in their scores: LR, SVM, softmax and least squares, in closed form on numpy.

Row i of a batch's gradients is dloss/dscore_i ⊗ ξ_i, so the b × N matrix is never formed.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Collection

import numpy as np
import numpy.typing as npt

from common.errors import ConfigurationError
from common.metrics import CLASSIFICATION, LOSS, RMSE, Metric
from common.models.gradients import OuterGradients, Powers
from common.models.model import (
    Features,
    Inputs,
    Labels,
    Targets,
    cannot_take,
    check_inputs,
    check_labels,
    layout,
)
from common.quantities import Vector

Scores = npt.NDArray[np.float32]  # … × b × c
Losses = npt.NDArray[np.float32]  # … × b

_CHUNK = 8192  # rows that evaluate() scores at a time
_HALF = np.float32(0.5)


class LinearModel(ABC):
    """x is W (c × d) row by row; the last of the d features is the constant 1; x₁ = 0.

    A kind of model says what its targets, losses and dloss/dscore are. These take scores of any
    leading shape (…, b, c) with targets (…, b): many edges may be stacked into one call.
    """

    name: str
    metrics: tuple[Metric, ...] = CLASSIFICATION
    feature_length: float | None = None

    def __init__(self, *, shape: tuple[int, ...], classes: int, outputs: int) -> None:
        if classes < 2:
            raise cannot_take(self.name, shape, classes, "any shape, at least 2 classes")
        self.classes = classes
        self._lay_out(shape, outputs)

    def _lay_out(self, shape: tuple[int, ...], outputs: int) -> None:
        self.inputs = math.prod(shape) + 1  # d
        self.outputs = outputs  # c
        self.dimension = self.outputs * self.inputs
        self.layout = layout(weight=(self.outputs, self.inputs))
        self.first_layer = slice(0, self.dimension)

    @abstractmethod
    def targets(self, labels: Labels) -> Targets:
        """Bring labels into the form that the losses take."""

    @abstractmethod
    def losses(self, scores: Scores, targets: Targets) -> Losses:
        """Return F of each sample."""

    @abstractmethod
    def score_gradient(self, scores: Scores, targets: Targets) -> Scores:
        """Return D = dloss/dscore of each sample, in an array of its own."""

    def initial(self, rng: np.random.Generator) -> Vector:  # noqa: ARG002 - x₁ = 0 draws nothing
        return np.zeros(self.dimension, np.float32)

    def features(self, images: Inputs) -> Features:
        check_inputs(images, self.name, (self.inputs - 1,))
        features = np.empty((len(images), self.inputs), np.float32)
        features[:, :-1] = images
        features[:, -1] = 1
        return features

    def scores(self, x: Vector, features: Features) -> Scores:
        """Return X Wᵀ."""
        return features @ x.reshape(self.outputs, self.inputs).T

    def gradients(
        self, x: Vector, features: Features, targets: Targets, of_features: Powers | None = None
    ) -> OuterGradients:
        """Return them; `of_features` are the sums of these rows' powers, where they are known."""
        return OuterGradients(self.score_gradient(self.scores(x, features), targets), features, of_features)

    def evaluate(self, x: Vector, features: Features, targets: Targets) -> dict[str, float]:
        if not len(targets):
            return {metric.name: math.nan for metric in self.metrics}
        loss, right = 0.0, 0
        for start in range(0, len(targets), _CHUNK):
            rows = slice(start, start + _CHUNK)
            scores = self.scores(x, features[rows])
            loss += float(self.losses(scores, targets[rows]).sum(dtype=np.float64))
            right += int(np.count_nonzero(self.correct(scores, targets[rows])))
        return self.measured(loss / len(targets), right / len(targets))

    def correct(self, scores: Scores, targets: Targets) -> npt.NDArray[np.bool_]:  # noqa: ARG002
        """Return which samples are classified rightly; a real target never is."""
        return np.zeros(targets.shape, np.bool_)

    def measured(self, loss: float, accuracy: float) -> dict[str, float]:
        return {"accuracy": accuracy, "loss": loss}


class TwoWayModel(LinearModel):
    """One score; targets are +1 for the labels in `positive` (by default the odd ones), −1 for the others."""

    def __init__(
        self, *, shape: tuple[int, ...], classes: int, positive: Collection[int] | None = None
    ) -> None:
        super().__init__(shape=shape, classes=classes, outputs=1)
        chosen: object = range(1, classes, 2) if positive is None else positive
        labels = list(chosen) if isinstance(chosen, Collection) else []
        known = all(type(label) is int and 0 <= label < classes for label in labels)
        if not known or not 0 < len(set(labels)) < classes:
            raise ConfigurationError(
                f"model.options.positive = {positive!r}: must list some, not all, of the labels 0 … {classes - 1}"
            )
        self.positive = sorted(set(labels))

    def targets(self, labels: Labels) -> Targets:
        return np.where(np.isin(labels, self.positive), 1, -1).astype(np.int64, copy=False)

    def correct(self, scores: Scores, targets: Targets) -> npt.NDArray[np.bool_]:
        right: npt.NDArray[np.bool_] = (scores[..., 0] > 0) == (targets > 0)
        return right


class ManyWayModel(LinearModel):
    """A score for each class; targets are the labels."""

    def __init__(self, *, shape: tuple[int, ...], classes: int) -> None:
        super().__init__(shape=shape, classes=classes, outputs=classes)

    def targets(self, labels: Labels) -> Targets:
        return check_labels(labels, self.classes)

    def correct(self, scores: Scores, targets: Targets) -> npt.NDArray[np.bool_]:
        right: npt.NDArray[np.bool_] = scores.argmax(axis=-1) == targets
        return right

    def _places(self, targets: Targets) -> npt.NDArray[np.int64]:
        """Return where each sample's own score is among the raveled scores."""
        first = np.arange(0, targets.size * self.outputs, self.outputs)
        return np.add(first, targets.ravel(), dtype=np.int64)


class LogisticRegression(TwoWayModel):
    """F = log(1 + exp(−y s))."""

    name = "lr"

    def losses(self, scores: Scores, targets: Targets) -> Losses:
        losses: Losses = np.logaddexp(np.float32(0), -targets.astype(np.float32) * scores[..., 0])
        return losses

    def score_gradient(self, scores: Scores, targets: Targets) -> Scores:
        d: Scores = scores * _HALF
        np.tanh(d, out=d)
        d -= targets.astype(np.float32)[..., None]
        d *= _HALF  # −y / (1 + exp(y s)) = (tanh(s/2) − y) / 2, which cannot overflow
        return d


class Svm(ManyWayModel):
    """Crammer–Singer hinge: F = max(0, 1 + max_{j≠y} s_j − s_y)."""

    name = "svm"

    def losses(self, scores: Scores, targets: Targets) -> Losses:
        margins, _, _ = self._margins(scores, targets)
        return np.maximum(margins, 0, out=margins).reshape(targets.shape)

    def score_gradient(self, scores: Scores, targets: Targets) -> Scores:
        margins, own, rival = self._margins(scores, targets)
        violated = (margins > 0).astype(np.float32)
        d = np.zeros(scores.size, np.float32)
        d[rival] = violated
        d[own] = -violated
        return d.reshape(scores.shape)

    def _margins(
        self, scores: Scores, targets: Targets
    ) -> tuple[Losses, npt.NDArray[np.int64], npt.NDArray[np.int64]]:
        """Return 1 + max_{j≠y} s_j − s_y, and where s_y and the first largest s_j are."""
        own = self._places(targets)
        rivals = scores.flatten()
        margins = 1 - rivals[own]
        rivals[own] = -np.inf
        rival = rivals.reshape(-1, self.outputs).argmax(axis=1)
        rival += np.arange(0, rivals.size, self.outputs)
        margins += rivals[rival]
        return margins, own, rival


class Softmax(ManyWayModel):
    """Cross-entropy: F = log Σ_j exp(s_j) − s_y."""

    name = "softmax"

    def losses(self, scores: Scores, targets: Targets) -> Losses:
        shifted: Scores = scores - scores.max(axis=-1, keepdims=True)
        own = shifted.ravel()[self._places(targets)].reshape(targets.shape)
        losses: Losses = np.log(np.exp(shifted).sum(axis=-1)) - own
        return losses

    def score_gradient(self, scores: Scores, targets: Targets) -> Scores:
        # order="C": else the ravel below may be a copy
        d: Scores = np.subtract(scores, scores.max(axis=-1, keepdims=True), order="C")
        np.exp(d, out=d)
        d /= d.sum(axis=-1, keepdims=True)
        d.ravel()[self._places(targets)] -= 1
        return d


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

    def measured(self, loss: float, accuracy: float) -> dict[str, float]:  # noqa: ARG002
        return {"rmse": self._half * math.sqrt(2 * loss), "loss": loss}

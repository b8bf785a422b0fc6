"""A model of a million parameters on numpy alone, and a small data set for it: what 4 MB messages are tried with."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import numpy.typing as npt

from common.datasets.dataset import Dataset, Samples, content_checksum
from common.metrics import CLASSIFICATION
from common.models.gradients import OuterGradients
from common.models.model import Features, Images, Labels, Targets, layout
from common.quantities import Vector

_SEED = 13  # of the fixed projections and of the points


class Bilinear:
    """Two classes by the score uᵀWv/m, where u and v are fixed random features of the sample and W is m × m.

    A sample's gradient is an outer product, so a batch never takes b × m² numbers.
    """

    name = "bilinear"
    metrics = CLASSIFICATION

    def __init__(self, *, shape: tuple[int, ...], classes: int, width: int = 1000) -> None:  # noqa: ARG002
        rng = np.random.default_rng(_SEED)
        inputs = int(np.prod(shape))
        self._maps = rng.normal(0, 1 / np.sqrt(inputs), (inputs, 2 * width)).astype(np.float32)
        self._width = width
        self.dimension = width * width
        self.layout = layout(weight=(width, width))
        self.first_layer = slice(0, self.dimension)

    def initial(self, rng: np.random.Generator) -> Vector:  # noqa: ARG002
        return np.zeros(self.dimension, np.float32)

    def features(self, images: Images) -> Features:
        features: Features = np.tanh(4 * (images - np.float32(0.5)) @ self._maps)
        return features

    def targets(self, labels: Labels) -> Targets:
        return 2 * labels - 1

    def gradients(self, x: Vector, features: Features, targets: Targets) -> OuterGradients:
        u, v = self._halves(features)
        y = targets.astype(np.float32)
        slopes = -y / (1 + np.exp(y * self._scores(x, features))) / np.float32(self._width)
        return OuterGradients(slopes[:, None] * u, v)

    def evaluate(self, x: Vector, features: Features, targets: Targets) -> dict[str, float]:
        margins = targets * self._scores(x, features)
        return {"accuracy": float((margins > 0).mean()), "loss": float(np.logaddexp(0, -margins).mean())}

    def _halves(self, features: Features) -> tuple[Features, Features]:
        return features[:, : self._width], features[:, self._width :]

    def _scores(self, x: Vector, features: Features) -> npt.NDArray[np.float32]:
        u, v = self._halves(features)
        scores: npt.NDArray[np.float32] = np.vecdot(u @ x.reshape(self._width, self._width), v)
        return scores / np.float32(self._width)


class Quadrants:
    """Points of a square, told apart by the product of their signs, which no linear model can: 400, and 100 to test."""

    def load(self, data_dir: Path) -> Dataset:  # noqa: ARG002 - nothing is stored
        rng = np.random.default_rng(_SEED)
        points = rng.uniform(0, 1, (500, 4)).astype(np.float32)
        labels = ((points[:, 0] > 0.5) == (points[:, 1] > 0.5)).astype(np.int64)
        train, test = (Samples(points[rows], labels[rows]) for rows in (np.s_[:400], np.s_[400:]))
        return Dataset("quadrants", (2, 2), 2, train, test, content_checksum(train, test))


def large_scenario(*, edges: int = 5, iterations: int = 200) -> dict[str, object]:
    """Return a scenario of the model on those points."""
    return {
        "edges": edges,
        "iterations": iterations,
        "batch_size": 8,
        "data": {"set": f"{__name__}:Quadrants"},
        "model": {"name": f"{__name__}:Bilinear", "regularization": 0.0},
        "algorithm": {"name": "constant", "rate": 0.5, "first_clip": 1.0},
        "privacy": {"noise_multiplier": 1.0},
        "evaluation": {"every": 50},
    }

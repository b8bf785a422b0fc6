"""A model with one coordinate more, in which the edges of a run count how many samples are not clipped.

Count and gradient are one vector, clipped and noised as one (edge/privacy.py), so they are charged as one release.
The coordinate belongs to x, too, and stays 0 there: messages, logs and checkpoints need not know of it.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import numpy.typing as npt

from common.models.linear import LinearModel
from common.models.model import Block, Features, Images, Labels, Model, Targets, feature_length
from common.quantities import Floats, PerSampleGradients, Vector

COUNT = "clipping-count"  # name of the coordinate's block


class CountedGradients:
    """The gradients of a batch, with room for the count: their sums have a 0 at the end."""

    __slots__ = ("_inner",)

    def __init__(self, inner: PerSampleGradients) -> None:
        self._inner = inner

    def norms(self) -> Floats:
        return self._inner.norms()

    def l1_norms(self) -> Floats:
        return self._inner.l1_norms()

    def nulled(self, rows: npt.NDArray[np.bool_]) -> CountedGradients:
        return CountedGradients(self._inner.nulled(rows))

    def weighted_sum(self, weights: Floats | None) -> Floats:
        total = self._inner.weighted_sum(weights)
        with_room = np.zeros(total.size + 1, total.dtype)
        with_room[:-1] = total
        return with_room


class Counted:
    """Another model, unchanged, and one coordinate after its last."""

    def __init__(self, inner: Model) -> None:
        self._inner = inner
        self.name = inner.name
        self.dimension = inner.dimension + 1
        self.layout = (*inner.layout, Block(COUNT, (1,), inner.dimension))
        self.first_layer = inner.first_layer
        self.metrics = inner.metrics
        self.feature_length = feature_length(inner)

    def initial(self, rng: np.random.Generator) -> Vector:
        return np.append(self._inner.initial(rng), np.float32(0))

    def features(self, images: Images) -> Features:
        return self._inner.features(images)

    def targets(self, labels: Labels) -> Targets:
        return self._inner.targets(labels)

    def gradients(self, x: Vector, features: Features, targets: Targets) -> PerSampleGradients:
        return CountedGradients(self._inner.gradients(x[:-1], features, targets))

    def evaluate(self, x: Vector, features: Features, targets: Targets) -> Mapping[str, float]:
        return self._inner.evaluate(x[:-1], features, targets)

    def batch_bytes(self, batch: int) -> int:
        """Return what the gradients of a batch take, as the model itself says it (edge/joining.py)."""
        stated = getattr(self._inner, "batch_bytes", None)
        if stated is not None:
            return int(stated(batch))
        return 0 if isinstance(self._inner, LinearModel) else batch * 4 * self._inner.dimension

"""Models whose per-sample gradients the auditor writes itself, release by release.

The rest is the real edge: its sampler, its clipping, its division by b, its noise.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from common.metrics import LOSS, Metric
from common.models.counted import Counted
from common.models.gradients import Matrix, RowGradients
from common.models.model import Features, Images, Labels, Model, Targets, layout
from common.noise.law import Noise, NoiseLaw
from common.noise.mechanism import Adjacency, Clipping, Guarantee, Mechanism, Norm
from common.quantities import PerSampleGradients, Vector

CLIP = 1.0  # C
LOUD = np.float32(1000.0)  # norm of a canary before clipping, in units of C

Form = Callable[[Matrix], PerSampleGradients]  # how rows become per-sample gradients; a defect may stand here


class GivenGradients:
    """F(x; ξ) = ½ Σ ξ_i x_i², whose gradient is ξ∘x: ξ at x = 1, and x may turn, scale or mask it."""

    name = "given-gradients"

    def __init__(self, dimension: int) -> None:
        self.dimension = dimension
        self.layout = layout(weight=(dimension,))
        self.first_layer = slice(0, dimension // 2)
        self.metrics: tuple[Metric, ...] = (LOSS,)
        self.form: Form = RowGradients

    def initial(self, rng: np.random.Generator) -> Vector:  # noqa: ARG002
        return np.ones(self.dimension, np.float32)

    def features(self, images: Images) -> Features:
        return images

    def targets(self, labels: Labels) -> Targets:
        return labels

    def gradients(self, x: Vector, features: Features, targets: Targets) -> PerSampleGradients:  # noqa: ARG002
        return self.form(features * x)

    def evaluate(self, x: Vector, features: Features, targets: Targets) -> dict[str, float]:  # noqa: ARG002
        return {"loss": float((features @ (x * x)).mean()) / 2}


class CodedGradients(GivenGradients):
    """Record i pulls along the last coordinate, to or fro by its own code: column n of its features where x₀ = n."""

    name = "coded-gradients"

    def gradients(self, x: Vector, features: Features, targets: Targets) -> PerSampleGradients:  # noqa: ARG002
        rows = np.zeros((len(features), self.dimension), np.float32)
        rows[:, -1] = LOUD * features[:, round(float(x[0]))]
        return self.form(rows)


def counted_where(clipping: Clipping, model: Model) -> Model:
    """Return the model as an edge has it: with a coordinate for the count where samples are counted."""
    return Counted(model) if clipping is Clipping.QUANTILE else model


def written(model: Model) -> GivenGradients:
    """Return one of these models as it is without a count."""
    inner = model._inner if isinstance(model, Counted) else model
    assert isinstance(inner, GivenGradients)
    return inner


@dataclass(frozen=True, slots=True)
class Muted(NoiseLaw):
    """A law that leaves some coordinates without noise, and says of itself what the whole law does."""

    name: ClassVar[str] = "muted"
    law: NoiseLaw
    mute: Callable[[int], slice] = lambda _: slice(None)  # given N

    @property
    def norm(self) -> Norm:  # type: ignore[override]
        return self.law.norm

    def draw(self, sensitivity: float, dimension: int, rng: np.random.Generator) -> Noise:
        eta = self.law.draw(sensitivity, dimension, rng)
        eta[self.mute(dimension)] = 0
        return eta

    def relative_second_moment(self, dimension: int) -> float:
        return self.law.relative_second_moment(dimension)

    def relative_tail(self, dimension: int) -> float:
        return self.law.relative_tail(dimension)

    def guarantee(self, mechanism: Mechanism, adjacency: Adjacency) -> Guarantee:
        return self.law.guarantee(mechanism, adjacency)

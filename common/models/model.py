"""What a model is to the testbed. A custom model is a class with these members, named by a dotted path."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import numpy.typing as npt

from common.errors import ConfigurationError
from common.metrics import Metric
from common.quantities import PerSampleGradients, Vector

Inputs = npt.NDArray[np.float32]  # n × product of the shape; of uint8 pixels values in [0, 1]
Images = Inputs  # former name
Labels = npt.NDArray[np.int64] | npt.NDArray[np.float32]  # classes, or real targets
Features = npt.NDArray[np.float32]  # n × …, a model's own form of the inputs
Targets = npt.NDArray[np.int64] | npt.NDArray[np.float32]  # n, a model's own form of the labels


@dataclass(frozen=True, slots=True)
class Block:
    """One named part of the flat parameter vector."""

    name: str
    shape: tuple[int, ...]
    start: int

    @property
    def size(self) -> int:
        return int(np.prod(self.shape, dtype=np.int64))

    @property
    def slice(self) -> slice:
        return slice(self.start, self.start + self.size)


def layout(**shapes: tuple[int, ...]) -> tuple[Block, ...]:
    """Lay the named shapes one after the other into one flat vector."""
    blocks: list[Block] = []
    start = 0
    for name, shape in shapes.items():
        blocks.append(Block(name, shape, start))
        start += blocks[-1].size
    return tuple(blocks)


def cannot_take(name: str, shape: tuple[int, ...], classes: int, takes: str) -> ConfigurationError:
    """Return the error for a model that is asked for data which it cannot take."""
    labels = f"classes = {classes}" if classes else "classes = 0 (real targets)"
    return ConfigurationError(
        f"model.name = {name!r}: cannot take shape = {shape}, {labels}; it takes {takes}"
    )


def check_inputs(inputs: Inputs, name: str, shape: tuple[int, ...]) -> None:
    """Refuse inputs of another size than a model was made for."""
    if inputs.shape[1:] != (math.prod(shape),):
        raise ConfigurationError(f"inputs of {inputs.shape[1:]} values: {name} was made for {shape}")


def check_labels(labels: Labels, classes: int) -> npt.NDArray[np.int64]:
    """Return labels as they are where all lie in 0 … classes − 1: a wrong one would index another row."""
    if len(labels) and (labels.min() < 0 or labels.max() >= classes):
        raise ConfigurationError(
            f"labels {labels.min()} … {labels.max()}: with {classes} classes allowed are 0 … {classes - 1}"
        )
    return labels.astype(np.int64, copy=False)


class Model(Protocol):
    """F(x; ξ) and its gradients. Methods are functions of their arguments; a model keeps no x.

    A class may have one member more, `feature_length: float | None`; ask for it by `feature_length(model)`.
    """

    name: str
    dimension: int  # N
    layout: tuple[Block, ...]
    first_layer: slice  # what scope `first-conv` noises
    metrics: tuple[Metric, ...]  # what `evaluate` returns, the headline metric first; `loss` must be one

    def initial(self, rng: np.random.Generator) -> Vector:
        """Return x₁."""

    def features(self, inputs: Inputs, /) -> Features:
        """Bring inputs into the form that the other methods take; done once per shard."""

    def targets(self, labels: Labels) -> Targets:
        """Bring labels into the model's own form."""

    def gradients(self, x: Vector, features: Features, targets: Targets) -> PerSampleGradients:
        """Return ∇F(x, ξ_i) of the batch, without the regulariser."""

    def evaluate(self, x: Vector, features: Features, targets: Targets) -> Mapping[str, float]:
        """Return a number for each of `metrics`; `loss` is the mean loss without the regulariser."""


def feature_length(model: Model) -> float | None:
    """Return ℓ, the L2 length of every feature vector without its bias input, which is meant to be 0.1·ℓ.

    It follows from the model's options alone, never from records. None: vectors differ in length, or the model's
    class, which may be anybody's, does not say.
    """
    said: object = getattr(model, "feature_length", None)
    if said is None:
        return None
    if isinstance(said, bool) or not isinstance(said, int | float) or not 0 < said < math.inf:
        raise ConfigurationError(
            f"model.name = {model.name!r}: feature_length = {said!r}; must be a number greater than 0, or None"
        )
    return float(said)

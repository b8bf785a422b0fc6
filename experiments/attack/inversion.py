"""What a released gradient tells of its batch, after Phong et al. 2018.

In a layer s = Wξ + w₀ the gradient of row j is Σᵢ dᵢⱼ·ξᵢ and that of its constant is Σᵢ dᵢⱼ: their
ratio is a weighted mean of the batch, and the image itself where the batch is one image. Clipping
scales both alike and hides nothing.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from common.errors import ConfigurationError
from common.models.linear import LinearModel
from common.models.model import Model
from common.quantities import Vector

Picture = npt.NDArray[np.float64]  # flat


@dataclass(frozen=True, slots=True)
class Head:
    """The layer that can be inverted: its rows of the gradient, and their constants."""

    outputs: int
    inputs: int  # without the constant
    sees_pixels: bool  # else: features of the layers before it

    def rows(self, model: Model, gradient: Vector) -> tuple[Picture, Picture]:
        """Return the gradient of W (outputs × inputs) and of the constants."""
        values = gradient.astype(np.float64)
        if self.sees_pixels:
            matrix = values.reshape(self.outputs, self.inputs + 1)
            return matrix[:, :-1], matrix[:, -1]
        weight, bias = (block for block in model.layout if block.name in ("full.weight", "full.bias"))
        return values[weight.slice].reshape(weight.shape), values[bias.slice]


def head_of(model: Model) -> Head:
    """Find the layer to invert; linear models see the pixels there, the CNN its pooled features."""
    if isinstance(model, LinearModel):
        return Head(model.outputs, model.inputs - 1, sees_pixels=True)
    shapes = {block.name: block.shape for block in model.layout}
    if "full.weight" in shapes and "full.bias" in shapes:
        outputs, inputs = shapes["full.weight"]
        return Head(outputs, inputs, sees_pixels=False)
    raise ConfigurationError(
        f"model.name = {model.name!r}: the attack covers lr, svm, softmax and a fully connected last layer with a bias"
    )


def invert(head: Head, model: Model, gradient: Vector) -> Picture:
    """Return the ratio for the row that carries most; zeros where the constant's gradient is 0.

    A class whose samples are all fitted has no gradient, so an observer takes the loudest row.
    """
    weights, constants = head.rows(model, gradient)
    loudest = int(np.argmax(np.vecdot(weights, weights)))
    if constants[loudest] == 0:
        return np.zeros(head.inputs)
    ratio: Picture = weights[loudest] / constants[loudest]
    return np.clip(ratio, 0, 1) if head.sees_pixels else ratio


def infer_target(head: Head, model: Model, gradient: Vector) -> int:
    """Guess a target of the batch: only a sample's own score has a negative derivative.

    With one score (LR) its sign is −y.
    """
    _, constants = head.rows(model, gradient)
    if head.outputs == 1:
        return -1 if constants[0] > 0 else 1
    return int(np.argmin(constants))

"""The CNN: two 5×5 convolutions, each with 2×2 max-pooling and an activation, and one full connection.

The one file that imports torch. Per-sample gradients come out of one backward pass of the whole batch:
it stops at the layers' outputs, and a layer's gradient of sample i is the product of what came back
there with what the layer had seen. That costs less than a plain batch gradient by autograd.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch.nn import functional

from common.errors import ConfigurationError, nearest
from common.metrics import CLASSIFICATION, Metric
from common.models.gradients import RowGradients, even_parts
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

_KERNEL = 5
_FILTERS = 10
_CHUNK = 256  # samples that are evaluated at a time: bounds the memory of activations
_PART = 32  # likewise in a gradient, where patches come to them

ACTIVATIONS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {"relu": torch.relu, "tanh": torch.tanh}


class Cnn:
    """4,380 parameters for 28×28 (without padding) as for 16×16 (padding 2), with ten classes."""

    name = "cnn"
    metrics: tuple[Metric, ...] = CLASSIFICATION

    def __init__(self, *, shape: tuple[int, ...], classes: int, activation: str = "relu") -> None:
        if classes < 2 or len(shape) != 2:
            raise cannot_take(self.name, shape, classes, "grey images (height, width), at least 2 classes")
        if activation not in ACTIVATIONS:
            raise ConfigurationError(
                f"model.options.activation = {activation!r}: allowed are {', '.join(ACTIVATIONS)}"
                f"{nearest(activation, ACTIVATIONS)}"
            )
        self.shape = (shape[0], shape[1])
        self.classes = classes
        self._activation = ACTIVATIONS[activation]
        self.padding, (height, width) = _padding(self.shape)
        self.layout = layout(
            **{
                "conv1.weight": (_FILTERS, 1, _KERNEL, _KERNEL),
                "conv1.bias": (_FILTERS,),
                "conv2.weight": (_FILTERS, _FILTERS, _KERNEL, _KERNEL),
                "conv2.bias": (_FILTERS,),
                "full.weight": (classes, _FILTERS * height * width),
                "full.bias": (classes,),
            }
        )
        self.dimension = self.layout[-1].slice.stop
        self.first_layer = slice(0, self.layout[1].slice.stop)

    def initial(self, rng: np.random.Generator) -> Vector:
        """Draw x₁ uniformly in ±1/√fan-in of each layer, biases too."""
        x = np.empty(self.dimension, np.float32)
        for weight, bias in zip(self.layout[::2], self.layout[1::2], strict=True):
            bound = 1 / math.sqrt(math.prod(weight.shape[1:]))
            for block in (weight, bias):
                x[block.slice] = rng.uniform(-bound, bound, block.size)
        return x

    def features(self, images: Inputs) -> Features:
        check_inputs(images, self.name, self.shape)
        return images.astype(np.float32, copy=False).reshape(-1, 1, *self.shape)

    def targets(self, labels: Labels) -> Targets:
        return check_labels(labels, self.classes)

    def gradients(self, x: Vector, features: Features, targets: Targets) -> RowGradients:
        parameters = self._parameters(x)
        rows = np.empty((len(targets), self.dimension), np.float32)
        for part in _parts(len(targets)):
            self._per_sample(
                parameters, tensor_of(features[part]), tensor_of(targets[part]), out=tensor_of(rows[part])
            )
        return RowGradients(rows)

    def evaluate(self, x: Vector, features: Features, targets: Targets) -> dict[str, float]:
        if not len(targets):
            return {"accuracy": math.nan, "loss": math.nan}
        parameters = self._parameters(x)
        loss, right = 0.0, 0
        with torch.inference_mode():
            for start in range(0, len(targets), _CHUNK):
                chunk = slice(start, start + _CHUNK)
                labels = tensor_of(targets[chunk])
                *_, scores = self._forward(parameters, tensor_of(features[chunk]))
                losses = functional.cross_entropy(scores, labels, reduction="none")
                loss += float(losses.sum(dtype=torch.float64))
                right += int((scores.argmax(dim=1) == labels).sum())
        return {"accuracy": right / len(targets), "loss": loss / len(targets)}

    def _parameters(self, x: Vector) -> list[torch.Tensor]:
        flat = tensor_of(x)
        return [flat[block.slice].view(block.shape) for block in self.layout]

    def _forward(self, parameters: list[torch.Tensor], images: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """Return what each layer saw and gave: seen₁, given₁, seen₂, given₂, seen₃, scores."""
        weight1, bias1, weight2, bias2, weight3, bias3 = parameters
        seen1 = self._pad(images)
        given1 = functional.conv2d(seen1, weight1, bias1)
        if torch.is_grad_enabled():
            given1.requires_grad_()  # the pass back ends here, not at the parameters
        seen2 = self._pad(self._pool(given1))
        given2 = functional.conv2d(seen2, weight2, bias2)
        seen3 = self._pool(given2).flatten(1)
        return seen1, given1, seen2, given2, seen3, functional.linear(seen3, weight3, bias3)

    def _pool(self, given: torch.Tensor) -> torch.Tensor:
        # Pooling first is the same, the activations being monotone, and leaves them a quarter of the work.
        return self._activation(functional.max_pool2d(given, 2))

    def _pad(self, images: torch.Tensor) -> torch.Tensor:
        return functional.pad(images, (self.padding,) * 4) if self.padding else images

    def _per_sample(
        self, parameters: list[torch.Tensor], images: torch.Tensor, labels: torch.Tensor, *, out: torch.Tensor
    ) -> None:
        """Write the matrix of ∇F(x, ξ_i), a row each, into `out`."""
        with torch.enable_grad():
            seen1, given1, seen2, given2, seen3, scores = self._forward(parameters, images)
            loss = functional.cross_entropy(scores, labels, reduction="sum")
            back1, back2, back3 = torch.autograd.grad(loss, (given1, given2, scores))
        with torch.no_grad():
            full = back3[:, :, None] * seen3[:, None, :]
            parts = [*_convolution(seen1, back1), *_convolution(seen2, back2), full.flatten(1), back3]
            torch.cat(parts, dim=1, out=out)


def _convolution(seen: torch.Tensor, back: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return a convolution's per-sample gradients, of the weight and of the bias."""
    back = back.flatten(2)  # b × filters × places
    # unfold is a view, and this order copies whole lines; functional.unfold takes four times as long
    windows = seen.unfold(2, _KERNEL, 1).unfold(3, _KERNEL, 1).permute(0, 1, 4, 5, 2, 3)
    patches = windows.reshape(len(seen), -1, back.shape[2])
    return torch.bmm(back, patches.transpose(1, 2)).flatten(1), back.sum(dim=2)


def _padding(shape: tuple[int, int]) -> tuple[int, tuple[int, int]]:
    """Choose no padding where 4×4 or more is left after both pools, else 2; return it with what is left."""
    plain = [((side - 4) // 2 - 4) // 2 for side in shape]
    if min(plain) >= 4:
        return 0, (plain[0], plain[1])
    padded = [side // 4 for side in shape]
    if min(padded) < 1:
        raise ConfigurationError(f"images of {shape[0]}×{shape[1]}: the CNN needs at least 4×4")
    return 2, (padded[0], padded[1])


def _parts(count: int) -> Iterator[slice]:
    """Cut every chunk evenly into parts of at most _PART.

    A Poisson batch has any size. Buffers of megabytes, each time of another size, leave malloc's heap in
    holes: 100 MB after 300 batches of 256. Even parts need few, small sizes, and none is so small (below 4)
    that oneDNN would round it otherwise than its whole chunk.
    """
    for start in range(0, count, _CHUNK):
        for part in even_parts(min(_CHUNK, count - start), _PART):
            yield slice(start + part.start, start + part.stop)


def tensor_of(array: npt.NDArray[Any]) -> torch.Tensor:
    """View the array as a tensor; torch takes no read-only memory, so that is copied."""
    return torch.from_numpy(array if array.flags.writeable else array.copy())

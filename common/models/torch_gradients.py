"""Losses and metrics of a torch model, and its per-sample gradients in chunks that bound memory.

`vmap` runs the module on each sample by itself: a chunk of c samples gets c copies of the parameters, and the
gradient with respect to copy i is ∇F(x, ξ_i). No sample's gradient can see another sample, whatever the module
does. (What vmap cannot run is run on one sample after the other; torch_checks.py refuses a module that keeps a state
between them.) It takes as long as a vmap over `torch.func.grad`, and needs no part of torch's compiler (75 MB of an
edge).
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import numpy.typing as npt
import torch
from torch import nn
from torch.func import functional_call, vmap
from torch.nn import functional

from common.errors import ConfigurationError, LocalProtocolError
from common.metrics import ACCURACY, LOSS, RMSE, Better, Metric
from common.models.gradients import Matrix, RowGradients, even_parts
from common.quantities import Floats

Losses = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]  # outputs n × …, targets n -> n losses

TOP5 = Metric("top5", Better.HIGHER, share=True)
_TOP5_FROM = 10  # classes; with fewer the true one is nearly always among five


def _cross_entropy(outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    # as functional.cross_entropy, which under vmap loads a part of torch's compiler (20 MB of an edge)
    return -functional.log_softmax(outputs, dim=1).gather(1, targets[:, None]).squeeze(1)


def _mse(outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    return functional.mse_loss(column(outputs), targets, reduction="none")


def _huber(outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    return functional.huber_loss(column(outputs), targets, reduction="none")


CLASSIFYING: dict[str, Losses] = {"cross-entropy": _cross_entropy}
REGRESSING: dict[str, Losses] = {"mse": _mse, "huber": _huber}


def column(outputs: torch.Tensor) -> torch.Tensor:
    """Return n predictions from outputs of n or n × 1."""
    return outputs.squeeze(1) if outputs.dim() == 2 else outputs


def losses_for(loss: str | Losses | None, classes: int) -> Losses:
    """Return the losses by name or as given; without a name cross-entropy with classes, mse for real targets."""
    if callable(loss):
        return loss
    known = CLASSIFYING if classes else REGRESSING
    chosen = next(iter(known)) if loss is None else loss
    if chosen not in known:
        what = f"classes = {classes}" if classes else "real targets (classes = 0)"
        raise ConfigurationError(
            f"loss = {chosen!r}: with {what} allowed are {', '.join(known)} or a function of (outputs, targets)"
        )
    return known[chosen]


def check_outputs(outputs: object, count: int, classes: int, *, named_loss: bool) -> torch.Tensor:
    """Return the module's outputs; raise ConfigurationError where they do not fit the samples or the loss."""
    if not isinstance(outputs, torch.Tensor):
        raise ConfigurationError(f"the module returns {type(outputs).__name__}: must be one tensor")
    shape = tuple(outputs.shape)
    allowed = [(count, classes)] if classes else [(count,), (count, 1)]
    if named_loss and shape not in allowed:
        raise ConfigurationError(
            f"the module returns {_sizes(shape)} for {count} inputs: with classes = {classes} must be"
            f" {' or '.join(_sizes(one) for one in allowed)}"
        )
    if shape[:1] != (count,):
        raise ConfigurationError(
            f"the module returns {_sizes(shape)} for {count} inputs: must be {count} × …"
        )
    return outputs


def check_losses(losses: object, count: int) -> torch.Tensor:
    """Return one loss per sample; raise ConfigurationError where a function of the user's gives anything else."""
    if not isinstance(losses, torch.Tensor) or tuple(losses.shape) != (count,):
        found = _sizes(tuple(losses.shape)) if isinstance(losses, torch.Tensor) else type(losses).__name__
        raise ConfigurationError(
            f"loss returns {found} for {count} samples: must be {count} numbers, one per sample"
            " (reduction='none')"
        )
    return losses


def metrics_for(outputs: torch.Tensor, classes: int) -> tuple[Metric, ...]:
    """Return what these outputs are measured by, the headline metric first."""
    if classes and tuple(outputs.shape[1:]) == (classes,):
        return (ACCURACY, *([TOP5] if classes >= _TOP5_FROM else []), LOSS)
    if not classes and tuple(outputs.shape[1:]) in ((), (1,)):
        return (RMSE, LOSS)
    return (LOSS,)


def summed(metric: Metric, outputs: torch.Tensor, targets: torch.Tensor) -> float:
    """Return a metric's sum over samples; of RMSE the sum of squares."""
    if metric == RMSE:
        return float((column(outputs) - targets).square().sum(dtype=torch.float64))
    if metric == TOP5:
        return float((outputs.topk(5, dim=1).indices == targets[:, None]).sum())
    return float((outputs.argmax(dim=1) == targets).sum())


def _sizes(shape: tuple[int, ...]) -> str:
    return " × ".join(map(str, shape)) or "a single number"


CHUNK_BYTES = 32 << 20  # of copies, gradients and activations that are held at once
ROWS_BYTES = 128 << 20  # of b × N that is kept between the norms and the sum; larger ones are made twice
_COPIES = 3  # of the parameters per sample: laid out for the products, the gradient, its row

Parameters = dict[str, torch.Tensor]


def call_with(module: nn.Module, parameters: Parameters, inputs: torch.Tensor) -> torch.Tensor:
    """Run the module with these values of its parameters.

    A parameter may be at several places, and a layer may occur twice. Of such a layer `functional_call` by itself puts
    the wrong tensors back, so every place is named once here.
    """
    names = {id(parameter): name for name, parameter in module.named_parameters()}
    places = {
        f"{path}.{leaf}" if path else leaf: names[id(parameter)]
        for path, layer in module.named_modules()
        for leaf, parameter in layer.named_parameters(recurse=False, remove_duplicate=False)
    }
    values = {place: parameters[name] for place, name in places.items() if name in parameters}
    outputs: torch.Tensor = functional_call(module, values, (inputs,), tie_weights=False)
    return outputs


def per_sample(
    module: nn.Module, losses: Losses, parameters: Parameters, inputs: torch.Tensor, targets: torch.Tensor
) -> list[torch.Tensor]:
    """Return c × … gradients, one tensor for each parameter; c samples are given."""

    def loss(copy: Parameters, sample: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        return losses(call_with(module, copy, sample[None]), target[None]).sum()

    with torch.enable_grad():
        copies = {
            name: value.detach().expand(len(inputs), *value.shape).requires_grad_()
            for name, value in parameters.items()
        }
        total = vmap(loss)(copies, inputs, targets).sum()
        found = torch.autograd.grad(total, list(copies.values()), allow_unused=True, materialize_grads=True)
    return [gradient.flatten(1) for gradient in found]


def one_by_one(
    module: nn.Module, losses: Losses, parameters: Parameters, inputs: torch.Tensor, targets: torch.Tensor
) -> list[torch.Tensor]:
    """Return the same, as one tensor, by a pass for each sample: for what vmap cannot run, such as nn.LSTM."""
    with torch.enable_grad():
        own = {name: value.detach().requires_grad_() for name, value in parameters.items()}
        rows = []
        for i in range(len(inputs)):
            loss = losses(call_with(module, own, inputs[i : i + 1]), targets[i : i + 1]).sum()
            found = torch.autograd.grad(loss, list(own.values()), allow_unused=True, materialize_grads=True)
            rows.append(torch.cat([gradient.flatten() for gradient in found]))
    return [torch.stack(rows)]


PerSample = Callable[[nn.Module, Losses, Parameters, torch.Tensor, torch.Tensor], list[torch.Tensor]]


def saved_bytes(module: nn.Module, losses: Losses, inputs: torch.Tensor, targets: torch.Tensor) -> int:
    """Return what one pass holds of these inputs until its way back: activations, without the parameters."""
    own = {value.untyped_storage().data_ptr() for value in (*module.parameters(), *module.buffers())}
    held: dict[int, int] = {}

    def pack(tensor: torch.Tensor) -> torch.Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in own:
            held[storage.data_ptr()] = storage.nbytes()
        kept.append(tensor)  # else an address may come twice
        return tensor

    kept: list[torch.Tensor] = []
    with torch.enable_grad(), torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        losses(module(inputs), targets).sum()
    return sum(held.values())


def chunk_size(dimension: int, activations: int) -> int:
    """Return how many samples fit into CHUNK_BYTES: 3 · 4N bytes each, and the activations there and back."""
    return max(1, CHUNK_BYTES // (_COPIES * 4 * dimension + 2 * activations))


def batch_bytes(batch: int, dimension: int, activations: int) -> int:
    """Return what the gradients of a batch take at their peak."""
    sample = _COPIES * 4 * dimension + 2 * activations
    working = min(batch, chunk_size(dimension, activations)) * sample
    return working + min(batch * 4 * dimension, ROWS_BYTES)


RowsOf = Callable[[slice], Matrix]
Measure = Callable[[RowGradients], Floats]


def collected(rows_of: RowsOf, count: int, dimension: int, most: int) -> RowGradients | RepeatedGradients:
    """Return the gradients of a batch, their rows kept where b × N fits."""
    if 4 * count * dimension > ROWS_BYTES:
        return RepeatedGradients(rows_of, list(even_parts(count, most)), dimension, np.zeros(count, np.bool_))
    if 0 < count <= most:
        return RowGradients(rows_of(slice(0, count)))
    rows = np.empty((count, dimension), np.float32)
    for part in even_parts(count, most):
        rows[part] = rows_of(part)
    return RowGradients(rows)


class RepeatedGradients:
    """Rows that are computed twice, a chunk at a time, for the norms and for the sum: b × N is never held.

    What is summed must be what was measured, or clipping would bound something else: both times the same
    numbers go through the same operations, and that their norms agree to the bit is checked.
    """

    __slots__ = ("_dimension", "_measured", "_null", "_parts", "_rows_of")

    def __init__(
        self, rows_of: RowsOf, parts: list[slice], dimension: int, null: npt.NDArray[np.bool_]
    ) -> None:
        self._rows_of, self._parts, self._dimension, self._null = rows_of, parts, dimension, null
        self._measured: tuple[Measure, Floats] | None = None  # what clipping goes by

    def norms(self) -> Floats:
        return self._norms(RowGradients.norms)

    def l1_norms(self) -> Floats:
        return self._norms(RowGradients.l1_norms)

    def nulled(self, rows: npt.NDArray[np.bool_]) -> RepeatedGradients:
        found = RepeatedGradients(self._rows_of, self._parts, self._dimension, self._null | rows)
        if self._measured is not None:
            measure, norms = self._measured
            found._measured = measure, np.where(rows, 0, norms)
        return found

    def weighted_sum(self, weights: Floats | None) -> Floats:
        total: Floats = np.zeros(self._dimension, np.float32 if weights is None else np.float64)
        for part in self._parts:
            rows = self._rows(part)
            if self._measured is not None:
                measure, norms = self._measured
                if not np.array_equal(measure(rows), norms[part], equal_nan=True):
                    raise LocalProtocolError("the model gave another gradient for the same sample")
            total += rows.weighted_sum(None if weights is None else weights[part])
        return total

    def _norms(self, measure: Measure) -> Floats:
        found = [measure(self._rows(part)) for part in self._parts]
        norms = np.concatenate(found) if found else np.zeros(0)
        self._measured = measure, norms
        return norms.copy()  # clipping writes into them

    def _rows(self, part: slice) -> RowGradients:
        rows = self._rows_of(part)
        rows[self._null[part]] = 0
        return RowGradients(rows)

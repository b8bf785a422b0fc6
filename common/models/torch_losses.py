"""The losses of a torch model, one number per sample, and the metrics that go with its outputs."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch.nn import functional

from common.errors import ConfigurationError
from common.metrics import ACCURACY, LOSS, Better, Metric

Losses = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]  # outputs n × …, targets n -> n losses

TOP5 = Metric("top5", Better.HIGHER, share=True)
RMSE = Metric("rmse", Better.LOWER)
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

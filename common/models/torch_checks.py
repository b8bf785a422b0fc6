"""What a torch module may not do: mix samples, keep state, or draw random numbers.

A privacy statement is about one record, so F(x; ξ) must be a function of that record alone; and a replay must
find the same numbers again. Layers that are known to breach it are refused by type; of all others it is tried
on made-up inputs, never on records.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.dropout import _DropoutNd
from torch.nn.modules.instancenorm import _InstanceNorm

from common.errors import ConfigurationError
from common.models.torch_gradients import Parameters, PerSample, one_by_one, per_sample
from common.models.torch_losses import Losses, check_losses

MADE_UP = 3  # inputs that a module is tried on
_TOLERANCE = 1e-3  # of the largest number: float32, in another order of summation
_REPLAY = "a replay and an audit must find the same numbers again"


@dataclass(frozen=True, slots=True)
class Trial:
    """Made-up samples."""

    inputs: torch.Tensor  # MADE_UP × shape
    targets: torch.Tensor


def made_up(shape: tuple[int, ...], classes: int, tokens: int | None) -> Trial:
    """Return samples from nobody's data, of sizes that differ: what leaks from one to another shows."""
    generator = torch.Generator().manual_seed(1)
    size = (MADE_UP, *shape)
    if tokens is None:
        inputs = torch.rand(size, generator=generator)
        inputs[1] *= 4
    else:
        inputs = torch.randint(tokens, size, generator=generator, dtype=torch.int32)
    if classes:
        return Trial(inputs, torch.randint(classes, (MADE_UP,), generator=generator))
    return Trial(inputs, torch.randn(MADE_UP, generator=generator))


def check_layers(module: nn.Module) -> None:
    """Refuse by type what is known to mix samples, to keep statistics of them, or to draw random numbers."""
    for path, layer in module.named_modules():
        reason = _reason(layer)
        if reason:
            raise ConfigurationError(f"{_named(path, layer)} {reason}")


def _reason(layer: nn.Module) -> str:
    fixed = (
        not layer.training
    )  # as the factory left it: `layer.eval()` keeps pretrained statistics as they are
    if isinstance(layer, _BatchNorm) and not (fixed and layer.track_running_stats):
        return "mixes samples; use GroupNorm or LayerNorm"
    if isinstance(layer, _InstanceNorm) and layer.track_running_stats and not fixed:
        return "keeps statistics of the samples; use track_running_stats=False or GroupNorm"
    random = isinstance(layer, _DropoutNd) and layer.p > 0
    random = random or (isinstance(layer, nn.MultiheadAttention | nn.RNNBase) and layer.dropout > 0)
    random = random or isinstance(layer, nn.RReLU | nn.FractionalMaxPool2d | nn.FractionalMaxPool3d)
    if random and not fixed:
        return f"draws random numbers, and {_REPLAY}; leave it out: clipping and noise already regularise"
    return ""


def check_behaviour(module: nn.Module, losses: Losses, trial: Trial, parameters: Parameters) -> PerSample:
    """Try the module on made-up samples: no state, no randomness, no mixing; the gradients must agree.

    Return what makes its per-sample gradients: vmap, or one pass for each sample where vmap cannot run the module.
    """
    _check_state(module, trial)
    _check_randomness(module, trial)
    _check_mixing(module, losses, trial)
    return _check_gradients(module, losses, trial, parameters)


def _check_state(module: nn.Module, trial: Trial) -> None:
    before = {name: value.clone() for name, value in module.named_buffers()}
    with torch.no_grad():
        module(trial.inputs)
    for name, value in module.named_buffers():
        if name not in before or not torch.equal(before[name], value):
            raise ConfigurationError(
                f"buffer {name!r} changes when the module is run: it would keep something of the records;"
                " use a layer without running statistics"
            )


def _check_randomness(module: nn.Module, trial: Trial) -> None:
    found = []
    with torch.no_grad(), torch.random.fork_rng(devices=[]):
        for seed in (1, 2):
            torch.default_generator.manual_seed(seed)
            with _recorded(module) as seen:
                module(trial.inputs)
            found.append(seen)
    for (path, layer, first), (_, _, second) in zip(*found, strict=False):
        if not torch.equal(first, second):
            raise ConfigurationError(
                f"{_named(path, layer)} gives other outputs for the same inputs: it draws random numbers or keeps"
                f" a state, and {_REPLAY}"
            )


def _check_mixing(module: nn.Module, losses: Losses, trial: Trial) -> None:
    with torch.no_grad():
        with _recorded(module) as together:
            outputs = module(trial.inputs)
        whole = check_losses(losses(outputs, trial.targets), MADE_UP)
        if not torch.isfinite(whole).all():
            raise ConfigurationError("the loss of a made-up sample is not finite at the initial weights")
        for i in range(MADE_UP):
            with _recorded(module) as alone:
                output = module(trial.inputs[i : i + 1])
            for (path, layer, batch), (_, _, single) in zip(together, alone, strict=False):
                if (
                    batch.shape[:1] == (MADE_UP,)
                    and single.shape[:1] == (1,)
                    and not _close(batch[i], single[0])
                ):
                    raise ConfigurationError(f"{_named(path, layer)} mixes samples: {_IN_A_BATCH}")
            if not _close(outputs[i], output[0]):
                raise ConfigurationError(f"the module mixes samples: {_IN_A_BATCH}")
            loss = check_losses(losses(output, trial.targets[i : i + 1]), 1)
            if not _close(whole[i], loss[0]):
                raise ConfigurationError(f"loss mixes samples: {_IN_A_BATCH}")


_IN_A_BATCH = (
    "one that is in a batch gets another value than alone; normalise each by itself (GroupNorm, LayerNorm)"
)


def _check_gradients(module: nn.Module, losses: Losses, trial: Trial, parameters: Parameters) -> PerSample:
    """Compare a sample's gradient out of a batch, by plain autograd, with its gradient by itself."""
    made: PerSample = per_sample
    try:
        alone = made(module, losses, parameters, trial.inputs, trial.targets)
    except (RuntimeError, NotImplementedError, ValueError):  # nn.LSTM, a branch on a value
        made = one_by_one
        alone = made(module, losses, parameters, trial.inputs, trial.targets)
    trained = [module.get_parameter(name) for name in parameters]
    batch = losses(module(trial.inputs), trial.targets)
    for i in range(MADE_UP):
        found = torch.autograd.grad(
            batch[i], trained, retain_graph=True, allow_unused=True, materialize_grads=True
        )
        together = torch.cat([gradient.flatten() for gradient in found])
        single = torch.cat([gradient[i] for gradient in alone])
        if not torch.isfinite(single).all():
            raise ConfigurationError("the gradient of a made-up sample is not finite at the initial weights")
        if not _close(together, single):
            raise ConfigurationError(
                "the gradient of a sample in a batch is not its gradient alone: the module or its loss mixes samples"
            )
    return made


@contextlib.contextmanager
def _recorded(module: nn.Module) -> Iterator[list[tuple[str, nn.Module, torch.Tensor]]]:
    """Note what every layer gives, in the order in which they end."""
    seen: list[tuple[str, nn.Module, torch.Tensor]] = []

    def note(path: str) -> Callable[[nn.Module, object, object], None]:
        def hook(layer: nn.Module, _: object, output: object) -> None:
            if isinstance(output, torch.Tensor):
                seen.append((path, layer, output.detach().clone()))

        return hook

    hooks = [layer.register_forward_hook(note(path)) for path, layer in module.named_modules()]
    try:
        yield seen
    finally:
        for handle in hooks:
            handle.remove()


def _close(first: torch.Tensor, second: torch.Tensor) -> bool:
    if first.shape != second.shape:
        return False
    if not first.numel():
        return True
    apart = (first != second) & ~(first.isnan() & second.isnan())  # a mask's −∞ is equal to itself
    if not apart.any():
        return True
    first, second = first[apart], second[apart]
    if not (torch.isfinite(first).all() and torch.isfinite(second).all()):
        return False
    scale = float(torch.maximum(first.abs().max(), second.abs().max()))
    return float((first - second).abs().max()) <= _TOLERANCE * scale + 1e-6


def _named(path: str, layer: nn.Module) -> str:
    kind = type(layer).__name__
    return f"layer {path!r} ({kind})" if path else f"the module ({kind})"

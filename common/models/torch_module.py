"""A user's torch module: built alike by every party, frozen parameters, weights from a file, and what is refused.

A privacy statement is about one record, so F(x; ξ) must be a function of that record alone; and a replay must find the
same numbers again. Layers that are known to mix samples, keep state or draw random numbers are refused by type; all
others are tried on made-up inputs, never on records.
"""

from __future__ import annotations

import contextlib
import fnmatch
import hashlib
import math
import re
import warnings
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path, PurePosixPath
from typing import NamedTuple

import torch
from safetensors import SafetensorError
from safetensors.torch import load
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.dropout import _DropoutNd
from torch.nn.modules.instancenorm import _InstanceNorm

from common.errors import ConfigurationError
from common.models.torch_gradients import Losses, Parameters, PerSample, check_losses, one_by_one, per_sample

Weights = Mapping[str, torch.Tensor]
_SHA256 = re.compile(r"[0-9a-f]{64}")
_HEADER = 1 << 20  # bytes that a file may have beside the module's own numbers


def build(make: Callable[[], object], example: torch.Tensor, seed: int) -> nn.Module:
    """Make the module with torch's generator at `seed`; the generator is put back afterwards."""
    with torch.random.fork_rng(devices=[]), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of lazy layers
        torch.default_generator.manual_seed(seed)
        module = make()
        if not isinstance(module, nn.Module):
            raise ConfigurationError(
                f"the factory returns {type(module).__name__}: must be a torch.nn.Module"
            )
        if any(nn.parameter.is_lazy(parameter) for parameter in module.parameters()):
            with torch.no_grad():
                module(example)  # lazy layers take their size from what they first see
    _check_kinds(module)
    return module


def _check_kinds(module: nn.Module) -> None:
    for name, parameter in module.named_parameters():
        if parameter.dtype != torch.float32 or parameter.device.type != "cpu":
            raise ConfigurationError(
                f"parameter {name!r}: {parameter.dtype} on {parameter.device}: must be torch.float32 on the CPU"
            )
        if not torch.isfinite(parameter).all():
            raise ConfigurationError(f"parameter {name!r}: not finite as the factory makes it")


def check_same(first: nn.Module, second: nn.Module) -> None:
    """Refuse a factory that draws from elsewhere than torch's generator: parties would hold different weights."""
    one, other = first.state_dict(), second.state_dict()
    for name in sorted({*one, *other}):
        if name not in one or name not in other or not torch.equal(one[name], other[name]):
            raise ConfigurationError(
                f"{name!r} differs when the factory is called again: it may draw from torch's generator alone"
            )


def freeze(module: nn.Module, patterns: object) -> None:
    """Freeze the parameters that match any of the patterns (`features.*`), beside those the factory froze."""
    names = [name for name, _ in module.named_parameters()]
    if not isinstance(patterns, Sequence) or isinstance(patterns, str):
        raise ConfigurationError(f"model.options.freeze = {patterns!r}: must be a list of patterns")
    for pattern in patterns:
        found = fnmatch.filter(names, pattern) if isinstance(pattern, str) else []
        if not found:
            raise ConfigurationError(
                f"model.options.freeze = {pattern!r}: matches no parameter; there are {_listed(names)}"
            )
        for name in found:
            module.get_parameter(name).requires_grad_(False)
    if not any(parameter.requires_grad for parameter in module.parameters()):
        raise ConfigurationError("the module has no parameter left to train")


def read_weights(pretrained: object, module: nn.Module, data_dir: Path | None) -> Weights:
    """Return the numbers of a safetensors file below the data directory, checked against the module.

    The option reads {file = "….safetensors", sha256 = "…"}. A welcome may carry it, so the name stays below the
    operator's data directory, the file is no larger than the module, and nothing of it is said but its name.
    """
    path, digest = _located(pretrained, data_dir)
    state = module.state_dict()
    size = sum(tensor.numel() * max(tensor.element_size(), 4) for tensor in state.values())
    try:
        if path.stat().st_size > size + _HEADER:
            raise ConfigurationError(
                f"model.options.pretrained.file = {path.name!r}: larger than the module's own {size} bytes"
            )
        content = path.read_bytes()
    except OSError as error:
        raise ConfigurationError(
            f"model.options.pretrained.file: {path}: cannot be read ({error.strerror}); it belongs into the data"
            " directory of the cloud and of every edge"
        ) from error
    if hashlib.sha256(content).hexdigest() != digest:
        raise ConfigurationError(
            f"model.options.pretrained.sha256 = {digest!r}: {path} is another file; all parties need the same"
        )
    try:
        weights = load(content)
    except (SafetensorError, ValueError, RuntimeError, KeyError) as error:
        raise ConfigurationError(f"model.options.pretrained.file: {path}: no safetensors file") from error
    return {name: _fitting(name, tensor, state) for name, tensor in weights.items()}


def _located(pretrained: object, data_dir: Path | None) -> tuple[Path, str]:
    if not isinstance(pretrained, Mapping) or set(pretrained) != {"file", "sha256"}:
        raise ConfigurationError(
            f'model.options.pretrained = {pretrained!r}: must read {{file = "name.safetensors", sha256 = "…"}}'
        )
    name, digest = pretrained["file"], pretrained["sha256"]
    relative = PurePosixPath(name) if isinstance(name, str) else PurePosixPath("/")
    odd = not isinstance(name, str) or "\\" in name or ":" in name or "\0" in name
    if odd or relative.is_absolute() or ".." in relative.parts or relative.suffix != ".safetensors":
        raise ConfigurationError(
            f"model.options.pretrained.file = {name!r}: must be a .safetensors file, by its path below the"
            " data directory"
        )
    if not isinstance(digest, str) or not _SHA256.fullmatch(digest):
        raise ConfigurationError(
            f"model.options.pretrained.sha256 = {digest!r}: must be the 64 digits of `sha256sum {name}`"
        )
    if data_dir is None:
        raise ConfigurationError("model.options.pretrained: no data directory is given to look in")
    return data_dir / relative, digest


def _fitting(name: str, tensor: torch.Tensor, state: Weights) -> torch.Tensor:
    """Return one tensor of the file in the module's own type."""
    key = f"model.options.pretrained: {name!r}"
    if name not in state:
        raise ConfigurationError(f"{key}: the module has no such weights; there are {_listed(list(state))}")
    meant = state[name]
    if tensor.shape != meant.shape or tensor.is_floating_point() != meant.is_floating_point():
        raise ConfigurationError(
            f"{key}: {tensor.dtype} of {tuple(tensor.shape)}: the module has {meant.dtype} of {tuple(meant.shape)}"
        )
    if not torch.isfinite(tensor).all():
        raise ConfigurationError(f"{key}: not finite")
    return tensor.to(meant.dtype)


def take(module: nn.Module, weights: Weights) -> None:
    """Put a file's weights into the module; what is frozen must be among them."""
    for name, parameter in module.named_parameters():
        if not parameter.requires_grad and name not in weights:
            raise ConfigurationError(f"model.options.pretrained: lacks {name!r}, which is frozen")
    module.load_state_dict(dict(weights), strict=False)


def _listed(names: list[str], most: int = 8) -> str:
    return ", ".join(names[:most]) + (", …" if len(names) > most else "") if names else "none"


def seed_from(draw: float) -> int:
    """Return a seed of torch's generator from a uniform number."""
    return math.floor(draw * (1 << 53))


MADE_UP = 3  # inputs that a module is tried on
_TOLERANCE = 1e-3  # of the largest number: float32, in another order of summation
_REPLAY = "a replay and an audit must find the same numbers again"


class Trial(NamedTuple):
    """Made-up samples."""

    inputs: torch.Tensor  # MADE_UP × shape
    targets: torch.Tensor


def made_up(shape: tuple[int, ...], classes: int, tokens: int | None) -> Trial:
    """Return samples of sizes that differ: what leaks from one to another shows."""
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
        if reason := _reason(layer):
            raise ConfigurationError(f"{_named(path, layer)} {reason}")


def _reason(layer: nn.Module) -> str:
    fixed = not layer.training  # as the factory left it: `layer.eval()` keeps pretrained statistics
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
    with torch.random.fork_rng(devices=[]):
        for seed in (1, 2):
            torch.default_generator.manual_seed(seed)
            found.append(_layers(module, trial.inputs)[1])
    for (path, layer, first), (_, _, second) in zip(*found, strict=False):
        if not torch.equal(first, second):
            raise ConfigurationError(
                f"{_named(path, layer)} gives other outputs for the same inputs: it draws random numbers or keeps"
                f" a state, and {_REPLAY}"
            )


def _check_mixing(module: nn.Module, losses: Losses, trial: Trial) -> None:
    with torch.no_grad():
        outputs, together = _layers(module, trial.inputs)
        whole = check_losses(losses(outputs, trial.targets), MADE_UP)
        if not torch.isfinite(whole).all():
            raise ConfigurationError("the loss of a made-up sample is not finite at the initial weights")
        for i in range(MADE_UP):
            output, alone = _layers(module, trial.inputs[i : i + 1])
            for (path, layer, batch), (_, _, single) in zip(together, alone, strict=False):
                of_samples = batch.shape[:1] == (MADE_UP,) and single.shape[:1] == (1,)
                if of_samples and not _close(batch[i], single[0]):
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


def _layers(
    module: nn.Module, inputs: torch.Tensor
) -> tuple[torch.Tensor, list[tuple[str, nn.Module, torch.Tensor]]]:
    """Run the module; return its outputs and what every layer gives, in the order in which they end."""
    seen: list[tuple[str, nn.Module, torch.Tensor]] = []

    def note(path: str) -> Callable[[nn.Module, object, object], None]:
        def hook(layer: nn.Module, _: object, output: object) -> None:
            if isinstance(output, torch.Tensor):
                seen.append((path, layer, output.detach().clone()))

        return hook

    with contextlib.ExitStack() as hooks, torch.no_grad():
        for path, layer in module.named_modules():
            hooks.enter_context(layer.register_forward_hook(note(path)))
        return module(inputs), seen


def _close(first: torch.Tensor, second: torch.Tensor) -> bool:
    if first.shape != second.shape:
        return False
    apart = (first != second) & ~(first.isnan() & second.isnan())  # a mask's −∞ is equal to itself
    if not apart.any():
        return True
    both = torch.stack([first[apart], second[apart]])
    scale, most = float(both.abs().max()), float((both[0] - both[1]).abs().max())
    return math.isfinite(scale) and most <= _TOLERANCE * scale + 1e-6


def _named(path: str, layer: nn.Module) -> str:
    kind = type(layer).__name__
    return f"layer {path!r} ({kind})" if path else f"the module ({kind})"

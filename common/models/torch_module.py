"""A user's torch module: made alike by every party, with frozen parameters and weights from a file."""

from __future__ import annotations

import fnmatch
import hashlib
import math
import re
import warnings
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path, PurePosixPath

import torch
from safetensors import SafetensorError
from safetensors.torch import load
from torch import nn

from common.errors import ConfigurationError

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

"""Any torch module as a model: `Model = mapa.torch_model(factory, loss)` in a file of one's own.

Imported only where a scenario names such a file. Inputs are n × shape in float32 (or tokens), parameters are one
flat vector with the module's own names, gradients come per sample (torch_gradients.py), and what would mix
samples is refused when the model is made (torch_modules.py).
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt
import torch
from torch import nn

from common.errors import ConfigurationError, require
from common.metrics import LOSS, RMSE, Metric
from common.models import torch_gradients as samples
from common.models import torch_module as modules
from common.models.cnn import tensor_of
from common.models.gradients import Matrix, even_parts
from common.models.model import Features, Inputs, Labels, Targets, check_inputs, check_labels, layout
from common.models.torch_gradients import Losses, check_outputs, losses_for, metrics_for, summed
from common.quantities import PerSampleGradients, Vector

Factory = Callable[..., nn.Module]  # of (shape, classes, **options)
_PUBLIC_SEED = (
    4_022  # of what no party trains: frozen parameters and buffers are the same for all, in every run
)
_MOST_TOKENS = 1 << 24  # whole numbers up to here are exact in float32, which inputs come in


class TorchModel:
    """F(x; ξ) = loss(module(ξ), target); x holds the parameters that train, in the module's own order."""

    edge_image: ClassVar[str] = "mapa-edge-torch"  # what containers of its edges need

    def __init__(
        self,
        factory: Factory,
        loss: str | Losses | None = None,
        *,
        shape: tuple[int, ...],
        classes: int,
        name: str | None = None,
        tokens: int | None = None,
        pretrained: Mapping[str, str] | None = None,
        freeze: Sequence[str] = (),
        data_dir: Path | None = None,
        **options: object,
    ) -> None:
        if find_spec("torch._inductor") is None:
            raise ConfigurationError(
                "this torch has only what the built-in CNN needs (image mapa-edge-cnn): take the image mapa-edge-torch"
            )
        require(classes == 0 or classes > 1, "classes", classes, "0 (real targets) or at least 2")
        require(tokens is None or 0 < tokens <= _MOST_TOKENS, "tokens", tokens, f"from 1 to {_MOST_TOKENS}")
        self.name = name or str(getattr(factory, "__name__", "torch"))
        self.shape, self.classes, self.tokens = tuple(shape), classes, tokens
        self._losses = losses_for(loss, classes)
        self._make = partial(factory, self.shape, classes, **options)
        self._trial = modules.made_up(self.shape, classes, tokens)
        self._module = self._build(_PUBLIC_SEED)
        modules.check_same(self._module, self._build(_PUBLIC_SEED))
        modules.freeze(self._module, freeze)
        self._weights: modules.Weights = {}
        if pretrained is not None:
            self._weights = modules.read_weights(pretrained, self._module, data_dir)
            modules.take(self._module, self._weights)
        modules.check_layers(self._module)
        outputs = check_outputs(self._tried(), modules.MADE_UP, classes, named_loss=not callable(loss))
        self.metrics: tuple[Metric, ...] = metrics_for(outputs, classes)
        trained: samples.Parameters = {
            key: value for key, value in self._module.named_parameters() if value.requires_grad
        }
        self._per_sample = modules.check_behaviour(self._module, self._losses, self._trial, trained)
        self.layout = layout(**{key: tuple(value.shape) for key, value in trained.items()})
        self._places = [(block.name, block.shape, block.slice) for block in self.layout]
        self.dimension = self.layout[-1].slice.stop
        first = self.layout[0].name.rpartition(".")[0]
        own = [block for block in self.layout if block.name.rpartition(".")[0] == first]
        self.first_layer = slice(
            0, own[-1].slice.stop if own == list(self.layout[: len(own)]) else own[0].size
        )
        one = self._trial.inputs[:1], self._trial.targets[:1]
        self._activations = samples.saved_bytes(self._module, self._losses, *one)

    def initial(self, rng: np.random.Generator) -> Vector:
        """Draw x₁ as the factory does, from this generator alone; a pretrained file's numbers stay as they are."""
        fresh = dict(self._build(modules.seed_from(rng.random())).named_parameters())
        x = np.empty(self.dimension, np.float32)
        for block in self.layout:
            value = self._weights.get(block.name, fresh[block.name])
            x[block.slice] = value.detach().reshape(-1).numpy()
        return x

    def features(self, images: Inputs) -> Features:
        """Return n × shape; tokens as whole numbers."""
        check_inputs(images, self.name, self.shape)
        shaped = images.astype(np.float32, copy=False).reshape(-1, *self.shape)
        return shaped if self.tokens is None else _tokens(shaped, self.tokens)

    def targets(self, labels: Labels) -> Targets:
        if self.classes:
            return check_labels(labels, self.classes)
        real: Any = labels.astype(np.float32)
        if real.ndim != 1 or not np.isfinite(real).all():
            raise ConfigurationError(f"targets: {self.name} needs one finite number for each sample")
        return real  # type: ignore[no-any-return]

    def gradients(self, x: Vector, features: Features, targets: Targets) -> PerSampleGradients:
        """Return ∇F(x, ξ_i), at most 32 MB of copies and activations at a time.

        Up to 128 MB of b × N are kept; a larger batch is gone through twice, for the norms and for the sum.
        """
        parameters = self._parameters(x.copy())  # the cloud may change x while the gradients are still wanted

        def rows_of(part: slice) -> Matrix:
            found = self._per_sample(
                self._module, self._losses, parameters, tensor_of(features[part]), tensor_of(targets[part])
            )
            rows: Matrix = torch.cat(found, dim=1).numpy()
            return rows

        most = samples.chunk_size(self.dimension, self._activations)
        return samples.collected(rows_of, len(targets), self.dimension, most)

    def batch_bytes(self, batch: int) -> int:
        """Return what the gradients of a batch take at their peak, with the module's own numbers."""
        own = sum(int(value.nbytes) for value in self._module.state_dict().values())
        return own + samples.batch_bytes(batch, self.dimension, self._activations)

    def evaluate(self, x: Vector, features: Features, targets: Targets) -> dict[str, float]:
        count = len(targets)
        if not count:
            return {metric.name: math.nan for metric in self.metrics}
        parameters, sums = self._parameters(x), dict.fromkeys(self.metrics, 0.0)
        with torch.no_grad():
            for part in even_parts(count, samples.chunk_size(0, max(self._activations, 1 << 14))):
                wanted = tensor_of(targets[part])
                outputs = samples.call_with(self._module, parameters, tensor_of(features[part]))
                for metric in self.metrics:
                    if metric == LOSS:
                        sums[metric] += float(self._losses(outputs, wanted).sum(dtype=torch.float64))
                    else:
                        sums[metric] += summed(metric, outputs, wanted)
        return {
            metric.name: math.sqrt(total / count) if metric == RMSE else total / count
            for metric, total in sums.items()
        }

    def _build(self, seed: int) -> nn.Module:
        return modules.build(self._make, self._trial.inputs, seed)

    def _tried(self) -> object:
        try:
            with torch.no_grad(), torch.random.fork_rng(devices=[]):
                return self._module(self._trial.inputs)
        except (RuntimeError, ValueError, IndexError, TypeError) as error:
            sizes = " × ".join(map(str, self._trial.inputs.shape))
            raise ConfigurationError(
                f"the module fails on made-up inputs of {sizes} ({type(error).__name__}: {error})"
            ) from error

    def _parameters(self, x: Vector) -> samples.Parameters:
        flat = tensor_of(x)
        return {name: flat[place].view(shape) for name, shape, place in self._places}


def torch_model(
    factory: Factory, loss: str | Losses | None = None, *, name: str | None = None, tokens: int | None = None
) -> type[TorchModel]:
    """Return a class that a scenario names: model.name = "my_file:Model" after `Model = mapa.torch_model(factory)`.

    - factory: a function of (shape, classes) that returns a torch.nn.Module; further arguments with a default are
      options of the scenario.
    - loss: "cross-entropy" (classes), "mse" or "huber" (real targets), or a function of (outputs, targets) that
      returns one loss for each sample.
    - tokens: inputs are whole numbers below this one, not real numbers.
    """

    class FactoryModel(TorchModel):
        def __init__(self, *, shape: tuple[int, ...], classes: int, **options: Any) -> None:
            super().__init__(factory, loss, shape=shape, classes=classes, name=name, tokens=tokens, **options)

    FactoryModel.__signature__ = _signature(factory)  # type: ignore[attr-defined]
    FactoryModel.__name__ = FactoryModel.__qualname__ = name or str(getattr(factory, "__name__", "Model"))
    FactoryModel.__module__ = getattr(factory, "__module__", __name__)
    return FactoryModel


_OWN = ("pretrained", "freeze", "data_dir")


def _signature(factory: Factory) -> inspect.Signature:
    """Return what the class takes: shape and classes, the factory's own options, and ours."""
    parameters = list(inspect.signature(factory).parameters.values())
    for parameter in parameters[2:]:
        if parameter.name in (*_OWN, "factory", "loss", "name", "tokens", "shape", "classes"):
            raise ConfigurationError(f"factory: its argument {parameter.name!r} must have another name")
    keyword, given = inspect.Parameter.KEYWORD_ONLY, (inspect.Parameter.VAR_KEYWORD,)
    first = [inspect.Parameter(key, keyword) for key in ("shape", "classes")]
    ours = [inspect.Parameter(key, keyword, default=None) for key in _OWN]
    own = [one if one.kind in given else one.replace(kind=keyword) for one in parameters[2:]]
    rest = sorted((*ours, *own), key=lambda one: one.kind)
    return inspect.Signature([*first, *rest])


def _tokens(shaped: Features, tokens: int) -> Features:
    found: npt.NDArray[Any] = np.rint(shaped)
    if shaped.size and not (np.array_equal(found, shaped) and found.min() >= 0 and found.max() < tokens):
        raise ConfigurationError(f"inputs: tokens must be whole numbers from 0 to {tokens - 1}")
    return found.astype(np.int32)

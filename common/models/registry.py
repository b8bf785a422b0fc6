"""Models by name, and any of them with room for a count."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, cast

import numpy as np
import numpy.typing as npt

from common.errors import ConfigurationError, MapaError, nearest
from common.metrics import check_metrics
from common.models.linear import LeastSquares, LinearModel, LogisticRegression, Softmax, Svm
from common.models.model import Block, Features, Model, Targets, feature_length
from common.models.scattering_softmax import ScatteringSoftmax
from common.own_code import import_dotted, is_dotted
from common.quantities import Floats, PerSampleGradients, Vector

_LINEAR: dict[str, Callable[..., Any]] = {
    m.name: m for m in (LogisticRegression, Svm, Softmax, LeastSquares, ScatteringSoftmax)
}
MODELS = (*_LINEAR, "cnn")
_TORCH = "pip install 'mapa-testbed[torch]', or the image mapa-edge-torch"
_GIVEN = ("shape", "classes", "target_range", "data_dir")  # by the caller of make_model, never by an option
_MEMBERS = ("name", "dimension", "layout", "first_layer", "metrics")
_METHODS = ("initial", "features", "targets", "gradients", "evaluate")


def make_model(
    name: str,
    *,
    shape: tuple[int, ...],
    classes: int,
    options: Mapping[str, object],
    target_range: tuple[float, float] | None = None,
    data_dir: Path | None = None,
) -> Model:
    """Make the model called `name` for samples of a shape; a custom one by "package.module:Class".

    classes = 0 means real targets. A class that takes `target_range` is told their range, one that takes `data_dir`
    this party's own directory: no option, and so no welcome, may say another.
    """
    make = model_class(name)
    given = _given(name, make, options, {"target_range": target_range, "data_dir": data_dir})
    try:
        model = make(shape=shape, classes=classes, **given)
    except ConfigurationError as error:
        if not is_dotted(name) or str(error).startswith("model."):
            raise
        raise ConfigurationError(f"model.name = {name!r}: {error}") from error
    except MapaError:
        raise
    except Exception as error:  # another's class may raise anything
        reason = f"{type(error).__name__}: {error}"
        raise ConfigurationError(f"model.name = {name!r}: cannot be made ({reason})") from error
    missing = [member for member in (*_MEMBERS, *_METHODS) if not hasattr(model, member)]
    if missing:
        raise ConfigurationError(f"model.name = {name!r}: the class lacks {', '.join(missing)}")
    check_metrics(model.metrics, name)
    return cast(Model, model)


def model_class(name: str) -> Callable[..., Any]:
    """Return what makes the model called `name`; ConfigurationError says what is missing for it."""
    if name in _LINEAR:
        return _LINEAR[name]
    if name == "cnn":
        try:
            from common.models.cnn import Cnn  # torch costs a second and 200 MB: only who asks pays
        except ImportError as error:
            raise ConfigurationError(
                f"model.name = 'cnn' needs torch ({error}): pip install 'mapa-testbed[cnn]', or the image mapa-edge-cnn"
            ) from error
        return Cnn
    if not is_dotted(name):
        raise ConfigurationError(
            f'model.name = {name!r}: allowed are {", ".join(MODELS)} or a dotted path "package.module:Class"'
            f"{nearest(name, MODELS)}"
        )
    try:
        make = import_dotted(name, "model.name")
    except ConfigurationError as error:
        cause = error.__cause__
        if isinstance(cause, ImportError) and (cause.name or "").partition(".")[0] == "torch":
            raise ConfigurationError(f"model.name = {name!r} needs torch ({cause}): {_TORCH}") from error
        raise
    if not isinstance(make, type):
        raise ConfigurationError(
            f"model.name = {name!r}: not a class; a function that makes a torch module becomes one by"
            " mapa.torch_model(function)"
        )
    return make


def _given(
    name: str, make: Callable[..., Any], options: Mapping[str, object], told: Mapping[str, object]
) -> dict[str, object]:
    """Return a class's options and what else it asks for by its signature; refuse an unknown or missing option."""
    try:
        parameters = inspect.signature(make).parameters
    except ValueError:  # a class in C may not tell; making it will
        return dict(options)
    kinds = {parameter.kind for parameter in parameters.values()}
    taken = (inspect.Parameter.KEYWORD_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    own = {key: p for key, p in parameters.items() if p.kind in taken and key not in _GIVEN}
    for key, value in () if inspect.Parameter.VAR_KEYWORD in kinds else options.items():
        if key not in own:
            allowed = (", ".join(own) or "none") + nearest(key, own)
            raise ConfigurationError(
                f"model.options.{key} = {value!r}: unknown to model {name!r}; allowed are {allowed}"
            )
    for key, parameter in own.items():
        if parameter.default is parameter.empty and key not in options:
            raise ConfigurationError(f"model.options.{key} is missing: model {name!r} needs it")
    return {**options, **{key: value for key, value in told.items() if key in parameters}}


# -- a model with room for a count --------------------------------------------------------------------------

# A model with one coordinate more, in which the edges of a run count how many samples are not clipped. Count and
# gradient are one vector, clipped and noised as one, so they are charged as one release. The coordinate belongs to x,
# too, and stays 0 there: messages, logs and checkpoints need not know of it.
COUNT = "clipping-count"  # name of the coordinate's block


class CountedGradients:
    """The gradients of a batch, with room for the count: their sums have a 0 at the end."""

    __slots__ = ("_inner", "l1_norms", "norms")

    def __init__(self, inner: PerSampleGradients) -> None:
        self._inner, self.norms, self.l1_norms = inner, inner.norms, inner.l1_norms

    def nulled(self, rows: npt.NDArray[np.bool_]) -> CountedGradients:
        return CountedGradients(self._inner.nulled(rows))

    def weighted_sum(self, weights: Floats | None) -> Floats:
        total = self._inner.weighted_sum(weights)
        with_room = np.zeros(total.size + 1, total.dtype)
        with_room[:-1] = total
        return with_room


class Counted:
    """Another model, unchanged, and one coordinate after its last."""

    def __init__(self, inner: Model) -> None:
        self._inner = inner
        self.name = inner.name
        self.dimension = inner.dimension + 1
        self.layout = (*inner.layout, Block(COUNT, (1,), inner.dimension))
        self.first_layer = inner.first_layer
        self.metrics = inner.metrics
        self.features, self.targets = inner.features, inner.targets
        self.feature_length = feature_length(inner)

    def initial(self, rng: np.random.Generator) -> Vector:
        return np.append(self._inner.initial(rng), np.float32(0))

    def gradients(self, x: Vector, features: Features, targets: Targets) -> PerSampleGradients:
        return CountedGradients(self._inner.gradients(x[:-1], features, targets))

    def evaluate(self, x: Vector, features: Features, targets: Targets) -> Mapping[str, float]:
        return self._inner.evaluate(x[:-1], features, targets)

    def batch_bytes(self, batch: int) -> int:
        """Return what the gradients of a batch take, as the model itself says it (edge/joining.py)."""
        stated = getattr(self._inner, "batch_bytes", None)
        if stated is not None:
            return int(stated(batch))
        return 0 if isinstance(self._inner, LinearModel) else batch * 4 * self._inner.dimension

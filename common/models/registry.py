"""Models by name."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, cast

from common.errors import ConfigurationError, MapaError
from common.metrics import check_metrics
from common.models.linear import LeastSquares, LogisticRegression, Softmax, Svm
from common.models.model import Model
from common.models.scattering_softmax import ScatteringSoftmax
from common.own_code import import_dotted, is_dotted

_LINEAR: dict[str, Callable[..., Any]] = {
    m.name: m for m in (LogisticRegression, Svm, Softmax, LeastSquares, ScatteringSoftmax)
}
MODELS = (*_LINEAR, "cnn")
_TORCH = "pip install 'mapa-testbed[torch]', or the image mapa-edge-torch"
_GIVEN = ("shape", "classes", "target_range", "data_dir")  # by whoever makes a model, never by an option
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
    _check_options(name, make, options)
    try:
        model = make(shape=shape, classes=classes, **options, **_told(make, target_range, data_dir))
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
        return _cnn()
    if not is_dotted(name):
        raise ConfigurationError(
            f'model.name = {name!r}: allowed are {", ".join(MODELS)} or a dotted path "package.module:Class"'
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


def _cnn() -> Callable[..., Any]:
    try:
        from common.models.cnn import Cnn  # torch costs a second and 200 MB: only who asks pays
    except ImportError as error:
        raise ConfigurationError(
            f"model.name = 'cnn' needs torch ({error}): pip install 'mapa-testbed[cnn]', or the image mapa-edge-cnn"
        ) from error
    return Cnn


def _told(make: Callable[..., Any], target_range: object, data_dir: Path | None) -> dict[str, object]:
    """Return what a class asks for by its signature, beside shape, classes and its options."""
    try:
        parameters = inspect.signature(make).parameters
    except ValueError:
        return {}
    told = {"target_range": target_range, "data_dir": data_dir}
    return {key: value for key, value in told.items() if key in parameters}


def _check_options(name: str, make: Callable[..., Any], options: Mapping[str, object]) -> None:
    """Refuse an option that the class does not take, or the lack of one that it needs."""
    try:
        parameters = inspect.signature(make).parameters.values()
    except ValueError:  # a class in C may not tell; making it will
        return
    if any(p.kind is p.VAR_KEYWORD for p in parameters):
        return
    named = {p.name: p for p in parameters if p.kind in (p.KEYWORD_ONLY, p.POSITIONAL_OR_KEYWORD)}
    own = {key: p for key, p in named.items() if key not in _GIVEN}
    for key, value in options.items():
        if key not in own:
            allowed = ", ".join(own) or "none"
            raise ConfigurationError(
                f"model.options.{key} = {value!r}: unknown to model {name!r}; allowed are {allowed}"
            )
    for key, parameter in own.items():
        if parameter.default is parameter.empty and key not in options:
            raise ConfigurationError(f"model.options.{key} is missing: model {name!r} needs it")

"""Asynchronous federated learning with differential privacy, from Python.

    import mapa

    scenario = mapa.Scenario.load("quickstart").with_(seed=1, iterations=500)
    run = mapa.simulate(scenario)
    run.metrics["accuracy"], run.epsilon

What a file of your own needs is in `mapa.models`, `mapa.data`, `mapa.algorithms` and `mapa.privacy`. Every name is
loaded when it is first used, so `import mapa` is quick; only `torch_model` and `mapa.models.TorchModel` import torch.
"""
# ruff: noqa: F401
# mypy: implicit-reexport

from __future__ import annotations

from importlib import import_module
from importlib.util import find_spec
from typing import TYPE_CHECKING

if TYPE_CHECKING:  # the names of _HOMES and _PARTS
    from cloud.algorithm import Algorithm
    from common.datasets.dataset import Dataset
    from common.datasets.readers import dataset
    from common.errors import ConfigurationError, MapaError
    from common.models.model import Model
    from common.models.torch_model import torch_model
    from common.noise.law import NoiseLaw
    from mapa import algorithms, data, models, privacy
    from mapa.api import Scenario, calibrate, load_run, run, simulate
    from mapa.run_result import Run

_HOMES = {
    "Algorithm": "cloud.algorithm",
    "Dataset": "common.datasets.dataset",
    "dataset": "common.datasets.readers",
    **dict.fromkeys(("ConfigurationError", "MapaError"), "common.errors"),
    "Model": "common.models.model",
    "torch_model": "common.models.torch_model",
    "NoiseLaw": "common.noise.law",
    **dict.fromkeys(("Scenario", "calibrate", "load_run", "run", "simulate"), "mapa.api"),
    "Run": "mapa.run_result",
}
_PARTS = ("algorithms", "data", "models", "privacy")
_RENAMED = {"Images": "Inputs"}  # of a part
__all__ = sorted(_HOMES)


def __getattr__(name: str) -> object:
    if name in _HOMES:
        globals()[name] = found = getattr(import_module(_HOMES[name]), name)
        return found
    if name in _PARTS:
        return import_module(f"mapa.{name}")
    former = not name.startswith("_") and find_spec(f"mapa.{name}") is None  # no module of the package
    for part in _PARTS if former else ():
        module, now = import_module(f"mapa.{part}"), _RENAMED.get(name, name)
        if hasattr(module, now):
            import warnings

            warnings.warn(f"mapa.{name} is now mapa.{part}.{now}", DeprecationWarning, stacklevel=2)
            return getattr(module, now)
    raise AttributeError(f"module 'mapa' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *_HOMES, *_PARTS})

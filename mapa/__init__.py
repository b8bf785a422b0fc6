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

from typing import TYPE_CHECKING

if TYPE_CHECKING:  # the one list of names: `__getattr__` reads it, too
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

_RENAMED = {"Images": "Inputs"}


def _homes() -> dict[str, str]:
    """Return the module of each public name: the imports above, which type checkers alone execute."""
    import ast
    from pathlib import Path

    source = ast.parse(Path(__file__).read_text(encoding="utf-8"))
    imports = [node for block in source.body if isinstance(block, ast.If) for node in block.body]
    return {
        a.name: str(node.module) for node in imports if isinstance(node, ast.ImportFrom) for a in node.names
    }


def __getattr__(name: str) -> object:
    from importlib import import_module
    from importlib.util import find_spec

    if (
        not name.startswith("_") and find_spec(f"mapa.{name}") is not None
    ):  # `from mapa import output` asks here first
        return import_module(f"mapa.{name}")
    homes = _homes()
    parts = [part for part, home in homes.items() if home == "mapa"]
    if name == "__all__":
        return sorted({*homes} - {*parts})
    if name in homes:
        found: object = getattr(import_module(homes[name]), name)
        globals()[name] = found
        return found
    for part in () if name.startswith("_") else parts:
        module, now = import_module(f"mapa.{part}"), _RENAMED.get(name, name)
        if hasattr(module, now):
            import warnings

            warnings.warn(f"mapa.{name} is now mapa.{part}.{now}", DeprecationWarning, stacklevel=2)
            return getattr(module, now)
    raise AttributeError(f"module 'mapa' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *_homes()})

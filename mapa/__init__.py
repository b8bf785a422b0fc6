"""What a file of your own needs: algorithms, models and data sets, and the types that they speak; and runs.

    import mapa

    class MyModel(mapa.TwoWayModel): ...

    run = mapa.simulate("quickstart", seed=1, iterations=500)
    run.metrics["accuracy"]

Every name is loaded when it is first used, so `import mapa` is quick; only `TorchModel` and `torch_model` import torch.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from cloud.algorithm import Algorithm, StepSchedule, Update, descend, option
    from cloud.stages import initial_sensitivity
    from common.datasets.arrays import dataset
    from common.datasets.dataset import Dataset, Samples
    from common.datasets.schema import Column, DataSchema
    from common.errors import ConfigurationError, MapaError
    from common.metrics import ACCURACY, CLASSIFICATION, LOSS, RMSE, Better, Metric
    from common.models.gradients import OuterGradients
    from common.models.linear import LinearModel, TwoWayModel
    from common.models.model import Block, Features, Images, Labels, Model, Targets, check_labels, layout
    from common.models.torch_model import TorchModel, torch_model
    from common.problem import Problem
    from common.quantities import PerSampleGradients, Vector
    from mapa.api import load_run, run, simulate
    from mapa.run_result import Run

_PLACES = {
    "cloud.algorithm": ("Algorithm", "StepSchedule", "Update", "descend", "option"),
    "cloud.stages": ("initial_sensitivity",),
    "common.datasets.dataset": ("Dataset", "Samples"),
    "common.datasets.arrays": ("dataset",),
    "common.datasets.schema": ("Column", "DataSchema"),
    "common.errors": ("ConfigurationError", "MapaError"),
    "common.metrics": ("ACCURACY", "CLASSIFICATION", "LOSS", "RMSE", "Better", "Metric"),
    "common.models.gradients": ("OuterGradients",),
    "common.models.linear": ("LinearModel", "TwoWayModel"),
    "common.models.model": (
        "Block",
        "Features",
        "Images",
        "Labels",
        "Model",
        "Targets",
        "check_labels",
        "layout",
    ),
    "common.models.torch_model": ("TorchModel", "torch_model"),  # needs torch
    "common.problem": ("Problem",),
    "common.quantities": ("PerSampleGradients", "Vector"),
    "mapa.api": ("load_run", "run", "simulate"),
    "mapa.run_result": ("Run",),
}
_HOME = {name: module for module, names in _PLACES.items() for name in names}

__all__ = [
    "ACCURACY",
    "CLASSIFICATION",
    "LOSS",
    "RMSE",
    "Algorithm",
    "Better",
    "Block",
    "Column",
    "ConfigurationError",
    "DataSchema",
    "Dataset",
    "Features",
    "Images",
    "Labels",
    "LinearModel",
    "MapaError",
    "Metric",
    "Model",
    "OuterGradients",
    "PerSampleGradients",
    "Problem",
    "Run",
    "Samples",
    "StepSchedule",
    "Targets",
    "TorchModel",
    "TwoWayModel",
    "Update",
    "Vector",
    "check_labels",
    "dataset",
    "descend",
    "initial_sensitivity",
    "layout",
    "load_run",
    "option",
    "run",
    "simulate",
    "torch_model",
]


def __getattr__(name: str) -> object:
    if name not in _HOME:
        raise AttributeError(f"module 'mapa' has no attribute {name!r}")
    found = getattr(importlib.import_module(_HOME[name]), name)
    globals()[name] = found
    return found


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})

"""For a model of your own: base classes, gradients, metrics and types."""
# ruff: noqa: F401
# mypy: implicit-reexport

from __future__ import annotations

from typing import TYPE_CHECKING

from common.metrics import ACCURACY, CLASSIFICATION, LOSS, RMSE, Better, Metric
from common.models.gradients import OuterGradients
from common.models.linear import LinearModel, TwoWayModel
from common.models.model import Block, Features, Inputs, Labels, Model, Targets, check_labels, layout
from common.quantities import PerSampleGradients, Vector

if TYPE_CHECKING:
    from common.models.torch_model import TorchModel, torch_model


def __getattr__(name: str) -> object:
    if name not in ("TorchModel", "torch_model"):
        raise AttributeError(f"module 'mapa.models' has no attribute {name!r}")
    from common.models import torch_model as module  # imports torch

    return getattr(module, name)

"""The data set and the model that a scenario names: made alike by cloud, edge and simulation."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from common.datasets.dataset import Dataset
from common.datasets.holdout import with_holdout
from common.models.model import Model
from common.models.registry import make_model
from common.scenario.scenario import Scenario


def dataset_for(scenario: Scenario, load: Callable[[str], Dataset]) -> Dataset:
    """Return the data set, its holdout in the place of its test set where the scenario asks for one."""
    return with_holdout(load(scenario.data.set), scenario.data.holdout)


def model_for(
    scenario: Scenario, shape: tuple[int, ...], classes: int, data_dir: Path | None = None
) -> Model:
    """Return the model for inputs of this shape; pretrained weights lie below the data directory."""
    table = scenario.model
    return make_model(table.name, shape=shape, classes=classes, options=table.options, data_dir=data_dir)


def noised_slice(scenario: Scenario, model: Model) -> slice:
    """Return the coordinates that η covers."""
    return model.first_layer if scenario.privacy.scope == "first-conv" else slice(0, model.dimension)


def noised_dimension(scenario: Scenario, model: Model) -> int:
    """Return how many coordinates η has."""
    return len(range(*noised_slice(scenario, model).indices(model.dimension)))

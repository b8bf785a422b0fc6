"""The data set and the model that a scenario names: made alike by cloud, edge and simulation."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from common.datasets.dataset import Dataset
from common.datasets.holdout import with_holdout
from common.datasets.source import FileSource, Source
from common.models.model import Model
from common.models.registry import make_model
from common.scenario.scenario import Scenario


def dataset_for(scenario: Scenario, load: Callable[[Source], Dataset], *, tested: bool = True) -> Dataset:
    """Return the data set, its holdout in the place of its test set where the scenario asks for one.

    Whoever only trains (tested = False) needs no test file.
    """
    source = scenario.data.source
    if isinstance(source, FileSource) and not tested:
        source = replace(source, test=None)
    return with_holdout(load(source), scenario.data.holdout)


def model_for(
    scenario: Scenario,
    shape: tuple[int, ...],
    classes: int,
    target_range: tuple[float, float] | None = None,
) -> Model:
    """Return the model for samples of this shape."""
    return make_model(
        scenario.model.name,
        shape=shape,
        classes=classes,
        options=scenario.model.options,
        target_range=target_range,
    )


def noised_slice(scenario: Scenario, model: Model) -> slice:
    """Return the coordinates that η covers."""
    return model.first_layer if scenario.privacy.scope == "first-conv" else slice(0, model.dimension)


def noised_dimension(scenario: Scenario, model: Model) -> int:
    """Return how many coordinates η has."""
    return len(range(*noised_slice(scenario, model).indices(model.dimension)))

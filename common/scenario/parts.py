"""The data set and the model that a scenario names: made alike by cloud, edge and simulation."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from common.datasets.dataset import Dataset, with_holdout
from common.datasets.schema import DataSchema
from common.datasets.source import LOCAL, FileSource, Source
from common.models.model import Model
from common.models.registry import Counted, make_model
from common.scenario.scenario import Scenario


def dataset_for(scenario: Scenario, load: Callable[[Source], Dataset], *, tested: bool = True) -> Dataset:
    """Return the data set, its holdout in the place of its test set where the scenario asks for one.

    Whoever only trains (tested = False) needs no test file.
    """
    source = scenario.data.source
    if isinstance(source, FileSource) and not tested:
        source = replace(source, test=None)
    return with_holdout(load(source), scenario.data.holdout)


def own_schema(scenario: Scenario) -> DataSchema | None:
    """Return what records look like that every edge brings itself; None: all cut their shard from one data set."""
    table = scenario.data.declared
    return table.declared if table is not None and scenario.data.set == LOCAL else None


def least_records(scenario: Scenario) -> int | None:
    """Return how many records every edge has at least, where edges bring their own; None: shards are cut here.

    An edge with fewer does not take part, so b/n_k is at most b over this.
    """
    schema = own_schema(scenario)
    if schema is None:
        return None
    return max(schema.records_at_least, scenario.sampler.least_records(scenario.batch_size))


def model_for(
    scenario: Scenario,
    shape: tuple[int, ...],
    classes: int,
    target_range: tuple[float, float] | None = None,
    data_dir: Path | None = None,
) -> Model:
    """Return the model for samples of this shape, with a coordinate more where clipping asks for one.

    Pretrained weights lie below the data directory.
    """
    model = make_model(
        scenario.model.name,
        shape=shape,
        classes=classes,
        options=scenario.model.options,
        target_range=target_range,
        data_dir=data_dir,
    )
    return Counted(model) if scenario.private and scenario.privacy.clipped.extra else model


def noised_slice(scenario: Scenario, model: Model) -> slice:
    """Return the coordinates that η covers."""
    return model.first_layer if scenario.privacy.scope == "first-conv" else slice(0, model.dimension)


def noised_dimension(scenario: Scenario, model: Model) -> int:
    """Return how many coordinates η has."""
    return len(range(*noised_slice(scenario, model).indices(model.dimension)))

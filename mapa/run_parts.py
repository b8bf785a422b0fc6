"""What every run is made of, simulated or on a network: data, model and shards."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from cloud.evaluation import Evaluator
from common.datasets.dataset import Dataset
from common.models.model import Model
from common.quantities import Indices
from common.scenario.parts import dataset_for, model_for
from common.scenario.scenario import Scenario
from edge.assembly import shards_for
from mapa.budget import calibrated


@dataclass(frozen=True, slots=True)
class RunParts:
    """A scenario with its data loaded and cut into shards, and its model made."""

    scenario: Scenario  # with z filled in where it gave a total budget instead
    dataset: Dataset
    model: Model
    rows: list[Indices]  # shard k of K

    @property
    def shard_sizes(self) -> list[int]:
        """n_k."""
        return [len(shard) for shard in self.rows]

    def new_evaluator(self) -> Evaluator:
        """Bring the test set into the model's own form, which takes its time and memory."""
        return Evaluator.of(self.model, self.dataset.test, self.scenario.model.regularization)


def assemble(scenario: Scenario, load: Callable[[str], Dataset], data_dir: Path | None = None) -> RunParts:
    """Load the data, take the holdout, make the model, deal the shards; ConfigurationError where that cannot be.

    An edge does the same for itself (edge/preparation.py): it must not hold more than its own shard, and checks
    at each step what the cloud's scenario would cost it.
    """
    dataset = dataset_for(scenario, load)
    model = model_for(scenario, dataset.shape, dataset.classes, data_dir)
    rows = shards_for(scenario, dataset.train.labels)
    return RunParts(calibrated(scenario, [len(shard) for shard in rows]), dataset, model, rows)

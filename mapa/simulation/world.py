"""A scenario brought to life: data, model, shards, edges. What every engine of a simulation starts from."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from pathlib import Path

from cloud.evaluation import Evaluator
from common.datasets.catalogue import load_dataset
from common.datasets.dataset import Dataset
from common.models.features import features_of
from common.models.model import Features, Targets
from common.quantities import EdgeId
from common.randomness import CounterStreams, streams_for
from common.scenario.scenario import Scenario
from edge.assembly import worker_for
from edge.worker import EdgeWorker, Shard
from mapa.budget import Say, release_caps
from mapa.run_parts import OwnFiles, RunParts, assemble


@dataclass(frozen=True, slots=True)
class World(RunParts):
    """Everything of a run that does not change while it runs."""

    features: Features  # of the whole training set, in the model's own form
    targets: Targets
    evaluator: Evaluator | None  # None: no test data
    streams: CounterStreams
    caps: list[int | None]  # gradients that edge k's budget permits; None: no budget

    @classmethod
    def of(
        cls, scenario: Scenario, data_dir: Path, own: OwnFiles | None = None, *, say: Say | None = None
    ) -> World:
        return cls._of(assemble(scenario, partial(load_dataset, data_dir=data_dir), own, data_dir, say))

    @classmethod
    def on(cls, scenario: Scenario, dataset: Dataset) -> World:
        return cls._of(assemble(scenario, lambda _: dataset))

    @classmethod
    def _of(cls, parts: RunParts) -> World:
        train, model = parts.dataset.train, parts.model
        return cls(
            parts.scenario,
            parts.dataset,
            model,
            parts.rows,
            features=features_of(model, train, parts.cache),
            targets=model.targets(train.labels),
            evaluator=parts.new_evaluator(),
            streams=streams_for(parts.scenario.seed),
            caps=release_caps(parts.scenario, parts.shard_sizes),
        )

    def workers(self) -> list[EdgeWorker]:
        """Return the K edges at their beginning."""
        scenario = self.scenario
        return [
            worker_for(
                scenario,
                self.model,
                scenario.law(k),
                edge_id=EdgeId(f"edge-{k}"),
                index=k,
                shard=Shard(self.features, self.targets, self.rows[k]),
                streams=self.streams,
            )
            for k in range(scenario.workers)
        ]

"""A scenario brought to life: data, model, shards, edges. What every engine of a simulation starts from."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from cloud.evaluation import Evaluator
from common.datasets.catalogue import load_dataset
from common.datasets.dataset import Dataset
from common.datasets.holdout import with_holdout
from common.models.model import Features, Model, Targets
from common.models.registry import make_model
from common.noise.mechanism import Sampling
from common.quantities import EdgeId, Indices
from common.randomness import CounterStreams, streams_for
from common.scenario.scenario import Scenario
from edge.assembly import recipe_for
from edge.shards import all_shards, check_shards
from edge.worker import EdgeWorker, Shard
from mapa.budget import calibrated, release_caps


@dataclass(frozen=True, slots=True)
class World:
    """Everything of a run that does not change while it runs."""

    scenario: Scenario
    dataset: Dataset
    model: Model
    features: Features  # of the whole training set, in the model's own form
    targets: Targets
    rows: list[Indices]  # shard k of K
    evaluator: Evaluator
    streams: CounterStreams
    caps: list[int | None]  # gradients that edge k's budget permits; None: no budget

    @classmethod
    def of(cls, scenario: Scenario, data_dir: Path) -> World:
        dataset = load_dataset(scenario.data.set, data_dir)
        return cls.on(scenario, dataset)

    @classmethod
    def on(cls, scenario: Scenario, dataset: Dataset) -> World:
        dataset = with_holdout(dataset, scenario.data.holdout)
        options = scenario.model.options
        model = make_model(scenario.model.name, shape=dataset.shape, classes=dataset.classes, options=options)
        rows = deal(scenario, dataset)
        sizes = [len(shard) for shard in rows]
        scenario = calibrated(scenario, sizes)
        return cls(
            scenario=scenario,
            dataset=dataset,
            model=model,
            features=model.features(dataset.train.pixels()),
            targets=model.targets(dataset.train.labels),
            rows=rows,
            evaluator=Evaluator.of(model, dataset.test, scenario.model.regularization),
            streams=streams_for(scenario.seed),
            caps=release_caps(scenario, sizes),
        )

    def workers(self) -> list[EdgeWorker]:
        """Return the K edges at their beginning."""
        scenario = self.scenario
        return [
            EdgeWorker(
                edge_id=EdgeId(f"edge-{k}"),
                index=k,
                model=self.model,
                shard=Shard(self.features, self.targets, self.rows[k]),
                recipe=recipe_for(scenario, self.model, scenario.law(k)),
                streams=self.streams,
            )
            for k in range(scenario.workers)
        ]


def deal(scenario: Scenario, dataset: Dataset) -> list[Indices]:
    """Return shard k of K, or all data where one worker holds it."""
    labels = dataset.train.labels
    if scenario.centralised:
        rows = [np.arange(len(labels), dtype=np.int64)]
    else:
        rows = all_shards(
            labels,
            partition=scenario.data.partition,
            edges=scenario.edges,
            seed=scenario.seed or 0,
            alpha=scenario.data.alpha,
            labels_per_edge=scenario.data.labels_per_edge,
        )
    check_shards([len(shard) for shard in rows], scenario.batch_size, Sampling(scenario.data.sampler))
    return rows

"""A scenario turned into an edge's own parts."""

from __future__ import annotations

from dataclasses import replace
from typing import TypedDict

from common.datasets.dataset import Samples
from common.models.model import Model, feature_length
from common.noise.law import NoiseLaw
from common.quantities import EdgeId, Indices
from common.randomness import CounterStreams
from common.scenario.parts import noised_slice
from common.scenario.scenario import Scenario
from edge.shards import SHARED, all_shards, check_shards, shard_rows
from edge.worker import EdgeWorker, Shard


class Cut(TypedDict):
    """How the data are dealt."""

    partition: str
    edges: int
    seed: int
    alpha: float
    labels_per_edge: int
    power: float


def cut_for(scenario: Scenario) -> Cut:
    """Return how a scenario deals its data; one worker alone holds all of them."""
    data, workers = scenario.data, scenario.workers
    return Cut(
        partition=data.partition if workers > 1 else SHARED,
        edges=workers,
        seed=scenario.seed or 0,
        alpha=data.alpha,
        labels_per_edge=data.labels_per_edge,
        power=data.power,
    )


def shards_for(scenario: Scenario, train: Samples) -> list[Indices]:
    """Return shard k of K for each k; ConfigurationError where no batch can be drawn from one."""
    shards = all_shards(train.labels, groups=train.groups, **cut_for(scenario))
    check_shards([len(rows) for rows in shards], scenario.batch_size, scenario.sampler)
    return shards


def shard_for(scenario: Scenario, train: Samples, index: int) -> Indices:
    """Return shard k of K; ConfigurationError where no batch can be drawn from it."""
    rows = shard_rows(train.labels, groups=train.groups, index=index, **cut_for(scenario))
    check_shards([len(rows)], scenario.batch_size, scenario.sampler)
    return rows


def worker_for(
    scenario: Scenario,
    model: Model,
    law: NoiseLaw | None,
    *,
    edge_id: EdgeId,
    index: int,
    shard: Shard,
    streams: CounterStreams,
    sequence: int = 0,
) -> EdgeWorker:
    """Return the edge that a scenario describes; `law` is its own where it has one."""
    mechanism = scenario.mechanism(law)
    clipping = mechanism.clipping.fitted(feature_length(model) or 0.0)
    return EdgeWorker(
        edge_id=edge_id,
        index=index,
        model=model,
        shard=shard,
        mechanism=replace(mechanism, clipping=clipping),
        noised=noised_slice(scenario, model),
        regularization=scenario.model.regularization,
        streams=streams,
        sequence=sequence,
    )

"""A scenario turned into an edge's own parts."""

from __future__ import annotations

from typing import TypedDict

from common.datasets.dataset import Samples
from common.models.model import Model, feature_length
from common.noise.law import NoiseLaw
from common.noise.mechanism import LEAST_BOUND, Clipping, Sampling
from common.quantities import Indices
from common.scenario.parts import noised_slice
from common.scenario.scenario import Scenario
from edge.shards import SHARED, all_shards, check_shards, shard_rows
from edge.worker import Recipe

SHORTEST = 0.1  # of ℓ: a shorter gradient is not brought to C


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
    check_shards([len(rows) for rows in shards], scenario.batch_size, Sampling(scenario.data.sampler))
    return shards


def shard_for(scenario: Scenario, train: Samples, index: int) -> Indices:
    """Return shard k of K; ConfigurationError where no batch can be drawn from it."""
    rows = shard_rows(train.labels, groups=train.groups, index=index, **cut_for(scenario))
    check_shards([len(rows)], scenario.batch_size, Sampling(scenario.data.sampler))
    return rows


def recipe_for(scenario: Scenario, model: Model, law: NoiseLaw | None) -> Recipe:
    """Return how this edge makes a release; `law` is its own where it has one."""
    return Recipe(
        batch_size=scenario.batch_size,
        sampling=Sampling(scenario.data.sampler),
        clipping=Clipping(scenario.privacy.clipping),
        law=law,
        noised=noised_slice(scenario, model),
        regularization=scenario.model.regularization,
        least_norm=least_norm(model),
        steps=scenario.local.steps,
        local_rate=scenario.local.rate or 0.0,
        largest_batch=scenario.data.largest_batch,
    )


def least_norm(model: Model) -> float:
    """Return the norm from which on `normalised` clipping brings a gradient to C: 0.1·ℓ, where the model has an ℓ.

    A record that the model knows well has a gradient near 0. Brought to C it would count as much as one that it
    gets wrong, and only turn the model about: 1.4 points on Fashion-MNIST.
    """
    length = feature_length(model)
    return LEAST_BOUND if length is None else max(LEAST_BOUND, SHORTEST * length)

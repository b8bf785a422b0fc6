"""A scenario turned into an edge's own parts."""

from __future__ import annotations

from common.models.model import Model
from common.noise.law import NoiseLaw
from common.noise.mechanism import Clipping, Sampling
from common.scenario.scenario import Scenario
from edge.worker import Recipe


def recipe_for(scenario: Scenario, model: Model, law: NoiseLaw | None) -> Recipe:
    """Return how this edge makes a release; `law` is its own where it has one."""
    first = scenario.privacy.scope == "first-conv"
    return Recipe(
        batch_size=scenario.batch_size,
        sampling=Sampling(scenario.data.sampler),
        clipping=Clipping(scenario.privacy.clipping),
        law=law,
        noised=model.first_layer if first else slice(0, model.dimension),
        regularization=scenario.model.regularization,
    )

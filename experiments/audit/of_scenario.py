"""The games of a scenario: the recipe of one of its edges, on a shard as large as its own, in the worst case."""

from __future__ import annotations

from dataclasses import replace

from common.errors import ConfigurationError
from common.noise.law import NoiseLaw
from edge.assembly import recipe_for
from experiments.audit.battery import battery
from experiments.audit.design import EVERYWHERE
from experiments.audit.game import Playable
from mapa.simulation.world import World


def scenario_games(world: World, *, edge: int, rounds: int, dimension: int | None = None) -> list[Playable]:
    """Return the battery of edge k's own recipe, its stabiliser, λ and local steps included.

    The guarantee holds for every N, so the audit takes an N where the law is easiest to tell: gamma-norm
    noise hides a direction among many.
    """
    scenario = world.scenario
    if not 0 <= edge < scenario.workers:
        raise ConfigurationError(f"edge = {edge}: must be from 0 to {scenario.workers - 1}")
    law = scenario.law(edge)
    recipe = recipe_for(scenario, world.model, law)
    if recipe.noised.indices(world.model.dimension) == (0, world.model.dimension, 1):
        recipe = replace(recipe, noised=EVERYWHERE)  # a linear model's first layer is all of it
    default = NoiseLaw.audit_dimension if law is None else law.audit_dimension
    return battery(
        recipe,
        shard_size=len(world.rows[edge]),
        dimension=default if dimension is None else dimension,
        rounds=rounds,
    )

"""The games of a scenario: its own law, clipping, sampler, batch and shard, in the worst case."""

from __future__ import annotations

from dataclasses import replace

from common.errors import ConfigurationError
from common.noise.gamma_norm import GammaNorm
from common.noise.gaussian import Gaussian
from common.noise.law import NoiseLaw
from common.noise.mechanism import Clipping, Sampling, Scope
from common.scenario.scenario import Scenario
from experiments.audit.battery import battery
from experiments.audit.canary import CanarySetting
from experiments.audit.game import Playable
from experiments.audit.sound import honest_game
from mapa.simulation.world import World

_IS_POISSON = {one: one in (Sampling.POISSON, Sampling.TRUNCATED_POISSON) for one in Sampling}


def scenario_games(world: World, *, edge: int, rounds: int, dimension: int | None = None) -> list[Playable]:
    """Return the release whose batch has the canary for certain, as sampled where it differs, and the battery.

    The battery needs samples that are clipped or normalised, and noise on every coordinate: a clipped mean, or a
    part in the clear, claims nothing that it could refute.
    The guarantee holds for every N, so the audit takes an N where the law is easiest to tell: gamma-norm
    noise hides a direction among many.
    """
    scenario = world.scenario
    if not 0 <= edge < scenario.workers:
        raise ConfigurationError(f"edge = {edge}: must be from 0 to {scenario.workers - 1}")
    setting = _setting(world, scenario, edge, dimension)
    certain = {Sampling.WITH_REPLACEMENT: 1}.get(setting.sampling, setting.batch_size)
    alone = replace(setting, shard_size=certain)
    if setting.clipping.value == "batch-mean" and setting.sampling is Sampling.WITH_REPLACEMENT:
        alone = replace(
            alone, sampling=Sampling.SHUFFLED, shard_size=setting.batch_size
        )  # needs others in the batch
    single = replace(alone, steps=1)
    games: list[Playable] = [honest_game("one release, canary in the batch", single, rounds)]
    if setting.steps > 1:
        name = f"one message of {setting.steps} local steps, canary in every batch"
        games.append(honest_game(name, alone, rounds))
    setting = replace(setting, steps=1)  # what follows looks at single releases, which a message holds E of
    if _IS_POISSON[setting.sampling] and setting.shard_size > setting.batch_size:
        games.append(honest_game("one release, as sampled", setting, rounds))
    if setting.sampling is Sampling.SHUFFLED:
        epoch = replace(setting, shard_size=2 * setting.batch_size)
        games.append(honest_game("an epoch of two releases", epoch, rounds))
    no_company = (Clipping.BATCH_MEAN, Clipping.QUANTILE)  # the battery's centres know neither
    everywhere = setting.clipping not in no_company and not setting.first_layer_only
    if everywhere and isinstance(setting.law, Gaussian | GammaNorm):
        games += battery(
            setting.law,
            batch_size=setting.batch_size,
            dimension=setting.dimension,
            rounds=rounds,
            # a batch of a shard that is no larger than b is never truncated
            sampling=Sampling.POISSON if _IS_POISSON[setting.sampling] else setting.sampling,
            clipping=setting.clipping,
        )
    return games


def _setting(world: World, scenario: Scenario, edge: int, dimension: int | None) -> CanarySetting:
    law = scenario.law(edge)
    mechanism = scenario.mechanism
    # a linear model's first layer is all of it
    partly = mechanism.scope is Scope.FIRST_CONV and world.model.first_layer.stop < world.model.dimension
    default = NoiseLaw.audit_dimension if law is None else law.audit_dimension
    return CanarySetting(
        law=law,
        batch_size=mechanism.batch_size,
        shard_size=len(world.rows[edge]),
        dimension=default if dimension is None else dimension,
        sampling=mechanism.sampling,
        clipping=mechanism.clipping,
        first_layer_only=partly,
        steps=mechanism.steps,
        largest_batch=mechanism.largest_batch,
    )

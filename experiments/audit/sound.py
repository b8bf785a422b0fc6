"""Sound mechanisms with the accountant's own claims: an audit must not flag one of them."""

from __future__ import annotations

from common.noise.gamma_norm import GammaNorm
from common.noise.gaussian import Gaussian
from common.noise.laplace import Laplace
from common.noise.law import NoiseLaw
from common.noise.mechanism import Clipping, Sampling
from edge.worker import Recipe
from experiments.audit.battery import battery
from experiments.audit.design import plain_recipe
from experiments.audit.game import Playable

SHARD = 8  # n_k at b = 4, so that a batch tells something as it is sampled

_LAWS: dict[str, tuple[NoiseLaw, NoiseLaw]] = {  # each, and with as much more noise as a clipped mean needs
    "gaussian": (Gaussian(1.0), Gaussian(8.0)),
    "laplace": (Laplace(2.0), Laplace(0.25)),
    "gamma-norm": (GammaNorm(2.0), GammaNorm(0.25)),
}


def sound_recipes() -> dict[str, Recipe]:
    """Return every law behind every clipping and every sampler that can be configured, and local steps, by name."""
    found = {"gaussian z=4": plain_recipe(Gaussian(4.0)), "laplace ε=0.5": plain_recipe(Laplace(0.5))}
    for name, (law, strong) in _LAWS.items():
        for clipping in Clipping:
            chosen = strong if clipping is Clipping.BATCH_MEAN else law
            s = 0.28 if clipping is Clipping.NORMALISED else 0.0
            found[f"{name} {clipping.value}"] = plain_recipe(chosen, clipping=clipping, stabiliser=s)
        for sampling in Sampling:
            if sampling is not Sampling.POISSON:
                most = 7 if sampling is Sampling.TRUNCATED_POISSON else None
                found[f"{name} {sampling.value}"] = plain_recipe(law, sampling=sampling, largest_batch=most)
        found[f"{name}, four local steps"] = plain_recipe(law, steps=4)
    return found


def sound_battery(recipe: Recipe, rounds: int) -> list[Playable]:
    """Return the battery of one of them."""
    assert recipe.law is not None
    return battery(recipe, shard_size=SHARD, dimension=recipe.law.audit_dimension, rounds=rounds)

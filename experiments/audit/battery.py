"""The games that every release mechanism is put to, cheap ones first."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from common.noise.gaussian import Gaussian
from common.noise.law import NoiseLaw
from common.noise.mechanism import Clipping, Sampling
from experiments.audit.bounds import Floats
from experiments.audit.canary import LOUD
from experiments.audit.design import Design, Plant, honest
from experiments.audit.game import Playable
from experiments.audit.lagged import LaggedGame
from experiments.audit.many import ManyCanaries

LAYERS = 4
_NORMS = (1.05, 1.5, 3.0, 8.0, 15.0, 19.0)  # between C and 20 C
_CROWD = (128, 1024, 64)  # b, n_k and N where the numbers that draw a batch would show in noise


def battery(
    law: NoiseLaw,
    *,
    batch_size: int,
    dimension: int,
    rounds: int,
    sampling: Sampling = Sampling.POISSON,
    clipping: Clipping = Clipping.PER_SAMPLE,
    plant: Plant = honest,
) -> list[Playable]:
    """Return every game that applies to samples that are clipped or normalised, with noise on all coordinates.

    The shard is as large as the batch where the canary is to be in it for certain.
    """
    certain = 1 if sampling is Sampling.WITH_REPLACEMENT else batch_size
    loud = np.full(dimension, float(LOUD) / dimension**0.5)
    spread = Design(
        law=law,
        batch_size=batch_size,
        shard_size=certain,
        canary=loud,
        sampling=sampling,
        clipping=clipping,
        plant=plant,
    )
    composed = 9 if isinstance(law, Gaussian) else 1
    above = replace(spread, canary=loud * (1.5 / float(LOUD)), releases=composed)
    signs = np.array([1.0, -1.0, 1.0, -1.0])[:, None] * np.ones(dimension)
    games: list[Playable] = [
        LaggedGame(
            name="two releases whose noise is most alike", design=spread, rounds=max(600, rounds // 20)
        ),
        replace(spread, releases=4, steer=signs).game(
            "four releases, canary to and fro", rounds // 8, fresh_runs=True
        ),
        replace(spread, canary=np.ones(dimension), steer=_in_turn(dimension)).game(
            "coordinates, layers and norms to 20 C in turn", rounds
        ),
        spread.exact("one release, spread canary, exactly there", 2 * rounds),
        replace(
            above.likely(
                f"{composed} release{'s' * (composed > 1)}, canary just above C", 2 * rounds // composed
            ),
            fresh_runs=True,
        ),
    ]
    if sampling is not Sampling.POISSON:
        return games
    last = np.zeros(dimension)
    last[-1] = 1.0
    against = replace(spread, shard_size=batch_size + 1, canary=-LOUD * last, others=last)
    games += [
        replace(spread, shard_size=2 * batch_size).likely("one release, sampled at rate 1/2", 2 * rounds),
        against.game("one release, the others pull against the canary", rounds),
    ]
    if isinstance(law, Gaussian):
        b, n, size = _CROWD
        crowd = replace(spread, batch_size=b, shard_size=n, canary=np.full(size, float(LOUD) / size**0.5))
        games += [
            ManyCanaries(name="a run with many canaries", law=law, clipping=clipping, plant=plant),
            replace(
                crowd.game("one release, sampled from many", _crowd_rounds(law, rounds)),
                score=None,
                threshold=0.0,
                learning=0.25,
            ),
        ]
    return games


def _crowd_rounds(law: Gaussian, rounds: int) -> int:
    """Return enough for an excess of 0.02 over the claim at μ = 1/4, and of 0.012 at μ = 1."""
    return int(20 * rounds * min(1.0, max(0.5, 1 / law.noise_multiplier)))


def _in_turn(dimension: int) -> Floats:
    """Return an x for each of: every coordinate, every layer, all coordinates; each at every norm above C."""
    shapes = [*np.eye(dimension)]
    layers = np.array_split(np.arange(dimension), min(LAYERS, dimension))
    for part in [*layers, np.arange(dimension)]:
        shape = np.zeros(dimension)
        shape[part] = len(part) ** -0.5
        shapes.append(shape)
    return np.array([norm * shape for norm in _NORMS for shape in shapes])

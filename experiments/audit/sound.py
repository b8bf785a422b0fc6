"""Sound mechanisms with the accountant's own claims: an audit must not flag one of them."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from common.accounting.releases import ReleaseKind
from common.noise.gamma_norm import GammaNorm
from common.noise.gaussian import Gaussian
from common.noise.mechanism import Adjacency, Clipping, Sampling
from experiments.audit.battery import battery
from experiments.audit.canary import LOUD, CanarySetting
from experiments.audit.claims import claim_for
from experiments.audit.game import Game, Playable

_NORMALISED = CanarySetting(
    law=Gaussian(1.0), batch_size=4, shard_size=4, dimension=16, clipping=Clipping.NORMALISED
)
TRUNCATED = CanarySetting(
    law=Gaussian(1.0),
    batch_size=4,
    shard_size=8,
    dimension=16,
    sampling=Sampling.TRUNCATED_POISSON,
    largest_batch=7,
)
_SHUFFLED, _REPLACED = Sampling.SHUFFLED, Sampling.WITH_REPLACEMENT


def honest_game(
    name: str, setting: CanarySetting, rounds: int, adjacency: Adjacency = Adjacency.ZERO_OUT
) -> Game:
    """Return the game of a setting as the ledger accounts for it."""
    kind = ReleaseKind(setting.law, setting.mechanism, setting.shard_size)
    return Game(
        name=name,
        claim=claim_for(kind, adjacency),
        worker=setting.worker,
        sensitivity=setting.sensitivity,
        score=setting.score,
        rounds=rounds,
        releases_per_round=kind.batches_per_epoch,  # a shuffled epoch charges once, so it is seen whole
    )


def sound_games(rounds: int = 3000) -> list[Game]:
    """Return Gaussian and gamma-norm noise behind every sampler and clipping, at several strengths."""
    games = []
    for z, b, n in (
        (0.5, 4, 4),
        (1.0, 4, 4),
        (4.0, 4, 4),
        (0.5, 4, 8),
        (1.0, 2, 8),
        (1.0, 4, 8),
        (4.0, 4, 8),
    ):
        setting = CanarySetting(law=Gaussian(z), batch_size=b, shard_size=n, dimension=16)
        games.append(honest_game(f"gaussian z={z:g} poisson {b}/{n}", setting, rounds))
    for epsilon, b, n in ((1.0, 4, 4), (4.0, 4, 4), (4.0, 4, 8)):
        setting = CanarySetting(law=GammaNorm(epsilon), batch_size=b, shard_size=n, dimension=2)
        games.append(honest_game(f"gamma-norm ε={epsilon:g} poisson {b}/{n}", setting, rounds))
    for law, dimension in ((Gaussian(1.0), 16), (GammaNorm(2.0), 2)):
        setting = CanarySetting(law=law, batch_size=4, shard_size=8, dimension=dimension, sampling=_SHUFFLED)
        games.append(honest_game(f"{law.name} shuffled, an epoch of 2", setting, rounds))
    # with replacement a record may fill the batch: shards of one record make it certain
    for law, n in ((Gaussian(4.0), 1), (Gaussian(4.0), 4), (GammaNorm(0.5), 1), (GammaNorm(0.5), 4)):
        dimension = 16 if isinstance(law, Gaussian) else 2
        setting = CanarySetting(law=law, batch_size=4, shard_size=n, dimension=dimension, sampling=_REPLACED)
        games.append(honest_game(f"{law.name} with-replacement 4/{n}, its own bound", setting, rounds))
    for law, dimension in ((Gaussian(8.0), 16), (GammaNorm(0.25), 2)):
        setting = CanarySetting(
            law=law, batch_size=4, shard_size=4, dimension=dimension, clipping=Clipping.BATCH_MEAN
        )
        games.append(honest_game(f"{law.name} batch-mean accounted with bΔS", setting, rounds))
    for norm in (LOUD, np.float32(1e-6)):  # what is long is cut, and what is short is stretched
        setting = replace(_NORMALISED, loudness=float(norm))
        games.append(honest_game(f"gaussian normalised, a gradient of {norm:g} C", setting, rounds))
    for law, n, dimension in ((Gaussian(1.0), 4, 16), (Gaussian(1.0), 8, 16), (GammaNorm(2.0), 4, 2)):
        setting = CanarySetting(
            law=law, batch_size=4, shard_size=n, dimension=dimension, clipping=Clipping.QUANTILE
        )
        games.append(honest_game(f"{law.name} with a count poisson 4/{n}", setting, rounds))
    for law, dimension in ((Gaussian(2.0), 16), (GammaNorm(1.0), 2)):
        setting = CanarySetting(law=law, batch_size=4, shard_size=4, dimension=dimension, steps=4)
        games.append(honest_game(f"{law.name}, four local steps", setting, rounds))
    for most in (5, 7):  # of 8: a batch is often truncated, or hardly ever
        setting = replace(TRUNCATED, largest_batch=most)
        games.append(honest_game(f"gaussian truncated-poisson 4/8, at most {most}", setting, rounds))
    for law, dimension in ((Gaussian(2.0), 16), (GammaNorm(1.0), 2)):
        setting = CanarySetting(law=law, batch_size=4, shard_size=4, dimension=dimension, opposed=True)
        games.append(honest_game(f"{law.name} replace-one", setting, rounds, Adjacency.REPLACE_ONE))
    return games


def sound_batteries(rounds: int = 8000) -> dict[str, list[Playable]]:
    """Return the battery of sound mechanisms, sampled and not, by name."""
    batteries: dict[str, list[Playable]] = {
        f"gaussian z={z:g} poisson": battery(Gaussian(z), batch_size=4, dimension=16, rounds=rounds)
        for z in (1.0, 4.0)
    }
    batteries["gaussian z=1 shuffled"] = battery(
        Gaussian(1.0), batch_size=4, dimension=16, rounds=rounds, sampling=_SHUFFLED
    )
    batteries["gaussian z=4 with-replacement"] = battery(
        Gaussian(4.0), batch_size=4, dimension=16, rounds=rounds, sampling=_REPLACED
    )
    batteries["gaussian z=1 normalised"] = battery(
        Gaussian(1.0), batch_size=4, dimension=16, rounds=rounds, clipping=Clipping.NORMALISED
    )
    batteries["gamma-norm ε=2 poisson"] = battery(GammaNorm(2.0), batch_size=4, dimension=2, rounds=rounds)
    return batteries

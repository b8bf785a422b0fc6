"""The audit's games for Laplace noise: the law passes, and half its scale does not."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import ClassVar

import pytest

from common.accounting.releases import ReleaseKind
from common.noise.laplace import Laplace
from common.noise.mechanism import Adjacency, Clipping, Norm
from edge.worker import EdgeWorker
from experiments.audit.bounds import Floats
from experiments.audit.canary import CanarySetting
from experiments.audit.claims import claim_for
from experiments.audit.game import Game, Releases, play
from experiments.audit.planted import HalfScale
from experiments.audit.sound import honest_game

pytestmark = pytest.mark.slow  # statistics: seconds each

PLAIN = CanarySetting(law=Laplace(4.0), batch_size=4, shard_size=4, dimension=Laplace.audit_dimension)
ROUNDS = 3000


def refuted(game: Game) -> bool:
    return play(game, alpha=1e-4, seed=11).violated


@pytest.mark.parametrize(
    ("setting", "adjacency"),
    [
        (PLAIN, Adjacency.ZERO_OUT),
        (replace(PLAIN, law=Laplace(1.0), shard_size=8), Adjacency.ZERO_OUT),
        (replace(PLAIN, law=Laplace(0.25), clipping=Clipping.BATCH_MEAN), Adjacency.ZERO_OUT),
        (replace(PLAIN, law=Laplace(1.0), opposed=True), Adjacency.REPLACE_ONE),
    ],
    ids=["canary in the batch", "sampled", "batch-mean", "replace-one"],
)
def test_laplace_noise_keeps_its_claim(setting: CanarySetting, adjacency: Adjacency) -> None:
    assert not refuted(honest_game("laplace", setting, ROUNDS, adjacency))


def test_half_the_scale_is_refuted() -> None:
    halved = replace(PLAIN, law=HalfScale(Laplace(4.0)))
    claim = claim_for(ReleaseKind(PLAIN.law, PLAIN.mechanism, PLAIN.shard_size))
    game = honest_game("half the noise, laplace", PLAIN, ROUNDS)
    assert game.claim == claim
    assert refuted(replace(game, worker=halved.worker))


def test_laplace_noise_behind_clipping_in_l2_is_refuted() -> None:
    """A canary spread over all coordinates has √N times the L1 norm that L2 clipping leaves it."""
    game = honest_game("laplace behind L2", PLAIN, 4 * ROUNDS)

    def spread(law: Laplace, there: bool, seed: int) -> EdgeWorker:
        worker = replace(PLAIN, law=law).worker(there, seed)
        worker.shard.features[0] = worker.shard.features[0, -1]
        return worker

    def along(releases: Releases, first: int) -> Floats:  # noqa: ARG001
        total: Floats = releases.sum(axis=(1, 2))
        return total

    sound = replace(game, worker=partial(spread, Laplace(4.0)), score=along)
    assert not refuted(sound)
    assert refuted(replace(sound, worker=partial(spread, InL2(4.0))))


class InL2(Laplace):
    """Laplace noise whose gradients are clipped in the wrong norm."""

    norm: ClassVar[Norm] = Norm.L2

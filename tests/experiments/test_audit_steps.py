"""`mapa audit` of scenarios with local steps and with truncated batches: the games it plays, and what they claim."""

from __future__ import annotations

import numpy as np
import pytest

from common.noise.gaussian import Gaussian
from common.noise.mechanism import Sampling
from experiments.audit.canary import CanarySetting
from experiments.audit.claims import GdpClaim, TruncatedClaim
from experiments.audit.game import Game, familywise
from experiments.audit.of_scenario import scenario_games
from experiments.audit.planted import planted_games
from experiments.audit.sound import TRUNCATED, honest_game
from tests.core_support import small_world

pytestmark = pytest.mark.slow  # statistics: seconds each

GAUSSIAN = {"noise": "gaussian", "noise_multiplier": 2.0}


def test_a_message_of_four_steps_claims_twice_a_release_and_is_played() -> None:
    world = small_world(data={"sampler": "poisson"}, privacy=GAUSSIAN, local={"steps": 4, "rate": 0.1})
    games = scenario_games(world, edge=0, rounds=6000)
    one, message, sampled = games[:3]
    assert (one.claim, message.claim) == (GdpClaim(0.5), GdpClaim(1.0))
    assert "4 local steps" in message.name
    assert isinstance(sampled.claim, GdpClaim)
    assert sampled.claim.rate < 1
    assert isinstance(message, Game)
    assert message.worker(True, 1).recipe.steps == 4
    assert isinstance(one, Game)
    assert one.worker(True, 1).recipe.steps == 1
    finding = message.play(alpha=familywise(0.95, 2), seed=4)
    assert 0.5 < finding.lower_bound <= 1.0  # more than one release may tell, and no more than four


def test_a_scenario_with_truncated_batches_claims_what_the_accountant_does() -> None:
    world = small_world(data={"sampler": "truncated-poisson", "largest_batch": 8}, privacy=GAUSSIAN)
    games = scenario_games(world, edge=0, rounds=2000)
    assert games[0].claim == GdpClaim(0.5)  # the canary is in the batch for certain
    assert isinstance(games[1].claim, TruncatedClaim)
    assert isinstance(games[1], Game)
    assert games[1].worker(True, 1).recipe.sampling is Sampling.TRUNCATED_POISSON


def test_the_least_figure_of_truncated_batches_is_refuted_only_by_errors_below_the_curve() -> None:
    claim = honest_game("", TRUNCATED, 10).claim
    assert isinstance(claim, TruncatedClaim)
    errors = np.array([0.5, 0.2, 1e-4])
    least = claim.least(errors, errors)
    assert (np.diff(least) >= 0).all()
    assert least[0] == 0.0  # a coin
    assert least[2] > claim.value


@pytest.mark.parametrize("name", ["half the noise, four local steps", "four local steps charged as two"])
def test_the_same_edge_with_its_own_claim_is_not_refuted(name: str) -> None:
    [planted] = [game for game in planted_games() if game.name == name]
    sound = CanarySetting(law=Gaussian(1.0), batch_size=4, shard_size=4, dimension=16, steps=4)
    honest = honest_game(name, sound, 3000)
    assert honest.claim.value >= planted.claim.value
    assert not honest.play(alpha=1e-3, seed=8).violated

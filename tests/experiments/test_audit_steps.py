"""`mapa audit` of scenarios with local steps and with truncated batches: the games it plays, and what they claim."""

from __future__ import annotations

import numpy as np
import pytest

from common.mechanism.mechanism import Mechanism
from common.noise.gaussian import Gaussian
from experiments.audit.claims import GdpClaim, TruncatedClaim
from experiments.audit.design import Design
from experiments.audit.game import Game, familywise
from experiments.audit.subject import scenario_games
from tests.core_support import small_world
from tests.mechanism_support import truncated

pytestmark = pytest.mark.slow  # statistics: seconds each

GAUSSIAN = {"noise": "gaussian", "noise_multiplier": 2.0}


def test_a_message_of_four_steps_claims_twice_a_release_and_is_played() -> None:
    world = small_world(data={"sampler": "poisson"}, privacy=GAUSSIAN, local={"steps": 4, "rate": 0.1})
    games = scenario_games(world, edge=0, rounds=1500)
    one, message, sampled = games[:3]
    assert (one.claim, message.claim) == (GdpClaim(0.5), GdpClaim(1.0))
    assert "4 local steps" in message.name
    assert isinstance(sampled.claim, GdpClaim)
    assert sampled.claim.rate < 1
    assert isinstance(message, Game)
    assert message.worker(True, 1).mechanism.steps == 4
    assert isinstance(one, Game)
    assert one.worker(True, 1).mechanism.steps == 1
    finding = message.play(alpha=familywise(0.95, 2), seed=4)
    assert 0.5 < finding.lower_bound <= 1.0  # more than one release may tell, and no more than four


def test_a_scenario_with_truncated_batches_claims_what_the_accountant_does() -> None:
    world = small_world(data={"sampler": "truncated-poisson", "largest_batch": 8}, privacy=GAUSSIAN)
    games = scenario_games(world, edge=0, rounds=2000)
    assert games[0].claim == GdpClaim(0.5)  # the canary is in the batch for certain
    assert isinstance(games[1].claim, TruncatedClaim)
    assert isinstance(games[1], Game)
    assert games[1].worker(True, 1).mechanism.sampler == truncated(8)


def test_the_least_figure_of_truncated_batches_is_refuted_only_by_errors_below_the_curve() -> None:
    claim = Design(mechanism=Mechanism(Gaussian(1.0), 4, truncated(7)), shard_size=8, canary=np.ones(4)).claim
    assert isinstance(claim, TruncatedClaim)
    errors = np.array([0.5, 0.2, 1e-4])
    least = claim.least(errors, errors)
    assert (np.diff(least) >= 0).all()
    assert least[0] == 0.0  # a coin
    assert least[2] > claim.value


def test_a_scenario_with_normalised_gradients_is_played_with_its_stabiliser(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    normalised = small_world(privacy={**GAUSSIAN, "clipping": "normalised"}, data={"sampler": "poisson"})
    monkeypatch.setattr(type(normalised.model), "feature_length", 30.0)
    played = [game for game in scenario_games(normalised, edge=0, rounds=1000) if isinstance(game, Game)]
    assert len(played) > 8
    clippings = [game.worker(True, 1).mechanism.clipping for game in played]
    assert {one.scaling(np.ones(1))[1] for one in clippings} == {0.01 * 30.0}

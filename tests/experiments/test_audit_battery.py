"""The battery refutes what is planted; designs, claims and `mapa audit --planted`. Every seed is fixed, but for the
games of secure streams, whose α says how often they may err."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest

from common.mechanism.clipping import Clipping
from common.mechanism.mechanism import Mechanism
from common.mechanism.sampler import Sampler
from common.noise.gamma_norm import GammaNorm
from common.noise.gaussian import Gaussian
from common.noise.laplace import Laplace
from common.noise.law import NoiseLaw
from common.randomness import Purpose
from experiments.audit.battery import most_drawn
from experiments.audit.claims import GdpClaim, PureClaim
from experiments.audit.defects import INVISIBLE, MUTATED, MUTATIONS, Defect, planted
from experiments.audit.design import Design, honest
from experiments.audit.game import _released, familywise, put_to_test
from experiments.commands import audit as audit_module
from tests.mechanism_support import (
    BATCH_MEAN,
    EVERY_CLIPPING,
    NORMALISED,
    PER_SAMPLE,
    POISSON,
    QUANTILE,
    SHUFFLED,
    WITH_REPLACEMENT,
)
from tests.reproduce_support import invoked

pytestmark = pytest.mark.slow  # statistics: seconds each

ALPHA = familywise(0.95, 13)
SEED = 7
PLANTED = {defect.name: defect for defect in planted()}
PROCESSES, ALIKE, TO_AND_FRO, MESSAGE = "the first release", "two releases", "four releases", "one message"
IN_BATCH, EXACTLY = "one release, canary in", "one release, spread"
IN_TURN, ABOVE = "coordinates", "canary just"
HALF, AGAINST = "one release, sampled at", "one release, the others"
DRAWN, WHO = "drawn most", "who is sampled"

# What the review proved to be missed, and the game that refutes it, without those before it.
REVIEWED = {
    "half of the coordinates without noise": ALIKE,
    "norms between C and 20 C unclipped": IN_TURN,
    "noise repeated every 100 releases": ALIKE,
    "a record other than the first in every batch": DRAWN,
    "one key for all secure streams": PROCESSES,
}
FOUND_BY = {  # the others, each at one of the strengths
    "one coordinate without noise": ALIKE,
    "one layer of four without noise": PROCESSES,
    "one release in 50 without noise": EXACTLY,
    "half the noise": IN_BATCH,
    "noise reused for two releases": ALIKE,
    "noise drawn from the batch's stream": WHO,
    "clipped at 1.5 C": ABOVE,
    "clipped by the largest coordinate": ALIKE,
    "one sample of each batch unclipped": IN_TURN,
    "clipped after the noise": TO_AND_FRO,
    "sum not divided by b": IN_BATCH,
    "divided by the realised batch size": AGAINST,
    "sampling rate doubled": HALF,
    "one batch reused for ever": DRAWN,
}
OF_ONE_KIND = {
    "quantile, z = 1: the count ten times as long": IN_TURN,
    "quantile, z = 4: the count ten times as long": ABOVE,
    "quantile, laplace: the count ten times as long": IN_BATCH,
    "local steps, z = 4: one of four without noise": MESSAGE,
    "normalised: the stabiliser taken off": ABOVE,
    "truncated-poisson: a record other than the first in every batch": DRAWN,
    "batch-mean: half the noise": IN_BATCH,
    "laplace: clipped in L2": "replaced",
    "gaussian: a ΔS whose squares leave float32": "two processes",
}
CASES = (
    [(f"{name}: {mutation}", by) for mutation, by in REVIEWED.items() for name in MUTATED]
    + [(f"gaussian, z = 4: {mutation}", by) for mutation, by in FOUND_BY.items()]
    + list(OF_ONE_KIND.items())
)


def test_every_mutation_is_planted_in_every_mutated_mechanism_and_none_is_excused() -> None:
    assert {*REVIEWED, *FOUND_BY} == set(MUTATIONS)
    assert {f"{name}: {mutation}" for name in MUTATED for mutation in MUTATIONS} <= set(PLANTED)
    assert set(OF_ONE_KIND) <= set(PLANTED)
    assert len(PLANTED) == len(planted())  # no name hides another
    assert set(INVISIBLE) <= set(PLANTED)


@pytest.mark.parametrize(("name", "by"), CASES, ids=[name for name, _ in CASES])
def test_a_planted_defect_is_refuted(name: str, by: str) -> None:
    game = next(game for game in PLANTED[name].games() if by in game.name)
    assert game.play(alpha=ALPHA, seed=SEED).violated


# ---- designs and claims


def design(mechanism: Mechanism, **how: object) -> Design:
    return Design(mechanism=mechanism, shard_size=4, canary=np.ones(4), **how)  # type: ignore[arg-type]


def test_a_round_of_several_releases_claims_their_composition() -> None:
    assert design(Mechanism(Gaussian(2.0), 4), releases=16).claim == GdpClaim(2.0)
    assert design(Mechanism(GammaNorm(2.0), 4), releases=4).claim == PureClaim(4.0)
    sampled = replace(design(Mechanism(Gaussian(2.0), 4), releases=2), shard_size=8)
    with pytest.raises(ValueError, match="closed form"):
        _ = sampled.claim


@pytest.mark.parametrize("clipping", EVERY_CLIPPING)
@pytest.mark.parametrize("law", [Gaussian(1e-9), Laplace(1e9)], ids=["L2", "L1"])
def test_where_a_release_lies_before_noise_is_what_the_edge_makes(
    clipping: Clipping, law: Gaussian | Laplace
) -> None:
    steer = np.array([[1.0, 0, 0, 0], [-3.0, -3, -3, -3], [0.1, 0, 0, 0]])
    mechanism = Mechanism(law, 4, clipping=clipping.fitted(28.0))
    played = replace(design(mechanism, steer=steer), canary=np.full(4, 2.0), others=np.eye(4)[1])
    aim = played.aim
    for there, centres in ((False, aim.zeroed), (True, aim.there)):
        worker = played.worker(there, 0)
        for n, x in enumerate(played.path):
            released = worker.gradient(x, played.sensitivity, n + 1)
            np.testing.assert_allclose(released, centres[n], atol=1e-6)
    moved = np.linalg.norm(aim.there - aim.zeroed, axis=1, ord=1 if isinstance(law, Laplace) else 2)
    most = 2.0 if clipping == BATCH_MEAN else 0.25  # C/b, or 2C
    assert (moved <= most * (1 + 1e-5)).all()
    assert moved.max() > 0.7 * most  # the stabiliser takes its part


def test_the_stabiliser_and_the_streams_are_those_of_an_edge() -> None:
    worker = design(Mechanism(Gaussian(1.0), 4, clipping=NORMALISED.fitted(28.0))).worker(True, 3)
    assert worker.mechanism.clipping.scaling(np.ones(1))[1] == pytest.approx(0.28)
    assert not worker.streams.reproducible
    secure = [design(Mechanism(Gaussian(1.0), 4)).worker(True, None).streams for _ in range(2)]
    assert secure[0]._key != secure[1]._key


def test_the_canary_takes_every_row_in_turn() -> None:
    game = design(Mechanism(Gaussian(1.0), 4)).game("turning", 8)
    rows: list[int] = []

    def watched(there: bool, seed: int | None):  # type: ignore[no-untyped-def]
        worker = game.worker(there, seed)
        worker.diagnose = lambda *_: rows.append(int(np.flatnonzero(worker.shard.rows == 0)[0]))
        return worker

    _released(replace(game, worker=watched), True, 1)
    assert rows == [0, 1, 2, 3, 0, 1, 2, 3]


def test_a_game_that_learns_is_judged_on_rounds_it_has_not_seen() -> None:
    game = replace(design(Mechanism(Gaussian(1.0), 4)), canary=np.full(8, 9.0)).game("learned", 400)
    seen: list[int] = []

    def learner(zeroed: np.ndarray, there: np.ndarray, *_: int):  # type: ignore[no-untyped-def]
        seen.append(len(zeroed))
        known = {row.tobytes() for world in (zeroed, there) for row in world}

        def recalls(releases: np.ndarray, first: int):  # type: ignore[no-untyped-def]
            # tells the worlds apart where it has seen the round, and nowhere else
            return np.array([float(row.tobytes() in known) * (1 if first > 1 else -1) for row in releases])

        return recalls

    finding = replace(game, learner=learner, score=None).play(alpha=0.05, seed=1)
    assert seen == [200]
    assert finding.lower_bound == 0


def test_the_rounds_of_a_lag_are_so_far_apart() -> None:
    one = Design(mechanism=Mechanism(Gaussian(1.0), 1), shard_size=1, canary=np.ones(1), releases=2)
    pairs = _released(replace(one.game("lagged", 7), lag=3), False, 5)
    worker = one.worker(False, 5)
    line = [float(worker.gradient(np.ones(1, np.float32), one.sensitivity, n)[0]) for n in range(1, 19)]
    assert [(round(a, 6), round(b, 6)) for a, b in pairs[:, :, 0]] == [
        (round(line[n], 6), round(line[n + 3], 6)) for n in (0, 1, 2, 6, 7, 8, 12)
    ]


@pytest.mark.parametrize(
    "law", [Gaussian(1.0), Laplace(2.0), GammaNorm(2.0)], ids=["gaussian", "laplace", "gamma-norm"]
)
@pytest.mark.parametrize("clipping", [PER_SAMPLE, QUANTILE])
def test_the_row_that_is_always_drawn_is_found(law: NoiseLaw, clipping: Clipping) -> None:
    canary = np.zeros(law.audit_dimension)
    canary[-1] = 1000.0
    plant = MUTATIONS["a record other than the first in every batch"]
    message = Design(mechanism=Mechanism(law, 4, clipping=clipping), shard_size=4, canary=canary, plant=plant)
    prepare = most_drawn("drawn", message, 800, 1000).prepare
    assert prepare is not None
    rows = prepare(SEED)[0].worker(True, SEED).shard.rows
    assert (len(rows), rows[2]) == (800, 0)  # the canary's row stands where the defect draws


def test_noise_of_the_batch_is_planted_where_the_edge_draws_it() -> None:
    plant = MUTATIONS["noise drawn from the batch's stream"]
    mutated = plant(design(Mechanism(Gaussian(1.0), 4)).worker(False, 3))
    expected = mutated.streams.at(0, Purpose.BATCH, 5).standard_normal(4)
    np.testing.assert_array_equal(mutated.streams.at(0, Purpose.NOISE, 5).standard_normal(4), expected)


@pytest.mark.parametrize("sampling", [POISSON, SHUFFLED])
def test_a_record_that_is_always_drawn_is_planted_where_the_edge_draws(sampling: Sampler) -> None:
    drawn = replace(design(Mechanism(Gaussian(1.0), 4, sampler=sampling)), shard_size=40)
    worker = MUTATIONS["a record other than the first in every batch"](drawn.worker(True, 3))
    for n in range(1, 21):
        assert 2 in sampling.draw(worker.streams, 0, n, 40, 4)


# ---- the command


def test_games_are_played_until_one_refutes_cheap_ones_first() -> None:
    games = PLANTED["gaussian, z = 1: one coordinate without noise"].games(1000)
    assert [game.cost for game in games] == sorted(game.cost for game in games)
    findings = put_to_test(games, alpha=ALPHA, seed=SEED)
    assert [finding.violated for finding in findings] == [True]


def test_the_command_prints_what_each_game_finds(monkeypatch: pytest.MonkeyPatch) -> None:
    # each defect has a test of its own; the whole list takes minutes
    chosen = [PLANTED[f"{name}: one coordinate without noise"] for name in MUTATED]
    monkeypatch.setattr(audit_module, "planted", lambda: chosen)
    result = invoked("audit", "--planted", "--rounds", "1000", "--json")
    assert result.exit_code == 0, result.output
    report = json.loads(result.stdout)
    assert report["missed"] == []
    assert [defect["name"] for defect in report["defects"]] == [defect.name for defect in chosen]
    assert all(defect["games"][-1]["violated"] for defect in report["defects"])
    printed = invoked("audit", "--planted", "--rounds", "1000")
    assert printed.exit_code == 0
    assert "6 of 6 defects are refuted" in printed.stdout


def test_a_defect_that_is_missed_is_named_and_exits_1_unless_a_reason_is_known(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    sound = Defect("nothing at all", Mechanism(Gaussian(4.0), 4, sampler=WITH_REPLACEMENT), honest)
    monkeypatch.setattr(audit_module, "planted", lambda: [sound])
    result = invoked("audit", "--planted", "--rounds", "1000")
    assert result.exit_code == 1
    assert "NOT REFUTED" in result.stdout
    assert "Missed: nothing at all" in result.stdout
    monkeypatch.setitem(INVISIBLE, "nothing at all", "there is nothing to see")
    excused = invoked("audit", "--planted", "--rounds", "1000")
    assert excused.exit_code == 0
    assert "there is nothing to see" in excused.stdout

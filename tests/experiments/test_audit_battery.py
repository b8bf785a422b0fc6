"""The battery refutes every planted mutation and no sound mechanism; every seed is fixed."""

from __future__ import annotations

import json
import math
from dataclasses import replace

import numpy as np
import pytest
import typer
from typer.testing import CliRunner

from common.errors import ConfigurationError
from common.noise.gamma_norm import GammaNorm
from common.noise.gaussian import Gaussian
from common.noise.mechanism import Sampling
from common.randomness import Purpose
from experiments.audit.battery import battery
from experiments.audit.claims import GdpClaim, PureClaim
from experiments.audit.defects import MUTATIONS
from experiments.audit.design import Design
from experiments.audit.game import Playable, _released, familywise
from experiments.audit.many import ManyCanaries
from experiments.audit.trial import INVISIBLE, MULTIPLIERS, Planted, planted, put_to_test
from experiments.commands.audit import audit_command

pytestmark = pytest.mark.slow  # statistics: seconds each

ROUNDS = 8000
ALPHA = familywise(0.95, sum(len(defect.games) for defect in planted(ROUNDS)))
SEED = 7
ALIKE, TO_AND_FRO, IN_TURN, EXACTLY, ABOVE, HALF, AGAINST, MANY, CROWD = range(9)
FOUND_BY = {  # the game that refutes it at either z, without those before it
    "half of the coordinates without noise": ALIKE,
    "one coordinate without noise": ALIKE,
    "one layer of four without noise": ALIKE,
    "one release in 50 without noise": EXACTLY,
    "noise repeated every 100 releases": ALIKE,
    "noise drawn from the batch's stream": CROWD,
    "norms between C and 20 C unclipped": IN_TURN,
    "clipped at 1.5 C": ABOVE,
    "divided by the realised batch size": ALIKE,
    "sampling rate doubled": HALF,
    "one batch reused for ever": MANY,
}
COSTLY = {CROWD}
CASES = [
    pytest.param(name, z, place, id=f"{name}, z={z:g}", marks=[pytest.mark.slow] if place in COSTLY else [])
    for name, place in FOUND_BY.items()
    for z in MULTIPLIERS
]


def games(z: float, mutation: str | None = None, rounds: int = ROUNDS) -> list[Playable]:
    law = Gaussian(z)
    if mutation is None:
        return battery(law, batch_size=4, dimension=16, rounds=rounds)
    return battery(law, batch_size=4, dimension=16, rounds=rounds, plant=MUTATIONS[mutation])


def test_every_mutation_is_planted_at_both_strengths_and_none_is_excused() -> None:
    assert set(FOUND_BY) == set(MUTATIONS)
    names = [defect.name for defect in planted(ROUNDS)]
    assert {f"{name}, z = {z:g}" for name in MUTATIONS for z in (1, 4)} <= set(names)
    assert len(names) == len(set(names)) == 2 * 11 + 24
    assert not INVISIBLE


@pytest.mark.parametrize(("name", "z", "place"), CASES)
def test_a_mutation_is_refuted(name: str, z: float, place: int) -> None:
    game = games(z, name)[place]
    finding = game.play(alpha=ALPHA, seed=SEED)
    assert 0 < finding.claimed < math.inf
    assert finding.violated


@pytest.mark.parametrize("z", MULTIPLIERS)
@pytest.mark.parametrize("place", [ALIKE, TO_AND_FRO, IN_TURN, EXACTLY, ABOVE, HALF, AGAINST, MANY])
def test_a_sound_release_stands_in_every_game(z: float, place: int) -> None:
    finding = games(z, rounds=2000)[place].play(alpha=ALPHA, seed=SEED)
    assert not finding.violated


@pytest.mark.slow
@pytest.mark.parametrize("z", MULTIPLIERS)
def test_a_sound_release_stands_in_the_costly_game(z: float) -> None:
    finding = games(z, rounds=2000)[CROWD].play(alpha=ALPHA, seed=SEED)
    assert not finding.violated


@pytest.mark.parametrize(
    ("law", "sampling"),
    [(Gaussian(4.0), Sampling.WITH_REPLACEMENT), (GammaNorm(2.0), Sampling.SHUFFLED)],
    ids=["with-replacement", "gamma-norm shuffled"],
)
def test_other_samplers_and_laws_stand(law: Gaussian | GammaNorm, sampling: Sampling) -> None:
    dimension = 16 if isinstance(law, Gaussian) else 2
    for game in battery(law, batch_size=4, dimension=dimension, rounds=1200, sampling=sampling):
        assert not game.play(alpha=ALPHA, seed=SEED).violated


# ---- designs and claims


def test_a_round_of_several_releases_claims_their_composition() -> None:
    canary = np.ones(4)
    sure = Design(law=Gaussian(2.0), batch_size=4, shard_size=4, canary=canary, releases=16)
    assert sure.claim == GdpClaim(2.0)
    pure = Design(law=GammaNorm(2.0), batch_size=4, shard_size=4, canary=canary, releases=4)
    assert pure.claim == PureClaim(4.0)
    sampled = Design(law=Gaussian(2.0), batch_size=4, shard_size=8, canary=canary, releases=2)
    with pytest.raises(ValueError, match="closed form"):
        _ = sampled.claim


def test_where_a_release_lies_before_noise_is_what_the_edge_makes() -> None:
    steer = np.array([[1.0, 0, 0, 0], [-3.0, -3, -3, -3], [0.1, 0, 0, 0]])
    design = Design(
        law=Gaussian(1e-9),
        batch_size=4,
        shard_size=4,
        canary=np.full(4, 2.0),
        steer=steer,
        others=np.eye(4)[1],
    )
    aim = design.aim
    for there, centres in ((False, aim.zeroed), (True, aim.there)):
        worker = design.worker(there, 0)
        for n, x in enumerate(steer):
            released = worker.gradient(x.astype(np.float32), design.sensitivity, n + 1)
            np.testing.assert_allclose(released, centres[n], atol=1e-6)


def test_a_game_that_learns_is_judged_on_rounds_it_has_not_seen() -> None:
    design = Design(law=Gaussian(1.0), batch_size=4, shard_size=4, canary=np.full(8, 9.0))
    game = design.game("learned", 400)
    seen: list[int] = []

    def learner(zeroed: np.ndarray, there: np.ndarray, *_: int):  # type: ignore[no-untyped-def, type-arg]
        seen.append(len(zeroed))
        known = {row.tobytes() for world in (zeroed, there) for row in world}

        def recalls(releases: np.ndarray, first: int):  # type: ignore[no-untyped-def, type-arg]
            # tells the worlds apart where it has seen the round, and nowhere else
            return np.array([float(row.tobytes() in known) * (1 if first > 1 else -1) for row in releases])

        return recalls

    learning = replace(game, learner=learner, score=None)
    finding = learning.play(alpha=0.05, seed=1)
    assert seen == [200]
    assert finding.lower_bound == 0


def test_the_rounds_of_a_lag_are_so_far_apart() -> None:
    design = Design(law=Gaussian(1.0), batch_size=1, shard_size=1, canary=np.ones(1), releases=2)
    game = design.game("lagged", 7)
    pairs = _released(replace(game, lag=3), False, 5)
    worker = design.worker(False, 5)
    line = [float(worker.gradient(np.ones(1, np.float32), design.sensitivity, n)[0]) for n in range(1, 19)]
    assert [(round(a, 6), round(b, 6)) for a, b in pairs[:, :, 0]] == [
        (round(line[n], 6), round(line[n + 3], 6)) for n in (0, 1, 2, 6, 7, 8, 12)
    ]


def test_a_run_of_many_canaries_claims_what_the_accountant_composes() -> None:
    game = ManyCanaries(name="many", law=Gaussian(1.0))
    assert game.releases == 49
    assert game.claim.value > ManyCanaries(name="many", law=Gaussian(2.0)).claim.value > 0


def test_noise_of_the_batch_is_planted_where_the_edge_draws_it() -> None:
    worker = Design(law=Gaussian(1.0), batch_size=4, shard_size=8, canary=np.ones(4)).worker(False, 3)
    mutated = MUTATIONS["noise drawn from the batch's stream"](worker)
    expected = mutated.streams.at(0, Purpose.BATCH, 5).standard_normal(4)
    np.testing.assert_array_equal(mutated.streams.at(0, Purpose.NOISE, 5).standard_normal(4), expected)


# ---- the command


def command() -> typer.Typer:
    app = typer.Typer()
    app.command()(audit_command)
    return app


def test_games_are_played_until_one_refutes() -> None:
    defect = Planted(name="muted", games=tuple(games(1.0, "one coordinate without noise", 1000)))
    findings = put_to_test(defect, alpha=ALPHA, seed=SEED)
    assert [finding.violated for finding in findings] == [True]


def test_the_command_prints_what_each_game_finds(monkeypatch: pytest.MonkeyPatch) -> None:
    # each defect has a test of its own; the whole list takes minutes
    chosen = [
        defect for defect in planted(1000) if defect.name.startswith(("one coordinate", "norms between"))
    ]
    monkeypatch.setattr("experiments.commands.audit_planted.planted", lambda _: chosen)
    result = CliRunner().invoke(command(), ["--planted", "--json"])
    assert result.exit_code == 0, result.output
    report = json.loads(result.stdout)
    assert report["missed"] == []
    assert [defect["name"] for defect in report["defects"]] == [defect.name for defect in chosen]
    assert [len(defect["games"]) for defect in report["defects"]] == [1, 1, 3, 3]
    assert all(defect["games"][-1]["violated"] for defect in report["defects"])
    printed = CliRunner().invoke(command(), ["--planted"])
    assert printed.exit_code == 0
    assert "4 of 4 defects are refuted" in printed.stdout


def test_a_defect_that_is_missed_is_named_and_exits_1(monkeypatch: pytest.MonkeyPatch) -> None:
    sound = Planted(name="nothing at all", games=(games(4.0, rounds=1000)[TO_AND_FRO],))
    monkeypatch.setattr("experiments.commands.audit_planted.planted", lambda _: [sound])
    result = CliRunner().invoke(command(), ["--planted"])
    assert result.exit_code == 1
    assert "NOT REFUTED" in result.stdout
    assert "Missed: nothing at all" in result.stdout


def test_planted_defects_have_mechanisms_of_their_own() -> None:
    for words, said in ((["quickstart", "--planted"], "takes no scenario"), ([], "scenario: name")):
        with pytest.raises(ConfigurationError, match=said):
            CliRunner().invoke(command(), words, catch_exceptions=False)

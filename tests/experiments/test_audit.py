"""The audit flags no sound mechanism; its statistics, its scenarios, its command."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.special import ndtr
from scipy.stats import binom

from common.accounting.releases import ReleaseKind
from common.errors import ConfigurationError
from common.mechanism.clipping import CLIPPINGS
from common.mechanism.clippings.normalised import Normalised
from common.mechanism.guarantee import Adjacency
from common.mechanism.mechanism import Mechanism
from common.mechanism.sampler import SAMPLERS
from common.models.registry import make_model
from common.noise.exponential_norm import ExponentialNorm
from common.noise.gamma_norm import GammaNorm
from common.noise.gaussian import Gaussian
from common.noise.law import NoiseLaw
from common.noise.registry import describe_law, law_names
from experiments.audit.battery import scenario_games
from experiments.audit.claims import (
    GdpClaim,
    PureClaim,
    ReleaseClaim,
    TruncatedClaim,
    claim_for,
    one_run_epsilon,
    upper_rate,
)
from experiments.audit.defects import planted
from experiments.audit.design import Design
from experiments.audit.game import Game, familywise, judge, play_all
from experiments.audit.one_run import ZeroingModel, audit_one_run
from experiments.audit.seeds import sound_battery, sound_mechanisms
from experiments.commands import audit as audit_module
from mapa.dashboard.watch import Watch
from mapa.run_removal import considered
from mapa.scenario_files import load_scenario
from mapa.simulation.simulator import World
from tests.core_support import small_world
from tests.dashboard_support import simulated, write_live_run
from tests.mechanism_support import truncated
from tests.reproduce_support import invoked

pytestmark = pytest.mark.slow  # statistics: seconds each

ALPHA = familywise(0.95, 15)  # as many games as the longest battery has
SEED = 20240  # fixed: a sound game that is flagged by chance would be flagged every time
SOUND = sound_mechanisms()


@pytest.mark.parametrize("name", SOUND)
def test_a_sound_mechanism_is_flagged_by_no_game(name: str) -> None:
    games = sound_battery(SOUND[name], rounds=400)
    findings = play_all(games, confidence=0.9999, seed=SEED)
    assert all(math.isfinite(finding.claimed) for finding in findings)
    assert [finding.name for finding in findings if finding.violated] == []


@pytest.mark.parametrize(
    ("name", "share"),
    [("gaussian per-sample", 0.6), ("laplace per-sample", 0.6), ("gaussian batch-mean", 0.6)],
)
def test_a_good_attack_nearly_reaches_what_is_claimed(name: str, share: float) -> None:
    """An audit that sees nothing would flag nothing."""
    finding = sound_battery(SOUND[name], rounds=3000)[0].play(alpha=ALPHA, seed=SEED)
    assert share * finding.claimed < finding.lower_bound <= finding.claimed


def test_every_law_clipping_and_sampler_is_among_the_sound() -> None:
    laws = {one.law.name for one in SOUND.values() if one.law is not None}
    assert laws == {law for law in law_names() if describe_law(law).made.protects}
    for law in laws:
        mine = [one for one in SOUND.values() if one.law is not None and one.law.name == law]
        assert {one.clipping.name for one in mine} == set(CLIPPINGS.names)
        assert {one.sampler.name for one in mine} == set(SAMPLERS.names)
        assert {one.steps for one in mine} == {1, 4}
    normalised = [one.clipping for one in SOUND.values() if isinstance(one.clipping, Normalised)]
    assert all(one.stabiliser * one.length > 0 for one in normalised)


# ---- the statistics


@given(trials=st.integers(1, 5000), share=st.floats(0, 1), alpha=st.floats(1e-4, 0.5))
def test_clopper_and_pearson_s_bound_is_where_so_few_errors_have_probability_alpha(
    trials: int, share: float, alpha: float
) -> None:
    errors = int(share * trials)
    bound = float(upper_rate(errors, trials, alpha))
    assert errors / trials <= bound <= 1
    if errors < trials:
        assert binom.cdf(errors, trials, bound) == pytest.approx(alpha, rel=1e-5)


@given(epsilon=st.floats(0.01, 8))
def test_randomised_response_is_audited_exactly(epsilon: float) -> None:
    error = np.array(1 / (1 + math.exp(epsilon)))
    assert float(PureClaim(1.0).least(error, error)) == pytest.approx(epsilon)


@given(mu=st.floats(0.05, 4), rate=st.floats(0.05, 1), threshold=st.floats(-2, 3))
def test_a_sampled_gaussian_is_audited_exactly(mu: float, rate: float, threshold: float) -> None:
    fpr = ndtr(-threshold)
    fnr = rate * ndtr(threshold - mu) + (1 - rate) * ndtr(threshold)
    claim = GdpClaim(1.0, rate)
    assert float(claim.least(np.array(fpr), np.array(fnr))) == pytest.approx(mu, rel=1e-4, abs=1e-6)
    more = claim.least(np.array(fpr) + 0.01, np.array(fnr))
    assert more <= mu + 1e-6  # more errors never refute more
    assert claim.least(np.array(fpr), np.array(fnr) + 0.01) <= mu + 1e-6


def test_a_claim_is_what_the_accountant_states() -> None:
    def claim(law: NoiseLaw | None, shard_size: int = 4, **how: Any) -> ReleaseClaim:
        return claim_for(ReleaseKind(Mechanism(law, 4), shard_size), **how)

    assert claim(Gaussian(2.0)) == GdpClaim(0.5)
    assert claim(Gaussian(2.0), 16) == GdpClaim(0.5, 0.25)
    assert claim(GammaNorm(2.0)) == PureClaim(1.0)  # zero-out is half a move of ΔS
    assert claim(GammaNorm(2.0), 16).value == pytest.approx(math.log(1 + 0.25 * (math.e - 1)))
    assert claim(ExponentialNorm(1.0)).value == claim(None).value == math.inf
    assert claim(Gaussian(2.0), adjacency=Adjacency.REPLACE_ONE) == GdpClaim(1.0)
    # ε(δ) of μ: the closed form of Balle and Wang, at its own δ
    epsilon = GdpClaim(0.5).epsilon(0.5, 1e-5)
    assert ndtr(0.25 - epsilon / 0.5) - math.exp(epsilon) * ndtr(-0.25 - epsilon / 0.5) == pytest.approx(1e-5)


@pytest.mark.parametrize("claim", [GdpClaim(1.0), PureClaim(1.0)], ids=["gaussian", "laplace"])
def test_a_true_claim_is_refuted_no_more_often_than_alpha_allows(claim: GdpClaim | PureClaim) -> None:
    rng = np.random.default_rng(1)
    plays, alpha, flags, powers = 400, 0.05, 0, 0
    for _ in range(plays):
        draw = rng.standard_normal if claim.figure == "μ" else (lambda n: rng.laplace(size=n))
        zeroed, noise = draw(400), draw(400)
        flags += judge("true", claim, zeroed, noise + 1, alpha).violated
        powers += judge("false", claim, zeroed, noise + 2.5, alpha).violated
    assert flags <= binom.ppf(0.999, plays, alpha)
    assert powers > 0.9 * plays  # and a false one is


@given(guesses=st.integers(2, 400), share=st.floats(0.5, 1), alpha=st.floats(0.001, 0.2))
def test_the_one_run_bound_without_delta_is_the_binomial_s(guesses: int, share: float, alpha: float) -> None:
    correct = int(share * guesses)
    epsilon = one_run_epsilon(canaries=1000, guesses=guesses, correct=correct, delta=0.0, alpha=alpha)
    if epsilon == 0:
        assert binom.sf(correct - 1, guesses, 0.5) > alpha
    else:
        assert binom.sf(correct - 1, guesses, 1 / (1 + math.exp(-epsilon))) == pytest.approx(alpha, rel=1e-3)
    with_delta = one_run_epsilon(canaries=1000, guesses=guesses, correct=correct, delta=1e-5, alpha=alpha)
    assert with_delta <= epsilon + 1e-9
    if with_delta > 0:
        rate = 1 / (1 + math.exp(-with_delta))
        below = np.cumsum([binom.pmf(correct - i, guesses, rate) for i in range(1, correct + 1)])
        term = max(below / np.arange(1, correct + 1))
        p_value = binom.sf(correct - 1, guesses, rate) + 2 * 1000 * 1e-5 * term
        assert p_value == pytest.approx(alpha, rel=1e-3)


def test_familywise_confidence_is_divided_among_the_games() -> None:
    assert familywise(0.95, 10) == pytest.approx(0.005)


# ---- scenarios


def test_a_sound_scenario_is_audited_alone_and_as_sampled() -> None:
    world = small_world(data={"sampler": "poisson"}, privacy={"noise": "gaussian", "noise_multiplier": 1.0})
    games = scenario_games(world, edge=1, rounds=2000)
    assert [game.claim for game in games[:2]] == [GdpClaim(1.0), GdpClaim(1.0, 5 / 60)]
    assert len(games) == 13
    findings = play_all(games[:-1], confidence=0.95, seed=3)  # the last is the costliest
    assert not any(finding.violated for finding in findings)
    assert findings[0].lower_bound > 0.6


def test_a_replica_claims_nothing_and_is_shown_to_leak() -> None:
    world = small_world(privacy={"noise": "exponential-norm", "epsilon": 0.1, "clipping": "batch-mean"})
    (game,) = scenario_games(world, edge=0, rounds=2000)
    finding = game.play(alpha=0.05, seed=3)
    assert finding.claimed == math.inf
    assert not finding.violated
    assert finding.lower_bound > 3  # thirty times the paper's ε


@pytest.mark.parametrize("sampler", ["shuffled", "with-replacement"])
def test_every_sampler_s_scenario_has_games_that_hold(sampler: str) -> None:
    world = small_world(data={"sampler": sampler}, privacy={"noise": "gamma-norm", "epsilon": 1.0})
    findings = play_all(scenario_games(world, edge=0, rounds=1500), confidence=0.95, seed=3)
    assert findings
    assert not any(finding.violated for finding in findings)
    assert max(finding.lower_bound for finding in findings) > 0


GAUSSIAN = {"noise": "gaussian", "noise_multiplier": 2.0}


def test_a_message_of_four_steps_claims_twice_a_release_and_is_played() -> None:
    world = small_world(data={"sampler": "poisson"}, privacy=GAUSSIAN, local={"steps": 4, "rate": 0.1})
    games = scenario_games(world, edge=0, rounds=1500)
    one, message, sampled = games[:3]
    assert (one.claim, message.claim) == (GdpClaim(0.5), GdpClaim(1.0))
    assert "4 local steps" in message.name
    assert isinstance(sampled.claim, GdpClaim)
    assert sampled.claim.rate < 1
    assert message.worker(True, 1).mechanism.steps == 4
    assert one.worker(True, 1).mechanism.steps == 1
    finding = message.play(alpha=familywise(0.95, 2), seed=4)
    assert 0.5 < finding.lower_bound <= 1.0  # more than one release may tell, and no more than four


def test_a_scenario_with_truncated_batches_claims_what_the_accountant_does() -> None:
    world = small_world(data={"sampler": "truncated-poisson", "largest_batch": 8}, privacy=GAUSSIAN)
    games = scenario_games(world, edge=0, rounds=2000)
    assert games[0].claim == GdpClaim(0.5)  # the canary is in the batch for certain
    assert isinstance(games[1].claim, TruncatedClaim)
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
    played = scenario_games(normalised, edge=0, rounds=1000)
    assert len(played) > 8
    clippings = [game.worker(True, 1).mechanism.clipping for game in played]
    assert {one.scaling(np.ones(1))[1] for one in clippings} == {0.01 * 30.0}


# ---- one run


def test_a_zeroed_sample_contributes_nothing() -> None:
    model = make_model("softmax", shape=(4, 4), classes=10, options={})
    rng = np.random.default_rng(0)
    features = model.features(rng.random((3, 16)).astype(np.float32))
    targets = np.array([1, 2, 3])
    x = rng.standard_normal(model.dimension).astype(np.float32)
    zeroed = ZeroingModel(model).gradients(x, features, targets + np.array([0, 1_000_000, 0]))
    kept = model.gradients(x, features[[0, 2]], targets[[0, 2]])
    np.testing.assert_array_equal(zeroed.weighted_sum(None), kept.weighted_sum(None))


def embedded_world(*changes: str) -> World:
    _, scenario = load_scenario("quickstart", changes, seed=5)
    return World.of(scenario, Path("data"))


def test_one_run_tells_canaries_apart_where_there_is_hardly_any_noise() -> None:
    outcome = audit_one_run(embedded_world("privacy.noise_multiplier=0.02"), canaries=300, iterations=150)
    assert outcome.lower_bound > 1
    assert not outcome.violated
    bare = audit_one_run(embedded_world("algorithm.name=asgd"), canaries=20, iterations=10)
    assert bare.claimed == math.inf


def test_one_run_does_not_refute_a_sound_ledger() -> None:
    outcome = audit_one_run(embedded_world("privacy.noise_multiplier=1.0"), canaries=300, iterations=150)
    assert 30 <= outcome.releases <= 31
    assert 0 < outcome.claimed < math.inf
    assert outcome.lower_bound <= outcome.claimed
    assert outcome.correct > 0.5 * outcome.guesses


# ---- the command


def test_the_command_reports_claims_beside_bounds(monkeypatch: pytest.MonkeyPatch) -> None:
    words = ["quickstart", "--rounds", "1000", "--canaries", "50", "--iterations", "20", "--json"]
    result = invoked("audit", *words)
    assert result.exit_code == 0, result.output
    report = json.loads(result.stdout)
    first = ["one release, canary in the batch", "one release, as sampled"]
    assert [game["name"] for game in report["games"]][:2] == first
    assert len(report["games"]) == 13
    assert report["games"][0]["claimed"] == 0.25  # μ = 1/z
    assert report["games"][0]["claimed_epsilon"] > report["games"][1]["claimed_epsilon"] > 0
    assert report["one_run"]["canaries"] == 50
    assert not report["seeded"]
    monkeypatch.setattr(audit_module, "scenario_games", first_game_alone)
    printed = invoked("audit", "quickstart", "--rounds", "1000", "--no-one-run")
    assert "no proof" in printed.stdout
    assert "not refuted" in printed.stdout


def first_game_alone(world: World, **how: Any) -> list[Game]:
    """Of a battery the first: each game has a test of its own."""
    return scenario_games(world, **how)[:1]


def test_the_command_exits_1_where_a_claim_is_refuted(monkeypatch: pytest.MonkeyPatch) -> None:
    half = next(defect for defect in planted() if defect.name == "gaussian, z = 1: half the noise")
    monkeypatch.setattr(audit_module, "scenario_games", lambda *_, **__: half.games(2000)[:1])
    result = invoked("audit", "quickstart", "--no-one-run")
    assert result.exit_code == 1
    assert "REFUTED" in result.stdout


def test_the_audit_of_a_run_is_kept_with_it_and_goes_with_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(audit_module, "scenario_games", first_game_alone)
    path = simulated(tmp_path, iterations=20)
    words = f"--run {path.name} --runs-dir {tmp_path} --rounds 1000 --canaries 50 --json".split()
    result = invoked("audit", *words)
    assert result.exit_code == 0, result.output
    kept = json.loads((path / "audit.json").read_text())
    assert kept == json.loads(result.stdout)
    assert kept["scenario_sha256"] == json.loads((path / "manifest.json").read_text())["scenario_sha256"]
    watch = Watch(path)
    watch.read()
    watch.refresh()
    shown = json.loads(watch.changed_since(-1))["privacy"]["audit"]
    assert [row["claimed"] for row in shown["games"]] == [row["claimed_epsilon"] for row in kept["games"]]
    assert shown["whole"]["least"] == kept["one_run"]["lower_epsilon"]
    assert not shown["refuted"]
    assert considered(path, forget=True).path == path  # audit.json is no stranger's file


def test_a_run_that_cannot_be_audited_is_left_as_it_is(tmp_path: Path) -> None:
    path = write_live_run(tmp_path)
    (path / "manifest.json").write_text('{"scenario": {"edges": "many"}}')
    for words, said in (
        (["--run", "first"], "first: cannot be audited"),
        (["quickstart", "--run", "first"], "or pass --run"),
        (["--run", "first", "--set", "edges=3"], "--set: not with --run"),
        (["--planted", "--run", "first"], "--planted takes no scenario, --run"),
    ):
        with pytest.raises(ConfigurationError, match=said):
            invoked("audit", *words, "--runs-dir", str(tmp_path))
    assert sorted(file.name for file in path.iterdir()) == ["events.jsonl", "manifest.json"]


def test_the_command_names_what_is_wrong() -> None:
    for words, said in (
        (["quickstart", "--rounds", "10"], "rounds = 10"),
        (["quickstart", "--confidence", "1"], "confidence = 1.0"),
        (["quickstart", "--planted"], "--planted takes no scenario"),
        ([], "scenario: name"),
        (["quickstart", "--edge", "5"], "edge = 5: must be from 0 to 4"),
    ):
        with pytest.raises(ConfigurationError, match=said):
            invoked("audit", *words)

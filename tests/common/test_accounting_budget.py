"""A budget permits exactly so many releases, and a calibrated z meets it."""

from __future__ import annotations

from dataclasses import replace

import pytest

from common.accounting import budget as budgets
from common.accounting import gaussian
from common.accounting import total as totals
from common.accounting.budget import MOST_CHARGES, calibrate, keeps, max_charges, max_messages
from common.accounting.gaussian import GaussianReleases
from common.accounting.releases import Budget, ReleaseKind, Spent
from common.accounting.total import total
from common.errors import ConfigurationError
from common.mechanism.clipping import Clipping
from common.mechanism.guarantee import Adjacency
from common.mechanism.mechanism import Mechanism
from common.mechanism.sampler import Sampler
from common.noise.exponential_norm import ExponentialNorm
from common.noise.gamma_norm import GammaNorm
from common.noise.gaussian import Gaussian
from common.noise.law import NoiseLaw
from tests.mechanism_support import BATCH_MEAN, PER_SAMPLE, POISSON, SHUFFLED, WITH_REPLACEMENT, truncated
from tests.mechanism_support import release_kind as kind

BUDGET = Budget(2.0, 1e-5)


@pytest.mark.parametrize(
    "this",
    [
        kind(Gaussian(3.82), 1024, 12_000),
        kind(Gaussian(9.0), 1024, 12_000, SHUFFLED),
        kind(Gaussian(900.0), 12, 1200, WITH_REPLACEMENT),
        kind(GammaNorm(0.5), 120, 1200),
        kind(GammaNorm(0.5), 120, 1200, SHUFFLED),
    ],
    ids=lambda this: f"{this.law.name}-{this.mechanism.sampler.name}",
)
def test_the_last_release_permitted_is_within_the_budget_and_the_next_is_not(this: ReleaseKind) -> None:
    charges = max_charges(BUDGET, this)
    assert charges > 1
    assert total([Spent(this, charges)], BUDGET.delta).epsilon <= BUDGET.epsilon
    assert total([Spent(this, charges + 1)], BUDGET.delta).epsilon > BUDGET.epsilon
    assert max_messages(BUDGET, this) == charges * this.batches_per_epoch


def test_what_other_runs_spent_is_not_there_to_spend() -> None:
    this, other = kind(Gaussian(3.82), 1024, 12_000), kind(Gaussian(4.0), 512, 12_000)
    fresh, left = max_charges(BUDGET, this), max_charges(BUDGET, this, (Spent(other, 400),))
    assert 0 < left < fresh
    for charges, within in ((left, True), (left + 1, False)):
        spent = [Spent(other, 400), Spent(this, charges)]
        assert (total(spent, BUDGET.delta).epsilon <= BUDGET.epsilon) is within
    assert max_charges(BUDGET, this, (Spent(this, fresh),)) == 0


@pytest.mark.parametrize("law", [None, ExponentialNorm(0.1), Gaussian(0.05)])
def test_a_budget_permits_nothing_where_one_release_passes_it(law: NoiseLaw | None) -> None:
    assert max_messages(BUDGET, kind(law, 12, 24)) == 0


def test_a_release_that_costs_next_to_nothing_is_permitted_as_often_as_anybody_could_ask() -> None:
    assert max_charges(BUDGET, kind(Gaussian(200.0), 1, 60_000)) == MOST_CHARGES


def test_a_calibrated_multiplier_meets_the_budget_by_pld_and_wastes_none() -> None:
    releases, b, n = 470, 1024, 12_000
    z = calibrate(BUDGET, Mechanism(None, b), releases=releases, shard_size=n)
    spent = gaussian.pld(GaussianReleases(z, b / n, releases), BUDGET.delta, Adjacency.ZERO_OUT)
    assert 2.0 * (1 - 1e-3) <= spent <= 2.0
    assert max_charges(BUDGET, kind(Gaussian(z), b, n)) == releases


@pytest.mark.parametrize(
    ("sampling", "clipping"),
    [
        (POISSON, BATCH_MEAN),
        (SHUFFLED, PER_SAMPLE),
        (SHUFFLED, BATCH_MEAN),
        (WITH_REPLACEMENT, PER_SAMPLE),
        (WITH_REPLACEMENT, BATCH_MEAN),
    ],
)
def test_calibration_knows_sampler_and_clipping(sampling: Sampler, clipping: Clipping) -> None:
    z = calibrate(BUDGET, Mechanism(None, 20, sampling, clipping), releases=25, shard_size=205)
    this = ReleaseKind(Mechanism(Gaussian(z), 20, sampling, clipping), 205)
    spent = total([Spent(this, this.charges(25))], BUDGET.delta).epsilon
    assert 2.0 * (1 - 1e-3) <= spent <= 2.0


def test_calibration_refuses_what_it_cannot_meet() -> None:
    with pytest.raises(ConfigurationError, match="releases = 0"):
        calibrate(BUDGET, Mechanism(None, 1), releases=0, shard_size=10)
    with pytest.raises(ConfigurationError, match="total_delta = 0"):
        calibrate(Budget(1.0, 0.0), Mechanism(None, 1), releases=1, shard_size=10)
    with pytest.raises(ConfigurationError, match="batch_size = 11"):
        calibrate(BUDGET, Mechanism(None, 11), releases=1, shard_size=10)
    with pytest.raises(ConfigurationError, match="total_epsilon"):
        Budget(float("inf"), 1e-5)


@pytest.mark.parametrize("largest_batch", [None, 1598])
def test_a_budget_beyond_what_pld_is_asked_for_never_asks_pld_there(
    monkeypatch: pytest.MonkeyPatch, largest_batch: int | None
) -> None:
    """At ε = 1000 one question takes PLD minutes, and `total` would not ask it: nor does the calibration."""
    asked: list[float] = []

    def pld(releases: GaussianReleases, delta: float, *_: object) -> float:
        asked.append(gaussian.rdp(replace(releases, truncation=None), delta))
        return asked[-1]

    monkeypatch.setattr(gaussian, "pld", pld)
    budget = Budget(1000.0, 1e-5)
    mechanism = Mechanism(None, 799, POISSON if largest_batch is None else truncated(largest_batch))
    z = calibrate(budget, mechanism, releases=2, shard_size=1333)
    assert (
        max(asked, default=0.0) < 70
    )  # a bracket below the answer may lie a little beyond the ceiling of 50
    assert keeps(budget, ReleaseKind(replace(mechanism, law=Gaussian(z)), 1333), 2)


def test_a_calibration_ends_where_delta_is_above_the_chance_that_a_record_is_drawn(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Any z keeps such a budget, and each smaller one takes PLD longer, and more memory."""
    for module in (budgets, totals):
        monkeypatch.setattr(module, "PLD_CEILING", 3.0)
    budget, mechanism = Budget(1.0, 0.1), Mechanism(None, 1)  # drawn in 2 releases: 0.02
    z = calibrate(budget, mechanism, releases=2, shard_size=100)
    assert 0 < z < 1
    assert keeps(budget, ReleaseKind(replace(mechanism, law=Gaussian(z)), 100), 2)


@pytest.mark.parametrize("z", [5e-324, 1e-160, 1e155, 1e308])
@pytest.mark.parametrize("batch", [8, 100])
def test_a_multiplier_whose_square_is_no_float_is_refused_and_named(z: float, batch: int) -> None:
    with pytest.raises(ConfigurationError, match=r"z = .*from 1e-100 to 1e\+100"):
        total([Spent(kind(Gaussian(z), batch, 100), 5)], 1e-5)


def test_a_budget_or_a_shard_beyond_floating_point_is_refused_and_named() -> None:
    with pytest.raises(ConfigurationError, match=r"total_epsilon = 1e\+300: must be at most 1e\+100"):
        Budget(1e300, 1e-5)
    with pytest.raises(ConfigurationError, match=r"shard_size: must be less than 2\^63"):
        ReleaseKind(Mechanism(Gaussian(2.0), 1), 10**400)
    with pytest.raises(ConfigurationError, match=r"noise_multiplier = .*must be a number"):
        calibrate(Budget(1e100, 1e-5), Mechanism(None, 9), releases=3, shard_size=9)

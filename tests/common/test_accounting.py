"""A total is that of its releases, by every method that applies; pure composition is KOV's."""

from __future__ import annotations

import functools
import math
import subprocess
import sys

import dp_accounting
import numpy as np
import pytest
from dp_accounting.pld.accountant import advanced_composition
from dp_accounting.pld.common import DifferentialPrivacyParameters
from hypothesis import given, settings
from hypothesis import strategies as st

from common.accounting import pure
from common.accounting.gaussian import GaussianReleases, pld, rdp
from common.accounting.pure import PureReleases
from common.accounting.releases import Budget, ReleaseKind, Spent
from common.accounting.total import ORDERS, Total, odometer, total
from common.errors import ConfigurationError
from common.mechanism.guarantee import Adjacency, Scope
from common.noise.exponential_norm import ExponentialNorm
from common.noise.gamma_norm import GammaNorm
from common.noise.gaussian import Gaussian
from tests.mechanism_support import BATCH_MEAN, POISSON, SHUFFLED, WITH_REPLACEMENT
from tests.mechanism_support import release_kind as kind

DELTA = 1e-5


def of(releases: int, this: ReleaseKind) -> list[Spent]:
    return [Spent(this, this.charges(releases))]


# -- Gaussian releases -------------------------------------------------------------------------------

EPOCH = kind(Gaussian(5.0), 10, 109, SHUFFLED)  # ⌊109/10⌋ = 10 batches, each charged once an epoch begun
MEAN = kind(Gaussian(36.0), clipping=BATCH_MEAN)


@pytest.mark.parametrize(
    ("this", "releases", "alike"),
    [
        (kind(Gaussian(1.2)), 500, GaussianReleases(1.2, 0.01, 500)),
        (kind(Gaussian(3.82), 1024, 12000), 470, GaussianReleases(3.82, 1024 / 12000, 470)),
        (MEAN, 100, GaussianReleases(36.0 / 24, 0.01, 100)),
        (kind(Gaussian(3.0), 100, 100), 4, GaussianReleases(3.0, 1.0, 4)),  # a rate of one is not amplified
        *(
            (EPOCH, n, GaussianReleases(5.0, 1.0, epochs))
            for n, epochs in ((1, 1), (10, 1), (11, 2), (30, 3), (31, 4))
        ),
    ],
)
def test_a_total_is_that_of_releases_by_multiplier_rate_and_count(
    this: ReleaseKind, releases: int, alike: GaussianReleases
) -> None:
    ours = total(of(releases, this), DELTA)
    assert (ours.rdp, ours.pld) == (rdp(alike, DELTA), pld(alike, DELTA, Adjacency.ZERO_OUT))
    assert (ours.method, ours.epsilon) == ("pld", ours.pld)


def test_replace_one_takes_the_zero_out_multiplier_of_a_sampled_release_and_half_of_it_without_sampling() -> (
    None
):
    ours = total(of(200, kind(Gaussian(1.2))), DELTA)
    assert ours.replace_one == pld(GaussianReleases(1.2, 0.01, 200), DELTA, Adjacency.REPLACE_ONE)
    # at q → 1 it must meet the plain Gaussian whose sensitivity is 2C/b
    nearly = total(of(3, kind(Gaussian(4.0), 1199, 1200)), DELTA)
    whole = total(of(3, kind(Gaussian(4.0), 1200, 1200)), DELTA)
    assert nearly.replace_one == pytest.approx(whole.replace_one, rel=1e-2)
    assert whole.replace_one == pld(GaussianReleases(2.0, 1.0, 3), DELTA, Adjacency.ZERO_OUT)


def test_with_replacement_a_record_can_fill_the_batch() -> None:
    ours = total(of(2, kind(Gaussian(60.0), sampler=WITH_REPLACEMENT)), DELTA)
    assert ours.pld == pld(GaussianReleases(60.0 / 12, 1.0, 2), DELTA, Adjacency.ZERO_OUT)
    assert ours.replace_one == pld(GaussianReleases(60.0 / 24, 1.0, 2), DELTA, Adjacency.ZERO_OUT)


def test_beyond_the_ceiling_rdp_stands_alone_and_says_so() -> None:
    ours = total(of(3000, kind(Gaussian(1.0), clipping=BATCH_MEAN)), DELTA)
    assert (ours.pld, ours.replace_one) == (None, None)
    assert ours.epsilon == ours.rdp
    assert "PLD was left out" in ours.reason


@pytest.mark.slow
@settings(max_examples=25, deadline=None)
@given(st.floats(0.8, 5), st.integers(1, 40), st.integers(1, 3000))
def test_epsilon_rises_with_releases_and_rate_and_falls_with_noise(z: float, b: int, n: int) -> None:
    here = total(of(n, kind(Gaussian(z), b)), DELTA, quick=True).epsilon
    assert total(of(n + 50, kind(Gaussian(z), b)), DELTA, quick=True).epsilon >= here
    assert total(of(n, kind(Gaussian(z), b + 4)), DELTA, quick=True).epsilon >= here
    assert total(of(n, kind(Gaussian(1.2 * z), b)), DELTA, quick=True).epsilon <= here


def test_nothing_released_costs_nothing() -> None:
    assert total(of(0, kind(Gaussian(1.0))), DELTA).epsilon == 0
    assert total([], DELTA).replace_one == 0


# -- what is not private -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("this", "reason"),
    [
        (kind(None), "no noise"),
        (kind(ExponentialNorm(0.1)), "singular"),
        (kind(Gaussian(9.0), scope=Scope.FIRST_CONV), "in the clear"),
        (kind(GammaNorm(0.1), scope=Scope.FIRST_CONV), "in the clear"),
    ],
)
def test_a_mechanism_without_a_guarantee_has_no_finite_epsilon_and_says_why(
    this: ReleaseKind, reason: str
) -> None:
    ours = total([*of(1, this), *of(5, kind(Gaussian(2.0)))], DELTA)
    assert ours.epsilon == math.inf
    assert not ours.is_private
    assert reason in ours.reason


def test_a_batch_larger_than_the_shard_is_refused_unless_drawn_with_replacement() -> None:
    for sampling in (POISSON, SHUFFLED):
        with pytest.raises(ConfigurationError, match="batch_size = 12: must be at most the shard's 11"):
            kind(Gaussian(1.0), 12, 11, sampling)
    assert kind(Gaussian(1.0), 12, 11, WITH_REPLACEMENT).sampling_rate == 1


@pytest.mark.parametrize("delta", [-1e-9, 1.0, math.nan])
def test_a_delta_that_is_no_probability_is_refused(delta: float) -> None:
    with pytest.raises(ConfigurationError, match="total_delta"):
        total(of(1, kind(Gaussian(1.0))), delta)
    with pytest.raises(ConfigurationError, match="total_delta"):
        Budget(1.0, delta)


# -- pure releases -----------------------------------------------------------------------------------


@pytest.mark.parametrize("epsilon", [0.01, 0.1, 0.7, 3.0])
@pytest.mark.parametrize("count", [1, 2, 7, 60, 151])
def test_optimal_composition_is_kov_theorem_3_3(epsilon: float, count: int) -> None:
    expected = advanced_composition(DifferentialPrivacyParameters(epsilon, 0), count, DELTA)
    assert pure.optimal(epsilon, count, DELTA) == pytest.approx(expected, abs=1e-9)


def test_optimal_composition_stays_accurate_for_many_releases() -> None:
    """A Gaussian is the limit of many small releases: μ = ε√k."""
    limit = dp_accounting.get_epsilon_gaussian(1 / (0.002 * math.sqrt(250_000)), DELTA)
    assert pure.optimal(0.002, 250_000, DELTA) == pytest.approx(limit, rel=2e-3)


@given(st.lists(st.builds(PureReleases, st.floats(1e-3, 2), st.integers(1, 500)), min_size=1, max_size=4))
def test_every_bound_is_above_the_exact_one_of_the_largest_group(groups: list[PureReleases]) -> None:
    exact = max(pure.optimal(group.epsilon, group.count, DELTA) for group in groups)
    assert exact <= pure.basic(groups) * (1 + 1e-12)
    assert pure.heterogeneous(groups, DELTA) <= pure.basic(groups)
    assert pure.heterogeneous(groups, DELTA) <= pure.advanced(groups, DELTA) * (1 + 1e-12)
    steps = 2 * max(group.epsilon for group in groups)  # Theorem 3.3 speaks of a grid of 2ε
    assert exact <= pure.heterogeneous(groups, DELTA) + steps


def test_advanced_composition_is_dwork_rothblum_vadhan() -> None:
    expected = 100 * 0.1 * math.expm1(0.1) + 0.1 * math.sqrt(2 * 100 * math.log(1e5))
    assert pure.advanced([PureReleases(0.1, 100)], DELTA) == pytest.approx(expected)


def test_gamma_norm_reports_every_pure_method_and_takes_the_least() -> None:
    ours = total(of(3000, kind(GammaNorm(0.1))), DELTA)
    each = pure.amplify_zero_out(0.05, 0.01)  # zero-out moves ΔS/2
    assert ours.basic == pytest.approx(3000 * each)
    assert set(ours.by_method()) == {"basic", "advanced", "optimal", "heterogeneous"}
    assert ours.epsilon == min(ours.by_method().values())
    assert ours.replace_one is not None
    assert ours.replace_one > ours.epsilon
    assert total(of(3000, kind(GammaNorm(0.1))), 0.0).epsilon == ours.basic


# -- terms chosen after a look at earlier releases ----------------------------------------------------


def test_where_kinds_differ_only_bounds_that_allow_adaptive_terms_are_given() -> None:
    gaussians = [*of(100, kind(Gaussian(1.5))), *of(70, kind(Gaussian(2.0), 24))]
    gammas = [*of(100, kind(GammaNorm(0.1))), *of(100, kind(GammaNorm(0.2)))]
    for spent, methods in ((gaussians, {"odometer"}), (gammas, {"basic", "odometer"})):
        chosen = total(spent, DELTA)
        assert set(chosen.by_method()) == methods
        assert chosen.epsilon > total([spent[0]], DELTA).epsilon
    mixed = total([*gaussians, *gammas], DELTA)
    assert set(mixed.by_method()) == {"odometer"}
    assert mixed.epsilon > total(gaussians, DELTA).epsilon


def test_runs_alike_are_accounted_as_one() -> None:
    this = kind(Gaussian(1.5))
    assert total([*of(60, this), *of(40, this)], DELTA) == total(of(100, this), DELTA)


def test_at_delta_0_pure_runs_add_up_and_gaussian_ones_have_no_epsilon() -> None:
    pure_runs = [*of(3, kind(GammaNorm(0.1))), *of(4, kind(GammaNorm(0.2)))]
    each = [total([spent], 0.0).epsilon for spent in pure_runs]
    assert total(pure_runs, 0.0).by_method() == {"basic": pytest.approx(sum(each))}
    mixed = total([*pure_runs, *of(1, kind(Gaussian(9.0)))], 0.0)
    assert not mixed.is_private
    bare = total([*pure_runs, *of(1, kind(None))], DELTA)
    assert "no noise" in bare.reason


def test_the_odometer_is_the_sum_of_divergences_with_a_share_of_delta_for_each_order() -> None:
    groups = [GaussianReleases(20.0, 1.0, 4), GaussianReleases(30.0, 1.0, 9)]
    variance = 4 / 20.0**2 + 9 / 30.0**2  # ρ(α) = α/(2z²) each
    share = math.log(len(ORDERS) / DELTA)
    expected = min(a * variance / 2 + share / (a - 1) for a in ORDERS)
    assert odometer(groups, [], DELTA) == pytest.approx(expected)
    pure_only = [PureReleases(0.05, 200), PureReleases(3.0, 1)]
    expected = min(200 * a * 0.05**2 / 2 + min(3.0, a * 4.5) + share / (a - 1) for a in ORDERS)
    assert odometer([], pure_only, DELTA) == pytest.approx(expected)


def test_the_odometer_holds_for_a_curator_who_looks_before_choosing_the_noise() -> None:
    """He goes on with little noise only where the loss is already large; its bound at his stop is passed rarely."""
    rng, runs, delta = np.random.default_rng(3), 20_000, 0.05
    passed = 0
    for first in rng.normal(0.5 / 2.0**2, 1 / 2.0, runs):  # the loss of a Gaussian with z = 2: N(1/2z², 1/z²)
        groups, loss = [GaussianReleases(2.0, 1.0, 1)], first
        if loss > 0.5:
            groups.append(GaussianReleases(1.0, 1.0, 1))
            loss += rng.normal(0.5, 1.0)
        passed += loss > _bound(tuple(groups), delta)
    assert passed / runs <= delta


@functools.cache
def _bound(groups: tuple[GaussianReleases, ...], delta: float) -> float:
    return odometer(groups, [], delta)


def test_poisson_amplification_is_the_sup_of_the_density_ratio_for_one_coordinate() -> None:
    """gamma-norm with N = 1 is Laplace; the sup is met in a tail, so the formulas are tight."""
    epsilon, rate = 0.8, 0.3
    x = np.linspace(-40, 40, 400_001)

    def density(centre: float) -> np.ndarray:
        return np.exp(-epsilon * np.abs(x - centre)) * epsilon / 2

    without, there, replaced = density(0), density(1), density(-1)
    mixture, other = (1 - rate) * without + rate * there, (1 - rate) * without + rate * replaced
    zero_out = np.log(np.maximum(mixture / without, without / mixture)).max()
    assert pure.amplify_zero_out(epsilon, rate) == pytest.approx(zero_out, abs=1e-9)
    replace_one = np.abs(np.log(mixture / other)).max()
    assert pure.amplify_replace_one(epsilon, 2 * epsilon, rate) == pytest.approx(replace_one, abs=1e-9)


@given(st.floats(0.01, 6), st.floats(0, 1), st.floats(0.001, 1), st.floats(0, 1), st.floats(0, 1))
def test_replace_one_amplification_bounds_every_admissible_ratio(
    zero_out: float, share: float, rate: float, u: float, v: float
) -> None:
    replace_one = zero_out * (1 + share)  # from batch-mean's ε₀ to per-sample's 2ε₀
    replaced = math.exp(-zero_out + 2 * zero_out * u)
    lowest = max(math.exp(-zero_out), replaced * math.exp(-replace_one))
    highest = min(math.exp(zero_out), replaced * math.exp(replace_one))
    there = lowest + (highest - lowest) * v
    ratio = (1 - rate + rate * there) / (1 - rate + rate * replaced)
    assert math.log(ratio) <= pure.amplify_replace_one(zero_out, replace_one, rate) + 1e-9


@given(st.floats(1e-6, 800), st.floats(1e-6, 1))
def test_amplification_never_costs_and_never_overflows(epsilon: float, rate: float) -> None:
    assert 0 < pure.amplify_zero_out(epsilon, rate) <= epsilon * (1 + 1e-12)
    assert pure.amplify_replace_one(epsilon, 2 * epsilon, rate) <= 2 * epsilon * (1 + 1e-12)


# -- the library is asked for only when it is needed --------------------------------------------------


def test_a_missing_library_is_named_with_its_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "common.accounting.renyi", raising=False)
    monkeypatch.setitem(sys.modules, "scipy", None)
    with pytest.raises(ConfigurationError, match=r"pip install 'mapa-testbed\[privacy\]'"):
        total(of(17, kind(Gaussian(1.2345))), DELTA)


def test_pure_totals_and_a_ledger_without_budget_import_no_accountant() -> None:
    code = (
        "import sys, edge.sqlite_ledger, mapa.statement\n"
        "from common.mechanism.mechanism import Mechanism; from common.noise.gamma_norm import GammaNorm\n"
        "from common.accounting.releases import *\n"
        "from common.accounting.total import total\n"
        "assert 0 < total([Spent(ReleaseKind(Mechanism(GammaNorm(0.1), 12), 1200), 30)], 1e-5).epsilon < 1\n"
        "print(sorted({'dp_accounting', 'scipy', 'torch'} & sys.modules.keys()))"
    )
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert out.stdout.strip() == "[]"


def test_the_least_bound_is_the_headline() -> None:
    assert Total(delta=DELTA, rdp=2.0, pld=1.5).epsilon == 1.5
    assert Total(delta=DELTA).epsilon == math.inf

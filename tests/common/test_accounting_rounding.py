"""No stated ε is below the true one, however small δ is and however many releases there were.

R Gaussian releases at z are one at z/√R, whose δ(ε) has a closed form; it is computed here by another road than
the library's, and the library's grid is asked for the same figure.
"""

from __future__ import annotations

import math

import mpmath
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from scipy.optimize import brentq
from scipy.special import erfcx, log_ndtr

from common.accounting import gaussian
from common.accounting.budget import calibrate, max_charges
from common.accounting.gaussian import GaussianReleases
from common.accounting.releases import Budget, ReleaseKind, Spent
from common.accounting.total import Total, total
from common.errors import ConfigurationError
from common.mechanism.guarantee import Adjacency
from common.mechanism.mechanism import Mechanism
from common.mechanism.sampler import Sampler
from common.noise.gaussian import Gaussian
from tests.mechanism_support import POISSON

pytestmark = pytest.mark.slow  # statistics: seconds each

NEARLY_ALL = 10**12  # records; a batch of all but one is sampled, on a grid, and as good as not sampled


def log_delta(mu: float, epsilon: float) -> float:
    """Return ln(Φ(μ/2 − ε/μ) − e^ε·Φ(−μ/2 − ε/μ)), whose terms cancel where they are computed one by one."""
    near, far = epsilon / mu - mu / 2, epsilon / mu + mu / 2
    if near < -5:  # the second term is next to nothing there, and erfcx would overflow
        return float(log_ndtr(-near) + math.log1p(-math.exp(epsilon + log_ndtr(-far) - log_ndtr(-near))))
    return -(near**2) / 2 + math.log((erfcx(near / math.sqrt(2)) - erfcx(far / math.sqrt(2))) / 2)


def exact(mu: float, delta: float) -> float:
    if log_delta(mu, 0.0) <= math.log(delta):
        return 0.0
    highest = mu**2 / 2 + mu * math.sqrt(2 * math.log(1 / delta)) + 1
    root: float = brentq(lambda e: log_delta(mu, e) - math.log(delta), 0, highest, xtol=1e-14, rtol=1e-14)
    return root


def kind(z: float, batch: int, shard: int, sampling: Sampler = POISSON) -> ReleaseKind:
    return ReleaseKind(Mechanism(Gaussian(z), batch, sampling), shard)


def on_a_grid(mu: float, releases: int, delta: float) -> Total:
    z = math.sqrt(releases) / mu
    return total([Spent(kind(z, NEARLY_ALL - 1, NEARLY_ALL), releases)], delta, replace_one=False)


DELTAS = st.floats(-15, -3).map(lambda power: 10.0**power)
RELEASES = st.floats(0, 5).map(lambda power: round(10**power))
MUS = st.floats(-0.7, 0.7).map(lambda power: 10.0**power)  # μ of all releases together


@settings(max_examples=150, deadline=None)
@given(MUS, RELEASES, DELTAS)
def test_unsampled_releases_are_never_understated(mu: float, releases: int, delta: float) -> None:
    stated = total([Spent(kind(math.sqrt(releases) / mu, 9, 9), releases)], delta)
    least = exact(mu, delta)
    assert stated.epsilon >= least * (1 - 1e-13)
    assert stated.epsilon <= least * (1 + 1e-6) + 1e-9


@settings(max_examples=15, deadline=None)
@given(MUS, RELEASES, DELTAS)
@example(10**0.625, 1, 1e-3)  # the library raises at a rate so close to 1
@example(0.34, 100_000, 1e-11)  # the library's grid alone: 0.5 % too small
@example(0.34, 100_000, 1e-14)  # 10 %
@example(0.6, 10_000, 1e-12)
@example(0.84, 1000, 1e-10)
@example(2.61, 10_000, 1e-9)
@example(2.0, 1, 1e-15)
def test_releases_on_a_grid_are_never_understated(mu: float, releases: int, delta: float) -> None:
    # (1 − 1e-12)^R of all runs sample the record every time: the true δ is smaller by less than a part in 10⁵
    assert on_a_grid(mu, releases, delta).epsilon >= exact(mu, delta * (1 + 1e-5)) * (1 - 1e-9)


@pytest.mark.parametrize("releases", [10, 1000, 10_000, 100_000])
def test_at_an_ordinary_delta_pld_is_used_and_tight(releases: int) -> None:
    for delta in (1e-5, 1e-6):
        stated = on_a_grid(2.0, releases, delta)
        assert stated.method == "pld"
        assert stated.epsilon == pytest.approx(exact(2.0, delta), rel=1e-3)


def test_where_delta_is_too_small_for_pld_rdp_stands_alone_and_says_so() -> None:
    stated = on_a_grid(2.0, 10_000, 1e-12)
    assert (stated.method, stated.pld, stated.replace_one) == ("rdp", None, None)
    assert "PLD was left out: with so many releases, δ = 1e-12 is too small" in stated.reason
    assert gaussian.pld(GaussianReleases(50.0, 0.5, 10_000), 1e-12, Adjacency.REPLACE_ONE) == math.inf


@pytest.mark.parametrize("adjacency", list(Adjacency))
def test_a_delta_of_which_rounding_would_take_more_than_half_has_no_pld(adjacency: Adjacency) -> None:
    releases = GaussianReleases(50.0, 0.5, 1000)
    assert gaussian.pld(releases, 1.9 * gaussian.rounding(releases), adjacency) == math.inf
    assert math.isfinite(gaussian.pld(releases, 2.1 * gaussian.rounding(releases), adjacency))


@pytest.mark.parametrize("mu", [0.03, 1.0, 40.0])
def test_a_root_that_may_lie_either_side_is_moved_to_the_safe_one(mu: float) -> None:
    for delta in (1e-3, 1e-9):
        root = gaussian.epsilon_of_one(1 / mu, delta)
        stated = gaussian.pld(GaussianReleases(1 / mu, 1.0, 1), delta, Adjacency.ZERO_OUT)
        assert stated == 0 if root == 0 else stated - root >= 1e-12  # brentq's tolerance


@pytest.mark.parametrize("delta", [1e-9, 1e-12, 1e-15])
def test_a_budget_with_a_tiny_delta_is_kept(delta: float) -> None:
    budget = Budget(3.0, delta)
    for batch, shard in ((9, 9), (NEARLY_ALL - 1, NEARLY_ALL)):
        z = calibrate(budget, Mechanism(None, batch), releases=5000, shard_size=shard)
        assert exact(math.sqrt(5000) / z, delta * (1 + 1e-6)) <= budget.epsilon
        permitted = max_charges(budget, kind(z, batch, shard))
        assert permitted >= 5000
        assert exact(math.sqrt(permitted) / z, delta * (1 + 1e-6)) <= budget.epsilon


@pytest.mark.parametrize(
    ("z", "releases", "delta"), [(1e7, 501, 1e-12), (6.57e6, 10**9, 1e-5), (6.57e6, 10**11, 1e-5)]
)
def test_divergences_below_the_rounding_still_cost_something(z: float, releases: int, delta: float) -> None:
    """Many releases of next to nothing are nearly one Gaussian of μ = q√R/z."""
    q = 64 / 2000
    stated = gaussian.rdp(GaussianReleases(z, q, releases), delta)
    assert stated >= exact(q * math.sqrt(releases) / z, delta) > 0


@pytest.mark.parametrize(
    ("z", "q", "order"), [(1e7, 0.03, 2), (5e6, 0.9, 64), (300.0, 1e-4, 32), (2.0, 0.01, 16)]
)
def test_a_sampled_divergence_is_never_understated(z: float, q: float, order: int) -> None:
    with mpmath.workdps(60):
        rate, terms = mpmath.mpf(q), range(order + 1)
        moment = mpmath.fsum(
            mpmath.binomial(order, k)
            * (1 - rate) ** (order - k)
            * rate**k
            * mpmath.exp(mpmath.mpf(k * (k - 1)) / (2 * mpmath.mpf(z) ** 2))
            for k in terms
        )
        true = float(mpmath.log(moment) / (order - 1))
    _, (stated,) = gaussian.rdp_curve(z, q, (float(order),))
    assert true <= stated <= max(2 * true, 1e-12)


def test_calibration_does_not_stop_where_divergences_vanish() -> None:
    z = calibrate(
        Budget(1e-3, 1e-5), Mechanism(None, 64), releases=10**5, shard_size=2000
    )  # below what RDP can show
    assert exact(64 / 2000 * math.sqrt(10**5) / z, 1e-5) <= 1e-3
    with pytest.raises(
        ConfigurationError, match=r"total_epsilon = 0\.0001: no noise is shown to keep 1000000000"
    ):
        calibrate(Budget(1e-4, 1e-5), Mechanism(None, 64), releases=10**9, shard_size=2000)

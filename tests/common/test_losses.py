"""The accountant's arithmetic is dp-accounting's to the last bit, so never below it; none of it needs that library."""

from __future__ import annotations

import math
import subprocess
import sys

import dp_accounting
import numpy as np
import pytest
from dp_accounting.pld import privacy_loss_distribution as plds
from hypothesis import given, settings
from hypothesis import strategies as st

from common.accounting import gaussian, renyi
from common.accounting.gaussian import GaussianReleases, one_release, pld, rounding
from common.accounting.losses import Losses, of_release
from common.accounting.total import ORDERS
from common.mechanism.guarantee import Adjacency

RELATIONS = {
    Adjacency.ZERO_OUT: dp_accounting.NeighboringRelation.REPLACE_SPECIAL,
    Adjacency.REPLACE_ONE: dp_accounting.NeighboringRelation.REPLACE_ONE,
}
DELTAS = (1e-3, 1e-5, 1e-8, 1e-11)
CASES = [  # z, q, releases, (B_max, n_k)
    (4.0, 0.08, 101, None),  # quickstart
    (3.82, 1024 / 12_000, 470, None),
    (1.2, 0.01, 1, None),
    (0.9, 0.3, 4, None),
    (30.0, 0.5, 2000, None),
    (5000.0, 0.02, 1, None),  # few points
    (5000.0, 0.02, 2, None),
    (50_000.0, 1e-4, 2, None),  # so few that they are composed by a plain sum
    (2.0, 1 - 1e-6, 5, None),
    (2.25, 1024 / 12_000, 30, (1088, 12_000)),
    (2.0, 0.1, 8, (12, 100)),
    (4.0, 0.1, 3, (99, 100)),  # never truncated, as far as floats tell
]


def library(releases: GaussianReleases, adjacency: Adjacency) -> plds.PrivacyLossDistribution:
    """Compose the releases as the accountant of dp-accounting does."""
    relation = RELATIONS[adjacency]
    if releases.truncation is None:
        one = plds.from_gaussian_mechanism(
            releases.noise_multiplier, sampling_prob=releases.rate, neighboring_relation=relation
        )
    else:
        most, records = releases.truncation
        one = plds.from_truncated_subsampled_gaussian_mechanism(
            records, releases.rate, most, releases.noise_multiplier, neighboring_relation=relation
        )
    return plds.identity().compose(one.self_compose(releases.count))


@pytest.mark.parametrize("adjacency", list(Adjacency))
@pytest.mark.parametrize("case", CASES, ids=str)
def test_a_pld_is_the_library_s(
    case: tuple[float, float, int, tuple[int, int] | None], adjacency: Adjacency
) -> None:
    releases = GaussianReleases(*case)
    theirs = library(releases, adjacency)
    for delta in DELTAS:
        assert pld(releases, delta, adjacency) == theirs.get_epsilon_for_delta(delta - rounding(releases))


MULTIPLIERS = st.floats(-0.2, 3.5).map(lambda power: 10.0**power)
RATES = st.floats(-5, 0).map(lambda power: 10.0**power) | st.floats(0.01, 0.99)


@pytest.mark.slow
@settings(max_examples=12, deadline=None)
@given(MULTIPLIERS, RATES, st.integers(1, 20_000), st.sampled_from(DELTAS), st.sampled_from(Adjacency))
def test_any_pld_is_the_library_s(
    z: float, rate: float, count: int, delta: float, adjacency: Adjacency
) -> None:
    releases = GaussianReleases(z, rate, min(count, max(1, int(50 * (z / rate) ** 2))))
    with np.errstate(all="ignore"):
        sides = one_release(z, rate, adjacency)
        ours = max(losses.composed(releases.count).epsilon(delta) for losses in sides)
        assert ours == library(releases, adjacency).get_epsilon_for_delta(delta)


def test_the_curve_of_a_release_is_the_library_s() -> None:
    both = one_release(1.5, 0.2, Adjacency.ZERO_OUT)
    theirs = plds.from_gaussian_mechanism(1.5, sampling_prob=0.2)
    for epsilon in (0.0, 0.3, 1.0, 2.5):
        assert max(losses.delta(epsilon) for losses in both) == theirs.get_delta_for_epsilon(epsilon)


@pytest.mark.parametrize("orders", [renyi.ORDERS, ORDERS], ids=["usual", "odometer"])
@pytest.mark.parametrize(("z", "rate"), [(1.2, 0.01), (40.0, 1e-5), (0.3, 0.9), (2.0, 1.0), (700.0, 0.5)])
def test_divergences_and_their_epsilon_are_the_library_s(
    z: float, rate: float, orders: tuple[float, ...]
) -> None:
    accountant = dp_accounting.rdp.RdpAccountant(orders, neighboring_relation=RELATIONS[Adjacency.ZERO_OUT])
    event = dp_accounting.GaussianDpEvent(z)
    accountant.compose(event if rate == 1 else dp_accounting.PoissonSampledDpEvent(rate, event), 300)
    ours = [300 * renyi.divergence(z, rate, order) for order in orders]
    assert ours == accountant.rdp.tolist()
    for delta in DELTAS:
        assert renyi.epsilon(orders, ours, delta) == accountant.get_epsilon(delta)


@pytest.mark.parametrize("delta", DELTAS)
@pytest.mark.parametrize("size", [0.03, 0.4, 2.0, 17.0])
def test_releases_without_sampling_are_the_library_s(size: float, delta: float) -> None:
    assert gaussian.epsilon_of_one(size, delta) == dp_accounting.get_epsilon_gaussian(size, delta)
    assert gaussian.multiplier_of_one(size, delta) == dp_accounting.get_sigma_gaussian(size, delta)


def test_a_rate_that_cannot_be_resolved_is_bounded_by_no_sampling() -> None:
    z, nearly = 10**-0.625, 1 - 1e-12
    with pytest.raises(ValueError, match=r"too close|beyond"):
        of_release(z, nearly, ("remove", "add"))
    [whole] = one_release(z, 1.0, Adjacency.ZERO_OUT)
    assert [one.delta(1.0) for one in one_release(z, nearly, Adjacency.ZERO_OUT)] == [whole.delta(1.0)]
    assert math.isinf(whole.epsilon(0.0))


def test_neither_a_total_nor_a_budget_imports_what_takes_long() -> None:
    code = (
        "import sys; from common.noise.gaussian import Gaussian\n"
        "from common.mechanism.mechanism import Mechanism; from common.accounting.budget import *\n"
        "from common.accounting.releases import *; from common.mechanism.samplers.shuffled import Shuffled\n"
        "for sampler in ({}, {'sampler': Shuffled()}):\n"
        "    kind = ReleaseKind(Mechanism(Gaussian(4.0), 64, **sampler), 800)\n"
        "    assert max_charges(Budget(3.0, 1e-5), kind) >= 1 and total([Spent(kind, 3)], 1e-5).replace_one\n"
        "    calibrate(Budget(3.0, 1e-5), Mechanism(None, 64, **sampler), releases=3, shard_size=800)\n"
        "slow = {'dp_accounting', 'scipy.stats', 'scipy.signal', 'torch'}\n"
        "print(sorted(slow & sys.modules.keys()))"
    )
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert out.stdout.strip() == "[]"


@pytest.mark.parametrize("few", [True, False], ids=["by a sum", "by transforms"])
def test_an_infinite_loss_of_any_release_is_one_of_all(few: bool) -> None:
    """Together 1 − (1 − p)^R, whichever way the rest is composed."""
    one = Losses(-1, np.array([0.2, 0.5, 0.2]), 0.1, few=few)
    for count in (1, 2, 3, 7):
        whole = one.composed(count)
        assert whole.infinite == pytest.approx(1 - 0.9**count, rel=1e-12)
        assert whole.infinite + whole.masses.sum() == pytest.approx(1, rel=1e-12)
        assert whole.epsilon(whole.infinite * (1 - 1e-9)) == math.inf

"""Truncated Poisson batches: the bound against the exact mechanism, and the kinds that it admits."""

from __future__ import annotations

import itertools
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest
from scipy.stats import binom, norm

from common.accounting.budget import calibrate, keeps, max_charges
from common.accounting.gaussian import GaussianReleases, one_release, pld
from common.accounting.releases import Budget, ReleaseKind, ShardSpent, Spent, worst_record
from common.accounting.total import total
from common.errors import ConfigurationError
from common.mechanism.guarantee import Adjacency
from common.mechanism.mechanism import Mechanism
from common.mechanism.sampler import Sampler
from common.noise.gamma_norm import GammaNorm
from common.noise.gaussian import Gaussian
from common.noise.law import NoiseLaw
from common.quantities import RunId
from common.randomness import CounterStreams
from edge.ledger import Account, Ledger, ShardIdentity
from edge.sqlite_ledger import SqliteLedger
from tests.core_support import small_scenario
from tests.mechanism_support import (
    BATCH_MEAN,
    NORMALISED,
    PER_SAMPLE,
    POISSON,
    QUANTILE,
    SHUFFLED,
    release_kind,
    truncated,
)

pytestmark = pytest.mark.slow  # accounting of truncated batches: seconds each

DELTA = 1e-5
Densities = npt.NDArray[np.float64]


def kind(
    most: int | None = 12,
    size: int = 100,
    law: NoiseLaw | None = None,
    sampling: Sampler = POISSON,
    steps: int = 1,
) -> ReleaseKind:
    """Return truncated batches; not truncated ones, by a sampler, where `most` is None."""
    return release_kind(
        law or Gaussian(4.0), 10, size, sampling if most is None else truncated(most), steps=steps
    )


# -- the draws ---------------------------------------------------------------------------------------------------


def test_a_batch_is_poisson_s_or_a_random_part_of_a_full_one() -> None:
    size, batch, most, count = 8, 4, 5, 20_000
    streams = CounterStreams.seeded(3)
    plain = [POISSON.draw(streams, 0, n, size, batch) for n in range(1, count + 1)]
    cut = [truncated(most).draw(streams, 0, n, size, batch) for n in range(1, count + 1)]
    for one, other in zip(plain, cut, strict=True):
        assert len(other) == min(len(one), most) == len(set(other.tolist()))
        if len(one) <= most:
            assert one.tolist() == other.tolist()
    full = np.array([other for one, other in zip(plain, cut, strict=True) if len(one) > most])
    assert len(full) == pytest.approx(count * binom.sf(most, size, batch / size), rel=0.1)
    seen = np.bincount(full.ravel(), minlength=size) / len(full)
    np.testing.assert_allclose(seen, most / size, atol=5 * (0.25 / len(full)) ** 0.5)


# -- the bound ---------------------------------------------------------------------------------------------------


def density(x: Densities, pulls: tuple[float, ...], rate: float, most: int, z: float) -> Densities:
    """Return the exact density of a release whose records pull by so much, in units of C/b."""
    size, total = len(pulls), np.zeros_like(x)
    for count in range(most + 1):
        weight = rate**count * (1 - rate) ** (size - count)
        if count == most:  # every batch at least as large, cut down to a random part of it
            weight = binom.sf(most - 1, size, rate) / binom.pmf(most, size, rate) * weight
        for batch in itertools.combinations(pulls, count):
            total += weight * norm.pdf(x, sum(batch), z)
    return total


EPSILONS = (0.1, 0.3, 1.0, 2.0)


@pytest.mark.parametrize("adjacency", list(Adjacency))
def test_no_records_and_no_company_pass_the_bound(adjacency: Adjacency) -> None:
    """Null records keep their row: n_k is the same on both sides, and a null record may push another one out."""
    size, rate, most, z = 6, 1 / 3, 3, 1.0
    other = 0.0 if adjacency is Adjacency.ZERO_OUT else -1.0
    sides = one_release(z, rate, adjacency, (most, size))
    bounds = [max(losses.delta(epsilon) for losses in sides) for epsilon in EPSILONS]
    x = np.linspace(-12, 12, 24_001)
    worst = 0.0
    for company in itertools.product((-1.0, 0.0, 1.0), (-1.0, 1.0)):
        others = (*company, company[0], company[1], company[0])
        here = density(x, (1.0, *others), rate, most, z)
        there = density(x, (other, *others), rate, most, z)
        for one, two in ((here, there), (there, here)):
            for epsilon, bound in zip(EPSILONS, bounds, strict=True):
                exact = float(np.maximum(one - np.exp(epsilon) * two, 0).sum() * (x[1] - x[0]))
                assert exact <= bound * (1 + 1e-9)
                worst = max(worst, exact / bound)
    assert worst > 0.25  # it is a bound on something near: half the noise would pass it


def test_what_is_charged_is_never_less_than_without_truncation_and_comes_near_it() -> None:
    plain = GaussianReleases(2.25, 1024 / 12_000, 30)
    of = {
        most: pld(GaussianReleases(2.25, 1024 / 12_000, 30, (most, 12_000)), DELTA, Adjacency.ZERO_OUT)
        for most in (1088, 1280)
    }
    free = pld(plain, DELTA, Adjacency.ZERO_OUT)
    assert of[1280] == pytest.approx(free, rel=1e-5)
    assert of[1088] > 1.1 * free


def test_pld_alone_states_it_and_a_pure_release_is_not_amplified() -> None:
    figure = total([Spent(kind(), 20)], DELTA)
    assert figure.by_method().keys() == {"pld"}
    assert figure.replace_one is not None
    assert figure.replace_one > figure.epsilon
    assert total([Spent(kind(), 20)], DELTA, quick=True).epsilon == np.inf
    assert kind(law=GammaNorm(1.0)).sampling_rate == 1
    assert total([Spent(kind(law=GammaNorm(1.0)), 3)], 0.0).epsilon == 1.5
    # B_max is never reached: nothing is truncated, and RDP knows it as well
    assert total([Spent(kind(most=100), 20)], DELTA) == total([Spent(kind(None), 20)], DELTA)


@pytest.mark.slow
def test_a_budget_s_z_and_cap_stay_within_it() -> None:
    budget = Budget(0.5, DELTA)
    z = calibrate(budget, Mechanism(None, 10, truncated(14)), releases=4, shard_size=100)
    this = kind(14, law=Gaussian(z))
    assert keeps(budget, this, 4)
    assert not keeps(budget, kind(14, law=Gaussian(z * 0.999)), 4)
    assert max_charges(budget, this) == 4


# -- kinds together ----------------------------------------------------------------------------------------------


@pytest.fixture(params=["memory", "sqlite"])
def ledger(request: pytest.FixtureRequest, tmp_path: Path) -> Ledger:
    return Ledger() if request.param == "memory" else SqliteLedger(tmp_path)


def account(this: ReleaseKind, run: str) -> Account:
    return Account(run=RunId(run), shard=ShardIdentity("d", "iid K=5", 0), kind=this)


@pytest.mark.parametrize(
    ("first", "second"),
    [
        (kind(), kind(None)),
        (kind(None), kind()),
        (kind(), kind(13)),
        (kind(), kind(steps=4)),
        (kind(), kind(law=Gaussian(5.0))),
        (kind(None, sampling=SHUFFLED, law=GammaNorm(1.0)), kind()),
    ],
)
def test_records_of_truncated_batches_are_released_in_no_other_way(
    ledger: Ledger, first: ReleaseKind, second: ReleaseKind
) -> None:
    ledger.open(account(first, "one"))
    ledger.open(account(second, "two"))  # nothing was released yet
    ledger.open(account(first, "one"))
    ledger.debit(RunId("one"), 1, b"g")
    with pytest.raises(ConfigurationError) as refused:
        ledger.open(account(second, "three"))
    for one in (first, second):
        assert one.mechanism.sampler.name in str(refused.value)
    assert "truncated batches have no bound together" in str(refused.value)
    ledger.open(account(first, "four"))  # the same kind goes on
    ledger.debit(RunId("four"), 1, b"g")
    ledger.close()
    figure = total([Spent(first, 1), Spent(second, 1)], DELTA)
    assert figure.epsilon == np.inf
    assert "truncated" in figure.reason


def test_shards_of_other_sizes_are_not_taken_for_each_other() -> None:
    spent = [ShardSpent("cut", shard, Spent(kind(size=100 + shard), 3)) for shard in (0, 1)]
    assert {one.kind.shard_size for one in worst_record(spent)} == {100, 101}


def test_a_kind_is_read_with_its_largest_batch() -> None:
    assert ReleaseKind.of_fields(kind().fields()) == kind()
    assert "largest_batch" not in kind(None).fields()


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"data": {"sampler": "truncated-poisson"}}, "data.largest_batch: needed with"),
        ({"data": {"sampler": "poisson", "largest_batch": 9}}, "data.largest_batch: goes with"),
        (
            {"data": {"sampler": "truncated-poisson", "largest_batch": 4}},
            "data.largest_batch = 4: must be at least batch_size = 5",
        ),
        (
            {
                "data": {"sampler": "truncated-poisson", "largest_batch": 9},
                "privacy": {"noise_multiplier": 1.0, "clipping": "batch-mean"},
            },
            "privacy.clipping = 'batch-mean': with data.sampler = 'truncated-poisson'",
        ),
    ],
)
def test_a_largest_batch_that_means_nothing_is_refused(changes: dict[str, object], words: str) -> None:
    with pytest.raises(ConfigurationError) as refused:
        small_scenario(**changes)
    assert words in str(refused.value)


def test_a_scenario_without_it_is_written_as_ever() -> None:
    assert "largest_batch" not in small_scenario().canonical()["data"]
    cut = small_scenario(
        data={"sampler": "truncated-poisson", "largest_batch": 9}, privacy={"noise_multiplier": 1.0}
    )
    assert cut.canonical()["data"]["largest_batch"] == 9
    assert cut.sampler == truncated(9)


def test_the_clippings_that_go_with_truncated_batches_are_named_and_taken() -> None:
    cut = (Gaussian(1.0), 4, 8, truncated(6))
    with pytest.raises(ConfigurationError, match="allowed are normalised, per-sample, quantile"):
        release_kind(*cut, BATCH_MEAN)
    for clipping in (PER_SAMPLE, NORMALISED, QUANTILE):
        assert release_kind(*cut, clipping).truncation is not None

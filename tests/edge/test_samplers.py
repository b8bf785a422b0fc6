"""Batches: the three laws, and that a batch depends on (seed, k, n) alone."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from common.mechanism.sampler import Sampler
from common.quantities import Indices
from common.randomness import CounterStreams
from tests.mechanism_support import POISSON, SHUFFLED, WITH_REPLACEMENT, every_sampler

SIZE, BATCH = 40, 6


# of truncated batches
SAMPLERS = every_sampler(9)


def batches(sampling: Sampler, count: int, *, edge: int = 0, seed: int = 1) -> list[Indices]:
    streams = CounterStreams.seeded(seed)
    return [sampling.draw(streams, edge, n, SIZE, BATCH) for n in range(1, count + 1)]


@given(st.sampled_from(SAMPLERS), st.integers(1, 50), st.integers(0, 2**64 - 1), st.integers(1, 10**9))
def test_positions_lie_in_the_shard(sampling: Sampler, size: int, seed: int, n: int) -> None:
    b = min(size, 7)
    batch = sampling.draw(CounterStreams.seeded(seed), 3, n, size, b)
    assert np.issubdtype(batch.dtype, np.integer)
    assert ((batch >= 0) & (batch < size)).all()
    if not sampling.amplification().sampled:
        assert len(batch) == b
    assert len(batch) <= (sampling.amplification().largest or size + b)
    if sampling != WITH_REPLACEMENT:
        assert len(set(batch.tolist())) == len(batch)


@given(st.sampled_from(SAMPLERS), st.permutations(range(12)))
def test_a_batch_does_not_depend_on_when_it_is_asked_for(sampling: Sampler, order: list[int]) -> None:
    streams = CounterStreams.seeded(9)
    asked = {i: sampling.draw(streams, i % 3, 1 + i // 3, SIZE, BATCH) for i in order}
    for i, batch in asked.items():
        alone = sampling.draw(CounterStreams.seeded(9), i % 3, 1 + i // 3, SIZE, BATCH)
        np.testing.assert_array_equal(batch, alone)


@pytest.mark.parametrize("sampling", every_sampler(30))
def test_other_seeds_edges_and_numbers_give_other_batches(sampling: Sampler) -> None:
    drawn = {
        tuple(sampling.draw(CounterStreams.seeded(seed), edge, n, 1000, 20).tolist())
        for seed in range(3)
        for edge in range(3)
        for n in range(1, 4)
    }
    assert len(drawn) == 27


def test_poisson_takes_every_sample_by_itself_at_the_rate_b_over_n() -> None:
    count = 4000
    taken = np.zeros((count, SIZE))
    for i, batch in enumerate(batches(POISSON, count)):
        taken[i, batch] = 1
    rate = BATCH / SIZE
    error = math.sqrt(rate * (1 - rate) / count)
    assert np.abs(taken.mean(axis=0) - rate).max() < 5 * error
    sizes = taken.sum(axis=1)
    assert abs(sizes.mean() - BATCH) < 5 * math.sqrt(SIZE * rate * (1 - rate) / count)
    edges = np.array([-0.5, 2.5, 3.5, 4.5, 5.5, 6.5, 7.5, 8.5, 9.5, SIZE + 0.5])
    wanted = np.diff(stats.binom(SIZE, rate).cdf(np.floor(edges))) * count
    assert stats.chisquare(np.histogram(sizes, edges)[0], wanted).pvalue > 1e-3
    covariance = np.cov(taken, rowvar=False)
    off = covariance[~np.eye(SIZE, dtype=bool)]
    assert np.abs(off).max() < 6 * rate * (1 - rate) / math.sqrt(count)  # independent pairs


def test_poisson_may_draw_nobody_and_everybody() -> None:
    streams = CounterStreams.seeded(2)
    sizes = {len(POISSON.draw(streams, 0, n, 5, 1)) for n in range(1, 2000)}
    assert 0 in sizes
    assert len(POISSON.draw(streams, 0, 1, 5, 5)) == 5


def test_with_replacement_draws_every_place_uniformly_and_repeats_itself() -> None:
    drawn = np.concatenate(batches(WITH_REPLACEMENT, 4000))
    assert stats.chisquare(np.bincount(drawn, minlength=SIZE)).pvalue > 1e-3
    assert any(len(set(batch.tolist())) < BATCH for batch in batches(WITH_REPLACEMENT, 100))


@given(st.integers(1, 30), st.integers(1, 30), st.integers(0, 2**32), st.integers(0, 4))
def test_an_epochs_batches_are_disjoint(b: int, spare: int, seed: int, epoch: int) -> None:
    size = b + spare
    slots = size // b
    streams = CounterStreams.seeded(seed)
    drawn = [SHUFFLED.draw(streams, 1, epoch * slots + slot + 1, size, b) for slot in range(slots)]
    together = np.concatenate(drawn)
    assert len(together) == slots * b == len(set(together.tolist()))


def test_every_epoch_is_shuffled_anew_and_leaves_others_over() -> None:
    slots = SIZE // BATCH
    drawn = batches(SHUFFLED, 300 * slots)
    epochs = [np.concatenate(drawn[e * slots : (e + 1) * slots]) for e in range(300)]
    assert len({tuple(epoch.tolist()) for epoch in epochs}) == 300
    counts = np.bincount(np.concatenate(epochs), minlength=SIZE)
    used = slots * BATCH / SIZE
    assert np.abs(counts / 300 - used).max() < 5 * math.sqrt(used * (1 - used) / 300)

"""Which samples go into an edge's n-th batch; a function of (seed, k, n) alone."""

from __future__ import annotations

import numpy as np

from common.mechanism.guarantee import Sampling
from common.quantities import Indices
from common.randomness import CounterStreams, Purpose


def draw_batch(
    sampling: Sampling,
    streams: CounterStreams,
    edge: int,
    n: int,
    shard_size: int,
    batch_size: int,
    largest_batch: int | None = None,
) -> Indices:
    """Return positions in the shard of edge k's n-th batch, n from 1.

    with-replacement: b independent draws. poisson: every sample by itself with rate b/n_k (drawn as a
    binomial number of distinct samples, the same law). truncated-poisson: of a larger batch only B_max, chosen at
    random: fewer of the same distinct samples. shuffled: slot of the epoch's permutation; an
    epoch has ⌊n_k/b⌋ batches and what is left over waits for the next one.
    """
    if sampling is Sampling.WITH_REPLACEMENT:
        # a third of integers()' cost; the bias of n_k/2⁵³ is far below the rounding of anything else
        return (streams.at(edge, Purpose.BATCH, n).random(batch_size) * shard_size).astype(np.int64)
    if sampling in (Sampling.POISSON, Sampling.TRUNCATED_POISSON):
        rng = streams.at(edge, Purpose.BATCH, n)
        size = rng.binomial(shard_size, batch_size / shard_size)
        if sampling is Sampling.TRUNCATED_POISSON:
            assert largest_batch is not None  # ReleaseKind, and the scenario's own check
            size = min(size, largest_batch)
        return rng.choice(shard_size, size, replace=False, shuffle=False)
    slots = shard_size // batch_size
    epoch, slot = divmod(n - 1, slots)
    order = streams.at(edge, Purpose.EPOCH, epoch).permutation(shard_size)
    return order[slot * batch_size : (slot + 1) * batch_size]

"""poisson: every record by itself with probability b/n_k."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import numpy.typing as npt

from common.mechanism.sampler import POISSON, Amplification, Sampler
from common.quantities import Indices
from common.randomness import CounterStreams, Purpose


@dataclass(frozen=True, slots=True)
class Poisson(Sampler):
    """Every record by itself with probability b/n_k; drawn as a binomial number of distinct records, the same law."""

    name: ClassVar[str] = "poisson"

    def draw(self, streams: CounterStreams, edge: int, n: int, shard_size: int, batch_size: int) -> Indices:
        rng = streams.at(edge, Purpose.BATCH, n)
        size = rng.binomial(shard_size, batch_size / shard_size)
        return rng.choice(shard_size, size, replace=False, shuffle=False)

    def places(self, batch_size: int) -> int:  # noqa: ARG002
        return 1

    def amplification(self) -> Amplification:
        return POISSON

    def most_rows(self, batch_size: int, nats: float) -> float:
        # Bernstein: a binomial of mean b exceeds b + x with probability exp(−x²/(2b + 2x/3)) at most
        third = nats / 3
        return batch_size + third + math.sqrt(third * third + 2 * batch_size * nats)

    def draw_block(
        self, rng: np.random.Generator, shard_sizes: npt.NDArray[np.int64], batch_size: int
    ) -> list[Indices]:
        def batch(size: int) -> Indices:
            count = int(rng.binomial(size, batch_size / size))
            return rng.choice(size, count, replace=False, shuffle=False)

        return [batch(size) for size in shard_sizes.tolist()]


PART = Poisson

"""with-replacement: b independent draws, all of which may be of one record."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import numpy.typing as npt

from common.mechanism.sampler import NONE, Amplification, Sampler
from common.quantities import Indices
from common.randomness import CounterStreams, Purpose


@dataclass(frozen=True, slots=True)
class WithReplacement(Sampler):
    """b independent draws; one record may fill the whole batch, and is charged for it."""

    name: ClassVar[str] = "with-replacement"

    def draw(self, streams: CounterStreams, edge: int, n: int, shard_size: int, batch_size: int) -> Indices:
        # a third of integers()' cost; the bias of n_k/2⁵³ is far below the rounding of anything else
        return (streams.at(edge, Purpose.BATCH, n).random(batch_size) * shard_size).astype(np.int64)

    def places(self, batch_size: int) -> int:
        return batch_size

    def amplification(self) -> Amplification:
        return NONE

    def most_rows(self, batch_size: int, nats: float) -> float:  # noqa: ARG002
        return batch_size

    def least_records(self, batch_size: int) -> int:  # noqa: ARG002
        return 1

    def draw_block(
        self, rng: np.random.Generator, shard_sizes: npt.NDArray[np.int64], batch_size: int
    ) -> Indices:
        return rng.integers(0, shard_sizes[:, None], (len(shard_sizes), batch_size))


PART = WithReplacement

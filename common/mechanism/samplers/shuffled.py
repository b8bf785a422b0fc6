"""shuffled: an epoch's permutation of the shard, cut into disjoint batches."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from common.mechanism.sampler import NONE, Amplification, Sampler
from common.quantities import Indices
from common.randomness import CounterStreams, Purpose


@dataclass(frozen=True, slots=True)
class Shuffled(Sampler):
    """⌊n_k/b⌋ disjoint batches of each epoch's permutation; what is left over waits for the next epoch."""

    name: ClassVar[str] = "shuffled"
    by_epoch: ClassVar[bool] = True

    def draw(self, streams: CounterStreams, edge: int, n: int, shard_size: int, batch_size: int) -> Indices:
        epoch, slot = divmod(n - 1, shard_size // batch_size)
        order = streams.at(edge, Purpose.EPOCH, epoch).permutation(shard_size)
        return order[slot * batch_size : (slot + 1) * batch_size]

    def places(self, batch_size: int) -> int:  # noqa: ARG002
        return 1

    def amplification(self) -> Amplification:
        return NONE

    def most_rows(self, batch_size: int, nats: float) -> float:  # noqa: ARG002
        return batch_size

    def batches_per_epoch(self, shard_size: int, batch_size: int) -> int:
        return shard_size // batch_size


PART = Shuffled

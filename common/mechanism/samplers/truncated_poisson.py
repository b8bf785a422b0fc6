"""truncated-poisson: as poisson, but of a batch larger than B_max only B_max records, chosen at random."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar, Self

from common.errors import ConfigurationError
from common.mechanism.sampler import Amplification
from common.mechanism.samplers.poisson import Poisson
from common.options import option
from common.quantities import Indices
from common.randomness import CounterStreams, Purpose


@dataclass(frozen=True, slots=True)
class TruncatedPoisson(Poisson):
    """As poisson, but of a larger batch only B_max records: fewer of the same distinct ones."""

    name: ClassVar[str] = "truncated-poisson"
    largest_batch: int = option("B_max", at_least=1, at_most=1_000_000)

    def draw(self, streams: CounterStreams, edge: int, n: int, shard_size: int, batch_size: int) -> Indices:
        rng = streams.at(edge, Purpose.BATCH, n)
        size = min(rng.binomial(shard_size, batch_size / shard_size), self.largest_batch)
        return rng.choice(shard_size, size, replace=False, shuffle=False)

    def amplification(self) -> Amplification:
        return Amplification(sampled=True, largest=self.largest_batch)

    def most_rows(self, batch_size: int, nats: float) -> float:
        return min(Poisson.most_rows(self, batch_size, nats), self.largest_batch)

    def memory_rows(self, batch_size: int) -> int:  # noqa: ARG002
        return self.largest_batch

    def check(self, batch_size: int) -> None:
        if self.largest_batch < batch_size:
            raise ConfigurationError(
                f"data.largest_batch = {self.largest_batch}: must be at least batch_size = {batch_size}"
            )

    def resized(self, batch_size: int, to: int) -> Self:
        most = max(self.largest_batch, round(self.largest_batch * to / batch_size))
        return replace(self, largest_batch=most)


PART = TruncatedPoisson

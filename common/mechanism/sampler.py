"""The sampler port: which records go into an edge's n-th batch, and what that costs them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Self

import numpy as np
import numpy.typing as npt

from common.errors import ConfigurationError, LocalProtocolError
from common.mechanism.part import Part, Port
from common.quantities import Indices
from common.randomness import CounterStreams


@dataclass(frozen=True, slots=True)
class Amplification:
    """What the accountant may count on: the closed list of what it can account."""

    sampled: bool = False  # every record is drawn by itself with probability b/n_k
    largest: int | None = None  # B_max: of a larger batch only so many, chosen at random

    def __post_init__(self) -> None:
        if self.largest is not None and (
            type(self.largest) is not int or self.largest < 1 or not self.sampled
        ):
            raise ConfigurationError(
                f"data.sampler: Amplification(sampled={self.sampled}, largest={self.largest!r}): largest must be a"
                " whole number, at least 1, of batches that are sampled"
            )


NONE = Amplification()  # a record may be in every batch
POISSON = Amplification(sampled=True)


class Sampler(Part):
    """What every sampler has. `draw`, `places`, `amplification` and `most_rows` have no default."""

    __slots__ = ()

    by_epoch: ClassVar[bool] = False  # batches of an epoch are disjoint, so an epoch begun is charged once

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        if "draw" in cls.__dict__ and "draw_block" not in cls.__dict__:
            setattr(cls, "draw_block", Sampler.draw_block)  # noqa: B010 - another sampler's batches otherwise

    def draw(self, streams: CounterStreams, edge: int, n: int, shard_size: int, batch_size: int) -> Indices:
        """Return positions in the shard of edge k's n-th batch, n from 1: a function of streams, k and n alone."""
        raise NotImplementedError

    def places(self, batch_size: int) -> int:
        """Return how many places of a batch one record may fill."""
        raise NotImplementedError

    def amplification(self) -> Amplification:
        """Return which amplification by sampling the accountant may count."""
        raise NotImplementedError

    def most_rows(self, batch_size: int, nats: float) -> float:
        """Return how many rows a batch has at most, but with a probability of at most e^-nats."""
        raise NotImplementedError

    def batches_per_epoch(self, shard_size: int, batch_size: int) -> int:  # noqa: ARG002
        """Return how many disjoint batches an epoch has; without epochs 1."""
        return 1

    def least_records(self, batch_size: int) -> int:
        """Return the smallest shard from which a batch can be drawn; every record of it is in every batch."""
        return batch_size

    def memory_rows(self, batch_size: int) -> int:
        """Return for how many rows an edge sets memory aside."""
        return batch_size

    def check(self, batch_size: int) -> None:
        """Raise ConfigurationError where the options do not go with b."""

    def resized(self, batch_size: int, to: int) -> Self:  # noqa: ARG002
        """Return it as an audit plays it with another b than it was configured for."""
        return self

    def draw_block(
        self, rng: np.random.Generator, shard_sizes: npt.NDArray[np.int64], batch_size: int
    ) -> Indices | list[Indices]:
        """Return a batch of each shard, drawn in their order; optional: without it the block engine refuses."""
        raise NotImplementedError


def check_draw(sampler: Sampler, drawn: object, shard_size: int, batch_size: int) -> None:
    """Raise LocalProtocolError where a user's sampler draws what its statement does not cover."""
    if isinstance(drawn, np.ndarray) and drawn.ndim == 1 and drawn.dtype.kind in "iu":
        if drawn.size == 0:
            return
        inside = drawn.min() >= 0 and drawn.max() < shard_size
        if inside and np.bincount(drawn).max() <= sampler.places(batch_size):
            return
    raise LocalProtocolError(
        f"data.sampler = {sampler.name!r}: drew {drawn!r:.80}: must be whole numbers from 0 to {shard_size - 1}, one"
        f" array, each at most {sampler.places(batch_size)} times"
    )


SAMPLERS = Port(
    Sampler, "data.sampler", "common.mechanism.samplers", ("draw", "places", "amplification", "most_rows")
)

"""Data set -> shard k of K: iid, or as data occur: skewed by label, by size, or by whose records they are.

Every edge deals for itself, so all must deal alike: where it is possible the cards are Philox's raw
numbers, which no version of numpy changes. The partition is public: a run without a seed deals with 0.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from common.datasets.dataset import Labels, Samples
from common.errors import ConfigurationError, require
from common.mechanism.sampler import Sampler
from common.quantities import Indices
from common.randomness import CounterStreams, Purpose, permutation_of
from common.scenario.scenario import Scenario

SHARED = "shared"
PARTITIONS = ("iid", "dirichlet", "label", "group", "sizes-dirichlet", "sizes-power", SHARED)
_SECOND_STREAMS = 1_000_000  # what is drawn beside a permutation has a stream of its own


def shards_for(scenario: Scenario, train: Samples) -> list[Indices]:
    """Return shard k of K for each k; ConfigurationError where no batch can be drawn from one."""
    shards = Cut.of(scenario).shards(train.labels, train.groups)
    check_shards([len(rows) for rows in shards], scenario.batch_size, scenario.sampler)
    return shards


def shard_for(scenario: Scenario, train: Samples, index: int) -> Indices:
    """Return shard k of K; ConfigurationError where no batch can be drawn from it."""
    rows = Cut.of(scenario).shard(index, train.labels, train.groups)
    check_shards([len(rows)], scenario.batch_size, scenario.sampler)
    return rows


def check_shards(sizes: Sequence[int], batch_size: int, sampler: Sampler) -> None:
    """Refuse shards from which no batch can be drawn."""
    smallest, least = min(sizes), sampler.least_records(batch_size)
    if smallest >= least:
        return
    allowed = f"data.sampler = {sampler.name!r} needs at least {least}"
    if least == batch_size:
        allowed += f" (batch_size = {batch_size})"
    remedies = ["fewer edges", 'data.partition = "shared"']
    if least > 1:
        remedies.insert(1, "a smaller batch_size")
        if smallest >= 1:
            remedies.append('data.sampler = "with-replacement"')
    raise ConfigurationError(
        f"data.partition with edges = {len(sizes)}: the smallest shard has {smallest} rows, {allowed}; "
        f"use {', '.join(remedies[:-1])} or {remedies[-1]}"
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Cut:
    """How the rows of a data set are dealt to K edges."""

    partition: str
    edges: int
    seed: int = 0
    alpha: float = 1.0
    labels_per_edge: int = 2
    power: float = 1.0

    @classmethod
    def of(cls, scenario: Scenario) -> Cut:
        """Return how a scenario deals its data; one worker alone holds all of them."""
        data, workers = scenario.data, scenario.workers
        return cls(
            partition=data.partition if workers > 1 else SHARED,
            edges=workers,
            seed=scenario.seed or 0,
            alpha=data.alpha,
            labels_per_edge=data.labels_per_edge,
            power=data.power,
        )

    def __post_init__(self) -> None:
        require(self.edges >= 1, "edges", self.edges, "at least 1")
        allowed = f"one of {', '.join(PARTITIONS)}"
        require(self.partition in PARTITIONS, "data.partition", repr(self.partition), allowed)

    def shard(self, index: int, labels: Labels, groups: Indices | None = None) -> Indices:
        """Return the rows of edge k = `index`, ascending."""
        last = self.edges - 1
        require(0 <= index <= last, "index", index, f"from 0 to {last}, below edges = {self.edges}")
        if self.partition == SHARED:
            return np.arange(len(labels))
        return np.flatnonzero(self._owners(labels, groups) == index)

    def shards(self, labels: Labels, groups: Indices | None = None) -> list[Indices]:
        """Return every edge's rows, dealt in one pass; they share memory and are read-only."""
        if self.partition == SHARED:
            rows = np.arange(len(labels))
            rows.flags.writeable = False
            return [rows] * self.edges
        owners = self._owners(labels, groups)
        rows = np.argsort(owners, kind="stable")
        rows.flags.writeable = False
        ends = np.cumsum(np.bincount(owners, minlength=self.edges)).tolist()
        return [rows[start:end] for start, end in itertools.pairwise([0, *ends])]

    def _owners(self, labels: Labels, groups: Indices | None) -> Indices:
        """Return which edge holds each row."""
        streams, size = CounterStreams.seeded(self.seed), len(labels)
        match self.partition:
            case "dirichlet":
                return self._by_proportions(self._classes(labels), streams)
            case "label":
                return self._by_label(self._classes(labels), streams)
            case "group":
                return self._by_group(groups, streams)
            case "sizes-dirichlet":
                return _dealt(_sizes(size, self._proportions(streams, _SECOND_STREAMS)), streams)
            case "sizes-power":  # sizes that fall with (k + 1)^−power
                power = self.power
                require(math.isfinite(power) and power >= 0, "data.power", power, "finite and at least 0")
                weights = np.arange(1, self.edges + 1, dtype=np.float64) ** -power
                return _dealt(_sizes(size, weights / weights.sum()), streams)
            case _:  # iid: a permutation cut into K parts whose sizes differ by at most one
                return _dealt(_even(size, self.edges), streams)

    def _by_proportions(self, labels: npt.NDArray[np.int64], streams: CounterStreams) -> Indices:
        """Each label's rows dealt in proportions drawn from Dirichlet(α, …, α) over the edges.

        The label skew of Hsu et al. 2019, drawn a label at a time (Yurochkin et al. 2019), so that every row
        is dealt exactly once; the price is that shards differ in size, the more the smaller α.
        """
        owners = np.empty(len(labels), np.int64)
        for label in np.unique(labels).tolist():
            rows = np.flatnonzero(labels == label)
            rows = rows[_permutation(streams, label, len(rows))]
            sizes = _sizes(len(rows), self._proportions(streams, _SECOND_STREAMS + label))
            owners[rows] = np.repeat(np.arange(self.edges), sizes)
        return owners

    def _by_label(self, labels: npt.NDArray[np.int64], streams: CounterStreams) -> Indices:
        """Rows sorted by label, cut into even pieces, `labels_per_edge` pieces an edge (McMahan et al. 2017)."""
        each = self.labels_per_edge
        require(each >= 1, "data.labels_per_edge", each, "at least 1")
        shuffled = _permutation(streams, 0, len(labels))
        rows = shuffled[np.argsort(labels[shuffled], kind="stable")]
        piece_owners = _dealt(np.full(self.edges, each), streams, _SECOND_STREAMS)
        owners = np.empty(len(labels), np.int64)
        owners[rows] = np.repeat(piece_owners, _even(len(labels), len(piece_owners)))
        return owners

    def _by_group(self, groups: Indices | None, streams: CounterStreams) -> Indices:
        """Whole groups (writers, devices, sites), as many to each edge as to any other, or one more."""
        if groups is None:
            raise ConfigurationError(
                "data.partition = 'group': the data set has no groups; declare data.schema.group, or use another"
            )
        names, place = np.unique(groups, return_inverse=True)
        allowed = f"at most the {len(names)} groups with data.partition = 'group'"
        require(self.edges <= len(names), "edges", self.edges, allowed)
        return _dealt(_even(len(names), self.edges), streams)[place.reshape(-1)]

    def _proportions(self, streams: CounterStreams, n: int) -> npt.NDArray[np.float64]:
        alpha = self.alpha
        require(math.isfinite(alpha) and alpha > 0, "data.alpha", alpha, "finite and greater than 0")
        return streams.at(0, Purpose.PARTITION, n).dirichlet(np.full(self.edges, alpha))

    def _classes(self, labels: Labels) -> npt.NDArray[np.int64]:
        """Return labels that are classes; a cut by real targets has no meaning."""
        if labels.dtype.kind not in "iu":
            raise ConfigurationError(
                f"data.partition = {self.partition!r}: needs classes, and the labels are real targets"
            )
        return labels.astype(np.int64, copy=False)


def _dealt(sizes: Indices, streams: CounterStreams, n: int = 0) -> Indices:
    """Return the owner of each place of a permutation that is cut into parts of these sizes."""
    total = int(sizes.sum())
    owners = np.empty(total, np.int64)
    owners[_permutation(streams, n, total)] = np.repeat(np.arange(len(sizes)), sizes)
    return owners


def _sizes(size: int, shares: npt.NDArray[np.float64]) -> Indices:
    """Return whole sizes in these shares, `size` in all."""
    ends = np.rint(np.cumsum(shares) * size).astype(np.int64)
    ends[-1] = size  # a sum of shares may miss 1 by rounding
    return np.diff(ends, prepend=0)


def _even(size: int, parts: int) -> Indices:
    """Return sizes of parts that differ by at most one."""
    return size // parts + (np.arange(parts) < size % parts).astype(np.int64)


def _permutation(streams: CounterStreams, n: int, size: int) -> Indices:
    return permutation_of(streams.at(0, Purpose.PARTITION, n).bit_generator, size)

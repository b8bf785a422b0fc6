"""Data set -> shard k of K: iid, or as data occur: skewed by label, by size, or by whose records they are.

Every edge deals for itself, so all must deal alike: where it is possible the cards are Philox's raw
numbers, which no version of numpy changes. The partition is public: a run without a seed deals with 0.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Mapping, Sequence

import numpy as np
import numpy.typing as npt

from common.datasets.dataset import Labels
from common.errors import ConfigurationError, require
from common.mechanism.sampler import Sampler
from common.quantities import Indices
from common.randomness import CounterStreams, Purpose, permutation_of

SHARED = "shared"
_SECOND_STREAMS = 1_000_000  # what is drawn beside a permutation has a stream of its own


def shard_rows(
    labels: Labels,
    *,
    partition: str,
    edges: int,
    index: int,
    seed: int,
    alpha: float = 1.0,
    labels_per_edge: int = 2,
    power: float = 1.0,
    groups: Indices | None = None,
) -> Indices:
    """Return the rows of edge k = `index`, ascending."""
    if not 0 <= index < edges:
        raise ConfigurationError(f"index = {index}: must be from 0 to {edges - 1}, below edges = {edges}")
    if partition == SHARED:
        return np.arange(len(labels))
    owners = _owners(labels, partition, edges, seed, alpha, labels_per_edge, power, groups)
    return np.flatnonzero(owners == index)


def all_shards(
    labels: Labels,
    *,
    partition: str,
    edges: int,
    seed: int,
    alpha: float = 1.0,
    labels_per_edge: int = 2,
    power: float = 1.0,
    groups: Indices | None = None,
) -> list[Indices]:
    """Return every edge's rows, dealt in one pass; they share memory and are read-only."""
    if partition == SHARED:
        require(edges >= 1, "edges", edges, "at least 1")
        rows = np.arange(len(labels))
        rows.flags.writeable = False
        return [rows] * edges
    owners = _owners(labels, partition, edges, seed, alpha, labels_per_edge, power, groups)
    rows = np.argsort(owners, kind="stable")
    rows.flags.writeable = False
    ends = np.cumsum(np.bincount(owners, minlength=edges)).tolist()
    return [rows[start:end] for start, end in itertools.pairwise([0, *ends])]


def check_shards(
    sizes: Sequence[int], batch_size: int, sampler: Sampler, *, partition: str | None = None
) -> None:
    """Refuse shards from which no batch can be drawn."""
    smallest, edges = min(sizes), len(sizes)
    least = sampler.least_records(batch_size)
    if smallest >= least:
        return
    named = "data.partition" if partition is None else f"data.partition = {partition!r}"
    allowed = f"data.sampler = {sampler.name!r} needs at least {least}"
    if least == batch_size:
        allowed += f" (batch_size = {batch_size})"
    remedies = ["fewer edges", 'data.partition = "shared"']
    if least > 1:
        remedies.insert(1, "a smaller batch_size")
        if smallest >= 1:
            remedies.append('data.sampler = "with-replacement"')
    raise ConfigurationError(
        f"{named} with edges = {edges}: the smallest shard has {smallest} rows, {allowed}; "
        f"use {', '.join(remedies[:-1])} or {remedies[-1]}"
    )


def _owners(
    labels: Labels,
    partition: str,
    edges: int,
    seed: int,
    alpha: float,
    labels_per_edge: int,
    power: float,
    groups: Indices | None,
) -> Indices:
    """Return which edge holds each row."""
    deals: Mapping[str, Callable[[CounterStreams], Indices]] = {
        "iid": lambda streams: _deal_iid(len(labels), edges, streams),
        "dirichlet": lambda streams: _deal_dirichlet(_classes(labels, partition), edges, alpha, streams),
        "label": lambda streams: _deal_labels(_classes(labels, partition), edges, labels_per_edge, streams),
        "group": lambda streams: _deal_groups(groups, edges, streams),
        "sizes-dirichlet": lambda streams: _deal_sizes(
            len(labels), _dirichlet_sizes(len(labels), edges, alpha, streams), streams
        ),
        "sizes-power": lambda streams: _deal_sizes(
            len(labels), _power_sizes(len(labels), edges, power), streams
        ),
    }
    allowed = ", ".join((*deals, SHARED))
    require(partition in deals, "data.partition", repr(partition), f"one of {allowed}")
    require(edges >= 1, "edges", edges, "at least 1")
    return deals[partition](CounterStreams.seeded(seed))


def _deal_iid(size: int, edges: int, streams: CounterStreams) -> Indices:
    """A permutation cut into K parts whose sizes differ by at most one."""
    owners = np.empty(size, np.int64)
    owners[_permutation(streams, 0, size)] = np.repeat(np.arange(edges), _even(size, edges))
    return owners


def _deal_dirichlet(
    labels: npt.NDArray[np.int64], edges: int, alpha: float, streams: CounterStreams
) -> Indices:
    """Each label's rows dealt in proportions drawn from Dirichlet(α, …, α) over the edges.

    The label skew of Hsu et al. 2019, drawn a label at a time (Yurochkin et al. 2019), so that every row
    is dealt exactly once; the price is that shards differ in size, the more the smaller α.
    """
    require(math.isfinite(alpha) and alpha > 0, "data.alpha", alpha, "finite and greater than 0")
    owners = np.empty(len(labels), np.int64)
    for label in np.unique(labels).tolist():
        rows = np.flatnonzero(labels == label)
        rows = rows[_permutation(streams, label, len(rows))]
        draw = streams.at(0, Purpose.PARTITION, _SECOND_STREAMS + label).dirichlet(np.full(edges, alpha))
        owners[rows] = np.repeat(np.arange(edges), _cut(len(rows), draw))
    return owners


def _deal_labels(
    labels: npt.NDArray[np.int64], edges: int, labels_per_edge: int, streams: CounterStreams
) -> Indices:
    """Rows sorted by label, cut into even pieces, `labels_per_edge` pieces an edge (McMahan et al. 2017)."""
    require(labels_per_edge >= 1, "data.labels_per_edge", labels_per_edge, "at least 1")
    shuffled = _permutation(streams, 0, len(labels))
    rows = shuffled[np.argsort(labels[shuffled], kind="stable")]
    pieces = edges * labels_per_edge
    piece_owners = np.empty(pieces, np.int64)
    piece_owners[_permutation(streams, _SECOND_STREAMS, pieces)] = np.arange(pieces) // labels_per_edge
    owners = np.empty(len(labels), np.int64)
    owners[rows] = np.repeat(piece_owners, _even(len(labels), pieces))
    return owners


def _deal_groups(groups: Indices | None, edges: int, streams: CounterStreams) -> Indices:
    """Whole groups (writers, devices, sites), as many to each edge as to any other, or one more."""
    if groups is None:
        raise ConfigurationError(
            "data.partition = 'group': the data set has no groups; declare data.schema.group, or use another"
        )
    names, place = np.unique(groups, return_inverse=True)
    count = len(names)
    require(edges <= count, "edges", edges, f"at most the {count} groups with data.partition = 'group'")
    owners = np.empty(count, np.int64)
    owners[_permutation(streams, 0, count)] = np.repeat(np.arange(edges), _even(count, edges))
    return owners[place.reshape(-1)]


def _deal_sizes(size: int, sizes: Indices, streams: CounterStreams) -> Indices:
    """A permutation cut into parts of these sizes: edges differ in how much they hold, not in what."""
    owners = np.empty(size, np.int64)
    owners[_permutation(streams, 0, size)] = np.repeat(np.arange(len(sizes)), sizes)
    return owners


def _dirichlet_sizes(size: int, edges: int, alpha: float, streams: CounterStreams) -> Indices:
    """Sizes in proportions drawn from Dirichlet(α, …, α)."""
    require(math.isfinite(alpha) and alpha > 0, "data.alpha", alpha, "finite and greater than 0")
    return _cut(size, streams.at(0, Purpose.PARTITION, _SECOND_STREAMS).dirichlet(np.full(edges, alpha)))


def _power_sizes(size: int, edges: int, power: float) -> Indices:
    """Sizes that fall with (k + 1)^−power."""
    require(math.isfinite(power) and power >= 0, "data.power", power, "finite and at least 0")
    weights = np.arange(1, edges + 1, dtype=np.float64) ** -power
    return _cut(size, weights / weights.sum())


def _cut(size: int, shares: npt.NDArray[np.float64]) -> Indices:
    """Return whole sizes in these shares, `size` in all."""
    ends = np.rint(np.cumsum(shares) * size).astype(np.int64)
    ends[-1] = size  # a sum of shares may miss 1 by rounding
    return np.diff(ends, prepend=0)


def _classes(labels: Labels, partition: str) -> npt.NDArray[np.int64]:
    """Return labels that are classes; a cut by real targets has no meaning."""
    if labels.dtype.kind not in "iu":
        raise ConfigurationError(
            f"data.partition = {partition!r}: needs classes, and the labels are real targets"
        )
    return labels.astype(np.int64, copy=False)


def _even(size: int, parts: int) -> Indices:
    """Return sizes of parts that differ by at most one."""
    return size // parts + (np.arange(parts) < size % parts).astype(np.int64)


def _permutation(streams: CounterStreams, n: int, size: int) -> Indices:
    return permutation_of(streams.at(0, Purpose.PARTITION, n).bit_generator, size)

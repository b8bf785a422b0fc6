"""Data as they occur: whole groups on one edge, edges of different sizes; and what names such a cut."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from common.errors import ConfigurationError
from common.quantities import Indices
from edge.joining import identity
from edge.shards import all_shards, check_shards, shard_rows
from tests.core_support import small_dataset, small_scenario
from tests.mechanism_support import POISSON

NEW = ["group", "sizes-dirichlet", "sizes-power"]
group_lists = st.lists(st.integers(0, 12), min_size=1, max_size=80).map(lambda v: np.array(v, np.int64))


@pytest.mark.parametrize("partition", NEW)
@settings(deadline=None, max_examples=50)
@given(groups=group_lists, edges=st.integers(1, 12), seed=st.integers(0, 2**63), strength=st.floats(1e-3, 8))
def test_a_cut_is_a_partition_that_every_edge_deals_alike(
    partition: str, groups: Indices, edges: int, seed: int, strength: float
) -> None:
    edges = min(edges, len(np.unique(groups)))
    labels = np.zeros(len(groups), np.float32)  # these cuts ask for no classes
    cut = {"edges": edges, "seed": seed, "alpha": strength, "power": strength, "groups": groups}
    shards = all_shards(labels, partition=partition, **cut)  # type: ignore[arg-type]
    assert len(shards) == edges
    assert sorted(np.concatenate(shards).tolist()) == list(range(len(labels)))
    for k, shard in enumerate(shards):
        alone = shard_rows(labels, partition=partition, index=k, **cut)  # type: ignore[arg-type]
        np.testing.assert_array_equal(alone, shard)
    if partition == "group":
        held = [set(groups[shard].tolist()) for shard in shards]
        assert sum(map(len, held)) == len(np.unique(groups)), "a group lies whole on one edge"
        assert max(map(len, held)) - min(map(len, held)) <= 1


def test_the_new_deals_stay_what_they_are() -> None:
    """Edges of different versions share a run: a change here would let shards overlap."""
    labels, groups = np.zeros(20, np.int64), np.arange(20) // 3
    dealt = {
        p: shard_rows(labels, partition=p, edges=3, index=1, seed=5, alpha=0.5, groups=groups).tolist()
        for p in NEW
    }
    assert dealt == {
        "group": [6, 7, 8, 12, 13, 14],
        "sizes-dirichlet": [0, 2, 3, 7, 11, 12, 15, 16, 18],
        "sizes-power": [0, 3, 11, 12, 18],
    }


def test_a_power_law_makes_sizes_fall() -> None:
    labels = np.zeros(1100, np.int64)
    sizes = [len(s) for s in all_shards(labels, partition="sizes-power", edges=3, seed=0, power=1)]
    assert sizes == [600, 300, 200]
    flat = [len(s) for s in all_shards(labels, partition="sizes-power", edges=4, seed=0, power=0)]
    assert flat == [275] * 4


def test_what_cannot_be_cut_is_refused() -> None:
    real = np.zeros(9, np.float32)
    for partition in ("dirichlet", "label"):
        with pytest.raises(ConfigurationError, match="real targets"):
            all_shards(real, partition=partition, edges=2, seed=0)
    with pytest.raises(ConfigurationError, match="no groups"):
        all_shards(real, partition="group", edges=2, seed=0)
    with pytest.raises(ConfigurationError, match="at most the 3 groups"):
        all_shards(real, partition="group", edges=4, seed=0, groups=np.arange(9) % 3)
    sizes = [len(s) for s in all_shards(np.zeros(60), partition="sizes-power", edges=5, seed=0, power=3)]  # type: ignore[arg-type]
    with pytest.raises(ConfigurationError, match="batch_size = 12"):
        check_shards(sizes, 12, POISSON, partition="sizes-power")


def test_all_that_fixes_a_cut_is_in_its_name() -> None:
    """Two cuts that deal differently must never be taken for one: their shards would pass for disjoint."""
    dataset = small_dataset()
    groups = np.arange(len(dataset.train)) % 7
    named = [
        identity(small_scenario(data=data), replace(dataset, train=replace(dataset.train, groups=who)), 5, 0)
        for data, who in (
            ({"partition": "iid"}, groups),
            ({"partition": "group"}, groups),
            ({"partition": "group"}, groups[::-1].copy()),
            ({"partition": "sizes-power", "power": 1.0}, groups),
            ({"partition": "sizes-power", "power": 2.0}, groups),
            ({"partition": "sizes-dirichlet", "alpha": 1.0}, groups),
            ({"partition": "sizes-dirichlet", "alpha": 2.0}, groups),
            ({"partition": "dirichlet", "alpha": 2.0}, groups),
        )
    ]
    assert len({one.cut for one in named}) == len(named)
    for one in named:
        assert all(one.overlaps(replace(other, index=1)) for other in named if other.cut != one.cut)
        assert not one.overlaps(replace(one, index=1))

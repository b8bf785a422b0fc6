"""Shards: dealt whole, dealt alike by everybody, refused where no batch can be drawn; and what names such a cut."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from common.errors import ConfigurationError
from common.mechanism.sampler import Sampler
from common.quantities import Indices
from edge.joining import identity
from edge.shards import PARTITIONS, Cut, check_shards
from tests.core_support import small_dataset, small_scenario
from tests.mechanism_support import POISSON, SHUFFLED, WITH_REPLACEMENT, every_sampler

DIGITS = np.arange(6000, dtype=np.int64) * 7 % 10

label_lists = st.lists(st.integers(0, 9), min_size=1, max_size=120).map(lambda v: np.array(v, np.int64))


def dealt(partition: str, labels: npt.NDArray[Any], edges: int, seed: int = 0, **more: Any) -> list[Indices]:
    groups = more.pop("groups", None)
    return Cut(partition=partition, edges=edges, seed=seed, **more).shards(labels, groups)


@pytest.mark.parametrize("partition", PARTITIONS)
@settings(deadline=None)  # the machine may be busy
@given(
    labels=label_lists,
    edges=st.integers(1, 40),
    seed=st.integers(0, 2**63),
    alpha=st.floats(1e-6, 1e6),
    each=st.integers(1, 4),
    which=st.integers(0, 10**6),
)
def test_every_row_is_dealt_once_and_an_edge_alone_deals_itself_what_all_together_deal_it(
    partition: str,
    labels: npt.NDArray[np.int64],
    edges: int,
    seed: int,
    alpha: float,
    each: int,
    which: int,
) -> None:
    groups = labels // 2
    edges = min(edges, len(np.unique(groups))) if partition == "group" else edges
    cut = Cut(partition=partition, edges=edges, seed=seed, alpha=alpha, labels_per_edge=each, power=alpha % 8)
    shards = cut.shards(labels, groups)
    assert len(shards) == edges
    if partition == "shared":
        assert [shard.tolist() for shard in shards] == [list(range(len(labels)))] * edges
    else:
        assert sorted(np.concatenate(shards).tolist()) == list(range(len(labels)))
    if partition == "iid":
        assert max(map(len, shards)) - min(map(len, shards)) <= 1
    if partition == "group":
        held = [set(groups[shard].tolist()) for shard in shards]
        assert sum(map(len, held)) == len(np.unique(groups)), "a group lies whole on one edge"
        assert max(map(len, held)) - min(map(len, held)) <= 1
    alone = cut.shard(which % edges, labels, groups)
    np.testing.assert_array_equal(alone, shards[which % edges])
    assert alone.dtype == np.int64
    assert np.all(np.diff(alone) > 0)


@pytest.mark.parametrize("partition", ["iid", "dirichlet", "label"])
def test_a_seed_deals_the_same_again_and_another_differently(partition: str) -> None:
    first, again, other = ([s.tolist() for s in dealt(partition, DIGITS, 7, seed)] for seed in (3, 3, 4))
    assert first == again != other


def test_the_deal_stays_what_it_was() -> None:
    """Edges of different versions share a run: a change here would let shards overlap."""
    cut = Cut(partition="iid", edges=4, seed=5, alpha=0.5)
    labels = np.arange(40, dtype=np.int64) % 4
    first = {p: replace(cut, partition=p).shard(1, labels).tolist() for p in ("iid", "dirichlet", "label")}
    assert first == {
        "iid": [1, 4, 6, 8, 9, 10, 23, 25, 27, 33],
        "dirichlet": [1, 4, 7, 8, 10, 11, 15, 16, 19, 23, 26, 31, 32, 33],
        "label": [4, 7, 8, 19, 20, 23, 24, 27, 31, 32],
    }
    labels, groups = np.zeros(20, np.int64), np.arange(20) // 3
    more = {
        p: replace(cut, partition=p, edges=3).shard(1, labels, groups).tolist()
        for p in ("group", "sizes-dirichlet", "sizes-power")
    }
    assert more == {
        "group": [6, 7, 8, 12, 13, 14],
        "sizes-dirichlet": [0, 2, 3, 7, 11, 12, 15, 16, 18],
        "sizes-power": [0, 3, 11, 12, 18],
    }


@pytest.mark.parametrize("each", [2, 1])
def test_by_label_an_edge_holds_few_labels_in_even_shards(each: int) -> None:
    # 6,000 rows in 10 or 20 pieces, 600 of each label: no piece straddles two labels.
    shards = dealt("label", DIGITS, 10, labels_per_edge=each)
    assert [len(shard) for shard in shards] == [600] * 10
    assert max(len(np.unique(DIGITS[shard])) for shard in shards) == each


def test_a_power_law_makes_sizes_fall() -> None:
    labels = np.zeros(1100, np.int64)
    assert [len(s) for s in dealt("sizes-power", labels, 3, power=1)] == [600, 300, 200]
    assert [len(s) for s in dealt("sizes-power", labels, 4, power=0)] == [275] * 4


def skew(alpha: float, seed: int) -> float:
    """Return the mean total variation distance of the edges' label shares from uniform."""
    shards = dealt("dirichlet", DIGITS, 10, seed, alpha=alpha)
    shares = np.array([np.bincount(DIGITS[s], minlength=10) / max(1, len(s)) for s in shards if len(s)])
    return float(np.abs(shares - 0.1).sum(axis=1).mean() / 2)


@pytest.mark.parametrize("seed", range(5))
def test_the_skew_grows_as_alpha_falls(seed: int) -> None:
    skews = [skew(alpha, seed) for alpha in (1000, 10, 1, 0.1, 0.01)]
    assert skews == sorted(skews)
    assert skews[0] < 0.05
    assert skews[-1] > 0.6


def test_dirichlet_shares_have_the_mean_and_variance_of_their_law() -> None:
    alpha, edges, rows = 0.5, 5, DIGITS[DIGITS == 3]
    cuts = (dealt("dirichlet", rows, edges, n, alpha=alpha) for n in range(2000))
    shares = np.array([[len(s) / len(rows) for s in cut] for cut in cuts])
    variance = (1 / edges) * (1 - 1 / edges) / (edges * alpha + 1)
    np.testing.assert_allclose(shares.mean(axis=0), 1 / edges, atol=5 * np.sqrt(variance / 2000))
    np.testing.assert_allclose(shares.var(axis=0), variance, rtol=0.2)


def test_ten_thousand_edges_are_dealt_in_one_pass() -> None:
    labels = np.arange(60_000, dtype=np.int64) % 10
    for partition in ("iid", "dirichlet", "label"):
        assert sum(map(len, dealt(partition, labels, 10_000))) == 60_000
    shared = dealt("shared", labels, 10_000)
    assert all(shard is shared[0] for shard in shared), "one array, not ten thousand"
    with pytest.raises(ValueError, match="read-only"):
        shared[0][0] = 1


@pytest.mark.parametrize(
    ("partition", "changed", "named"),
    [
        ("random", {}, "data.partition = 'random': must be one of iid, dirichlet, label, group"),
        ("iid", {"edges": 0}, "edges = 0"),
        ("shared", {"edges": 0}, "edges = 0"),
        ("dirichlet", {"alpha": 0.0}, "data.alpha = 0.0"),
        ("dirichlet", {"alpha": float("nan")}, "data.alpha = nan"),
        ("label", {"labels_per_edge": 0}, "data.labels_per_edge = 0"),
        ("dirichlet", {"labels": np.zeros(9, np.float32)}, "real targets"),
        ("label", {"labels": np.zeros(9, np.float32)}, "real targets"),
        ("group", {}, "no groups"),
        ("group", {"groups": np.arange(6000) % 2}, "at most the 2 groups"),
    ],
)
def test_a_wrong_value_is_named_with_what_is_allowed(
    partition: str, changed: dict[str, Any], named: str
) -> None:
    with pytest.raises(ConfigurationError) as caught:
        dealt(partition, **{"labels": DIGITS, "edges": 3, **changed})
    assert named in str(caught.value)


@pytest.mark.parametrize("index", [-1, 3])
def test_an_index_outside_the_fleet_is_refused(index: int) -> None:
    with pytest.raises(ConfigurationError, match=f"index = {index}.*edges = 3"):
        Cut(partition="shared", edges=3).shard(index, DIGITS)


@pytest.mark.parametrize("sampler", [POISSON, SHUFFLED])
def test_a_shard_smaller_than_a_batch_is_refused(sampler: Sampler) -> None:
    check_shards([12, 13], 12, sampler)
    with pytest.raises(ConfigurationError) as caught:
        check_shards([40, 11, 12], 12, sampler)
    for part in (
        "data.partition",
        "edges = 3",
        "11 rows",
        "batch_size = 12",
        sampler.name,
        "with-replacement",
    ):
        assert part in str(caught.value)


def test_with_replacement_one_row_is_enough_but_none_is_refused() -> None:
    check_shards([1, 5], 12, WITH_REPLACEMENT)
    for sampler in every_sampler(1):
        with pytest.raises(ConfigurationError, match=r"data\.partition with edges = 2: .* 0 rows"):
            check_shards([5, 0], 1, sampler)


def test_all_that_fixes_a_cut_is_in_its_name() -> None:
    """Two cuts that deal differently must never be taken for one: their shards would pass for disjoint."""
    dataset = small_dataset()
    groups = np.arange(len(dataset.train)) % 7
    cuts: tuple[tuple[dict[str, Any], Indices], ...] = (
        ({"partition": "iid"}, groups),
        ({"partition": "group"}, groups),
        ({"partition": "group"}, groups[::-1].copy()),
        ({"partition": "sizes-power", "power": 1.0}, groups),
        ({"partition": "sizes-power", "power": 2.0}, groups),
        ({"partition": "sizes-dirichlet", "alpha": 1.0}, groups),
        ({"partition": "sizes-dirichlet", "alpha": 2.0}, groups),
        ({"partition": "dirichlet", "alpha": 2.0}, groups),
    )
    named = [
        identity(small_scenario(data=data), replace(dataset, train=replace(dataset.train, groups=who)), 5, 0)
        for data, who in cuts
    ]
    assert len({one.cut for one in named}) == len(named)
    for one in named:
        assert all(one.overlaps(replace(other, index=1)) for other in named if other != one)
        assert not one.overlaps(replace(one, index=1))

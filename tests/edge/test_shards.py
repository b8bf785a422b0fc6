"""Shards: dealt whole, dealt alike by everybody, refused where no batch can be drawn."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from common.errors import ConfigurationError
from common.mechanism.sampler import Sampler
from common.quantities import Indices
from edge.shards import all_shards, check_shards, shard_rows
from tests.mechanism_support import POISSON, SHUFFLED, WITH_REPLACEMENT, every_sampler

DEALT = ["iid", "dirichlet", "label"]
DIGITS = np.arange(6000, dtype=np.int64) * 7 % 10

label_lists = st.lists(st.integers(0, 9), min_size=1, max_size=120).map(lambda v: np.array(v, np.int64))
edge_counts = st.integers(1, 40)
seeds = st.integers(0, 2**63)
alphas = st.floats(1e-6, 1e6)


@pytest.mark.parametrize("partition", DEALT)
@settings(deadline=None)  # the machine may be busy
@given(labels=label_lists, edges=edge_counts, seed=seeds, alpha=alphas, labels_per_edge=st.integers(1, 4))
def test_every_row_is_dealt_exactly_once(
    partition: str,
    labels: npt.NDArray[np.int64],
    edges: int,
    seed: int,
    alpha: float,
    labels_per_edge: int,
) -> None:
    shards = all_shards(
        labels, partition=partition, edges=edges, seed=seed, alpha=alpha, labels_per_edge=labels_per_edge
    )
    assert len(shards) == edges
    assert sorted(np.concatenate(shards).tolist()) == list(range(len(labels)))


@pytest.mark.parametrize("partition", [*DEALT, "shared"])
@settings(deadline=None)  # the machine may be busy
@given(labels=label_lists, edges=edge_counts, seed=seeds, alpha=alphas, which=st.integers(0, 10**6))
def test_an_edge_alone_deals_itself_what_all_together_deal_it(
    partition: str, labels: npt.NDArray[np.int64], edges: int, seed: int, alpha: float, which: int
) -> None:
    index = which % edges
    together = all_shards(labels, partition=partition, edges=edges, seed=seed, alpha=alpha)
    alone = shard_rows(labels, partition=partition, edges=edges, index=index, seed=seed, alpha=alpha)
    np.testing.assert_array_equal(alone, together[index])
    assert alone.dtype == np.int64
    assert np.all(np.diff(alone) > 0)


@settings(deadline=None)  # the machine may be busy
@given(size=st.integers(0, 300), edges=edge_counts, seed=seeds)
def test_iid_sizes_differ_by_at_most_one(size: int, edges: int, seed: int) -> None:
    sizes = [len(s) for s in all_shards(np.zeros(size, np.int64), partition="iid", edges=edges, seed=seed)]
    assert max(sizes) - min(sizes) <= 1


@settings(deadline=None)  # the machine may be busy
@given(labels=label_lists, edges=edge_counts, seed=seeds)
def test_shared_gives_every_edge_every_row(labels: npt.NDArray[np.int64], edges: int, seed: int) -> None:
    shards = all_shards(labels, partition="shared", edges=edges, seed=seed)
    assert [shard.tolist() for shard in shards] == [list(range(len(labels)))] * edges


@pytest.mark.parametrize("partition", DEALT)
def test_a_seed_deals_the_same_again_and_another_differently(partition: str) -> None:
    def dealt(seed: int) -> list[list[int]]:
        return [shard.tolist() for shard in all_shards(DIGITS, partition=partition, edges=7, seed=seed)]

    assert dealt(3) == dealt(3)
    assert dealt(3) != dealt(4)


def test_the_deal_stays_what_it_was() -> None:
    """Edges of different versions share a run: a change here would let shards overlap."""
    labels = np.arange(40, dtype=np.int64) % 4
    first = {p: shard_rows(labels, partition=p, edges=4, index=1, seed=5, alpha=0.5).tolist() for p in DEALT}
    assert first == {
        "iid": [1, 4, 6, 8, 9, 10, 23, 25, 27, 33],
        "dirichlet": [1, 4, 7, 8, 10, 11, 15, 16, 19, 23, 26, 31, 32, 33],
        "label": [4, 7, 8, 19, 20, 23, 24, 27, 31, 32],
    }


def labels_held(shards: list[Indices]) -> list[int]:
    return [len(np.unique(DIGITS[shard])) for shard in shards]


def test_by_label_an_edge_holds_few_labels_in_even_shards() -> None:
    # 6,000 rows in 20 pieces of 300, 600 of each label: no piece straddles two labels.
    shards = all_shards(DIGITS, partition="label", edges=10, seed=0, labels_per_edge=2)
    assert [len(shard) for shard in shards] == [600] * 10
    assert max(labels_held(shards)) == 2
    one = all_shards(DIGITS, partition="label", edges=10, seed=0, labels_per_edge=1)
    assert labels_held(one) == [1] * 10


def skew(alpha: float, seed: int) -> float:
    """Return the mean total variation distance of the edges' label shares from uniform."""
    shards = all_shards(DIGITS, partition="dirichlet", edges=10, seed=seed, alpha=alpha)
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
    shares = np.array(
        [
            [
                len(s) / len(rows)
                for s in all_shards(rows, partition="dirichlet", edges=edges, seed=n, alpha=alpha)
            ]
            for n in range(2000)
        ]
    )
    variance = (1 / edges) * (1 - 1 / edges) / (edges * alpha + 1)
    np.testing.assert_allclose(shares.mean(axis=0), 1 / edges, atol=5 * np.sqrt(variance / 2000))
    np.testing.assert_allclose(shares.var(axis=0), variance, rtol=0.2)


def test_ten_thousand_edges_are_dealt_in_one_pass() -> None:
    labels = np.arange(60_000, dtype=np.int64) % 10
    for partition in DEALT:
        shards = all_shards(labels, partition=partition, edges=10_000, seed=0)
        assert sum(map(len, shards)) == 60_000
    shared = all_shards(labels, partition="shared", edges=10_000, seed=0)
    assert all(shard is shared[0] for shard in shared), "one array, not ten thousand"
    with pytest.raises(ValueError, match="read-only"):
        shared[0][0] = 1


@pytest.mark.parametrize(
    ("changed", "named"),
    [
        ({"partition": "random"}, "data.partition = 'random': must be one of iid, dirichlet, label, group"),
        ({"edges": 0}, "edges = 0"),
        ({"partition": "shared", "edges": 0}, "edges = 0"),
        ({"partition": "dirichlet", "alpha": 0.0}, "data.alpha = 0.0"),
        ({"partition": "dirichlet", "alpha": float("nan")}, "data.alpha = nan"),
        ({"partition": "label", "labels_per_edge": 0}, "data.labels_per_edge = 0"),
    ],
)
def test_a_wrong_value_is_named_with_what_is_allowed(changed: dict[str, object], named: str) -> None:
    arguments: dict[str, object] = {"partition": "iid", "edges": 3, "seed": 0} | changed
    with pytest.raises(ConfigurationError) as caught:
        all_shards(DIGITS, **arguments)  # type: ignore[arg-type]
    assert named in str(caught.value)


@pytest.mark.parametrize("index", [-1, 3])
def test_an_index_outside_the_fleet_is_refused(index: int) -> None:
    with pytest.raises(ConfigurationError, match=f"index = {index}.*edges = 3"):
        shard_rows(DIGITS, partition="shared", edges=3, index=index, seed=0)


@pytest.mark.parametrize("sampler", [POISSON, SHUFFLED])
def test_a_shard_smaller_than_a_batch_is_refused(sampler: Sampler) -> None:
    check_shards([12, 13], 12, sampler)
    with pytest.raises(ConfigurationError) as caught:
        check_shards([40, 11, 12], 12, sampler, partition="dirichlet")
    for part in ("data.partition = 'dirichlet'", "edges = 3", "11 rows", "batch_size = 12", sampler.name):
        assert part in str(caught.value)
    assert "with-replacement" in str(caught.value)


def test_with_replacement_one_row_is_enough_but_none_is_refused() -> None:
    check_shards([1, 5], 12, WITH_REPLACEMENT)
    for sampler in every_sampler(1):
        with pytest.raises(ConfigurationError, match=r"data\.partition with edges = 2: .* 0 rows"):
            check_shards(np.array([5, 0]), 1, sampler)  # type: ignore[arg-type]

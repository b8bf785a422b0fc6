"""The stated total is never below what any one record paid, in small worlds where that can be counted."""

from __future__ import annotations

import itertools

from hypothesis import given, settings
from hypothesis import strategies as st

from common.accounting.releases import ReleaseKind, ShardSpent, Spent, worst_record
from common.accounting.total import total, total_of_records
from common.mechanism.mechanism import Mechanism
from common.mechanism.sampler import Sampler
from common.noise.gamma_norm import GammaNorm
from common.noise.gaussian import Gaussian
from common.noise.law import NoiseLaw
from tests.mechanism_support import POISSON, SHUFFLED

RECORDS = 5


def kind(law: NoiseLaw | None, sampling: Sampler = POISSON, n: int = 40) -> ReleaseKind:
    return ReleaseKind(Mechanism(law, 10, sampling), n)


PURE = [kind(GammaNorm(e), s, n) for e in (0.5, 1.0) for s in (POISSON, SHUFFLED) for n in (20, 40)]
NORMAL = [kind(Gaussian(4.0), SHUFFLED, n) for n in (20, 40)]


@st.composite
def worlds(draw: st.DrawFn, kinds: list[ReleaseKind]) -> list[tuple[ShardSpent, frozenset[int]]]:
    """Draw cuts of a few records, and what edges spent on their shards; a shard has one size in a cut."""
    world = []
    for cut in range(draw(st.integers(1, 3))):
        shared = draw(st.booleans())
        owners = draw(st.lists(st.integers(0, 2), min_size=RECORDS, max_size=RECORDS))
        for _ in range(draw(st.integers(0, 4))):
            shard = draw(st.integers(0, 2))
            members = range(RECORDS) if shared else [r for r in range(RECORDS) if owners[r] == shard]
            spent = Spent(draw(st.sampled_from(kinds)), draw(st.integers(0, 4)))
            world.append((ShardSpent(f"cut {cut}", None if shared else shard, spent), frozenset(members)))
    return world


@settings(max_examples=150, deadline=None)
@given(worlds(PURE))
def test_no_record_pays_more_than_is_stated(world: list[tuple[ShardSpent, frozenset[int]]]) -> None:
    items = [item for item, _ in world]
    stated = total_of_records(items, 0.0).epsilon
    joined = total(worst_record(items), 0.0).epsilon
    for record in range(RECORDS):
        paid = [item.spent for item, members in world if record in members]
        alone = sum(total([spent], 0.0).epsilon for spent in paid)  # at δ = 0 ε just adds up
        assert stated >= alone - 1e-9
        assert joined >= alone - 1e-9
    assert stated <= joined + 1e-9


@settings(max_examples=40, deadline=None)
@given(worlds(NORMAL))
def test_nor_with_gaussian_releases(world: list[tuple[ShardSpent, frozenset[int]]]) -> None:
    """Unsampled Gaussians of one z: the closed form in their number alone is what a record paid."""
    stated = total_of_records([item for item, _ in world], 1e-5).epsilon
    for record in range(RECORDS):
        count = sum(item.spent.charges for item, members in world if record in members)
        assert stated >= total([Spent(NORMAL[0], count)], 1e-5, replace_one=False).epsilon - 1e-9


def test_the_worst_shard_of_a_disjoint_cut_counts_and_a_shared_cut_counts_in_full() -> None:
    this = kind(GammaNorm(1.0), SHUFFLED)
    apart = [ShardSpent("a", shard, Spent(this, count)) for shard, count in ((0, 3), (1, 5), (1, 1))]
    assert worst_record(apart) == (Spent(this, 6),)
    shared = [ShardSpent("b", None, Spent(this, count)) for count in (2, 3)]
    assert total_of_records([*apart, *shared], 0.0).epsilon == total([Spent(this, 11)], 0.0).epsilon


def test_kinds_that_cannot_be_compared_count_each_with_its_own_worst_shard() -> None:
    one, other = kind(GammaNorm(1.0)), kind(Gaussian(1.0))
    spent = [
        ShardSpent("a", shard, Spent(this, count))
        for (shard, this), count in zip(itertools.product((0, 1), (one, other)), (3, 1, 2, 5), strict=True)
    ]
    assert set(worst_record(spent)) == {Spent(one, 3), Spent(other, 5)}


def test_the_smallest_shard_stands_for_the_others() -> None:
    spent = [
        ShardSpent("a", shard, Spent(kind(Gaussian(1.0), n=20 + shard), 9 - shard)) for shard in range(5)
    ]
    assert worst_record(spent) == (Spent(kind(Gaussian(1.0), n=20), 9),)


def test_where_nothing_was_spent_nothing_is_stated() -> None:
    assert total_of_records([ShardSpent("a", 0, Spent(PURE[0], 0))], 1e-5).epsilon == 0


def test_what_is_not_private_is_not_hidden_by_what_is() -> None:
    spent = [
        ShardSpent("a", 0, Spent(kind(None), 1)),
        ShardSpent("a", 1, Spent(PURE[0], 2)),
        ShardSpent("b", 0, Spent(PURE[0], 2)),
    ]
    figure = total_of_records(spent, 1e-5)
    assert not figure.is_private
    assert "no noise" in figure.reason


def test_records_whose_number_changed_between_runs_are_other_kinds_that_the_odometer_composes() -> None:
    fewer, more = (Spent(kind(Gaussian(4.0), n=n), 3) for n in (40, 41))
    own = [ShardSpent("local of local:default", None, spent) for spent in (fewer, more)]
    assert set(worst_record(own)) == {fewer, more}
    again = [*own, ShardSpent("local of local:default", None, fewer)]
    assert set(worst_record(again)) == {Spent(fewer.kind, 6), more}
    stated = total_of_records(again, 1e-5)
    assert stated.method == "odometer"
    assert stated.epsilon > total([Spent(fewer.kind, 9)], 1e-5).epsilon

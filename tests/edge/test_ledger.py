"""The rules of a ledger, the same in memory and on disk."""

from __future__ import annotations

import errno
import os
import sqlite3
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from common.accounting.gaussian import GaussianReleases, pld
from common.accounting.releases import Budget, ReleaseKind, Spent
from common.accounting.total import total
from common.datasets.catalogue import named_dataset
from common.datasets.named import mnist_5k as embedded
from common.errors import ConfigurationError, LedgerUnavailableError, LocalProtocolError, RemoteProtocolError
from common.mechanism.guarantee import Adjacency
from common.mechanism.mechanism import Mechanism
from common.mechanism.sampler import Sampler
from common.mechanism.work.local_steps import LocalSteps
from common.noise.exponential_norm import ExponentialNorm
from common.noise.gamma_norm import GammaNorm
from common.noise.gaussian import Gaussian
from common.noise.law import NoiseLaw
from common.quantities import RunId
from edge.ledger import Account, BudgetExhausted, Ledger, OtherShardError, ShardIdentity
from edge.sqlite_ledger import SqliteLedger
from tests.edge_support import spend
from tests.mechanism_support import SHUFFLED, WITH_REPLACEMENT, truncated

RUN = RunId("r")
SHARD = ShardIdentity("sha256:1", "iid K=5 seed=0", 2)


def kind(law: NoiseLaw | None, sampling: Sampler = WITH_REPLACEMENT, size: int = 30) -> ReleaseKind:
    return ReleaseKind(Mechanism(law, 10, sampling), size)


# zero-out ε of a release: ε·b/2 = 0.5 with replacement, ε/2 shuffled; at δ = 0 totals are plain sums
HALF = kind(GammaNorm(0.1))
EPOCHS = kind(GammaNorm(1.0), SHUFFLED)  # three batches an epoch


def full_disk(*_: object) -> None:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def account(this: ReleaseKind = HALF, epsilon: float | None = 2.0, **changed: object) -> Account:
    budget = None if epsilon is None else Budget(epsilon, 0.0)
    return replace(Account(run=RUN, shard=SHARD, kind=this, budget=budget), **changed)


@pytest.fixture(params=["memory", "sqlite"])
def ledger(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Ledger]:
    made: Ledger = Ledger() if request.param == "memory" else SqliteLedger(tmp_path)
    yield made
    made.close()


def test_an_edge_keeps_an_id_of_its_own(ledger: Ledger) -> None:
    assert ledger.edge_id.startswith("edge-")
    assert len(ledger.edge_id) == len("edge-") + 12
    assert ledger.edge_id != Ledger().edge_id


def test_sequences_run_from_one_without_gap_or_repetition(ledger: Ledger) -> None:
    ledger.open(account())
    assert ledger.last_sequence(RUN) == 0
    for wrong in (0, 2):
        with pytest.raises(LocalProtocolError, match="the next is 1"):
            ledger.debit(RUN, wrong, b"")
    ledger.debit(RUN, 1, b"a")
    with pytest.raises(LocalProtocolError, match="the next is 2"):
        ledger.debit(RUN, 1, b"b")
    assert ledger.pending(RUN) == [(1, b"a")]


def test_a_debit_needs_an_open_account(ledger: Ledger) -> None:
    with pytest.raises(LocalProtocolError):
        ledger.debit(RUN, 1, b"")
    ledger.open(account())
    ledger.open(account(run=RunId("lab2")))
    with pytest.raises(LocalProtocolError, match="not the open one"):
        ledger.debit(RUN, 1, b"")


def test_a_release_past_the_budget_is_refused_and_nothing_is_kept_of_it(ledger: Ledger) -> None:
    assert ledger.open(account()).cap == 4  # 4 · 0.5 ≤ 2
    spend(ledger, 4)
    assert ledger.standing(RUN).exhausted
    with pytest.raises(BudgetExhausted, match="would pass the budget"):
        ledger.debit(RUN, 5, b"")
    assert ledger.last_sequence(RUN) == 4
    assert len(ledger.pending(RUN)) == 4


def test_without_a_budget_it_counts_and_never_refuses(ledger: Ledger) -> None:
    ledger.open(account(kind(None), None))
    spend(ledger, 9)
    standing = ledger.standing(RUN)
    assert (standing.releases, standing.charges, standing.cap, standing.exhausted) == (9, 9, None, False)


def test_an_acknowledgement_drops_the_bytes_up_to_it(ledger: Ledger) -> None:
    ledger.open(account())
    spend(ledger, 3)
    ledger.acknowledge(RUN, 2)
    ledger.acknowledge(RUN, 1)  # late, and older
    assert ledger.pending(RUN) == [(3, b"g3")]
    with pytest.raises(RemoteProtocolError, match="4 acknowledged, 3 debited"):
        ledger.acknowledge(RUN, 4)


def test_a_law_without_guarantee_cannot_keep_a_budget(ledger: Ledger) -> None:
    with pytest.raises(ConfigurationError, match="singular"):
        ledger.open(account(kind(ExponentialNorm(0.1))))
    with pytest.raises(ConfigurationError, match="no noise"):
        ledger.open(account(kind(None)))
    assert ledger.standings() == []


# -- the account belongs to the data ------------------------------------------------------------------


def test_another_run_on_the_same_records_finds_what_is_left(ledger: Ledger) -> None:
    ledger.open(account())
    spend(ledger, 3)
    later = RunId("lab2")
    assert ledger.open(account(run=later)).cap == 1
    spend(ledger, 1, later)
    with pytest.raises(BudgetExhausted):
        ledger.debit(later, 2, b"")
    assert ledger.open(account()).exhausted  # and the first run, too, has nothing left


def test_a_budget_binds_later_runs_that_bring_none_or_a_larger_one(ledger: Ledger) -> None:
    ledger.open(account())
    spend(ledger, 4)
    for number, epsilon in enumerate((None, 50.0)):
        assert ledger.open(account(HALF, epsilon, run=RunId(f"again{number}"))).exhausted
    with pytest.raises(ConfigurationError, match="no noise"):
        ledger.open(account(kind(None), None, run=RunId("bare")))


def test_only_the_owner_of_the_data_replaces_a_budget(ledger: Ledger) -> None:
    ledger.open(account())
    spend(ledger, 4)
    with pytest.raises(ConfigurationError, match="a run keeps its terms"):
        ledger.open(account(HALF, 3.0))
    assert ledger.open(account(HALF, 3.0), replace_budget=True).cap == 6
    assert ledger.open(account(HALF, None, run=RunId("lab2"))).cap == 2  # the new one binds from now on


def test_a_scenario_s_budget_binds_other_runs_once_something_was_released_under_it(ledger: Ledger) -> None:
    hostile, honest = RunId("hostile"), RunId("honest")
    assert ledger.open(account(HALF, 1e-9, run=hostile, own_budget=False)).cap == 0
    assert ledger.open(account(HALF, 1.0, run=honest, own_budget=False)).cap == 2
    assert ledger.open(account(HALF, 1e-9, run=hostile, own_budget=False)).cap == 0  # for itself, still
    ledger.open(account(HALF, 1.0, run=honest, own_budget=False))
    spend(ledger, 1, honest)
    assert ledger.open(account(HALF, 50.0)).cap == 1


def test_an_operator_s_budget_binds_at_once(ledger: Ledger) -> None:
    ledger.open(account(HALF, 1.0, own_budget=False))
    ledger.open(account(HALF, 1.0))  # resumed, and now by the operator's word
    ledger.open(account(HALF, None, own_budget=False))
    assert ledger.open(account(HALF, 50.0, run=RunId("lab2"), own_budget=False)).cap == 2
    assert ledger.open(account(HALF, 3.0, run=RunId("lab3")), replace_budget=True).cap == 6
    assert ledger.open(account(HALF, None, run=RunId("lab4"))).cap == 6


def test_a_cap_over_runs_of_different_kinds_holds_whenever_their_terms_were_chosen(ledger: Ledger) -> None:
    """By RDP's odometer; PLD alone would permit more, and is not proven for terms chosen after a look."""
    kinds = [ReleaseKind(replace(HALF.mechanism, law=Gaussian(z)), 30) for z in (90.0, 120.0)]
    budget, before = Budget(2.0, 1e-5), Spent(kinds[0], 5)
    ledger.open(account(kinds[0], budget=budget))
    spend(ledger, before.charges)
    cap = ledger.open(account(kinds[1], run=RunId("lab2"), budget=budget)).cap
    assert cap is not None
    assert cap > 0
    for charges, within in ((cap, True), (cap + 1, False)):
        spent = [before, Spent(kinds[1], charges)]
        assert (total(spent, 1e-5).epsilon <= 2.0) is within
    together = (before.charges / 9.0**2 + (cap + 1) / 12.0**2) ** -0.5
    assert pld(GaussianReleases(together, 1.0, 1), 1e-5, Adjacency.ZERO_OUT) < 2.0


@pytest.mark.parametrize(
    ("other", "shared"),
    [
        (replace(SHARD, dataset="sha256:2"), False),
        (replace(SHARD, partition="iid K=20 seed=0", index=3), True),  # another cut of the same data
        (replace(SHARD, disjoint=False, index=3), True),
    ],
)
def test_shards_share_an_account_where_a_record_may_lie_in_both(
    ledger: Ledger, other: ShardIdentity, shared: bool
) -> None:
    assert SHARD.overlaps(SHARD)
    ledger.open(account(shard=replace(SHARD, disjoint=other.disjoint)))
    spend(ledger, 4)
    assert ledger.open(account(run=RunId("lab2"), shard=other)).cap == (0 if shared else 4)


def test_a_ledger_that_has_charged_one_shard_of_a_cut_takes_no_other_of_it(ledger: Ledger) -> None:
    """Another ledger may have charged that one: neither would know when its records' budget is spent."""
    beside, later = replace(SHARD, index=3), RunId("lab2")
    assert not SHARD.overlaps(beside)
    ledger.open(account())
    spend(ledger, 1)
    with pytest.raises(
        OtherShardError, match=r"shard 3 .* was assigned, and this ledger holds shard 2"
    ) as caught:
        ledger.open(account(run=later, shard=beside))
    assert caught.value.held == 2
    assert [standing.account.run for standing in ledger.standings()] == [RUN]
    assert ledger.open(account(run=later)).cap == 3


def test_a_shard_that_was_never_charged_binds_nobody(ledger: Ledger) -> None:
    ledger.open(account())
    assert ledger.open(account(run=RunId("lab2"), shard=replace(SHARD, index=3))).cap == 4


def test_mnist_5k_is_part_of_mnist() -> None:
    whole, part = (
        replace(SHARD, dataset=named_dataset("mnist").checksum),
        replace(SHARD, dataset=embedded.CHECKSUM, index=0),
    )
    assert whole.overlaps(part)
    assert part.overlaps(whole)
    assert not part.overlaps(replace(part, index=1))
    assert not part.overlaps(SHARD)


def test_a_run_keeps_its_terms(ledger: Ledger) -> None:
    ledger.open(account())
    with pytest.raises(ConfigurationError, match="shard"):
        ledger.open(account(shard=replace(SHARD, index=3)))
    with pytest.raises(ConfigurationError, match="kind"):
        ledger.open(account(kind(GammaNorm(0.2))))
    assert ledger.open(account(HALF, None)).cap == 4  # no budget named: the known one
    assert ledger.open(account(reproducible=True)).account.reproducible
    assert ledger.open(account()).account.reproducible  # once seeded, always said


# -- shuffled epochs ----------------------------------------------------------------------------------


def test_a_shuffled_epoch_is_charged_once(ledger: Ledger) -> None:
    assert ledger.open(account(EPOCHS, 1.0)).cap == 2
    spend(ledger, 3)
    assert ledger.standing(RUN).charges == 1
    spend(ledger, 3)
    assert (ledger.standing(RUN).charges, ledger.standing(RUN).exhausted) == (2, True)
    with pytest.raises(BudgetExhausted):
        ledger.debit(RUN, 7, b"")


def test_opening_again_in_an_epoch_is_charged_since_the_key_is_new(ledger: Ledger) -> None:
    ledger.open(account(EPOCHS, 2.0))
    spend(ledger, 1)
    ledger.open(account(EPOCHS, 2.0))
    spend(ledger, 1)
    assert ledger.standing(RUN).charges == 2


# -- identity -----------------------------------------------------------------------------------------


def test_a_new_identity_starts_its_sequences_and_keeps_the_debts(ledger: Ledger) -> None:
    ledger.open(account())
    spend(ledger, 3)
    before = ledger.edge_id
    assert ledger.renew_identity() == ledger.edge_id != before
    assert ledger.last_sequence(RUN) == 0
    assert ledger.pending(RUN) == []
    assert ledger.account(RUN) is None
    assert ledger.open(account()).cap == 1  # of the same records
    assert [standing.edge_id for standing in ledger.standings()] == [before, ledger.edge_id]


# -- durability ---------------------------------------------------------------------------------------


def test_everything_is_there_after_a_restart(tmp_path: Path) -> None:
    with SqliteLedger(tmp_path) as ledger:
        edge_id = ledger.edge_id
        ledger.open(account(reproducible=True))
        spend(ledger, 4)
        ledger.acknowledge(RUN, 2)
        before = ledger.standings()
    with SqliteLedger(tmp_path) as ledger:
        assert ledger.edge_id == edge_id
        assert ledger.last_sequence(RUN) == 4
        assert ledger.pending(RUN) == [(3, b"g3"), (4, b"g4")]
        assert ledger.account(RUN) == account(reproducible=True)
        ledger.open(account())
        assert ledger.standings() == before
        with pytest.raises(BudgetExhausted):
            ledger.debit(RUN, 5, b"")
        ledger.renew_identity()
    with SqliteLedger(tmp_path) as ledger:
        assert ledger.edge_id != edge_id
        assert ledger.open(account()).cap == 0


def test_the_file_is_for_its_owner_alone(tmp_path: Path) -> None:
    with SqliteLedger(tmp_path / "state" / "edge") as ledger:
        ledger.open(account())
        spend(ledger, 1)
        modes = {path.name: path.stat().st_mode & 0o777 for path in ledger.path.parent.iterdir()}
    assert modes == dict.fromkeys(("ledger.sqlite3", "ledger.sqlite3-wal", "journal-0", "journal-1"), 0o600)


def test_a_ledger_is_held_by_one_at_a_time(tmp_path: Path) -> None:
    with SqliteLedger(tmp_path), pytest.raises(ConfigurationError, match="another process holds it"):
        SqliteLedger(tmp_path)
    SqliteLedger(tmp_path).close()


def _forget_the_edge(path: Path) -> None:
    connection = sqlite3.connect(path)
    with connection:
        connection.execute("DELETE FROM edge")
    connection.close()


DAMAGES: dict[str, Callable[[Path], object]] = {
    "truncated": lambda path: path.write_bytes(b""),
    "scribbled": lambda path: path.write_bytes(b"not a database, whatever its name says" * 400),
    "torn": lambda path: path.write_bytes(path.read_bytes()[: path.stat().st_size // 2]),
    "without its edge": _forget_the_edge,
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_ledger_is_an_error_and_never_a_fresh_one(tmp_path: Path, damage: str) -> None:
    with SqliteLedger(tmp_path) as ledger:
        ledger.open(account())
        spend(ledger, 2)
    DAMAGES[damage](ledger.path)
    for _ in range(2):
        with pytest.raises(ConfigurationError, match="damaged"):
            SqliteLedger(tmp_path)


@pytest.mark.parametrize(
    ("version", "words"),
    [
        (1, "version 1 of an earlier release.*stays spent.*A new ledger would forget"),
        (5, "version 5 of an earlier release.*stays spent.*A new ledger would forget"),
        (8, "version 8, and this program reads version 7; update it"),
    ],
)
def test_a_ledger_of_another_version_is_refused_and_left_as_it_is(
    tmp_path: Path, version: int, words: str
) -> None:
    with SqliteLedger(tmp_path) as ledger:
        ledger.open(account())
        path = ledger.path
    connection = sqlite3.connect(path)
    connection.execute(f"PRAGMA user_version = {version}")
    connection.close()
    before = path.read_bytes()
    with pytest.raises(ConfigurationError, match=words):
        SqliteLedger(tmp_path)
    assert path.read_bytes() == before


STEPS = Mechanism(Gaussian(1 / 3), 10, work=LocalSteps(steps=3, rate=0.1))


@pytest.mark.parametrize(
    "terms",
    [
        *(
            account(ReleaseKind(replace(STEPS, law=law), 30), None)
            for law in (Gaussian(1 / 3), GammaNorm(0.1 + 0.2), ExponentialNorm(1e-8 / 7), None)
        ),
        account(kind(Gaussian(1.0), truncated(12)), None),
        account(HALF, 1e-9, own_budget=False),
        account(reproducible=True, most_releases=7),
    ],
)
def test_a_ledger_keeps_its_terms_to_the_last_bit(tmp_path: Path, terms: Account) -> None:
    with SqliteLedger(tmp_path) as ledger:
        ledger.open(terms)
        if not ledger.standing(RUN).exhausted:
            spend(ledger, 2)
        before = ledger.standings()
    with SqliteLedger(tmp_path) as ledger:
        assert [replace(one, cap=None, exhausted=False) for one in before] == [
            replace(one, cap=None, exhausted=False) for one in ledger.standings()
        ]
        ledger.open(terms)  # a run keeps its terms: another ε or z would be refused
        assert ledger.account(RUN) == terms
        assert ledger.standings() == before


def test_after_a_failed_write_nothing_more_is_released(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with SqliteLedger(tmp_path) as ledger:
        ledger.open(account())
        spend(ledger, 1)
        monkeypatch.setattr("os.fdatasync", full_disk)
        with pytest.raises(LedgerUnavailableError, match="nothing more is released"):
            ledger.debit(RUN, 2, b"")
        with pytest.raises(ConfigurationError, match="closed"):
            ledger.debit(RUN, 3, b"")
    with SqliteLedger(tmp_path) as ledger:
        assert ledger.last_sequence(RUN) == 2  # whether it reached the disk was not known; it has not left

"""A budget is a ceiling on the records, whichever edges of a state directory release them."""

from __future__ import annotations

import shutil
import signal
import sqlite3
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from common.accounting.releases import Budget, ReleaseKind, Spent
from common.accounting.total import total_of_records
from common.errors import ConfigurationError
from common.mechanism.mechanism import Mechanism
from common.noise.gamma_norm import GammaNorm
from common.quantities import RunId
from edge.ledger import Account, BudgetExhausted, OtherShardError, ShardIdentity
from edge.policy import PolicyError
from edge.sqlite_ledger import SqliteLedger
from edge.state_directory import FORMER_FILES, STATE_FILE, Slot, StateDirectory
from tests.edge_support import spend
from tests.mechanism_support import SHUFFLED

RUN = RunId("r")
# At δ = 0 totals are plain sums of these zero-out ε: 0.5 and 0.75 a release.
HALF, MORE = (ReleaseKind(Mechanism(GammaNorm(e), 10, SHUFFLED), 10) for e in (1.0, 1.5))
TWO = Budget(2.0, 0.0)


def shard(index: int, cut: str = "iid K=5") -> ShardIdentity:
    return ShardIdentity("d", cut, index, disjoint=not cut.startswith("shared"))


def account(
    on: ShardIdentity, run: str = "r", budget: Budget | None = TWO, this: ReleaseKind = HALF
) -> Account:
    return Account(run=RunId(run), shard=on, kind=this, budget=budget)


class Fleet:
    """Slots of one state directory in one process, as a fleet of edges has them."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.book = StateDirectory(directory)
        self.slots: dict[str, Slot] = {}
        self.ledgers: dict[str, SqliteLedger] = {}

    def take(self, name: str) -> SqliteLedger:
        self.slots[name] = self.book.take([name])
        self.ledgers[name] = SqliteLedger(self.directory / name, slot=self.slots[name])
        return self.ledgers[name]

    def kill(self, name: str) -> None:
        """End an edge as SIGKILL does: its lock and its file go, its claim stays in the book."""
        ledger = self.ledgers.pop(name)
        connection, ledger._connection = ledger._connection, None
        assert connection is not None
        connection.close()
        self.slots.pop(name).close()

    def end(self, name: str) -> None:
        """End an edge in good order."""
        self.ledgers.pop(name).close()
        self.slots.pop(name).close()

    def close(self) -> None:
        for name in list(self.ledgers):
            self.end(name)
        self.book.close()


@pytest.fixture
def fleet(tmp_path: Path) -> Iterator[Fleet]:
    made = Fleet(tmp_path)
    yield made
    made.close()


@pytest.mark.parametrize("cut", ["iid K=5", "shared K=5"])
def test_a_cloud_that_deals_the_same_records_twice_finds_one_edge(fleet: Fleet, cut: str) -> None:
    fleet.take("0").open(account(shard(0, cut)))
    for index, name in enumerate("1234"):
        dealt = shard(0 if cut.startswith("iid") else index + 1, cut)
        with pytest.raises(PolicyError, match="slot '0'"):
            fleet.take(name).open(account(dealt))
        assert fleet.ledgers[name].standings() == []


def test_disjoint_shards_are_held_at_the_same_time_and_each_has_the_whole_budget(fleet: Fleet) -> None:
    for index, name in enumerate("01234"):
        assert fleet.take(name).open(account(shard(index))).cap == 4


def test_what_a_sibling_spent_counts_once_it_has_ended(fleet: Fleet) -> None:
    spend_by_zero = fleet.take("0")
    spend_by_zero.open(account(shard(0)))
    spend(spend_by_zero, 3)
    spend_by_zero.close()  # the edge has ended; its process, and with it the slot's lock, goes on
    other = fleet.take("1")
    assert other.open(account(shard(0))).cap == 1
    spend(other, 1)
    with pytest.raises(BudgetExhausted):
        spend(other, 1)


def test_another_cut_pays_for_the_worst_shard_of_the_first(fleet: Fleet) -> None:
    for index, name in enumerate("012"):
        ledger = fleet.take(name)
        ledger.open(account(shard(index)))
        spend(ledger, index + 1)
        ledger.close()
    assert fleet.take("3").open(account(shard(0, "iid K=2"), "other")).cap == 1  # 4 less 3, not less 6


def test_a_sibling_s_budget_binds_an_edge_that_brings_none(fleet: Fleet) -> None:
    fleet.take("0").open(account(shard(0)))
    fleet.take("1")
    with pytest.raises(PolicyError):
        fleet.ledgers["1"].open(account(shard(0), budget=None))
    spend(fleet.ledgers["0"], 1)
    fleet.end("0")
    assert fleet.ledgers["1"].open(account(shard(0), budget=None)).cap == 3
    assert fleet.ledgers["1"].keeps_budget(shard(1, "iid K=2"))
    assert not fleet.ledgers["1"].keeps_budget(shard(3))


def test_an_edge_under_a_budget_waits_for_one_without(fleet: Fleet) -> None:
    fleet.take("0").open(account(shard(0), budget=None))
    fleet.take("1").open(account(shard(0), budget=None))  # neither has a budget: nothing to keep
    with pytest.raises(PolicyError):
        fleet.take("2").open(account(shard(0)))


def test_a_scenario_s_budget_is_each_edge_s_own(fleet: Fleet) -> None:
    for name in "01":
        terms = Account(run=RUN, shard=shard(0, "shared K=2"), kind=HALF, budget=TWO, own_budget=False)
        assert fleet.take(name).open(terms).cap == 4


def test_a_replaced_budget_is_replaced_for_the_siblings_too(fleet: Fleet) -> None:
    fleet.take("0").open(account(shard(0)))
    spend(fleet.ledgers["0"], 4)
    fleet.end("0")
    larger = Budget(3.0, 0.0)
    ledger = fleet.take("1")
    assert ledger.open(account(shard(0), "a", larger)).cap == 0
    assert ledger.open(account(shard(0), "b", larger), replace_budget=True).cap == 2
    fleet.end("1")
    assert fleet.take("2").open(account(shard(0), "c", larger)).cap == 2


def test_a_killed_edge_s_claim_ends_with_it_and_what_it_spent_counts(fleet: Fleet) -> None:
    ledger = fleet.take("0")
    ledger.open(account(shard(0)))
    spend(ledger, 3)
    fleet.kill("0")
    assert fleet.take("1").open(account(shard(0))).cap == 1
    with pytest.raises(PolicyError, match="slot '1'"):
        fleet.take("0").open(account(shard(0)))


def test_a_slot_that_is_taken_again_brings_no_claim_of_its_former_life(fleet: Fleet) -> None:
    fleet.take("0").open(account(shard(0)))
    fleet.kill("0")
    fleet.take("0")
    fleet.take("1").open(account(shard(0)))


CHILD = """
import sys
from pathlib import Path
from tests.edge.test_state_directory import Fleet, account, shard, spend
ledger = Fleet(Path(sys.argv[1])).take("0")
ledger.open(account(shard(0)))
spend(ledger, 3)
print("holds", flush=True)
sys.stdin.read()
"""


def test_another_process_s_claim_counts_until_it_is_killed(fleet: Fleet) -> None:
    command = [sys.executable, "-c", CHILD, str(fleet.directory)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as child:
        assert child.stdout is not None
        assert child.stdout.readline() == "holds\n"
        with pytest.raises(PolicyError, match="slot '0'"):
            fleet.take("1").open(account(shard(0)))
        child.send_signal(signal.SIGKILL)
        child.wait()
    assert fleet.ledgers["1"].open(account(shard(0))).cap == 1


def test_a_book_that_was_removed_is_made_anew_from_the_ledgers(fleet: Fleet) -> None:
    ledger = fleet.take("0")
    ledger.open(account(shard(0)))
    spend(ledger, 3)
    fleet.close()
    for path in fleet.directory.glob(f"{STATE_FILE}*"):
        path.unlink()
    again = Fleet(fleet.directory)
    assert again.take("1").open(account(shard(0), budget=None)).cap == 1
    again.close()
    fleet.book = StateDirectory(fleet.directory)


def test_an_edge_whose_book_is_removed_while_it_opens_does_not_go_on(fleet: Fleet) -> None:
    """The accountant takes seconds: a book made anew in between would know nothing of this claim."""

    def slow(budget: Budget, kind: ReleaseKind, spent: tuple[Spent, ...]) -> int:  # noqa: ARG001
        for path in fleet.directory.glob(f"{STATE_FILE}*"):
            path.unlink()
        StateDirectory(fleet.directory).close()
        return 4

    ledger = fleet.take("0")
    ledger._accountant = slow
    with pytest.raises(ConfigurationError, match="state file"):
        ledger.open(account(shard(0)))
    assert ledger.standings() == []


def test_a_missing_ledger_is_no_empty_one(fleet: Fleet) -> None:
    fleet.take("0").open(account(shard(0)))
    fleet.end("0")
    shutil.rmtree(fleet.directory / "0")
    with pytest.raises(ConfigurationError, match="missing"):
        fleet.take("1").open(account(shard(0)))


def test_a_book_of_a_later_version_or_a_damaged_one_is_refused(tmp_path: Path) -> None:
    with sqlite3.connect(tmp_path / STATE_FILE) as connection:
        connection.execute("PRAGMA user_version = 9")
    connection.close()
    with pytest.raises(ConfigurationError, match="version 9"):
        StateDirectory(tmp_path)
    (tmp_path / STATE_FILE).write_bytes(b"no database" * 100)
    with pytest.raises(ConfigurationError, match="state file"):
        StateDirectory(tmp_path)


@pytest.mark.parametrize("name", FORMER_FILES)
def test_a_state_directory_of_an_earlier_version_is_refused(tmp_path: Path, name: str) -> None:
    (tmp_path / name).touch()
    with pytest.raises(ConfigurationError, match=f"{name} was written by an earlier version"):
        StateDirectory(tmp_path)


RECORDS = 6
CUTS = {
    "iid K=2": [0, 0, 0, 1, 1, 1],
    "iid K=3": [0, 1, 2, 0, 1, 2],
    "shared K=3": None,
}


SHARDS = st.sampled_from([shard(index, cut) for cut in CUTS for index in (0, 1)])


def records_in(on: ShardIdentity) -> list[int]:
    owners = CUTS[on.partition]
    return [record for record in range(RECORDS) if owners is None or owners[record] == on.index]


class World(RuleBasedStateMachine):
    """Edges that a hostile cloud deals any shard of any cut; every record's true cost is counted apart."""

    @initialize()
    def begin(self) -> None:
        self.fleet = Fleet(Path(tempfile.mkdtemp()))
        self.cost = [0.0] * RECORDS
        self.bound: set[int] = set()  # records for which the operator has set a budget
        self.runs = 0
        self.open_on: dict[str, tuple[str, ShardIdentity, ReleaseKind]] = {}

    def teardown(self) -> None:
        if hasattr(self, "fleet"):
            self.fleet.close()
            shutil.rmtree(self.fleet.directory)

    @rule(
        name=st.sampled_from("012"),
        on=SHARDS,
        this=st.sampled_from([HALF, MORE]),
        budgeted=st.booleans(),
        resumed=st.booleans(),
        releases=st.integers(0, 2),
        ending=st.sampled_from(["stays", "stays", "ends", "is killed"]),
    )
    def take_part(
        self,
        name: str,
        on: ShardIdentity,
        this: ReleaseKind,
        budgeted: bool,
        resumed: bool,
        releases: int,
        ending: str,
    ) -> None:
        """Start an edge, or have a living one join another run; let it release, and perhaps end."""
        if name not in self.fleet.ledgers:
            self.fleet.take(name)
        self.runs += not resumed
        run = f"run-{self.runs}"
        # a budget binds its records from then on: starting an edge without one changes nothing
        budget = None if not budgeted and self.bound >= set(records_in(on)) else TWO
        try:
            self.fleet.ledgers[name].open(account(on, run, budget, this))
        except (PolicyError, OtherShardError):
            pass
        except ConfigurationError as error:
            if "keeps its terms" not in str(error):
                raise
        else:
            self.open_on[name] = run, on, this
            if budget is not None:
                self.bound |= set(records_in(on))
        self.release(name, releases)
        if ending != "stays":
            (self.fleet.end if ending == "ends" else self.fleet.kill)(name)
            self.open_on.pop(name, None)

    @rule(name=st.sampled_from("012"), count=st.integers(1, 4))
    def release(self, name: str, count: int) -> None:
        if name not in self.open_on:
            return
        run, on, this = self.open_on[name]
        for _ in range(count):
            try:
                spend(self.fleet.ledgers[name], 1, run)
            except BudgetExhausted:
                return
            for record in records_in(on):
                self.cost[record] += 0.5 if this is HALF else 0.75

    @rule(first=SHARDS, second=SHARDS, turns=st.lists(st.sampled_from("01"), min_size=4, max_size=9))
    def compete(self, first: ShardIdentity, second: ShardIdentity, turns: list[str]) -> None:
        """Have two edges take part at the same time and release in turns."""
        for name, on in (("0", first), ("1", second)):
            self.take_part(name, on, HALF, True, False, 0, "stays")
        for name in turns:
            self.release(name, 1)

    @invariant()
    def no_record_costs_more_than_the_budget_or_than_is_stated(self) -> None:
        if not hasattr(self, "cost"):
            return
        assert max(self.cost) <= 2.0
        spent = [s.of_shard for ledger in self.fleet.ledgers.values() for s in ledger.standings()]
        for path in self.fleet.directory.glob("*/ledger.sqlite3"):
            if path.parent.name not in self.fleet.ledgers:
                with SqliteLedger(path.parent) as ledger:
                    spent += [s.of_shard for s in ledger.standings()]
        assert total_of_records(spent, 0.0).epsilon >= max(self.cost) - 1e-9


TestWorld = World.TestCase
TestWorld.settings = settings(
    max_examples=25, stateful_step_count=8, deadline=None, suppress_health_check=[HealthCheck.too_slow]
)

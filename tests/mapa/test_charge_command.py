"""`mapa ledger charge`: releases made with another copy of a ledger, charged by the operator's word alone."""

from __future__ import annotations

from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest

from common.accounting.budget import max_charges
from common.accounting.releases import Budget, ReleaseKind, Spent
from common.accounting.total import total
from common.mechanism.sampler import Sampler
from common.noise.gamma_norm import GammaNorm
from common.quantities import EdgeId, RunId
from edge.ledger import Account, ShardIdentity, Standing
from edge.sqlite_ledger import SqliteLedger
from edge.state_directory import StateDirectory
from tests.mechanism_support import POISSON, SHUFFLED, release_kind
from tests.program_support import Done, Mapa

RUN, EDGE = RunId("r"), EdgeId("edge-a")
SHARD = ShardIdentity("d" * 64, "iid K=5 seed=0", 0)


def kind(sampling: Sampler = POISSON) -> ReleaseKind:
    return release_kind(GammaNorm(0.1), 64, 800, sampling)


def account(budget: Budget | None = None, shard: ShardIdentity = SHARD) -> Account:
    return Account(run=RUN, shard=shard, kind=kind(), budget=budget)


def write(
    state: Path, releases: int, terms: Account | None = None, slot: str = "0", edge: EdgeId = EDGE
) -> None:
    with SqliteLedger(state / slot, edge) as ledger:
        ledger.open(terms or account())
        for sequence in range(1, releases + 1):
            ledger.debit(RUN, sequence, b"gradient")


def standing(state: Path) -> Standing:
    with SqliteLedger(state / "0") as ledger:
        return ledger.standing(RUN)


def charge(mapa: Mapa, state: Path, through: int, *more: str, edge: str = EDGE, run: str = RUN) -> Done:
    words = ("--state", str(state), "--run", run, "--edge", edge, "--through", str(through))
    return mapa("ledger", "charge", *words, *more)


def test_missing_releases_are_charged_once_and_for_good(tmp_path: Path, mapa: Mapa) -> None:
    write(tmp_path, 3)
    done = charge(mapa, tmp_path, 58)
    before, after = (total([Spent(kind(), count)], 1e-5).epsilon for count in (3, 58))
    assert done.code == 0, done.err
    for words in ("releases 3 -> 58", "charges 3 -> 58", f"ε = {before:.4g}", f"-> ε = {after:.4g}"):
        assert words in done.out
    with SqliteLedger(tmp_path / "0") as ledger:
        assert (ledger.last_sequence(RUN), ledger.standing(RUN).charges) == (58, 58)
        assert ledger.pending(RUN) == []  # what others have overtaken is never sent
    for through in (58, 57, 1):
        done = charge(mapa, tmp_path, through)
        assert (done.code, f"--through {through}: must be above 58" in done.err) == (2, True)
    assert standing(tmp_path).charges == 58


def test_what_was_made_is_charged_past_the_budget_too_but_only_with_a_second_word(
    tmp_path: Path, mapa: Mapa
) -> None:
    budget = Budget(0.5, 1e-5)
    cap = max_charges(budget, kind())
    write(tmp_path, 3, account(budget))
    assert charge(mapa, tmp_path, cap).code == 0
    done = charge(mapa, tmp_path, cap + 7)
    assert done.code == 2
    for words in (f"{cap} -> {cap + 7} of {cap} that the budget permits", "Nothing was charged", "--yes"):
        assert words in done.err
    assert standing(tmp_path).charges == cap
    assert charge(mapa, tmp_path, cap + 7, "--yes").code == 0
    assert standing(tmp_path).charges == cap + 7


def test_local_steps_are_each_charged_and_each_held_against_the_budget(tmp_path: Path, mapa: Mapa) -> None:
    local = release_kind(GammaNorm(0.1), 64, 800, steps=5)
    budget = Budget(0.5, 1e-5)
    cap = max_charges(budget, local)
    write(tmp_path, 3, replace(account(budget), kind=local))
    done = charge(mapa, tmp_path, 4)
    assert (done.code, "charges 15 -> 20" in done.out) == (0, True)
    over = cap // 5 + 1
    done = charge(mapa, tmp_path, over)
    assert (done.code, f"{5 * over} charges pass the budget, which permits {cap}" in done.err) == (2, True)
    assert standing(tmp_path).charges == 20


def test_an_absurd_number_needs_a_second_word(tmp_path: Path, mapa: Mapa) -> None:
    write(tmp_path, 3)
    done = charge(mapa, tmp_path, 10**9)
    assert (done.code, "999,999,997 releases are more than 10,000 at once" in done.err) == (2, True)
    assert charge(mapa, tmp_path, 10**9 + 1, "--yes").code == 2
    assert standing(tmp_path).charges == 3


def test_with_the_shuffled_sampler_each_missing_release_may_have_begun_an_epoch(tmp_path: Path) -> None:
    with SqliteLedger(tmp_path / "0", EDGE) as ledger:
        ledger.open(Account(run=RUN, shard=SHARD, kind=kind(SHUFFLED)))
        ledger.debit(RUN, 1, b"gradient")
        assert ledger.charge(RUN, 11).charges == 11
        ledger.debit(RUN, 12, b"gradient")
        assert ledger.standing(RUN).charges == 12  # and this process has a shuffle of its own


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"edge": "edge-b"}, "--edge edge-b: no such ledger in"),
        ({"run": "other"}, "--run other: edge-a has no account in it; it has one in r"),
    ],
)
def test_who_and_where_must_be_right(tmp_path: Path, mapa: Mapa, changes: dict[str, str], words: str) -> None:
    write(tmp_path, 3)
    done = charge(mapa, tmp_path, 9, **changes)
    assert (done.code, words in done.err) == (2, True)


def test_a_state_directory_without_ledgers_or_with_one_twice_is_refused(tmp_path: Path, mapa: Mapa) -> None:
    assert "no ledger in any of its folders" in charge(mapa, tmp_path, 9).err
    write(tmp_path, 3)
    write(tmp_path, 2, slot="1")
    done = charge(mapa, tmp_path, 9)
    assert (done.code, "several ledgers of it" in done.err) == (2, True)


def test_a_living_edge_is_not_charged(tmp_path: Path, mapa: Mapa) -> None:
    write(tmp_path, 3)
    with closing(StateDirectory(tmp_path)) as state, closing(state.take()):
        done = charge(mapa, tmp_path, 9)
    assert (done.code, "its process is alive" in done.err) == (2, True)
    assert standing(tmp_path).charges == 3


def test_nothing_is_charged_while_an_edge_beside_it_spends_a_budget_on_the_same_records(
    tmp_path: Path, mapa: Mapa
) -> None:
    """Its cap was found before: it would spend what the charge has taken."""
    shared = ShardIdentity("d" * 64, "shared K=5 seed=0", 0, disjoint=False)
    write(tmp_path, 3, account(Budget(2.0, 1e-5), shared))
    write(tmp_path, 0, account(None, shared), slot="1", edge=EdgeId("edge-b"))
    with closing(StateDirectory(tmp_path)) as state, closing(state.take(["1"])) as sibling:
        sibling.claim(account(None, shared), budgeted=True, replace_budget=False)
        done = charge(mapa, tmp_path, 9)
    assert (done.code, "the edge in slot '1'" in done.err) == (2, True)
    assert standing(tmp_path).charges == 3
    assert charge(mapa, tmp_path, 9).code == 0


def test_show_is_what_ledger_means(tmp_path: Path, mapa: Mapa) -> None:
    write(tmp_path, 3)
    assert mapa("ledger", str(tmp_path)).out == mapa("ledger", "show", str(tmp_path)).out
    assert mapa("ledger", "--json", str(tmp_path)).code == 0

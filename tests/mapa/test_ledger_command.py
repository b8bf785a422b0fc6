"""`mapa ledger` over several runs: nothing that was released is left unsaid."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from common.accounting.budget import max_charges
from common.accounting.releases import Budget, ReleaseKind, Spent
from common.accounting.total import total
from common.datasets.catalogue import named_dataset
from common.datasets.named import mnist_5k as embedded
from common.mechanism.clipping import CLIPPINGS
from common.mechanism.mechanism import Mechanism
from common.mechanism.sampler import SAMPLERS
from common.noise.gamma_norm import GammaNorm
from common.noise.gaussian import Gaussian
from common.quantities import RunId
from edge.ledger import Account, BudgetExhausted, ShardIdentity
from edge.sqlite_ledger import SqliteLedger
from mapa.commands.ledger import ledger_command
from tests.mechanism_support import SHUFFLED
from tests.mechanism_support import release_kind as kind
from tests.program_support import Mapa

ONE, OTHER = "a" * 64, "b" * 64
BUDGETS = [(0.1, 1e-5), (0.7, 1e-6), (2.0, 1e-5), (2.0, 1e-12), (4.0, 1e-3)]  # (ε, δ)


SECURE, BARE = kind(Gaussian(8.0), 64, 800), kind(None, 64, 800)


Stated = Callable[[Path], dict[str, Any]]


@pytest.fixture
def stated(capsys: pytest.CaptureFixture[str]) -> Stated:
    def ask(directory: Path) -> dict[str, Any]:
        ledger_command(str(directory), as_json=True)
        document: dict[str, Any] = json.loads(capsys.readouterr().out)
        return document

    return ask


def cut(k: int, index: int = 0) -> ShardIdentity:
    return ShardIdentity(ONE, f"iid K={k} seed=0", index)


def release(ledger: SqliteLedger, name: str, shard: ShardIdentity, count: int, **terms: Any) -> None:
    """Release up to the gradient of this number in a run."""
    standing = ledger.open(Account(run=RunId(name), shard=shard, **{"kind": SECURE, **terms}))
    for sequence in range(standing.releases + 1, count + 1):
        ledger.debit(RunId(name), sequence, b"gradient")


def ledger_of(directory: Path, shard: ShardIdentity, releases: int, name: str = "r", **terms: Any) -> None:
    with SqliteLedger(directory) as ledger:
        release(ledger, name, shard, releases, **terms)


def runs(
    directory: Path, *terms: tuple[str, ReleaseKind, int], index: int = 0, disjoint: bool = True, **more: Any
) -> None:
    """Write a ledger with a run for each (data set, kind, releases)."""
    with SqliteLedger(directory) as ledger:
        for number, (dataset, this, count) in enumerate(terms):
            shard = ShardIdentity(dataset, "iid K=5 seed=0", index, disjoint)
            release(ledger, f"run{number}", shard, count, kind=this, **more)


def test_an_earlier_seeded_run_on_the_same_records_is_not_forgotten(tmp_path: Path, stated: Stated) -> None:
    for name, seeded in (("a", True), ("b", False)):
        ledger_of(tmp_path, cut(5), 1, name, reproducible=seeded)
    document = stated(tmp_path)
    assert document["reproducible_noise"] is True
    assert document["words"][0].startswith("Reproducible noise: not private.")
    assert document["epsilon"] == total([Spent(SECURE, 2)], 1e-5).epsilon


def test_a_seeded_run_that_released_nothing_spoils_nothing(tmp_path: Path, stated: Stated) -> None:
    ledger_of(tmp_path, cut(5), 0, "a", kind=BARE, reproducible=True)
    ledger_of(tmp_path, cut(5), 1, "b")
    document = stated(tmp_path)
    assert document["reproducible_noise"] is False
    assert "Releases of earlier runs on the same records are included." not in document["words"]
    assert "in this run" not in document["words"][0]


def test_a_ledger_is_stated_under_the_id_by_which_it_can_be_charged(tmp_path: Path, stated: Stated) -> None:
    with SqliteLedger(tmp_path) as ledger:
        release(ledger, "r", cut(5), 1)
        now = ledger.renew_identity()
    assert [edge["edge_id"] for edge in stated(tmp_path)["edges"]] == [now]


def test_every_data_set_has_its_statement(
    tmp_path: Path, stated: Stated, capsys: pytest.CaptureFixture[str]
) -> None:
    runs(tmp_path, (ONE, BARE, 1), (OTHER, SECURE, 3))
    bare, private = stated(tmp_path)["statements"]
    assert (bare["dataset"], private["dataset"]) == (ONE, OTHER)
    assert bare["epsilon"] is None
    assert "no noise" in bare["reason"]
    assert private["epsilon"] == total([Spent(SECURE, 3)], 1e-5).epsilon
    ledger_command(str(tmp_path))
    printed = capsys.readouterr().out
    assert printed.index(ONE) < printed.index("Not differentially private") < printed.index(OTHER)


def test_data_sets_with_the_same_records_share_a_statement(tmp_path: Path, stated: Stated) -> None:
    runs(tmp_path, (named_dataset("mnist").checksum, BARE, 1), (embedded.CHECKSUM, SECURE, 3))
    document = stated(tmp_path)
    assert document["epsilon"] is None
    assert document["words"][0].startswith("Not differentially private")


def test_records_of_which_nothing_was_released_need_no_statement(tmp_path: Path, stated: Stated) -> None:
    runs(tmp_path, (ONE, SECURE, 2), (OTHER, BARE, 0))
    assert stated(tmp_path)["epsilon"] == total([Spent(SECURE, 2)], 1e-5).epsilon


def test_ledgers_of_several_edges_are_stated_together_for_each_data_set(
    tmp_path: Path, stated: Stated
) -> None:
    for index in (1, 0):
        runs(
            tmp_path / f"{9 - index}",
            (ONE, SECURE, 2 + index),
            (OTHER, SECURE, 1),
            index=index,
            budget=Budget(3, 1e-6),
        )
    one, other = stated(tmp_path)["statements"]
    assert [edge["releases"] for edge in one["edges"]] == [2, 3]
    assert [edge["releases"] for edge in other["edges"]] == [1, 1]
    assert one["delta"] == other["delta"] == 1e-6


def test_a_former_run_on_shared_records_counts_all_edges_releases_together(
    tmp_path: Path, stated: Stated
) -> None:
    for index in (0, 1):
        runs(tmp_path / str(index), (ONE, SECURE, 2), (ONE, SECURE, 1), index=index, disjoint=False)
    document = stated(tmp_path)
    assert document["shared_records"] is True
    assert document["epsilon"] == total([Spent(SECURE, 6)], 1e-5).epsilon


# -- mapa calibrate ------------------------------------------------------------------------------------

CASES = [
    *(("shuffled", b, n, r, e, d) for b, n, r in ((10, 97, 30), (64, 800, 500)) for e, d in BUDGETS),
    *(("with-replacement", b, n, r, e, d) for b, n, r in ((3, 97, 7), (64, 800, 41)) for e, d in BUDGETS),
    *(("poisson", 64, 2000, 300, e, d) for e, d in BUDGETS),
]


@pytest.mark.slow
@pytest.mark.parametrize("clipping", ["per-sample", "batch-mean"])
@pytest.mark.parametrize(("sampler", "batch", "shard", "releases", "epsilon", "delta"), CASES)
def test_a_printed_multiplier_keeps_the_budget_when_it_is_typed_in_again(
    sampler: str,
    batch: int,
    shard: int,
    releases: int,
    epsilon: float,
    delta: float,
    clipping: str,
    mapa: Mapa,
) -> None:
    asked = f"--releases {releases} --batch-size {batch} --shard {shard} --sampler {sampler} --clipping {clipping}"
    command = f"calibrate --total-epsilon {epsilon} --total-delta {delta} {asked}"
    [printed] = re.findall(r"z = (\d+\.\d{6})$", mapa(*command.split()).out.strip())
    mechanism = Mechanism(None, batch, SAMPLERS.make(sampler, {}), CLIPPINGS.make(clipping, {}))
    this = ReleaseKind(replace(mechanism, law=Gaussian(float(printed))), shard)
    spent = total([Spent(this, this.charges(releases))], delta, replace_one=False).epsilon
    assert 0.99 * epsilon < spent <= epsilon


def test_ledgers_of_one_shard_are_composed_and_it_is_said_why(tmp_path: Path, stated: Stated) -> None:
    """Five edges that a hostile cloud dealt index 0: each ledger is within its budget, the records are not."""
    for number in range(5):
        ledger_of(tmp_path / str(number), cut(5, 0), 3)
    ledger_of(tmp_path / "5", cut(5, 1), 9)
    document = stated(tmp_path)
    assert document["epsilon"] == total([Spent(SECURE, 15)], 1e-5).epsilon
    assert "5 ledgers (edge-" in document["composed_because"]
    assert "hold shard 0 (iid K=5 seed=0 of " in document["composed_because"]
    assert f"composed since {document['composed_because']}" in document["words"][0]


def test_another_cut_of_the_same_data_is_composed_with_the_worst_shard(
    tmp_path: Path, stated: Stated
) -> None:
    for index, releases in enumerate((4, 9, 2)):
        ledger_of(tmp_path / f"a{index}", cut(3, index), releases)
    for index, releases in enumerate((5, 6)):
        ledger_of(tmp_path / f"b{index}", cut(2, index), releases)
    document = stated(tmp_path)
    assert document["epsilon"] == total([Spent(SECURE, 15)], 1e-5).epsilon  # 9 and 6, not all 26
    assert "different cuts of the same data" in document["composed_because"]


def test_disjoint_shards_of_one_cut_are_not_composed(tmp_path: Path, stated: Stated) -> None:
    for index, releases in enumerate((4, 9, 2)):
        ledger_of(tmp_path / str(index), cut(3, index), releases)
    document = stated(tmp_path)
    assert (document["composed_because"], document["shared_records"]) == (None, False)
    assert document["epsilon"] == total([Spent(SECURE, 9)], 1e-5).epsilon


@pytest.mark.parametrize("shards", [2, 3])
def test_kinds_that_differ_are_composed_alike_whatever_their_runs_are_called(
    tmp_path: Path, stated: Stated, shards: int
) -> None:
    for name in ("r", "r2"):
        ledger_of(tmp_path / name / "0", cut(3), 9)
        ledger_of(tmp_path / name / "1", cut(shards), 6, name, kind=kind(Gaussian(5.0), 64, 800))
    alike, apart = (stated(tmp_path / name) for name in ("r", "r2"))
    assert alike["method"] == apart["method"] == "odometer"
    assert alike["epsilon"] == apart["epsilon"]


def test_names_are_printed_as_they_are(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for number, name in enumerate(("b:", "[red]x[/]")):  # an emoji and a colour to rich
        shard = ShardIdentity(f"local:{name}", "local", 0, disjoint=False)
        ledger_of(tmp_path / str(number), shard, 1)
    ledger_command(str(tmp_path))
    printed = capsys.readouterr().out
    assert "Records of data set local:b::" in printed
    assert "Records of data set local:[red]x[/]:" in printed


# -- budgets -------------------------------------------------------------------------------------------

PURE = kind(GammaNorm(0.1), 64, 800)
EPOCHS = kind(GammaNorm(0.1), 100, 800, SHUFFLED)
STEPS = kind(GammaNorm(0.1), 64, 800, steps=3)


def budget_in(document: dict[str, Any], number: int = 0) -> tuple[Any, Any]:
    row = document["edges"][number]
    return row.get("budget"), row.get("releases_left")


@pytest.mark.parametrize("this", [PURE, EPOCHS, STEPS], ids=["poisson", "shuffled", "local steps"])
def test_what_is_left_of_a_budget_is_what_the_edge_may_still_release(
    tmp_path: Path, stated: Stated, capsys: pytest.CaptureFixture[str], this: ReleaseKind
) -> None:
    ledger_of(tmp_path, cut(5), 1, "first", kind=kind(GammaNorm(0.5), 64, 800), budget=Budget(0.4, 0.0))
    ledger_of(tmp_path, cut(5), this.batches_per_epoch, "second", kind=this)  # a budget binds every later run
    document = stated(tmp_path)
    kept, left = budget_in(document)
    assert kept == {"epsilon": 0.4, "delta": 0.0}
    assert left > 0
    assert f"It permits {left:,} more releases" in document["words"][-1]
    with SqliteLedger(tmp_path) as ledger:
        release(ledger, "second", cut(5), this.batches_per_epoch + left, kind=this)
        with pytest.raises(BudgetExhausted):
            ledger.debit(RunId("second"), this.batches_per_epoch + left + 1, b"gradient")
    document = stated(tmp_path)
    assert budget_in(document) == (kept, 0)
    assert "It is spent" in document["words"][-1]
    ledger_command(str(tmp_path))
    assert "left" in capsys.readouterr().out


def test_an_operators_budget_counts_what_the_other_ledgers_spent_on_the_same_records(
    tmp_path: Path, stated: Stated
) -> None:
    shard = ShardIdentity(ONE, "local", 0, disjoint=False)
    ledger_of(tmp_path / "0", shard, 20, kind=PURE, budget=Budget(0.4, 0.0))
    ledger_of(tmp_path / "1", shard, 30, kind=PURE)
    left = max_charges(Budget(0.4, 0.0), PURE) - 50
    for number in (0, 1):
        assert budget_in(stated(tmp_path), number) == ({"epsilon": 0.4, "delta": 0.0}, left)


def test_a_ledger_without_a_budget_tells_of_none(tmp_path: Path, stated: Stated) -> None:
    runs(tmp_path, (ONE, PURE, 2))
    document = stated(tmp_path)
    assert budget_in(document) == (None, None)
    assert not any("Budget" in word for word in document["words"])


def test_the_remainder_of_a_budget_that_the_terms_cannot_keep_is_nothing(
    tmp_path: Path, stated: Stated
) -> None:
    ledger_of(tmp_path, cut(5), 1, "a", kind=BARE)
    ledger_of(tmp_path, cut(5), 0, "b", kind=PURE, budget=Budget(1.0, 0.0))
    assert budget_in(stated(tmp_path))[1] == 0

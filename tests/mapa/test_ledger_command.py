"""`mapa ledger` over several runs: nothing that was released is left unsaid."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from common.accounting.budget import max_charges
from common.accounting.releases import Budget, ReleaseKind, Spent
from common.accounting.total import total
from common.datasets.named import mnist
from common.datasets.named import mnist_5k as embedded
from common.mechanism.clipping import CLIPPINGS
from common.mechanism.mechanism import Mechanism
from common.mechanism.sampler import SAMPLERS
from common.noise.gamma_norm import GammaNorm
from common.noise.gaussian import Gaussian
from common.noise.law import NoiseLaw
from common.quantities import RunId
from edge.ledger import Account, BudgetExhausted, ShardIdentity
from edge.sqlite_ledger import SqliteLedger
from mapa.cli import main
from mapa.commands.ledger import ledger_command
from tests.mechanism_support import SHUFFLED, work_of

ONE, OTHER = "a" * 64, "b" * 64
BUDGETS = [(0.1, 1e-5), (0.7, 1e-6), (2.0, 1e-5), (2.0, 1e-12), (4.0, 1e-3)]  # (ε, δ)


def kind(law: NoiseLaw | None) -> ReleaseKind:
    return ReleaseKind(Mechanism(law, 64), 800)


SECURE, BARE = kind(Gaussian(8.0)), kind(None)


def runs(
    directory: Path, *terms: tuple[str, ReleaseKind, int], index: int = 0, disjoint: bool = True, **more: Any
) -> None:
    """Write a ledger with a run for each (data set, kind, releases)."""
    with SqliteLedger(directory) as ledger:
        for number, (dataset, this, releases) in enumerate(terms):
            run, shard = RunId(f"run{number}"), ShardIdentity(dataset, "iid K=5 seed=0", index, disjoint)
            ledger.open(Account(run=run, shard=shard, kind=this, **more))
            for sequence in range(1, releases + 1):
                ledger.debit(run, sequence, b"gradient")


def stated(directory: Path, capsys: pytest.CaptureFixture[str]) -> dict[str, Any]:
    ledger_command(str(directory), as_json=True)
    document: dict[str, Any] = json.loads(capsys.readouterr().out)
    return document


def test_an_earlier_seeded_run_on_the_same_records_is_not_forgotten(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shard = ShardIdentity(ONE, "iid K=5 seed=0", 0)
    with SqliteLedger(tmp_path) as ledger:
        for run, seeded in ((RunId("a"), True), (RunId("b"), False)):
            ledger.open(Account(run=run, shard=shard, kind=SECURE, reproducible=seeded))
            ledger.debit(run, 1, b"gradient")
    document = stated(tmp_path, capsys)
    assert document["reproducible_noise"] is True
    assert document["words"][0].startswith("Reproducible noise: not private.")
    assert document["epsilon"] == total([Spent(SECURE, 2)], 1e-5).epsilon


def test_a_seeded_run_that_released_nothing_spoils_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shard = ShardIdentity(ONE, "iid K=5 seed=0", 0)
    with SqliteLedger(tmp_path) as ledger:
        ledger.open(Account(run=RunId("a"), shard=shard, kind=BARE, reproducible=True))
        ledger.open(Account(run=RunId("b"), shard=shard, kind=SECURE))
        ledger.debit(RunId("b"), 1, b"gradient")
    document = stated(tmp_path, capsys)
    assert document["reproducible_noise"] is False
    assert "Releases of earlier runs on the same records are included." not in document["words"]
    assert "in this run" not in document["words"][0]


def test_every_data_set_has_its_statement(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    runs(tmp_path, (ONE, BARE, 1), (OTHER, SECURE, 3))
    bare, private = stated(tmp_path, capsys)["statements"]
    assert (bare["dataset"], private["dataset"]) == (ONE, OTHER)
    assert bare["epsilon"] is None
    assert "no noise" in bare["reason"]
    assert private["epsilon"] == total([Spent(SECURE, 3)], 1e-5).epsilon
    ledger_command(str(tmp_path))
    printed = capsys.readouterr().out
    assert printed.index(ONE) < printed.index("Not differentially private") < printed.index(OTHER)


def test_data_sets_with_the_same_records_share_a_statement(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    runs(tmp_path, (mnist.CHECKSUM, BARE, 1), (embedded.CHECKSUM, SECURE, 3))
    document = stated(tmp_path, capsys)
    assert document["epsilon"] is None
    assert document["words"][0].startswith("Not differentially private")


def test_records_of_which_nothing_was_released_need_no_statement(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    runs(tmp_path, (ONE, SECURE, 2), (OTHER, BARE, 0))
    assert stated(tmp_path, capsys)["epsilon"] == total([Spent(SECURE, 2)], 1e-5).epsilon


def test_ledgers_of_several_edges_are_stated_together_for_each_data_set(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for index in (1, 0):
        runs(
            tmp_path / f"{9 - index}",
            (ONE, SECURE, 2 + index),
            (OTHER, SECURE, 1),
            index=index,
            budget=Budget(3, 1e-6),
        )
    one, other = stated(tmp_path, capsys)["statements"]
    assert [edge["releases"] for edge in one["edges"]] == [2, 3]
    assert [edge["releases"] for edge in other["edges"]] == [1, 1]
    assert one["delta"] == other["delta"] == 1e-6


def test_a_former_run_on_shared_records_counts_all_edges_releases_together(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for index in (0, 1):
        runs(tmp_path / str(index), (ONE, SECURE, 2), (ONE, SECURE, 1), index=index, disjoint=False)
    document = stated(tmp_path, capsys)
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
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked = f"--releases {releases} --batch-size {batch} --shard {shard} --sampler {sampler} --clipping {clipping}"
    command = f"mapa calibrate --total-epsilon {epsilon} --total-delta {delta} {asked}"
    monkeypatch.setattr("sys.argv", command.split())
    with pytest.raises(SystemExit) as ended:
        main()
    assert not ended.value.code
    [printed] = re.findall(r"z = (\d+\.\d{6})$", capsys.readouterr().out.strip())
    mechanism = Mechanism(None, batch, SAMPLERS.make(sampler, {}), CLIPPINGS.make(clipping, {}))
    this = ReleaseKind(replace(mechanism, law=Gaussian(float(printed))), shard)
    spent = total([Spent(this, this.charges(releases))], delta, replace_one=False).epsilon
    assert 0.99 * epsilon < spent <= epsilon


def ledger_of(
    directory: Path, shard: ShardIdentity, releases: int, this: ReleaseKind = SECURE, name: str | None = None
) -> None:
    with SqliteLedger(directory) as ledger:
        run = RunId(name or shard.partition.replace(" ", "-"))
        ledger.open(Account(run=run, shard=shard, kind=this))
        for sequence in range(1, releases + 1):
            ledger.debit(run, sequence, b"gradient")


def test_ledgers_of_one_shard_are_composed_and_it_is_said_why(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Five edges that a hostile cloud dealt index 0: each ledger is within its budget, the records are not."""
    for number in range(5):
        ledger_of(tmp_path / str(number), ShardIdentity(ONE, "iid K=5 seed=0", 0), 3)
    ledger_of(tmp_path / "5", ShardIdentity(ONE, "iid K=5 seed=0", 1), 9)
    document = stated(tmp_path, capsys)
    assert document["epsilon"] == total([Spent(SECURE, 15)], 1e-5).epsilon
    assert "5 ledgers (edge-" in document["composed_because"]
    assert "hold shard 0 (iid K=5 seed=0 of " in document["composed_because"]
    assert f"composed since {document['composed_because']}" in document["words"][0]


def test_another_cut_of_the_same_data_is_composed_with_the_worst_shard(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for index, releases in enumerate((4, 9, 2)):
        ledger_of(tmp_path / f"a{index}", ShardIdentity(ONE, "iid K=3 seed=0", index), releases)
    for index, releases in enumerate((5, 6)):
        ledger_of(tmp_path / f"b{index}", ShardIdentity(ONE, "iid K=2 seed=0", index), releases)
    document = stated(tmp_path, capsys)
    assert document["epsilon"] == total([Spent(SECURE, 15)], 1e-5).epsilon  # 9 and 6, not all 26
    assert "different cuts of the same data" in document["composed_because"]


def test_disjoint_shards_of_one_cut_are_not_composed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for index, releases in enumerate((4, 9, 2)):
        ledger_of(tmp_path / str(index), ShardIdentity(ONE, "iid K=3 seed=0", index), releases)
    document = stated(tmp_path, capsys)
    assert (document["composed_because"], document["shared_records"]) == (None, False)
    assert document["epsilon"] == total([Spent(SECURE, 9)], 1e-5).epsilon


@pytest.mark.parametrize("partition", ["iid K=2 seed=0", "iid K=3 seed=0"])
def test_kinds_that_differ_are_composed_alike_whatever_their_runs_are_called(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], partition: str
) -> None:
    other = kind(Gaussian(5.0))
    for names in (("r", "r"), ("r", "r2")):
        place = tmp_path / names[1]
        ledger_of(place / "0", ShardIdentity(ONE, "iid K=3 seed=0", 0), 9, name=names[0])
        ledger_of(place / "1", ShardIdentity(ONE, partition, 0), 6, other, name=names[1])
    alike, apart = (stated(tmp_path / name, capsys) for name in ("r", "r2"))
    assert alike["method"] == apart["method"] == "odometer"
    assert alike["epsilon"] == apart["epsilon"]


def test_names_are_printed_as_they_are(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for number, name in enumerate(("b:", "[red]x[/]")):  # an emoji and a colour to rich
        shard = ShardIdentity(f"local:{name}", "local", 0, disjoint=False)
        ledger_of(tmp_path / str(number), shard, 1, name="r")
    ledger_command(str(tmp_path))
    printed = capsys.readouterr().out
    assert "Records of data set local:b::" in printed
    assert "Records of data set local:[red]x[/]:" in printed


# -- budgets -------------------------------------------------------------------------------------------

PURE = ReleaseKind(Mechanism(GammaNorm(0.1), 64), 800)
EPOCHS = ReleaseKind(Mechanism(GammaNorm(0.1), 100, SHUFFLED), 800)
STEPS = ReleaseKind(Mechanism(GammaNorm(0.1), 64, work=work_of(3)), 800)


def row_of(directory: Path, capsys: pytest.CaptureFixture[str], number: int = 0) -> tuple[Any, Any]:
    row = stated(directory, capsys)["edges"][number]
    return row.get("budget"), row.get("releases_left")


@pytest.mark.parametrize("this", [PURE, EPOCHS, STEPS], ids=["poisson", "shuffled", "local steps"])
def test_what_is_left_of_a_budget_is_what_the_edge_may_still_release(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], this: ReleaseKind
) -> None:
    shard, first, run = ShardIdentity(ONE, "iid K=5 seed=0", 0), RunId("first"), RunId("second")
    budget = Budget(0.4, 0.0)
    with SqliteLedger(tmp_path) as ledger:
        ledger.open(Account(run=first, shard=shard, kind=kind(GammaNorm(0.5)), budget=budget))
        ledger.debit(first, 1, b"gradient")
        ledger.open(Account(run=run, shard=shard, kind=this))  # a budget binds every later run
        for sequence in range(1, this.batches_per_epoch + 1):
            ledger.debit(run, sequence, b"gradient")
    kept, left = row_of(tmp_path, capsys)
    assert kept == {"epsilon": 0.4, "delta": 0.0}
    assert left > 0
    assert f"It permits {left:,} more releases" in stated(tmp_path, capsys)["words"][-1]
    with SqliteLedger(tmp_path) as ledger:
        ledger.open(Account(run=run, shard=shard, kind=this))
        for sequence in range(this.batches_per_epoch + 1, this.batches_per_epoch + left + 1):
            ledger.debit(run, sequence, b"gradient")
        with pytest.raises(BudgetExhausted):
            ledger.debit(run, this.batches_per_epoch + left + 1, b"gradient")
    assert row_of(tmp_path, capsys) == (kept, 0)
    assert "It is spent" in stated(tmp_path, capsys)["words"][-1]
    ledger_command(str(tmp_path))
    assert "left" in capsys.readouterr().out


def test_an_operators_budget_counts_what_the_other_ledgers_spent_on_the_same_records(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shard, run = ShardIdentity(ONE, "local", 0, disjoint=False), RunId("r")
    for slot, (budget, releases) in enumerate(((Budget(0.4, 0.0), 20), (None, 30))):
        with SqliteLedger(tmp_path / str(slot)) as ledger:
            ledger.open(Account(run=run, shard=shard, kind=PURE, budget=budget))
            for sequence in range(1, releases + 1):
                ledger.debit(run, sequence, b"gradient")
    whole = max_charges(Budget(0.4, 0.0), PURE)
    for number in (0, 1):
        assert row_of(tmp_path, capsys, number) == ({"epsilon": 0.4, "delta": 0.0}, whole - 50)


def test_a_ledger_without_a_budget_tells_of_none(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    runs(tmp_path, (ONE, PURE, 2))
    assert row_of(tmp_path, capsys) == (None, None)
    assert not any("Budget" in word for word in stated(tmp_path, capsys)["words"])


def test_the_remainder_of_a_budget_that_the_terms_cannot_keep_is_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shard = ShardIdentity(ONE, "iid K=5 seed=0", 0)
    with SqliteLedger(tmp_path) as ledger:
        ledger.open(Account(run=RunId("a"), shard=shard, kind=BARE))
        ledger.debit(RunId("a"), 1, b"gradient")
        ledger.open(Account(run=RunId("b"), shard=shard, kind=PURE, budget=Budget(1.0, 0.0)))
    assert row_of(tmp_path, capsys)[1] == 0

"""An edge with records of its own: what a welcome can make it do with them, and what it cannot."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from common.accounting.releases import Budget
from common.accounting.total import total_of_records
from common.datasets.catalogue import load_dataset
from common.datasets.dataset import Dataset
from common.datasets.source import Source
from common.errors import ConfigurationError
from common.messages import Welcome
from common.quantities import RunId
from common.scenario.scenario import parse_scenario
from edge.joining import Preparation
from edge.ledger import Ledger
from edge.own_data import REGISTRY_VARIABLE, OwnData
from edge.policy import OperatorPolicy, PolicyError
from edge.sqlite_ledger import SqliteLedger
from edge.state_directory import STATE_FILE, StateDirectory
from tests.edge_support import EDGE, prepared, spend, welcome_of
from tests.local_support import SCHEMA, declared, local_values, write_csv

MINE = OperatorPolicy(data_name="default")


@pytest.fixture(autouse=True)
def registry(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(REGISTRY_VARIABLE, str(tmp_path / "registry.sqlite3"))


@pytest.fixture
def mine(tmp_path: Path) -> OwnData:
    return OwnData(write_csv(tmp_path / "mine.csv", 50), tmp_path / "state")


def never(name: str) -> Dataset:
    raise AssertionError(f"a data set was asked for: {name}")


def admission(index: int = 0, **changes: Any) -> Welcome:
    return welcome_of(parse_scenario(local_values(**changes)), index)


def follow(
    own: OwnData | None,
    ledger: Ledger | None = None,
    *,
    policy: OperatorPolicy = MINE,
    run: str = "r",
    welcome: Welcome | None = None,
    **changes: Any,
) -> Preparation:
    taken = welcome or admission(**changes)
    return prepared(taken, ledger, policy, load=never, own=own, run=run)


def test_all_records_are_the_shard_and_the_rate_is_the_edges_own(mine: OwnData) -> None:
    ledger = Ledger(EDGE)
    joined = follow(mine, ledger)
    assert len(joined.worker.shard) == 50
    kind = ledger.standing(RunId("r")).account.kind
    assert kind.shard_size == 50
    assert kind.sampling_rate == 8 / 50


# what a cloud may try with an edge that has data of its own; none of it reads anything
def test_another_data_set_or_no_data_of_its_own_is_refused_before_anything_is_read(mine: OwnData) -> None:
    mine.path.unlink()  # whoever reads it fails with another error
    known = local_values(data={"set": "mnist"}, model={"name": "lr"})
    del known["data"]["schema"]
    asked = welcome_of(parse_scenario(known))
    with pytest.raises(PolicyError, match=r"data\.set = 'mnist', not about records that edges bring"):
        follow(mine, welcome=asked)
    with pytest.raises(PolicyError, match="take part with --data FILE"):
        follow(None, policy=OperatorPolicy())


@pytest.mark.parametrize(
    "cut", [{"partition": "dirichlet"}, {"partition": "label"}, {"partition": "shared"}, {"holdout": 5}]
)
def test_a_cut_of_an_edges_own_records_is_refused_by_cloud_and_edge(
    mine: OwnData, cut: dict[str, Any]
) -> None:
    [key] = cut
    with pytest.raises(ConfigurationError, match=rf"data\.{key} = .*local"):
        parse_scenario(local_values(data=cut))
    welcome = admission()
    welcome.scenario["data"].update(cut)  # type: ignore[index, attr-defined]
    with pytest.raises(ConfigurationError, match=rf"data\.{key} = .*local"):
        follow(mine, welcome=welcome)


def test_another_schema_than_the_first_is_refused_without_a_look_at_the_records(mine: OwnData) -> None:
    follow(mine)
    other = declared(columns=[{"name": "age", "range": [0, 40]}, {"name": "dose", "range": [0, 5]}])
    again = OwnData(mine.path, mine.state_dir)
    text = mine.path.read_text()
    mine.path.unlink()
    with pytest.raises(ConfigurationError, match="--new-schema"):
        follow(again, run="second", data=other)
    mine.path.write_text(text)
    follow(again, run="third")
    follow(OwnData(mine.path, mine.state_dir, new_schema=True), run="fourth", data=other)
    with pytest.raises(ConfigurationError, match="--new-schema"):
        follow(OwnData(mine.path, mine.state_dir), run="fifth")


def answered(own: OwnData, **changes: Any) -> bool:
    """Tell whether a welcome finds out if there are that many records: it is followed, or refused for their number."""
    try:
        follow(own, **changes)
    except ConfigurationError as error:
        return "--new-schema" not in str(error)
    return True


@pytest.mark.parametrize("processes", ["another process", "one process"])
def test_a_cloud_cannot_search_for_the_number_of_records_by_welcomes(mine: OwnData, processes: str) -> None:
    for key in ("records_at_least", "batch_size"):
        name = key.replace("_", "-")
        own = OwnData(
            write_csv(mine.path.with_name(f"{key}.csv"), 50, seed=9), mine.state_dir, name, edges=99
        )
        bits, low, high = 0, 8, 1024
        while high - low > 1:
            middle = (low + high) // 2
            if processes == "another process":
                own = OwnData(own.path, own.state_dir, name)
            asked: dict[str, Any] = {"batch_size": middle}
            if key == "records_at_least":
                asked = {"data": declared(records_at_least=middle)}
            bits += answered(own, run=f"r{middle}", **asked)
            low, high = (middle, high) if middle <= 50 else (low, middle)
        assert bits == 1  # of the first welcome alone


def test_a_batch_below_the_declared_number_of_records_may_change(mine: OwnData) -> None:
    least = declared(records_at_least=20)
    for size in (8, 16, 20):
        follow(OwnData(mine.path, mine.state_dir), run=f"r{size}", data=least, batch_size=size)
    with pytest.raises(ConfigurationError, match=r"--new-schema.*records_at_least"):
        follow(OwnData(mine.path, mine.state_dir), run="more", data=least, batch_size=21)


def test_a_schema_that_did_not_fit_is_kept_too_so_nobody_can_ask_again_with_another(mine: OwnData) -> None:
    with pytest.raises(ConfigurationError, match="row 1, column 'ill'"):
        follow(
            mine,
            data=declared(
                label="age", columns=[{"name": "ill", "categories": ["x", "y"]}, SCHEMA["columns"][1]]
            ),
        )
    with pytest.raises(ConfigurationError, match="--new-schema"):
        follow(mine, run="second")


def test_a_row_added_is_the_same_account_in_another_run_and_refused_within_one(mine: OwnData) -> None:
    ledger = Ledger(EDGE)
    follow(mine, ledger)
    spend(ledger, 3, "r")
    with mine.path.open("a") as stream:
        stream.write("50,2.5,1\n")
    with pytest.raises(ConfigurationError, match="a run keeps its terms"):
        follow(OwnData(mine.path, mine.state_dir), ledger)
    follow(OwnData(mine.path, mine.state_dir), ledger, run="second")
    first, second = ledger.standings()
    assert (first.account.kind.shard_size, second.account.kind.shard_size) == (50, 51)
    assert first.account.shard.overlaps(second.account.shard)
    assert first.account.shard == second.account.shard


def test_other_content_with_the_same_number_of_records_goes_on_in_the_run(mine: OwnData) -> None:
    ledger = Ledger(EDGE)
    follow(mine, ledger)
    header, *rows = mine.path.read_text().splitlines()
    mine.path.write_text("\n".join([header, *reversed(rows)]) + "\n")
    follow(OwnData(mine.path, mine.state_dir), ledger)


def test_a_budget_is_one_for_all_runs_of_a_name_however_many_records_they_had(mine: OwnData) -> None:
    budget = Budget(2.0, 1e-5)
    policy = OperatorPolicy(data_name="default", budget=budget)
    ledger = Ledger(EDGE)
    follow(mine, ledger, policy=policy)
    alone = ledger.standing(RunId("r")).cap
    assert alone is not None
    spend(ledger, alone // 8, "r")
    with mine.path.open("a") as stream:
        stream.write("50,2.5,1\n")
    follow(OwnData(mine.path, mine.state_dir), ledger, policy=policy, run="second")
    left = ledger.standing(RunId("second")).cap
    assert left is not None
    assert 0 < left < alone
    spend(ledger, left, "second")
    assert ledger.standing(RunId("second")).exhausted
    spent = total_of_records([standing.of_shard for standing in ledger.standings()], budget.delta)
    assert spent.epsilon <= budget.epsilon
    assert spent.method == "odometer"
    other = OperatorPolicy(data_name="2026", budget=budget)  # the owner's word that these are other records
    follow(
        OwnData(write_csv(mine.path.with_name("other.csv"), 50, seed=1), mine.state_dir, "2026"),
        ledger,
        policy=other,
        run="third",
    )
    assert ledger.standing(RunId("third")).cap == alone


def test_two_slots_of_one_state_directory_hold_the_same_records(mine: OwnData) -> None:
    budgeted = OperatorPolicy(data_name="default", budget=Budget(2.0, 1e-5))
    book = StateDirectory(mine.state_dir)
    slots = [book.take() for _ in range(3)]
    ledgers = [SqliteLedger(slot.directory, slot=slot) for slot in slots]
    try:
        follow(mine, ledgers[0], policy=budgeted)
        with pytest.raises(PolicyError, match="no two edges release the same records at the same time"):
            follow(mine, ledgers[1], policy=budgeted, welcome=admission(1))
        # another file under the same name is the same account, too
        other = OwnData(write_csv(mine.path.with_name("b.csv"), 70, seed=3), mine.state_dir)
        with pytest.raises(PolicyError, match=r"--data-name default.*its own --state-dir"):
            follow(other, ledgers[1], welcome=admission(1))
        # it released nothing, so it can go where the message says, with nothing to take over
        elsewhere = OwnData(other.path, mine.state_dir.with_name("other"))
        follow(elsewhere, policy=budgeted, welcome=admission(1))
        named = OwnData(write_csv(mine.path.with_name("c.csv"), 70, seed=4), mine.state_dir, "c")
        follow(named, ledgers[2], policy=OperatorPolicy(data_name="c"), welcome=admission(1))
    finally:
        for ledger in ledgers:
            ledger.close()
        book.close()
        for slot in slots:
            slot.close()


@pytest.mark.parametrize(
    ("rows", "declares", "least"),
    [(7, {}, 8), (50, {"records_at_least": 51}, 51), (50, {"records_at_least": 50}, None)],
)
def test_too_few_records_are_refused(
    tmp_path: Path, rows: int, declares: dict[str, Any], least: int | None
) -> None:
    own = OwnData(write_csv(tmp_path / "mine.csv", rows), tmp_path / "state")
    if least is None:
        follow(own, data=declared(**declares))
        return
    with pytest.raises(PolicyError, match=f"{rows} records.*at least {least} "):
        follow(own, data=declared(**declares))


# (row, text of that row, what is printed)
WRONG = [
    (3, "nan,2.5,1", "row 3, column 'age'"),
    (2, "50,inf,1", "row 2, column 'dose'"),
    (5, "50,2.5,2", "row 5, column 'ill'"),
    (5, "50,2.5,-1", "row 5, column 'ill'"),
    (1, "50,,1", "row 1, column 'dose'"),
    (4, "50,2.5", "row 4"),
]


@pytest.mark.parametrize(("row", "text", "said"), WRONG)
def test_a_record_that_does_not_fit_is_named_by_row_and_column(
    mine: OwnData, row: int, text: str, said: str
) -> None:
    lines = mine.path.read_text().splitlines()
    lines[row] = text
    mine.path.write_text("\n".join(lines) + "\n")
    ledger = Ledger(EDGE)
    with pytest.raises(ConfigurationError, match=said):
        follow(mine, ledger)
    assert ledger.standings() == []


def test_nothing_about_the_records_is_in_what_an_edge_knows_of_the_run(mine: OwnData) -> None:
    """The scenario of a welcome goes back to nobody, and holds what the cloud said: no number of records."""
    joined = follow(mine)
    assert "50" not in json.dumps(joined.scenario.for_edge(0)["data"])


def test_the_same_file_in_another_state_directory_is_refused_at_the_start(mine: OwnData) -> None:
    mine.check()  # a question alone claims nothing
    OwnData(mine.path, mine.state_dir.with_name("other")).check()
    follow(mine)
    with pytest.raises(ConfigurationError, match=str(mine.state_dir)):
        OwnData(mine.path, mine.state_dir.with_name("other")).check()
    moved = mine.state_dir.rename(mine.state_dir.with_name("moved"))
    OwnData(mine.path, moved).check()
    OwnData(mine.path, mine.state_dir.with_name("other"), take=True).check()


def test_a_copy_of_the_state_directory_is_refused_while_the_original_is_there(mine: OwnData) -> None:
    follow(mine)
    copy, records = mine.state_dir.with_name("copy"), mine.path.with_name("other.csv")
    shutil.copytree(mine.state_dir, copy)
    shutil.copy(mine.path, records)
    with records.open("a") as stream:
        stream.write(records.read_text().splitlines()[-1] + "\n")
    for path in (mine.path, records):  # whatever the data are: the account is the directory's
        with pytest.raises(ConfigurationError, match=f"is a copy of state directory '{mine.state_dir}'"):
            OwnData(path, copy).check()
    link = mine.state_dir.with_name("link")
    link.symlink_to(mine.state_dir)
    OwnData(mine.path, link).check()
    follow(
        OwnData(mine.path, copy, take=True)
    )  # the owner's word: from now on it is the other one that is the copy
    follow(OwnData(mine.path, copy))
    with pytest.raises(ConfigurationError, match=f"is a copy of state directory '{copy}'"):
        mine.check()
    shutil.rmtree(copy)
    mine.check()


def test_a_copy_is_refused_also_where_an_edge_was_killed_in_a_transaction(mine: OwnData) -> None:
    follow(mine)
    killed = """
import os, signal, sqlite3, sys
connection = sqlite3.connect(sys.argv[1], isolation_level=None)
connection.execute("PRAGMA cache_size = 1")  # so that pages are written before the end
connection.execute("BEGIN IMMEDIATE")
for number in range(1000):
    connection.execute("INSERT INTO schema VALUES (?, ?)", (number, "x" * 500))
os.kill(os.getpid(), signal.SIGKILL)
"""
    subprocess.run([sys.executable, "-c", killed, mine.state_dir / STATE_FILE], check=False)
    copy = mine.state_dir.with_name("copy")
    shutil.copytree(mine.state_dir, copy)
    with pytest.raises(ConfigurationError, match=f"is a copy of state directory '{mine.state_dir}'"):
        OwnData(mine.path, copy).check()


def test_a_state_directory_whose_file_was_removed_is_another_account(mine: OwnData) -> None:
    follow(mine)
    (mine.state_dir / STATE_FILE).unlink()
    with pytest.raises(ConfigurationError, match="--take-data"):
        mine.check()
    OwnData(mine.path, mine.state_dir, take=True).check()


def test_several_edges_of_a_process_read_the_file_once(mine: OwnData) -> None:
    fleet = OwnData(mine.path, mine.state_dir, edges=2)
    follow(fleet)
    mine.path.rename(mine.path.with_name("away.csv"))
    follow(fleet, welcome=admission(1))
    with pytest.raises(ConfigurationError):
        follow(fleet)


@pytest.mark.parametrize("name", ["", "-x", "a b", "a/b", "x" * 65, "ä", "a:b"])
def test_a_name_of_data_is_plain(name: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="--data-name"):
        OwnData(tmp_path, tmp_path, name)


def test_a_schema_cannot_make_an_edge_take_more_memory_than_its_limit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "mine.csv"
    path.write_text("age,ill\n" + "a,0\n" * 3000)
    wide = [{"name": "age", "categories": ["a", *map(str, range(999))]}]  # 1000 values for each cell
    monkeypatch.setenv("MAPA_EDGE_MEMORY_MB", "10")
    with pytest.raises(ConfigurationError, match=r"at most .* 10 MB"):
        follow(OwnData(path, tmp_path / "state"), data=declared(columns=wide))


def test_a_device_is_no_file_of_records(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="must be a file or a folder"):
        OwnData(Path("/dev/zero"), tmp_path / "state").check()


# -- what leaves unprotected ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changes", "switch", "words"),
    [
        ({"algorithm": {"name": "asgd"}}, "allow_unprotected", "no noise"),
        ({"privacy": {"noise_multiplier": 1e-6}}, "allow_unprotected", "as good as none"),
        ({"privacy": {"clipping": "batch-mean", "noise_multiplier": 1.0}}, "allow_unprotected", "z = 0.0625"),
        ({"seed": 3}, "allow_seed", "seed = 3"),
    ],
)
def test_a_welcome_gets_no_record_of_the_owners_unprotected_but_by_the_owners_switch(
    mine: OwnData, tmp_path: Path, changes: dict[str, Any], switch: str, words: str
) -> None:
    known = local_values(**changes)
    of_edge = welcome_of(parse_scenario(known))
    known["data"] = {
        "set": "file",
        "train_path": "payroll.csv",
        "schema": SCHEMA,
    }  # any file of the data directory
    of_directory = welcome_of(parse_scenario(known))
    write_csv(tmp_path / "data" / "payroll.csv", 50)

    def load(source: Source) -> Dataset:
        return load_dataset(source, tmp_path / "data")

    for welcome, policy, own in ((of_edge, MINE, mine), (of_directory, OperatorPolicy(), None)):
        ledger = Ledger(EDGE)
        with pytest.raises(PolicyError, match="--" + switch.replace("_", "-")) as refused:
            prepared(welcome, ledger, policy, load=load, own=own)
        assert words in str(refused.value)
        assert ledger.account(RunId("r")) is None
        permitted = replace(policy, **{switch: True})
        assert words in prepared(welcome, ledger, permitted, load=load, own=own).exposure

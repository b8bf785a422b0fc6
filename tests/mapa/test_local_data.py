"""`data.set = "local"` from the command line: simulated with files, calibrated for a bound, served without records."""

from __future__ import annotations

import json
import re
import tomllib
from pathlib import Path
from typing import Any

import pytest

from common.accounting.budget import calibrate
from common.accounting.releases import Budget, ReleaseKind, Spent
from common.accounting.total import total
from common.errors import ConfigurationError
from common.mechanism.mechanism import Mechanism
from common.noise.gaussian import Gaussian
from common.quantities import RunId
from common.records.reader import read_run
from common.scenario.scenario import parse_scenario
from edge.ledger import Account
from edge.policy import OperatorPolicy, own_records
from edge.sqlite_ledger import SqliteLedger
from mapa.cloud_run import Setting
from mapa.commands import cloud
from mapa.commands.compare import describe
from mapa.commands.ledger import ledger_command
from mapa.recording import ENGINES, record_simulation
from mapa.run_parts import OwnFiles
from mapa.run_view import print_summary
from mapa.simulation.simulator import World
from tests.local_support import declared, local_values, write_csv, write_toml
from tests.mechanism_support import SHUFFLED
from tests.program_support import ROOT, Mapa

NOWHERE = Path("nowhere")


def files(tmp_path: Path, *rows: int) -> tuple[Path, ...]:
    return tuple(write_csv(tmp_path / f"{k}.csv", n, seed=k) for k, n in enumerate(rows))


def world(tmp_path: Path, test: Path | None = None, **changes: Any) -> World:
    scenario = parse_scenario(local_values(seed=1, **changes))
    return World.of(scenario, NOWHERE, OwnFiles(files(tmp_path, 40, 70), test))


@pytest.mark.parametrize("engine", ENGINES)
def test_a_simulation_trains_on_one_file_for_each_edge(tmp_path: Path, engine: str) -> None:
    delays = {"kind": "uniform" if engine == "synchronous" else "cyclic"}
    test = write_csv(tmp_path / "test.csv", 500, seed=9)
    made = world(tmp_path, test, delays=delays, privacy={"noise_multiplier": 0.1}, iterations=400)
    assert made.shard_sizes == [40, 70]
    summary = record_simulation(made, name="own", runs=tmp_path / "runs", engine=engine)
    assert summary["final_accuracy"] > 0.6
    assert [row["shard_size"] for row in summary["privacy"]["edges"]] == [40, 70]


@pytest.mark.parametrize("engine", ENGINES)
def test_without_test_data_nothing_is_evaluated_and_everything_copes(
    tmp_path: Path, engine: str, capsys: pytest.CaptureFixture[str]
) -> None:
    delays = {"kind": "uniform" if engine == "synchronous" else "cyclic"}
    summary = record_simulation(
        world(tmp_path, delays=delays), name="own", runs=tmp_path / "runs", engine=engine
    )
    assert summary["reason"] == "finished"
    assert summary["evaluations"] == []
    assert summary["final_accuracy"] is None
    assert "evaluated" not in (Path(summary["path"]) / "events.jsonl").read_text()
    print_summary(summary)
    assert "none (no test data)" in capsys.readouterr().out
    run = read_run(Path(summary["path"]))
    assert describe(run, run.metrics[0])["accuracy"] is None


def test_a_simulation_needs_a_file_for_each_edge(tmp_path: Path) -> None:
    scenario = parse_scenario(local_values())
    with pytest.raises(ConfigurationError, match="mapa simulate --data FILE"):
        World.of(scenario, NOWHERE)
    with pytest.raises(ConfigurationError, match="--data: 1 files; must be 2"):
        World.of(scenario, NOWHERE, OwnFiles(files(tmp_path, 40)))
    known = parse_scenario({"iterations": 10, "algorithm": {"first_clip": 1.0}})
    with pytest.raises(ConfigurationError, match=r"go with data\.set = 'local'"):
        World.of(known, NOWHERE, OwnFiles(files(tmp_path, 40, 50)))


def test_a_cloud_states_a_bound_and_calibrates_for_the_declared_number(tmp_path: Path) -> None:
    privacy = {"noise_multiplier": None, "total_epsilon": 2.0, "releases": 40}
    values = local_values(privacy=privacy)
    del values["privacy"]["noise_multiplier"]
    with pytest.raises(ConfigurationError, match=r"data\.schema\.records_at_least: needed"):
        Setting.of(parse_scenario(values), NOWHERE, OwnFiles())
    # shuffled: n_k counts by its epochs, and z has a closed form
    values["data"] = {**declared(records_at_least=100), "sampler": "shuffled"}
    setting = Setting.of(parse_scenario(values), NOWHERE, OwnFiles())
    assert setting.shard_sizes == [100, 100]
    assert setting.new_evaluator() is None
    expected = calibrate(Budget(2.0, 1e-5), Mechanism(None, 8, SHUFFLED), releases=40, shard_size=100)
    assert setting.scenario.privacy.given["noise_multiplier"] == [expected]
    tested = Setting.of(parse_scenario(values), NOWHERE, OwnFiles(test=write_csv(tmp_path / "t.csv", 20)))
    assert tested.new_evaluator() is not None


def test_the_ledgers_of_one_name_are_composed_and_another_name_is_stated_apart(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    kind = ReleaseKind(Mechanism(Gaussian(4.0), 8, SHUFFLED), 8)
    for slot, name, releases in (("0", "default", 3), ("1", "default", 4), ("2", "2026", 5)):
        shard = own_records(OperatorPolicy(data_name=name), int(slot))
        with SqliteLedger(tmp_path / slot) as ledger:
            ledger.open(Account(run=RunId("r"), shard=shard, kind=kind))
            for sequence in range(1, releases + 1):
                ledger.debit(RunId("r"), sequence, b"x")
    ledger_command(str(tmp_path), as_json=True)
    first, second = json.loads(capsys.readouterr().out)["statements"]
    assert (first["dataset"], second["dataset"]) == ("local:default", "local:2026")
    assert first["epsilon"] == total([Spent(kind, 7)], 1e-5).epsilon
    assert second["epsilon"] == total([Spent(kind, 5)], 1e-5).epsilon
    assert first["shared_records"]
    assert all("Totals are per name" in " ".join(one["words"]) for one in (first, second))


@pytest.mark.parametrize(
    ("values", "options", "waits"),
    [
        ({}, (), (2, None)),
        ({}, ("--gather", "5"), (2, None)),  # nobody begins alone by being early
        ({}, ("--edges-at-least", "1"), (1, None)),
        ({}, ("--edges-at-least", "2", "--gather", "5"), (2, 5.0)),
        ({"testbed": {"edges_at_least": 1}}, (), (1, None)),
        (None, (), (1, None)),
        (None, ("--gather", "5"), (2, 5.0)),
    ],
)
def test_a_cloud_whose_edges_bring_their_records_waits_for_all_of_them_unless_told_otherwise(
    tmp_path: Path,
    mapa: Mapa,
    monkeypatch: pytest.MonkeyPatch,
    values: dict[str, Any] | None,
    options: tuple[str, ...],
    waits: tuple[int, float | None],
) -> None:
    seen: dict[str, Any] = {}

    def opened(_setting: object, **given: Any) -> None:
        seen.update(given)
        raise ConfigurationError("that is enough")

    monkeypatch.setattr(cloud, "open_cloud", opened)
    given = values is None or str(write_toml(tmp_path / "clinic.toml", local_values(**values)))
    reached = ("--broker", "localhost:1", "--run", "r", "--runs-dir", str(tmp_path / "runs"))
    mapa("cloud", "quickstart" if given is True else given, "--edges", "2", *options, *reached)
    assert (seen["edges_at_least"], seen["gather"]) == waits


@pytest.mark.slow
def test_the_scenario_of_the_page_trains(tmp_path: Path) -> None:
    page = (ROOT / "docs" / "deploy.md").read_text()
    [text] = [block for block in re.findall(r"```toml\n(.*?)```", page, re.DOTALL) if '"local"' in block]
    scenario = parse_scenario(tomllib.loads(text))
    made = World.of(scenario, NOWHERE, OwnFiles(files(tmp_path, 100, 150), None))
    summary = record_simulation(made, name="page", runs=tmp_path)
    assert summary["updates"] == scenario.iterations
    assert summary["privacy"]["epsilon"] <= 2
    with pytest.raises(ConfigurationError, match="99 records"):
        World.of(scenario, NOWHERE, OwnFiles(files(tmp_path, 99, 150), None))


def test_the_command_line_says_what_to_do(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    mapa, scenario = Mapa(capsys, monkeypatch), str(write_toml(tmp_path / "clinic.toml", local_values()))
    where = ("--runs-dir", str(tmp_path / "runs"), "--data-dir", str(tmp_path))
    one, other = map(str, files(tmp_path, 40, 70))
    run = mapa.rows("simulate", scenario, "--data", one, "--data", other, *where)
    assert run["final_accuracy"] is None
    compared = mapa("compare", run["path"], "--out", str(tmp_path / "picture"))
    assert compared.code == 0, compared.err
    assert mapa("ledger", run["path"]).code == 0
    # as a killed cloud leaves it, which knew no numbers of records
    (Path(run["path"]) / "summary.json").unlink()
    manifest = Path(run["path"]) / "manifest.json"
    manifest.write_text(json.dumps(json.loads(manifest.read_text()) | {"shard_sizes": []}))
    document = mapa.rows("ledger", run["path"])
    assert [row["shard_size"] for row in document["edges"]] == [8, 8]
    assert any("Edges do not tell how many records they bring" in word for word in document["words"])
    assert mapa("data", "get", "--scenario", scenario, "--data-dir", str(tmp_path)).code == 0
    for command in ("simulate", "run"):
        done = mapa(command, scenario, *where)
        assert done.code == 2
        assert "mapa edge --data FILE" in done.err
    done = mapa("simulate", "quickstart", "--data", one, *where)
    assert (done.code, "data.set = 'local'" in done.err) == (2, True)
    assert "--data-name: requires --data" in mapa.refusal(
        "edge", "--broker", "localhost:1", "--run", "r", "--data-name", "x"
    )
    monkeypatch.setenv("MAPA_DATA_REGISTRY", str(tmp_path / "registry.sqlite3"))
    here = ("--broker", "localhost:1", "--run", "r", "--state-dir", str(tmp_path / "state"))
    assert "cannot be read" in mapa.refusal("edge", *here, "--data", str(tmp_path / "none.csv"))
    bad = tmp_path / "bad.csv"
    bad.write_text("age,dose,ill\n5,1,0\n5,x,1\n")
    assert "row 2, column 'dose'" in mapa.refusal(
        "simulate", scenario, "--data", str(bad), "--data", other, *where
    )

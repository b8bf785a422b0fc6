"""mapa export, read back by the libraries of the programs that it is for."""

from __future__ import annotations

import builtins
import contextlib
import csv
import json
import sys
import warnings
from collections import defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from common.records.reader import read_events, read_run
from mapa.export.tables import MOST_METRICS, CurvePoint, Curves, parameters_of, safe_name
from mapa.run_result import read_result
from tests.dashboard_support import append, applied, simulated, write_live_run
from tests.program_support import Mapa


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A simulated run whose engine has a clock."""
    delays = {"kind": "exponential"}
    return simulated(tmp_path_factory.mktemp("runs"), iterations=60, evaluation={"every": 20}, delays=delays)


@pytest.fixture
def mapa(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Mapa:
    monkeypatch.chdir(tmp_path)
    return Mapa(capsys, monkeypatch)


def needs(extra: str, *modules: str) -> None:
    """Skip a test on a machine without a large extra that `make env` leaves out."""
    for name in modules or (extra,):
        pytest.importorskip(name, reason=f"needs the extra `{extra}`")


def scalars(folder: Path) -> dict[str, list[tuple[int, float, float]]]:
    """Return (step, wall time, value) of every curve, by TensorBoard's own reader."""
    from tensorboard.backend.event_processing import event_accumulator as accumulator

    reader = accumulator.EventAccumulator(str(folder), size_guidance={"scalars": 0, "tensors": 0})
    reader.Reload()
    return {
        tag: [(one.step, one.wall_time, one.value) for one in reader.Scalars(tag)]
        for tag in reader.Tags()["scalars"]
    }


def expected(path: Path) -> dict[str, list[tuple[int, float]]]:
    """Return (t, value) of every curve, from the records as another module reads them."""
    records, curves = read_run(path), defaultdict[str, list[tuple[int, float]]](list)
    for event in read_events(path):
        if event["event"] == "gradient_applied":
            curves["updates/staleness"].append((event["t"], event["staleness"]))
    for one in records.evaluations:
        for name, value in one.named().items():
            if value is not None:
                curves[f"metrics/{name}"].append((one.updates, value))
    for stage in records.stages:
        curves["stage/index"].append((stage["t"], stage["stage"]))
        curves["stage/sensitivity"].append((stage["t"], stage["sensitivity"]))
        curves["stage/learning_rate"].append((stage["t"], stage["learning_rate"]))
    for edge in records.summary["privacy"]["edges"]:
        curves[f"privacy/epsilon_edge_{edge['edge']}"].append((records.tally.updates, edge["epsilon"]))
    return dict(curves)


def test_tensorboard_reads_the_records_values_as_float32(mapa: Mapa, run: Path, tmp_path: Path) -> None:
    needs("tensorboard")
    done = mapa("export", str(run), "--to", "tensorboard", "--out", str(tmp_path / "tb" / "one"))
    assert done.code == 0, done.err
    assert f"tensorboard --logdir {tmp_path / 'tb'}" in done.out
    found = scalars(tmp_path / "tb" / "one")
    assert {tag: [(step, value) for step, _, value in curve] for tag, curve in found.items()} == {
        tag: [(t, float(np.float32(value))) for t, value in curve] for tag, curve in expected(run).items()
    }


def test_tensorboard_has_the_scenario_and_the_statement(mapa: Mapa, run: Path, tmp_path: Path) -> None:
    needs("tensorboard")
    from tensorboard.backend.event_processing import event_accumulator as accumulator

    assert mapa("export", str(run), "--to", "tensorboard", "--out", str(tmp_path / "one")).code == 0
    reader = accumulator.EventAccumulator(str(tmp_path / "one"))
    reader.Reload()
    [privacy] = reader.Tensors("privacy")
    [scenario] = reader.Tensors("scenario")
    said = privacy.tensor_proto.string_val[0].decode()
    assert said == "\n\n".join(read_run(run).summary["privacy"]["words"])
    assert "| batch_size | " in scenario.tensor_proto.string_val[0].decode()
    assert reader.PluginTagToContent("hparams")


@pytest.mark.slow
def test_mlflow_reads_the_records_values_exactly(mapa: Mapa, run: Path, tmp_path: Path) -> None:
    needs("mlflow", "mlflow", "sqlalchemy")
    from mlflow import tracking

    with _library_warnings():
        done = mapa("export", str(run), "--to", "mlflow", "--out", str(tmp_path / "store"))
        assert done.code == 0, done.err
        uri = f"sqlite:///{tmp_path / 'store' / 'mlflow.db'}"
        client = tracking.MlflowClient(tracking_uri=uri, registry_uri=uri)
        [kept] = client.search_runs([client.get_experiment_by_name("mapa").experiment_id])
        assert kept.info.run_name == run.name
        assert kept.data.params["batch_size"] == str(read_run(run).scenario["batch_size"])
        for curve, values in expected(run).items():
            history = client.get_metric_history(kept.info.run_id, curve)
            assert sorted((one.step, one.value) for one in history) == sorted(values)
        artifacts = Path(kept.info.artifact_uri.removeprefix("file://"))
        assert artifacts.is_relative_to(tmp_path / "store")
        words = read_run(run).summary["privacy"]["words"]
        assert (artifacts / "statement.txt").read_text() == "\n".join(words) + "\n"
        again = mapa("export", str(run), "--to", "mlflow", "--out", str(tmp_path / "store"))
    assert again.code == 2
    assert "in its store already" in again.err
    assert {path.name for path in tmp_path.iterdir()} == {"store"}, "nothing beside it"


def test_tables_read_back_as_the_very_same_numbers(mapa: Mapa, run: Path, tmp_path: Path) -> None:
    from pyarrow import parquet

    found = read_result(run)
    assert mapa("export", str(run), "--to", "csv", "--out", str(tmp_path / "c")).code == 0
    assert mapa("export", str(run), "--to", "parquet", "--out", str(tmp_path / "p")).code == 0
    for table in ("updates", "metrics", "stages", "edges"):
        columns = getattr(found, table)
        with (tmp_path / "c" / f"{table}.csv").open(newline="") as stream:
            rows = list(csv.DictReader(stream))
        stored = parquet.read_table(tmp_path / "p" / f"{table}.parquet")
        assert list(rows[0]) == stored.column_names == list(columns)
        for name, column in columns.items():
            for row, theirs, ours in zip(rows, stored.column(name).to_pylist(), column.tolist(), strict=True):
                if isinstance(ours, float):
                    assert (
                        (row[name] == "" and theirs is None)
                        if ours != ours
                        else float(row[name]) == theirs == ours
                    )
                else:
                    assert (row[name], theirs) == (str(ours), ours)
        assert json.loads(stored.schema.metadata[b"mapa.scenario"]) == dict(found.scenario)
    assert (tmp_path / "c" / "statement.txt").read_text().splitlines() == found.privacy["words"]
    with (tmp_path / "c" / "scenario.csv").open(newline="") as stream:
        assert ["batch_size", str(found.scenario["batch_size"])] in list(csv.reader(stream))


# -- live -------------------------------------------------------------------------------------------------


def test_tensorboard_follows_a_run_until_its_end(tmp_path: Path) -> None:
    needs("tensorboard")
    from mapa.export.tensorboard import write_events

    path = write_live_run(tmp_path / "runs", "first", applied(1, time=10.0))
    seen: list[int] = []
    grown: list[Callable[[], object]] = [
        lambda: None,
        lambda: append(path, applied(2, staleness=3, time=11.5)),
        lambda: append(path, {"event": "evaluated", "t": 2, "accuracy": 0.25, "loss": 1.5, "time": 99.0}),
        lambda: append(path, {"event": "halted", "t": 2, "reason": "finished"}),
        lambda: (path / "summary.json").write_text('{"updates": 2}'),  # before the accountant is asked
        lambda: (path / "summary.json").write_text(
            json.dumps({"updates": 2, "privacy": {"words": ["w"], "edges": [{"edge": 0, "epsilon": 0.5}]}})
        ),
    ]

    def wait(_seconds: float) -> None:
        seen.append(sum(map(len, scalars(tmp_path / "tb").values())))
        grown.pop(0)()

    points, whole = write_events(path, tmp_path / "tb", follow=True, wait=wait)
    assert (points, whole, grown) == (5, True, [])
    assert seen == [1, 1, 2, 4, 4, 4], "a TensorBoard that looks on sees each at the next look"
    found = scalars(tmp_path / "tb")
    assert found["updates/staleness"] == [(1, 0.0, 0.0), (2, 1.5, 3.0)]
    assert found["metrics/accuracy"] == [(2, 1.5, 0.25)], "at the time of its update"
    assert found["privacy/epsilon_edge_0"] == [(2, 1.5, 0.5)]


def test_a_run_that_halted_and_has_no_summary_is_not_waited_for_without_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    needs("tensorboard")
    from mapa.export import tensorboard as following

    monkeypatch.setattr(following, "SUMMARY", 2.0)
    path = write_live_run(tmp_path, "first", applied(1), {"event": "halted", "t": 1, "reason": "failed"})
    waits: list[float] = []
    assert following.write_events(path, tmp_path / "tb", follow=True, wait=waits.append) == (1, False)
    assert sum(waits) == 2.0


def test_only_tensorboard_follows(mapa: Mapa, run: Path) -> None:
    done = mapa("export", str(run), "--to", "csv", "--follow")
    assert done.code == 2
    assert "--follow --to csv" in done.err


# -- refusals and hostile records -------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("to", "missing", "extra"),
    [
        ("tensorboard", "tensorboard", "tensorboard"),
        ("mlflow", "mlflow", "mlflow"),
        ("mlflow", "sqlalchemy", "mlflow"),
        ("parquet", "pyarrow", "parquet"),
    ],
)
def test_without_its_library_it_exits_with_2_and_the_command_that_mends_it(
    mapa: Mapa, run: Path, monkeypatch: pytest.MonkeyPatch, to: str, missing: str, extra: str
) -> None:
    for name in [name for name in sys.modules if name.startswith("mapa.export")]:
        monkeypatch.delitem(sys.modules, name)
    real = builtins.__import__

    def absent(name: str, *more: Any, **fields: Any) -> Any:
        if name.partition(".")[0] == missing:
            raise ImportError(f"No module named {name!r}", name=missing)
        return real(name, *more, **fields)

    monkeypatch.setattr(builtins, "__import__", absent)
    done = mapa("export", str(run), "--to", to)
    assert done.code == 2
    assert f"pip install 'mapa-testbed[{extra}]'" in done.err


def test_a_folder_with_somebodys_files_is_left_alone(mapa: Mapa, run: Path, tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "letter.txt").write_text("dear")
    done = mapa("export", str(run), "--to", "csv", "--out", str(tmp_path / "mine"))
    assert done.code == 2
    assert "must be new or empty" in done.err
    assert [path.name for path in (tmp_path / "mine").iterdir()] == ["letter.txt"]


HOSTILE = {"event": "evaluated", "t": 1, "../../../evil": 0.5, "/etc/x": 1, "": 2, "a\nb": 3, ".": 4, "..": 5}


@pytest.mark.parametrize(
    "to", ["tensorboard", "csv", "parquet", pytest.param("mlflow", marks=pytest.mark.slow)]
)
def test_strange_names_write_nothing_outside_the_folder(mapa: Mapa, tmp_path: Path, to: str) -> None:
    if to in ("tensorboard", "mlflow"):
        needs(to)
    run = write_live_run(tmp_path / "runs", "first", applied(1), HOSTILE)
    manifest = {"scenario": {"../up": 1, "data": {"x/../../y": "z"}}, "started": ["no time"]}
    (run / "manifest.json").write_text(json.dumps(manifest))
    before = _files(tmp_path)
    with _library_warnings():
        done = mapa("export", str(run), "--to", to, "--out", str(tmp_path / "deep" / "out"))
    assert done.code == 0, done.err
    new = _files(tmp_path) - before
    assert new
    assert all(path.is_relative_to(tmp_path / "deep" / "out") for path in new)


@pytest.mark.parametrize(
    "record",
    [
        {"event": "gradient_applied", "t": "1", "staleness": 0},
        {"event": "gradient_applied", "t": True, "staleness": 0},
        {"event": "gradient_applied", "t": 1, "staleness": -1},
        {"event": "gradient_applied", "t": 2**70, "staleness": 1},
        {"event": "evaluated", "t": None, "loss": 1.0},
        {"event": ["evaluated"], "t": 1, "loss": 1.0},
        {"event": "evaluated", "t": 1, "loss": float("nan")},
        {"event": "evaluated", "t": 1, "loss": 10**400},
        {"event": "stage_opened", "t": 1, "sensitivity": "big", "stage": [], "learning_rate": None},
    ],
)
def test_a_record_that_is_none_of_ours_makes_no_point(record: dict[str, Any]) -> None:
    assert list(Curves().take([record])) == []


def test_names_are_safe_and_each_its_own_and_not_without_end() -> None:
    record = {"event": "evaluated", "t": 1, "a/b": 1.0, "a.b": 2.0, "a_b": 3.0, "a:b": 4.0}
    curves = {point.curve: point.value for point in Curves().take([record])}
    assert curves == {"metrics/a_b": 1.0, "metrics/a.b": 2.0, "metrics/a_b_2": 3.0, "metrics/a_b_3": 4.0}
    many = {"event": "evaluated", "t": 1, **{f"m{k}": k for k in range(1000)}}
    assert len(list(Curves().take([many]))) == MOST_METRICS
    assert safe_name("..") == safe_name("") == "_"
    assert safe_name("../x") == "_x"


def test_a_run_without_events_has_the_evaluations_of_its_summary() -> None:
    told = [{"updates": 20, "stage": 1, "accuracy": 0.5}, "junk", {"updates": "x"}]
    summary = {"evaluations": told, "privacy": {"edges": [{"edge": 1, "epsilon": None}, 3]}}
    assert list(Curves().at_end(summary)) == [CurvePoint("metrics/accuracy", 20, None, 0.5)]
    assert parameters_of({"a": {"b": [1, 2], "c": None}, "d": True}) == {"a.b": "[1, 2]", "d": True}


def _files(folder: Path) -> set[Path]:
    return {path for path in folder.rglob("*") if path.is_file()}


@contextlib.contextmanager
def _library_warnings() -> Iterator[None]:
    """Let mlflow's warnings pass: they are about the libraries that it uses."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield

"""runs/<id>/: four files, whatever happens."""

from __future__ import annotations

import json
import os
import sys
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from safetensors import safe_open
from safetensors.numpy import load_file

from common.errors import ConfigurationError, RecordsError
from common.messages import GradientApplied
from common.models.model import layout
from common.quantities import EdgeId
from common.records.directory import RunDirectory, new_run_id, versions
from common.records.layout import LONGEST, STAMP, folder_name
from common.scenario.parts import model_for
from common.scenario.scenario import parse_scenario
from common.wire.topics import is_name
from mapa.recording import write_manifest
from mapa.run_parts import RunParts
from tests.core_support import small_dataset

FACT = GradientApplied(0, EdgeId("edge-0"), 1, 1, 1, 0, 1, 0.5)


def test_the_manifest_says_what_is_needed_to_run_it_again(tmp_path: Path) -> None:
    scenario = parse_scenario({"iterations": 10, "seed": 4})
    dataset = replace(small_dataset(), checksum="ab")
    parts = RunParts(scenario, dataset, model_for(scenario, dataset.shape, dataset.classes), [])
    with RunDirectory(tmp_path / "runs" / "one") as directory:
        write_manifest(directory, parts, name="n", engine="events")
    manifest = json.loads((tmp_path / "runs" / "one" / "manifest.json").read_text())
    assert parse_scenario(manifest["scenario"]) == scenario
    assert manifest["scenario_sha256"] == scenario.digest
    assert (manifest["seed"], manifest["data"], manifest["shard_sizes"]) == (4, {scenario.data.set: "ab"}, [])
    assert (manifest["run"], manifest["engine"], manifest["name"]) == ("one", "events", "n")
    assert manifest["versions"]["numpy"] == np.__version__
    assert datetime.fromisoformat(manifest["started"]).tzinfo is not None


def test_versions_name_torch_only_where_it_was_used(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "torch", raising=False)
    assert "torch" not in versions()
    assert {"python", "platform", "numpy"} <= set(versions())


def test_events_are_on_disk_once_the_directory_is_closed_even_by_an_error(tmp_path: Path) -> None:
    def fail() -> None:
        with RunDirectory(tmp_path / "run") as directory:
            directory.journal.fact(FACT)
            raise RuntimeError("in the midst")

    with pytest.raises(RuntimeError, match="in the midst"):
        fail()
    (line,) = (tmp_path / "run" / "events.jsonl").read_text().splitlines()
    assert json.loads(line)["event"] == "gradient_applied"


def test_who_leaves_with_an_error_hears_of_it_and_not_of_the_lines_that_fail_after_it(tmp_path: Path) -> None:
    """A full disk fails the log first: its error names the command to go on with."""
    RunDirectory(tmp_path / "run").close()

    def write(error: Exception | None) -> None:
        with RunDirectory(tmp_path / "run", resumed=True) as directory, Path("/dev/full").open("wb") as full:
            os.dup2(full.fileno(), directory.events._file.fileno())
            directory.journal.write("halted", {"t": 1})
            if error is not None:
                raise error

    with pytest.raises(RecordsError, match="make room"):
        write(RecordsError("make room"))
    with pytest.raises(RecordsError, match=r"events\.jsonl: cannot be written"):
        write(None)


def test_a_run_never_overwrites_another(tmp_path: Path) -> None:
    RunDirectory(tmp_path / "run").close()
    with pytest.raises(FileExistsError):
        RunDirectory(tmp_path / "run")


def test_the_model_is_there_as_a_whole_and_block_by_block(tmp_path: Path) -> None:
    x = np.arange(10, dtype=np.float32)
    with RunDirectory(tmp_path / "run") as directory:
        directory.model(x, layout(weight=(2, 3), bias=(4,)), {"updates": "7"})
    path = tmp_path / "run" / "model.safetensors"
    tensors = load_file(path)
    assert set(tensors) == {"x", "weight", "bias"}
    np.testing.assert_array_equal(tensors["x"], x)
    np.testing.assert_array_equal(tensors["weight"], x[:6].reshape(2, 3))
    np.testing.assert_array_equal(tensors["bias"], x[6:])
    with safe_open(path, "np") as stored:
        assert stored.metadata() == {"updates": "7"}


def test_no_half_written_json_is_ever_seen(tmp_path: Path) -> None:
    with RunDirectory(tmp_path / "run") as directory:
        directory.summary({"final_accuracy": 0.5})
        with pytest.raises(TypeError):
            directory.summary({"final_accuracy": object()})
    assert json.loads((tmp_path / "run" / "summary.json").read_text()) == {"final_accuracy": 0.5}
    assert sorted(path.name for path in (tmp_path / "run").iterdir()) == ["events.jsonl", "summary.json"]


def test_run_ids_sort_by_time_and_do_not_collide() -> None:
    early = new_run_id("n", datetime(2024, 1, 2, 3, 4, 5, tzinfo=UTC))
    late = new_run_id("n", datetime(2024, 1, 2, 3, 4, 6, tzinfo=UTC))
    assert early.startswith("n-20240102-030405-")
    assert early < late
    same = datetime(2024, 1, 2, tzinfo=UTC)
    assert len({new_run_id("n", same) for _ in range(1000)}) == 1000


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("my scen ünï", "my-scen-uni"),
        ("-x", "x"),
        (".hid", "hid"),
        ("中文", "run"),
        ("a/../b", "a-..-b"),
        ("a\n<b>", "a-b-"),
        ("x" * 300, "x" * 64),
        ("", "run"),
    ],
)
def test_whatever_a_scenario_is_called_its_run_is_called_so_that_everybody_can_show_it(
    text: str, name: str
) -> None:
    moment = datetime(2024, 1, 2, 3, 4, 5, tzinfo=UTC)
    made = new_run_id(text, moment)
    assert made.startswith(f"{name}-20240102-030405-")
    assert len(made) - len(name) == STAMP


@given(st.from_regex(r"\A[A-Za-z0-9_][A-Za-z0-9._-]{0,63}\Z"))
def test_a_name_on_a_broker_is_that_of_the_folder_before_its_stamp(name: str) -> None:
    assert folder_name(name) == name


@given(st.text(max_size=100))
def test_a_name_that_was_made_is_one_that_stays_and_that_a_broker_takes(text: str) -> None:
    assert folder_name(folder_name(text)) == folder_name(text)
    assert is_name(new_run_id(text, most=LONGEST - STAMP))


def test_the_same_model_is_the_same_file_byte_by_byte(tmp_path: Path) -> None:
    """The library itself writes its metadata in an order that changes from run to run."""
    files = set()
    for n in range(10):
        with RunDirectory(tmp_path / str(n)) as directory:
            directory.model(np.ones(3, np.float32), layout(w=(3,)), {key: key for key in "abcdefgh"})
        files.add((tmp_path / str(n) / "model.safetensors").read_bytes())
    assert len(files) == 1


def test_a_run_that_was_moved_keeps_its_id(tmp_path: Path) -> None:
    with RunDirectory(tmp_path / "run") as directory:
        directory.document("manifest.json", {"run": "run"})
    (tmp_path / "run").rename(tmp_path / "elsewhere")
    with RunDirectory(tmp_path / "elsewhere", resumed=True) as directory:
        assert directory.run == "run"
    (tmp_path / "elsewhere" / "manifest.json").write_text('{"run": 3}')
    with pytest.raises(ConfigurationError, match="run = 3: must be the name of a run"):
        RunDirectory(tmp_path / "elsewhere", resumed=True)

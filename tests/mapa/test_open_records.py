"""A run's directory: made where it can be, gone again where nothing came of the run."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from common.datasets.catalogue import data_directory
from common.errors import RecordsError
from mapa.recording import open_records
from tests.program_support import Mapa


def interrupted(path: Path, wrote: str) -> None:
    with open_records(path) as directory:
        (directory.path / wrote).write_text("{}")
        raise KeyboardInterrupt


def test_what_ends_before_its_manifest_leaves_nothing(tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt):
        interrupted(tmp_path / "run", "mosquitto.conf")
    assert list(tmp_path.iterdir()) == []


def test_what_ends_after_its_manifest_keeps_its_records(tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt):
        interrupted(tmp_path / "run", "manifest.json")
    assert {path.name for path in (tmp_path / "run").iterdir()} == {"manifest.json", "events.jsonl"}


def test_an_older_run_of_the_same_name_is_not_touched(tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    with pytest.raises(RecordsError), open_records(tmp_path / "run"):
        pass
    assert (tmp_path / "run").is_dir()


@pytest.mark.parametrize(
    "words",
    [["simulate"], ["run", "--broker", "127.0.0.1:1"], ["cloud", "--broker", "127.0.0.1:1", "--run", "lab"]],
)
def test_records_that_cannot_be_written_are_an_error_of_one_line(
    words: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mapa: Mapa
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("MAPA_DATA_DIR", str(data_directory(os.environ)))
    runs = ("--runs-dir", str(tmp_path / "file" / "runs"))
    said = mapa.refusal(words[0], "quickstart", *words[1:], *runs, code=1)
    assert said.startswith("error: --runs-dir")
    assert len(said.splitlines()) == 1

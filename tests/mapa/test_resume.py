"""Which run a container's cloud goes on with, and when it begins a new one."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from common.records.layout import name_before_stamp
from common.wire.topics import is_name
from mapa import container
from mapa.resume import ended_with, to_go_on_with
from tests.program_support import Mapa

NOW = 1_000_000.0
OURS = "0123456789ab"


def left(
    runs: Path, run: str, day: int, *, by: str | None = None, reason: str | None = None, ago: float = 1.0
) -> Path:
    path = runs / f"{run}-202601{day:02d}-120000-0123abcd"
    (path / "checkpoints" / "000001").mkdir(parents=True)
    manifest = {"started": f"2026-01-{day:02d}T12:00:00", **({} if by is None else {"started_by": by})}
    (path / "manifest.json").write_text(json.dumps(manifest))
    if reason is not None:
        (path / "summary.json").write_text(json.dumps({"reason": reason, "privacy": {}}))
        os.utime(path / "summary.json", (NOW - ago, NOW - ago))
    return path


def chosen(runs: Path, run: str | None = None, by: str = "") -> Path | None:
    return to_go_on_with(runs, run=run, started_by=by, now=NOW)


def test_a_container_goes_on_with_the_newest_run_that_it_began(tmp_path: Path) -> None:
    assert chosen(tmp_path / "none", by=OURS) is None
    left(tmp_path, "b", 1, by=OURS)
    newest = left(tmp_path, "a", 2, by=OURS)
    left(tmp_path, "c", 3, by="another")
    assert chosen(tmp_path, by=OURS) == newest
    assert chosen(tmp_path, by="new") is None
    assert chosen(tmp_path) is None  # a host without an id, and a run without a name


def test_a_name_is_gone_on_with_unless_its_newest_run_has_ended(tmp_path: Path) -> None:
    unfinished = left(tmp_path, "lab", 1, by="a container that is gone")
    left(tmp_path, "lab-other", 2)
    assert chosen(tmp_path, "lab", OURS) == unfinished
    left(tmp_path, "lab", 3, reason="finished")
    assert chosen(tmp_path, "lab", OURS) is None


@pytest.mark.parametrize(
    ("reason", "ago", "again"),
    [
        ("finished", 1, False),
        ("interrupted", 1, False),
        ("no-budget", 1, True),
        ("diverged", 1, True),
        ("no-budget", 500, False),
    ],
)
def test_only_a_policy_starts_a_container_at_once_after_a_bad_end(
    tmp_path: Path, reason: str, ago: float, again: bool
) -> None:
    path = left(tmp_path, "a", 1, by=OURS, reason=reason, ago=ago)
    assert chosen(tmp_path, by=OURS) == (path if again else None)
    assert chosen(tmp_path, by="another") is None
    assert ended_with(path) == reason


def test_a_run_without_a_checkpoint_never_began(tmp_path: Path) -> None:
    path = left(tmp_path, "a", 1, by=OURS)
    (path / "checkpoints" / "000001").rmdir()
    assert chosen(tmp_path, "a", OURS) is None


def test_a_run_has_not_ended_while_its_last_records_are_owed(tmp_path: Path) -> None:
    """A kill between the summary and the statement of privacy, or before a log that is not kept was removed."""
    path = left(tmp_path, "lab", 1, reason="finished")
    assert ended_with(path) == "finished"
    (path / "log").mkdir()
    assert ended_with(path) == "finished"  # it is kept
    records = {"keep_gradients": False}
    (path / "manifest.json").write_text(json.dumps({"scenario": {"records": records}}))
    assert ended_with(path) is None
    (path / "log").rmdir()
    assert ended_with(path) == "finished"
    (path / "summary.json").write_text(json.dumps({"reason": "finished"}))
    assert ended_with(path) is None


def test_the_start_of_a_container_asks_for_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(container, "container_id", lambda: OURS)
    environ = {"MAPA_RUNS_DIR": str(tmp_path), "BROKER": "hub", "EDGES": "7", "SCENARIO": "quickstart"}
    arguments, options = container.service("cloud", environ)
    assert arguments == ["cloud", "quickstart"]
    assert options["MAPA_STARTED_BY"] == OURS
    odd = {**environ, "SCENARIO": f"my scen ünï {'x' * 80}"}
    assert is_name(container.service("cloud", odd)[1]["MAPA_RUN"])
    path = left(tmp_path, "quickstart-12ab", 1, by=OURS)
    assert container.service("cloud", environ) == (
        ["cloud", "--resume", str(path)],
        {"MAPA_BROKER": "hub", "MAPA_RUNS_DIR": str(tmp_path), "MAPA_RUN": "quickstart-12ab"},
    )
    assert name_before_stamp(path.name) == "quickstart-12ab"


@pytest.mark.parametrize("name", ["manifest.json", "summary.json", "events.jsonl"])
@pytest.mark.parametrize("kind", ["pipe", "deep"])
def test_records_that_cannot_be_read_end_a_resume_with_words_and_never_wait(
    mapa: Mapa, tmp_path: Path, name: str, kind: str
) -> None:
    path = left(tmp_path, "lab", 1)
    (path / "events.jsonl").touch()
    (path / name).unlink(missing_ok=True)
    if kind == "pipe":
        os.mkfifo(path / name)
    else:
        (path / name).write_bytes(b'{"a":' * 100_000)
    assert ended_with(path) is None
    done = mapa("cloud", "--resume", str(path), "--broker", "127.0.0.1:1")
    assert done.code == 2, done.err
    assert "RecursionError" not in done.err
    if name == "manifest.json":
        assert f"{path / name}: {'nested too deeply' if kind == 'deep' else 'cannot be read'}" in done.err

"""mapa runs: which folders are runs, in which state, and which of them may be removed."""

from __future__ import annotations

import fcntl
import json
import os
import pty
import re
import sqlite3
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from common.errors import ConfigurationError
from mapa.run_removal import RemovalRefusedError, considered, remove
from mapa.runs import find_run, is_alive, line_of_run, run_paths, state_of
from tests.mapa.test_cli import SMALL
from tests.program_support import PATIENCE, Mapa, environment, run_mapa, start_mapa

LONG_AGO = time.time() - 3600


def make_run(runs: Path, name: str, **more: Any) -> Path:
    """Write what a run leaves behind; `more`: summary, manifest, data."""
    path = runs / name
    path.mkdir(parents=True)
    scenario = {
        "edges": 5,
        "iterations": 30,
        "model": {"name": "lr"},
        "algorithm": {"name": more.get("algorithm", "mapa")},
        "data": {"set": more.get("data", "mnist-5k")},
    }
    started = more.get("started", "2026-01-01T12:00:00+00:00")
    manifest = {
        "run": name,
        "name": "quickstart",
        "engine": "events",
        "started": started,
        "scenario": scenario,
    }
    (path / "manifest.json").write_text(json.dumps(more.get("manifest", manifest)))
    (path / "events.jsonl").write_text(
        '{"event": "gradient_applied", "t": 7, "staleness": 0}\n{"event": "gradient_ap'
    )
    for file in path.iterdir():
        os.utime(file, (LONG_AGO, LONG_AGO))
    if more.get("summary", True):
        privacy = {"epsilon": 1.23456, "delta": 1e-5, "reproducible_noise": False, "words": ["Protected."]}
        summary = {
            "updates": 30,
            "reason": more.get("reason", "finished"),
            "privacy": privacy,
            "metrics": [{"name": "accuracy", "better": "higher"}],
            "final_accuracy": more.get("accuracy", 0.5),
        }
        (path / "summary.json").write_text(json.dumps(summary))
    return path


@contextmanager
def written_by_somebody(path: Path) -> Iterator[None]:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


@pytest.fixture
def runs(tmp_path: Path) -> Path:
    (tmp_path / "runs").mkdir()
    return tmp_path / "runs"


# -- list -------------------------------------------------------------------------------------------------


def test_a_real_run_is_listed_shown_and_removed(mapa: Mapa, tmp_path: Path) -> None:
    (tmp_path / "small.toml").write_text(SMALL)
    summary = mapa.rows("simulate", "small.toml")
    (row,) = mapa.rows("runs", "list")
    assert (row["state"], row["updates"], row["iterations"]) == ("finished", 30, 30)
    assert row["value"] == summary["final_accuracy"]
    assert row["epsilon"] == summary["privacy"]["epsilon"]
    assert row["reproducible_noise"] is True
    assert row["bytes"] >= sum(file.stat().st_size for file in (tmp_path / "runs" / row["run"]).iterdir())
    said = mapa("runs", "list").out
    assert row["run"] in said
    shown = mapa("runs", "show")
    for word in summary["privacy"]["words"]:
        assert word in shown.out
    assert "mapa verify" in shown.out
    assert mapa("ledger", row["run"], "--json").out == mapa("ledger", "latest", "--json").out != ""
    refused = mapa("runs", "rm", row["run"], "--yes")
    assert refused.code == 1  # its data set is a class of one's own
    assert "no public data set" in refused.err
    removed = mapa("runs", "rm", row["run"], "--yes", "--forget-account", "--json")
    assert removed.code == 0, removed.err
    assert json.loads(removed.out)["removed"] == [row["run"]]
    assert list((tmp_path / "runs").iterdir()) == []


def test_every_state_is_told(runs: Path) -> None:
    assert state_of(make_run(runs, "a")) == "finished"
    assert state_of(make_run(runs, "b", reason="interrupted")) == "interrupted"
    killed = make_run(runs, "c", summary=False)
    assert state_of(killed) == "killed"
    with written_by_somebody(killed):
        assert state_of(killed) == "running"
        assert is_alive(killed)
    assert line_of_run(killed)["updates"] == 7
    fresh = make_run(runs, "d", summary=False)
    (fresh / "events.jsonl").touch()  # on a disk without locks nothing else is to be seen
    assert state_of(fresh) == "running"
    ended = make_run(runs, "e")
    with written_by_somebody(ended):
        assert state_of(ended) == "ending"
    torn = make_run(runs, "f")
    (torn / "summary.json").write_text('{"reason"')
    assert state_of(torn) == "unreadable"


@pytest.mark.parametrize(
    "manifest",
    [
        [],
        {"scenario": []},
        {"name": 3, "engine": {}, "scenario": {"data": "x", "edges": True}, "started": 5},
        "deep",
    ],
)
def test_records_of_anybody_are_listed_without_harm(mapa: Mapa, runs: Path, manifest: Any) -> None:
    path = make_run(runs, "strange", manifest={})
    (path / "manifest.json").write_text("[" * 100_000 if manifest == "deep" else json.dumps(manifest))
    (path / "summary.json").write_text('{"metrics": [4], "privacy": 1, "updates": "x"}')
    (row,) = mapa.rows("runs", "list")
    assert row["updates"] is None
    assert mapa("runs", "list").code == 0
    assert mapa("runs", "show", "strange").code == 0


def test_a_hostile_name_is_neither_markup_nor_control_characters(mapa: Mapa, runs: Path) -> None:
    name = "[bold]\x1b[2Jx\n--yes"
    make_run(runs, name)
    listed = mapa("runs", "list")
    assert listed.code == 0
    assert "\x1b" not in listed.out
    assert "[bold]" in listed.out
    assert "\x1b" not in mapa("runs", "show", name).out
    assert mapa("runs", "rm", "--yes", "--", name).code == 0
    assert not (runs / name).exists()


def test_links_and_other_folders_are_no_runs(runs: Path, tmp_path: Path) -> None:
    elsewhere = make_run(tmp_path / "elsewhere", "kept")
    (runs / "link").symlink_to(elsewhere)
    (runs / "empty").mkdir()
    (runs / "compare.svg").write_text("")
    linked = runs / "linked-manifest"
    linked.mkdir()
    (linked / "manifest.json").symlink_to(elsewhere / "manifest.json")
    make_run(runs, ".removing-1")
    assert run_paths(runs) == []
    assert run_paths(tmp_path / "nowhere") == []


def test_runs_are_filtered_sorted_and_limited(mapa: Mapa, runs: Path) -> None:
    make_run(runs, "old", started="2026-01-01T00:00:00+00:00", accuracy=0.9)
    make_run(runs, "new", started="2026-01-02T00:00:00+00:00", accuracy=0.1, reason="diverged")
    make_run(runs, "other", started="2026-01-01T12:00:00+00:00", algorithm="audp")

    def names(*words: str) -> list[str]:
        return [row["run"] for row in mapa.rows("runs", "list", *words)]

    assert names() == ["new", "other", "old"]
    assert names("--reverse") == ["old", "other", "new"]
    assert names("--sort", "value") == ["old", "other", "new"]
    assert names("--sort", "run") == ["new", "old", "other"]
    assert names("--state", "diverged") == ["new"]
    assert names("--algorithm", "mapa", "--limit", "1") == ["new"]
    assert "epsilon" in mapa.refusal("runs", "list", "--sort", "colour")
    assert mapa("runs", "list", "--runs-dir", "nowhere").code == 2


# -- names ------------------------------------------------------------------------------------------------


def test_runs_of_several_folders_are_one_list(mapa: Mapa, runs: Path) -> None:
    others = runs.parent / "others"
    make_run(runs, "a", started="2026-01-03T12:00:00+00:00")
    make_run(others, "b", started="2026-01-02T12:00:00+00:00")
    make_run(runs, "c", started="2026-01-01T12:00:00+00:00")
    words = ("runs", "list", "--runs-dir", str(runs), "--runs-dir", str(others), "--runs-dir", str(runs))
    found = [(row["folder"], row["run"]) for row in mapa.rows(*words)]
    assert found == [(str(runs), "a"), (str(others), "b"), (str(runs), "c")]
    assert str(others / "b") in "".join(mapa(*words).out.split())
    assert mapa(*words, "--runs-dir", "nowhere").code == 2


def test_a_terminal_is_shown_the_columns_that_fit_and_a_pipe_all(runs: Path) -> None:
    make_run(runs, "quickstart-20260101-120000-0123abcd")
    terminal = {"COLUMNS": "80", "FORCE_COLOR": "1", "NO_COLOR": "1"}
    shown, piped = (
        run_mapa("runs", "list", "--runs-dir", str(runs), env={**environment(), **more}).stdout
        for more in (terminal, {"COLUMNS": "80"})
    )
    plain = re.sub(r"\x1b\[[0-9;]*m", "", shown).splitlines()
    assert all(len(line) <= 80 for line in plain)
    assert {"K", "algorithm", "ε"} <= set(plain[0].split())
    assert "started" not in plain[0]
    assert "started" in piped


def test_a_run_is_found_by_id_by_a_beginning_and_as_the_latest(runs: Path) -> None:
    make_run(runs, "quick-1", started="2026-01-02T00:00:00+00:00")
    make_run(runs, "quick-12", started="2026-01-01T00:00:00+00:00")
    make_run(runs, "slow-3", started="2026-01-01T00:00:00+00:00")
    assert find_run("slow", runs) == runs / "slow-3"
    assert find_run("latest", runs) == runs / "quick-1"
    assert find_run("quick-1", runs) == runs / "quick-1"  # the whole id goes before beginnings
    assert find_run(str(runs / "quick-12"), runs) == runs / "quick-12"
    with pytest.raises(ConfigurationError, match="2 runs begin so: quick-1, quick-12"):
        find_run("quick", runs)
    with pytest.raises(ConfigurationError, match="no such run directory"):
        find_run("", runs)
    with pytest.raises(ConfigurationError, match="it has 3 runs"):
        find_run("fast", runs)
    with pytest.raises(ConfigurationError, match="it has no runs"):
        find_run("latest", runs / "slow-3")


# -- rm ---------------------------------------------------------------------------------------------------


def test_a_run_that_is_written_is_not_removed(runs: Path) -> None:
    path = make_run(runs, "busy", summary=False)
    with written_by_somebody(path), pytest.raises(RemovalRefusedError, match="is running"):
        remove(path)
    ended = make_run(runs, "ending")
    with written_by_somebody(ended), pytest.raises(RemovalRefusedError, match="is ending"):
        remove(ended, forget=True)
    assert path.is_dir()
    assert remove(path)


@pytest.mark.parametrize("place", ["state/0/ledger.sqlite3", "deep/er/claims.sqlite3", "disguised.json"])
def test_a_ledger_is_an_account_wherever_it_lies(mapa: Mapa, runs: Path, place: str) -> None:
    path = make_run(runs, "spent")
    (path / place).parent.mkdir(parents=True, exist_ok=True)
    with sqlite3.connect(path / place) as book:
        book.execute("CREATE TABLE charge (sequence INTEGER)")
    book.close()
    done = mapa("runs", "rm", "spent", "--yes")
    assert done.code == 1
    assert place in done.err
    assert "--forget-account" in done.err
    assert (path / place).is_file()
    assert considered(path, forget=True).accounts == (f"ledger {place}",)


def test_a_ledger_that_an_edge_holds_is_never_removed(runs: Path) -> None:
    path = make_run(runs, "held")
    slot = path / "state" / "0"
    slot.mkdir(parents=True)
    (slot / "lock").touch()
    descriptor = os.open(slot / "lock", os.O_RDWR)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        with pytest.raises(RemovalRefusedError, match="edge of it is still running"):
            remove(path, forget=True)
    finally:
        os.close(descriptor)
    assert remove(path, forget=True)


@pytest.mark.parametrize("data", ["local", "file", "my.module:Records", None])
def test_releases_of_records_that_are_not_public_are_an_account(runs: Path, data: str | None) -> None:
    path = make_run(runs, "own", data=data)
    with pytest.raises(RemovalRefusedError, match="account of the privacy spent"):
        remove(path)
    assert path.is_dir()


def test_files_that_no_run_writes_are_not_removed_with_it(runs: Path) -> None:
    path = make_run(runs, "noted")
    (path / "thesis.tex").write_text("years of work")
    with pytest.raises(RemovalRefusedError, match=r"thesis\.tex"):
        remove(path, forget=True)
    assert (path / "thesis.tex").is_file()


def test_a_link_below_a_run_is_removed_and_not_what_it_leads_to(runs: Path, tmp_path: Path) -> None:
    path = make_run(runs, "linked")
    (tmp_path / "precious").mkdir()
    (tmp_path / "precious" / "file").write_text("kept")
    (path / "log").mkdir()
    (path / "log" / "000001.seg").symlink_to(tmp_path / "precious")
    assert remove(path)
    assert (tmp_path / "precious" / "file").read_text() == "kept"


@pytest.mark.parametrize("name", ["..", ".", "../outside", "link", "nothing", "quick", "latest", ""])
def test_only_a_whole_id_of_the_folder_is_removed(mapa: Mapa, runs: Path, tmp_path: Path, name: str) -> None:
    make_run(tmp_path, "outside")
    make_run(runs, "quick-1")
    (runs / "link").symlink_to(tmp_path / "outside")
    done = mapa("runs", "rm", "--yes", "--", name)
    assert done.code == 2
    assert (tmp_path / "outside" / "manifest.json").is_file()
    assert (runs / "quick-1" / "manifest.json").is_file()


def test_one_refusal_keeps_them_all_and_nobody_to_ask_keeps_them_too(mapa: Mapa, runs: Path) -> None:
    good, bad = make_run(runs, "good"), make_run(runs, "bad", data="local")
    assert mapa("runs", "rm", "good", "bad", "--yes").code == 1
    asked = mapa("runs", "rm", "runs/good")  # a test has no terminal
    assert asked.code == 2
    assert "--yes" in asked.err
    assert good.is_dir()
    assert bad.is_dir()


@pytest.mark.slow
def test_a_person_is_asked_and_may_say_no(runs: Path) -> None:
    path = make_run(runs, "asked")
    for answer, code in ((b"n\n", 1), (b"\x04", 1), (b"y\n", 0)):
        ours, theirs = pty.openpty()
        child = start_mapa(
            "runs", "rm", "asked", "--runs-dir", str(runs), stdin=theirs, stderr=subprocess.DEVNULL
        )
        os.write(ours, answer)
        assert child.wait(PATIENCE) == code
        os.close(ours)
        os.close(theirs)
        assert path.exists() is (code == 1)


def test_a_run_that_has_gone_meanwhile_is_no_error(runs: Path) -> None:
    assert remove(runs / "gone") is False


def test_show_says_how_a_killed_run_goes_on(mapa: Mapa, runs: Path) -> None:
    path = make_run(runs, "killed", summary=False)
    assert "not possible: it has no checkpoint" in mapa("runs", "show", "killed").out
    (path / "checkpoints" / "000001").mkdir(parents=True)
    said = mapa.rows("runs", "show", "killed")
    assert said["next"]["resume"] == "mapa cloud --resume killed --broker HOST"
    assert said["state"] == "killed"
    assert {one["file"] for one in said["files"]} == {"manifest.json", "events.jsonl"}


def test_a_statement_of_any_size_is_shown_in_part(mapa: Mapa, runs: Path) -> None:
    path = make_run(runs, "long")
    words = ["x" * 100_000, *(f"line {k}" for k in range(99))]
    (path / "summary.json").write_text(json.dumps({"reason": "finished", "privacy": {"words": words}}))
    said = mapa("runs", "show", "long").out
    assert len(said) < 10_000
    assert "and 50 lines more; --json has all" in said
    assert mapa.rows("runs", "show", "long")["statement"] == words

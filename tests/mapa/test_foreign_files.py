"""Runs, bundles and scenarios of unknown origin: no code, no link, no memory beyond what they hold, no raw escapes."""

from __future__ import annotations

import csv
import gc
import json
import math
import os
import pickle
import shutil
import sys
import tracemalloc
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from common.errors import ConfigurationError
from common.own_code import only_code
from common.records.gradient_log import HEAD_BYTES, pack_head, parse_head
from common.records.reader import MOST, read_events, read_run
from common.records.regular import LONGEST_LINE, MOST_JSON, MOST_VALUES, open_below, plain_json
from common.scenario.scenario import parse_scenario
from mapa.container import service
from mapa.dashboard.folder import RunsFolder
from mapa.dashboard.page_tally import PageTally
from mapa.export.tables import Curves, write_csv
from mapa.releases import releases_on_record
from mapa.run_result import read_result
from mapa.scenario_files import load_scenario
from mapa.verification.check import Check
from mapa.verification.untrusted_files import of_directory, strict_object
from mapa.verification.verify import verify
from tests.program_support import Mapa
from tests.verification_support import logged_run

PLANTED = "planted_code:Any"
KEYS = [("algorithm", "name"), ("privacy", "noise"), ("model", "name"), ("data", "set")]


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run with a log, which no test changes."""
    return logged_run(tmp_path_factory.mktemp("made"))


@pytest.fixture
def run(made: Path, tmp_path: Path) -> Path:
    """A copy of it in the folder of runs."""
    return Path(shutil.copytree(made, tmp_path / "runs" / made.name))


@pytest.fixture
def planted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A file that is there once somebody has imported the planted module."""
    mark = tmp_path / "imported"
    (tmp_path / "planted_code.py").write_text(f"from pathlib import Path\nPath({str(mark)!r}).touch()\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "planted_code", raising=False)
    return mark


def edit(path: Path, **changes: Any) -> None:
    """Change keys of a JSON file; `table__key` is a key in a table."""
    values = json.loads(path.read_text(encoding="utf-8"))
    for key, value in changes.items():
        *tables, last = key.split("__")
        table = values
        for one in tables:
            table = table[one]
        table[last] = value
    path.write_text(json.dumps(values), encoding="utf-8")


def named_in(run: Path, table: str, key: str) -> None:
    edit(run / "manifest.json", **{f"scenario__{table}__{key}": PLANTED})


# -- code -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("table", "key"), KEYS)
def test_no_command_imports_what_a_run_names_unless_it_is_allowed(
    mapa: Mapa, run: Path, planted: Path, table: str, key: str
) -> None:
    named_in(run, table, key)
    for words in (
        ["ledger", str(run)],
        ["verify", str(run)],
        ["replay", str(run)],
        ["compare", str(run)],
        ["compare", "--holdings", str(run)],
        ["export", str(run), "--to", "csv"],
        ["runs", "list"],
        ["runs", "show", str(run)],
        ["audit", "--run", str(run)],
    ):
        mapa(*words)
        assert not planted.exists(), words
    shutil.rmtree(run / "state")  # without ledgers the summary and the events count
    mapa("ledger", str(run))
    (run / "summary.json").unlink()
    mapa("ledger", str(run))
    mapa("cloud", "--resume", str(run), "--broker", "127.0.0.1:1")
    assert not planted.exists()


def test_a_summary_names_no_code_either(mapa: Mapa, run: Path, planted: Path) -> None:
    shutil.rmtree(run / "state")
    summary = json.loads((run / "summary.json").read_text())
    for row in summary["privacy"]["edges"]:
        row["noise"] = PLANTED
    (run / "summary.json").write_text(json.dumps(summary))
    code, _, err = mapa("ledger", str(run))
    assert (code, planted.exists()) == (2, False)
    assert f"--allow {PLANTED}" in err


@pytest.mark.parametrize("command", ["ledger", "replay", "verify"])
def test_what_is_allowed_is_imported(mapa: Mapa, run: Path, planted: Path, command: str) -> None:
    shutil.rmtree(run / "state")
    named_in(run, "algorithm", "name")
    mapa(command, str(run), "--allow", PLANTED)
    assert planted.exists()


@pytest.mark.parametrize(("table", "key"), KEYS)
def test_showing_a_scenario_runs_no_code_beside_it(
    mapa: Mapa, tmp_path: Path, planted: Path, table: str, key: str
) -> None:
    folder = tmp_path / "foreign"
    folder.mkdir()
    (tmp_path / "planted_code.py").rename(folder / "planted_code.py")
    (folder / "their.toml").write_text(f'iterations = 5\n[{table}]\n{key} = "{PLANTED}"\n')
    path = list(sys.path)
    for words in (["scenario", "show"], ["data", "show"]):
        code, _, err = mapa(*words, str(folder / "their.toml"))
        assert not planted.exists(), words
        assert code in (0, 2)
        assert table not in ("algorithm", "privacy") or f"--allow {PLANTED}" in err, words
    assert sys.path == path
    mapa("scenario", "show", str(folder / "their.toml"), "--allow", PLANTED)
    assert planted.exists() == (table in ("algorithm", "privacy"))  # a scenario needs no other to be read


def test_within_a_block_only_what_it_allows_is_imported_even_a_second_time() -> None:
    name = "tests.algorithms.fedbuff:FedBuff"
    values = {"algorithm": {"name": name, "rate": 0.2, "size": 3}, "iterations": 5}
    assert parse_scenario(values).algorithm.name == name
    with only_code([]), pytest.raises(ConfigurationError, match=f"--allow {name}"):
        parse_scenario(values)
    with only_code([name]):
        assert parse_scenario(values).algorithm.name == name
    assert load_scenario("quickstart")[0] == "quickstart"


def test_a_container_goes_on_with_the_code_of_its_operators_own_scenario(run: Path) -> None:
    (run / "summary.json").unlink()
    environ = {"SCENARIO": "quickstart", "SET": f"model.name={PLANTED}", "MAPA_RUNS_DIR": str(run.parent)}
    words, _ = service("cloud", {**environ, "RUN": "talk"})
    assert words == ["cloud", "--allow", PLANTED, "--resume", str(run)]


# -- links ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("linked", ["model.safetensors", "events.jsonl", "log", "state"])
def test_neither_bundle_nor_verify_follows_a_link_out_of_the_run(
    mapa: Mapa, run: Path, tmp_path: Path, linked: str
) -> None:
    elsewhere = (run / linked).rename(tmp_path / f"secret-{linked}")
    (run / linked).symlink_to(elsewhere)
    code, _, err = mapa("bundle", str(run), "--out", str(tmp_path / "run.zip"), "--not-private")
    assert (code, (tmp_path / "run.zip").exists()) == (2, False)
    assert "symbolic link" in err
    done = mapa("verify", str(run), "--json")
    assert done.code != 0
    assert "symbolic link" in done.out + done.err


def test_no_table_is_read_through_a_link(mapa: Mapa, run: Path, tmp_path: Path) -> None:
    (run / "events.jsonl").rename(tmp_path / "elsewhere.jsonl")
    (run / "events.jsonl").symlink_to(tmp_path / "elsewhere.jsonl")
    for words in (["compare", str(run)], ["export", str(run), "--to", "csv", "--out", str(tmp_path / "csv")]):
        code, _, err = mapa(*words)
        assert (code, "events.jsonl: cannot be read" in err) == (2, True), words


@pytest.mark.parametrize(
    ("linked", "words"),
    [
        ("state", ["ledger"]),
        ("state/0", ["ledger"]),
        ("log", ["cloud", "--broker", "127.0.0.1:1", "--resume"]),
        ("checkpoints", ["cloud", "--broker", "127.0.0.1:1", "--resume"]),
    ],
)
def test_neither_ledger_nor_resume_follows_a_linked_folder(
    mapa: Mapa, run: Path, tmp_path: Path, linked: str, words: list[str]
) -> None:
    if words[0] == "cloud":
        (run / "summary.json").unlink()
    elsewhere = (run / linked).rename(tmp_path / "elsewhere")
    before = sorted(elsewhere.rglob("*"))
    (run / linked).symlink_to(elsewhere)
    done = mapa(*words, str(run))
    assert (done.code, "symbolic link" in done.err) == (2, True), done.err
    assert sorted(elsewhere.rglob("*")) == before


def test_removal_waits_for_no_pipe_and_makes_no_file_through_a_link(
    mapa: Mapa, run: Path, tmp_path: Path
) -> None:
    os.mkfifo(run / "log" / "pipe")
    (run / "state" / ".lock").unlink(missing_ok=True)
    (run / "state" / ".lock").symlink_to(tmp_path / "made")
    assert mapa("runs", "rm", str(run), "--yes", "--runs-dir", str(run.parent)).code in (1, 2)
    assert run.exists()
    assert not (tmp_path / "made").exists()


def test_a_file_below_a_folder_is_opened_through_no_link(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "real" / "file").write_bytes(b"x")
    (tmp_path / "linked").symlink_to("real")
    (tmp_path / "real" / "other").symlink_to("file")
    os.close(open_below(tmp_path, "real/file"))
    for name in ("linked/file", "real/other", "real"):
        with pytest.raises(OSError, match=r"symbolic link|not a regular file"):
            open_below(tmp_path, name)


# -- memory -----------------------------------------------------------------------------------------------


def peak(act: Callable[[], object]) -> int:
    """Return the most bytes that Python's objects and arrays took at once."""
    gc.collect()
    tracemalloc.start()
    try:
        act()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


def test_verify_makes_no_vector_longer_than_the_files_hold(run: Path) -> None:
    numbers = 20_000_000  # 80 MB each
    edit(run / "manifest.json", samples__shape=[numbers - 1])
    segment = run / "log" / "000001.seg"
    content = segment.read_bytes()
    head = parse_head(content[:HEAD_BYTES])
    segment.write_bytes(pack_head(head._replace(dimension=numbers)) + content[HEAD_BYTES:])
    found: list[Check] = []
    taken = peak(lambda: found.extend(verify(run, ())))
    assert any("more numbers than the run's files hold" in one.detail for one in found)
    assert taken < 4 * numbers


def test_a_sparse_file_of_events_ends_at_its_first_line(mapa: Mapa, run: Path, tmp_path: Path) -> None:
    with (run / "events.jsonl").open("r+b") as stream:
        stream.truncate(0)
        stream.truncate(1 << 28)
    taken = peak(lambda: mapa("verify", str(run)))
    for words in (["compare", str(run)], ["export", str(run), "--to", "csv", "--out", str(tmp_path / "csv")]):
        done = mapa(*words)
        assert done.code == 2
        assert f"events.jsonl, line 1: more than {LONGEST_LINE} bytes" in done.err
    assert taken < 1 << 28


@pytest.mark.parametrize("read", [plain_json, lambda content: strict_object(content, MOST_JSON)])
def test_json_of_too_many_values_is_refused_before_it_takes_memory(read: Callable[[bytes], object]) -> None:
    content = b"[" + b"{}," * MOST_VALUES + b"{}]"

    def refused() -> None:
        with pytest.raises(ValueError, match=f"more than {MOST_VALUES} values"):
            read(content)

    assert peak(refused) < 2 * len(content)


def test_a_scenario_is_a_regular_file_of_bounded_size(mapa: Mapa, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.toml")
    (tmp_path / "large.toml").write_bytes(b"#" * (1 << 21))
    for name, why in (("pipe.toml", "no such"), ("large.toml", "more than 1048576 bytes")):
        done = mapa("scenario", "show", str(tmp_path / name))
        assert (done.code, why in done.err) == (2, True), done.err


def test_the_page_keeps_of_a_run_only_what_a_line_shows(run: Path) -> None:
    folder = RunsFolder(run.parent)
    [line] = folder.lines()["runs"]
    assert (line["state"], line["name"], line["algorithm"]) == ("ended", "talk", "mapa")
    size = len(pickle.dumps(folder))
    edit(run / "summary.json", more=[{"text": "x" * 100}] * 10_000)
    [again] = folder.lines()["runs"]
    assert again == line
    assert len(pickle.dumps(folder)) < 2 * size
    (run / "summary.json").write_bytes(b'{"reason": [' + b"{}," * MOST + b"{}]}")
    assert folder.lines()["runs"][0]["reason"] is None


def test_the_page_keeps_little_of_a_large_event() -> None:
    gathered = PageTally()
    large = {f"key-{number}" * 100: "x" * 60_000 for number in range(100)}
    gathered.take(
        [{"event": "edge_joined", "edge": 0, "edge_id": "e", "t": 1, **large, "nested": [{}] * 1000}]
    )
    assert len(pickle.dumps((gathered.events, gathered.lanes[0].joined))) < 50_000


# -- streams ----------------------------------------------------------------------------------------------


def many_events(run: Path, count: int) -> None:
    """Give the run the events of a longer one: its joins and stages, and many updates."""
    lines = (run / "events.jsonl").read_text().splitlines(keepends=True)
    told = [json.loads(line) for line in lines]
    first = next(one for one in told if one["event"] == "gradient_applied")
    with (run / "events.jsonl").open("w", encoding="utf-8") as stream:
        stream.writelines(
            line for line, one in zip(lines, told, strict=True) if one["event"] == "edge_joined"
        )
        for t in range(1, count + 1):
            one = first | {"t": t, "version": t, "sequence": t, "staleness": 0, "time": t / 7}
            stream.write(f"{json.dumps(one)}\n")


def test_events_are_yielded_before_the_file_is_read_to_its_end(run: Path) -> None:
    with (run / "events.jsonl").open("a", encoding="utf-8") as stream:
        stream.write("broken\n" * 300_000)
    assert next(iter(read_events(run)))["event"] == "edge_joined"
    assert next(iter(of_directory(run).lines()))["event"] == "edge_joined"
    with pytest.raises(ConfigurationError, match="line "):
        list(read_events(run))


@pytest.mark.parametrize(
    "read",
    [
        pytest.param(read_run, id="compare"),
        pytest.param(releases_on_record, id="ledger"),
        pytest.param(lambda run: deque(of_directory(run).lines(), maxlen=1), id="verify"),
        pytest.param(lambda run: deque(Curves().take(read_events(run)), maxlen=1), id="export"),
    ],
)
def test_memory_does_not_grow_with_the_records(
    run: Path, read: Callable[[Path], object], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("common.records.regular._PIECE", 1 << 16)
    monkeypatch.setattr("common.records.tally._TIMES", 500)
    many_events(run, 100)
    read(run)  # whatever is loaded only once
    many_events(run, 2_000)
    short = peak(lambda: read(run))
    many_events(run, 8_000)
    assert peak(lambda: read(run)) < 1.5 * short


def test_a_table_of_updates_grows_by_eight_bytes_a_value(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("common.records.regular._PIECE", 1 << 16)
    monkeypatch.setattr("common.records.tally._TIMES", 500)
    read_result(run)  # whatever is loaded only once
    many_events(run, 2_000)
    short = peak(lambda: read_result(run))
    many_events(run, 10_000)
    grown = peak(lambda: read_result(run)) - short
    assert grown < 2.5 * 8_000 * 8 * 8  # eight columns; a list that grows has some room to spare


def test_a_table_that_is_written_in_parts_has_every_row(run: Path, tmp_path: Path) -> None:
    many_events(run, 20_000)
    write_csv(read_result(run), tmp_path)
    with (tmp_path / "updates.csv").open(newline="") as stream:
        rows = list(csv.DictReader(stream))
    assert [int(row["t"]) for row in rows] == list(range(1, 20_001))
    assert float(rows[-1]["time"]) == 20_000 / 7


# -- text -------------------------------------------------------------------------------------------------


ESCAPE = "\x1b]0;owned\x07\x9b31m\u202e"


def test_a_cell_of_a_csv_is_neither_formula_nor_escape_sequence(
    mapa: Mapa, run: Path, tmp_path: Path
) -> None:
    summary = json.loads((run / "summary.json").read_text())
    for row, name in zip(
        summary["edges"], ("=1+1", "+1", "-1", "@SUM(A1)", f"x{ESCAPE}", "\t=1"), strict=False
    ):
        row["edge_id"] = name
    summary["privacy"]["words"] = [f"fine{ESCAPE}"]
    (run / "summary.json").write_text(json.dumps(summary))
    edit(run / "manifest.json", scenario__algorithm__name="=cmd|' /C calc'!A0")
    assert mapa("export", str(run), "--to", "csv", "--out", str(tmp_path / "csv")).code == 0
    for file in (tmp_path / "csv").iterdir():
        text = file.read_bytes().decode()
        assert all(one.isprintable() for one in text if one not in "\r\n"), file
        with file.open(newline="") as stream:
            for row in csv.reader(stream) if file.suffix == ".csv" else ():
                assert not any(cell.startswith(tuple("=@")) for cell in row)
                assert all(_is_number(cell) for cell in row if cell.startswith(("+", "-")))
    with (tmp_path / "csv" / "edges.csv").open(newline="") as stream:
        assert next(csv.DictReader(stream))["edge_id"] == "'=1+1"


def _is_number(text: str) -> bool:
    return math.isfinite(float(text))


def test_no_command_prints_escape_sequences_of_a_run(mapa: Mapa, run: Path) -> None:
    summary = json.loads((run / "summary.json").read_text())
    summary["privacy"]["words"] = [f"words{ESCAPE}"]
    for row in (*summary["edges"], *summary["privacy"]["edges"]):
        row["edge_id"] = f"edge{ESCAPE}"
    summary["reason"] = f"reason{ESCAPE}"
    (run / "summary.json").write_text(json.dumps(summary))
    edit(run / "manifest.json", name=f"name{ESCAPE}", scenario__algorithm__name=f"algorithm{ESCAPE}")
    shutil.rmtree(run / "state")
    moved = run.rename(run.parent / f"run{ESCAPE}")
    for words in (
        ["ledger"],
        ["verify"],
        ["replay"],
        ["compare"],
        ["runs", "show"],
        ["export", "--to", "csv"],
    ):
        for more in ((), ("--json",)) if words[0] != "export" else ((),):
            done = mapa(*words, str(moved), *more)
            shown = (done.out + done.err).replace("\n", "")
            assert not set(shown) & set(ESCAPE[:1] + "\x07\x9b\u202e"), (words, more)


@pytest.mark.parametrize("scenario", ["text", {"algorithm": None}, {"data": [1]}])
def test_values_of_other_types_are_an_error_that_names_the_run(
    mapa: Mapa, run: Path, scenario: object
) -> None:
    edit(run / "manifest.json", scenario=scenario)
    (run / "summary.json").unlink()
    for words in (["compare", str(run)], ["cloud", "--broker", "127.0.0.1:1", "--resume", str(run)]):
        done = mapa(*words)
        assert done.code == 2, done.err
        assert "unexpected" not in done.err


def test_markup_in_a_run_is_text(mapa: Mapa, run: Path) -> None:
    edit(run / "manifest.json", engine="[/x][link=http://a]b[/link]")
    done = mapa("compare", str(run), "--json")
    assert done.code == 0, done.err
    done = mapa("compare", str(run))
    assert done.code == 0, done.err
    assert "[/x]" in done.out


def test_a_run_with_a_strange_summary_has_a_name(run: Path) -> None:
    (run / "summary.json").write_text('{"a": 1}')
    assert str(run) in repr(read_result(run))


def test_a_bundle_too_large_for_a_zip_is_refused_before_it_is_read(mapa: Mapa, run: Path) -> None:
    os.truncate(run / "model.safetensors", 5 << 30)
    done = mapa("bundle", str(run), "--not-private", "--out", str(run.parent / "run.zip"))
    assert (done.code, "unexpected" in done.err) == (2, False), done.err


def test_the_ledger_of_foreign_records_says_in_one_line_what_is_wrong(mapa: Mapa, run: Path) -> None:
    shutil.rmtree(run / "state")
    summary = json.loads((run / "summary.json").read_text())
    del summary["privacy"]["edges"][0]["noise"]
    (run / "summary.json").write_text(json.dumps(summary))
    assert mapa("ledger", str(run)).code == 2
    (run / "summary.json").unlink()
    with (run / "events.jsonl").open("a", encoding="utf-8") as stream:
        stream.write('{"event": "gradient_applied", "edge": 99, "sequence": 1, "t": 1, "staleness": 0}\n')
    done = mapa("ledger", str(run))
    assert done.code == 2
    assert "events of edge 99" in done.err
    with (run / "events.jsonl").open("a", encoding="utf-8") as stream:
        stream.write('{"event": "gradient_applied"}\n')
    assert mapa("ledger", str(run)).code == 2

"""events.jsonl: one JSON object a line, with the keys that records are read by."""

from __future__ import annotations

import io
import json
import subprocess
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from common.errors import RecordsError
from common.messages import EdgeGone, EdgeJoined, Fact, GradientApplied, GradientRefused, StageOpened
from common.quantities import EdgeId
from common.records.directory import EventFile, RunDirectory
from common.records.recorder import Journal
from common.records.tally import event_name

FACTS: list[Fact] = [
    EdgeJoined(0, EdgeId("a"), 1, "gaussian", None, 2.0, False),
    EdgeJoined(1, EdgeId("b"), 1, "own.noise:Law", None, None, False, {"scale": 0.5}),
    EdgeJoined(2, EdgeId("c"), 1, "gaussian", None, 2.0, True, device="pi4"),
    StageOpened(1, 1, 0.5, 2.0, 1.0, 0.01, 30, 5, False),
    GradientApplied(0, EdgeId("a"), 1, 1, 1, 0, 1, 0.5),
    GradientRefused(EdgeId("b"), 3, 2, "stranger"),
    EdgeGone(0, EdgeId("a"), 2, "lost"),
]
floats = st.floats(allow_nan=False, allow_infinity=False)


def fields_of(fact: Fact) -> dict[str, Any]:
    return fact._asdict() if isinstance(fact, GradientApplied) else asdict(fact)


def written(fact: Fact, time: float | None = None) -> str:
    stream = io.StringIO()
    Journal(stream).fact(fact, time)
    return stream.getvalue()


@pytest.mark.parametrize("fact", FACTS, ids=lambda fact: event_name(type(fact)))
@pytest.mark.parametrize("time", [None, 0.0, 12.3456789])
def test_a_record_is_the_facts_name_and_its_fields(fact: Fact, time: float | None) -> None:
    line = written(fact, time)
    assert line.endswith("\n")
    assert line.count("\n") == 1
    record = json.loads(line)
    fields = fields_of(fact)
    wanted = {"event": event_name(type(fact)), **fields, **fields.get("parameters", {})}
    wanted.pop("parameters", None)  # a law's other parameters stand beside the other keys
    if wanted.get("device", "") is None:  # a key that came later
        del wanted["device"]
    if time is not None:
        wanted["time"] = round(time, 6)
    assert record == wanted
    assert list(record) == list(wanted)  # the order too: records are compared byte by byte


def test_names_of_events() -> None:
    joined, applied = ["edge_joined"] * 3, ["stage_opened", "gradient_applied", "gradient_refused"]
    assert [event_name(type(fact)) for fact in FACTS] == [*joined, *applied, "edge_gone"]


@given(st.text(), st.integers(0), st.integers(1), floats, st.none() | st.floats(0, 1e9))
def test_the_quick_record_is_what_json_itself_would_write(
    edge_id: str, edge: int, sequence: int, sensitivity: float, time: float | None
) -> None:
    fact = GradientApplied(edge, EdgeId(edge_id), sequence, 1, sequence, sequence - 1, 2, sensitivity)
    line = written(fact, time)
    assert "\n" not in line[:-1]
    record = json.loads(line)
    if time is not None:
        assert record.pop("time") == pytest.approx(time, abs=1e-6)
    assert record == {"event": "gradient_applied", **fact._asdict()}


def test_nothing_that_is_not_a_number_gets_a_gradient_into_a_record() -> None:
    """No fact has a field that could hold a vector."""
    for fact in FACTS:
        fields = fields_of(fact)
        for value in (*fields.pop("parameters", {}).values(), *fields.values()):
            assert value is None or isinstance(value, int | float | str)


def test_any_other_event_is_written_with_its_fields_in_order() -> None:
    stream = io.StringIO()
    journal = Journal(stream)
    journal.write("halted", {"t": 3, "reason": "finished"})
    journal.write("evaluated", {"t": 3, "loss": None, "note": "ΔS"}, time=1.5)
    assert stream.getvalue() == (
        '{"event": "halted", "t": 3, "reason": "finished"}\n'
        '{"event": "evaluated", "t": 3, "loss": null, "note": "ΔS", "time": 1.5}\n'
    )


# A limit on the size of a process's files fails in the midst of a write, as a full disk does, for any user.
LIMITED = """
import resource, sys
from pathlib import Path
resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))
from common.errors import RecordsError
from common.records.directory import EventFile
file = EventFile(Path(sys.argv[1]))
for number in range(10):
    file.write('{"line": %d}\\n' % number)
file.flush()
for number in range(10, 200):
    file.write('{"line": %d}\\n' % number)
try:
    file.flush()
except RecordsError as error:
    print(error)
file.write("more")
file.flush()
file.close()
"""


def test_a_line_waits_for_a_second_at_most(tmp_path: Path) -> None:
    now = [0.0]
    file = EventFile(tmp_path / "events.jsonl", clock=lambda: now[0])
    for moment, size in ((0.0, 0), (0.9, 0), (1.0, 9), (1.5, 9)):
        now[0] = moment
        file.write("{}\n")
        assert file.size == size
    file.close()
    assert file.size == 12


def test_a_line_that_a_full_disk_tears_is_cut_off_and_nothing_follows(tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"
    done = subprocess.run(
        [sys.executable, "-c", LIMITED, str(path)], capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == f"{path}: cannot be written: File too large"
    content = path.read_text()
    assert 950 < len(content) <= 1000
    lines = content.splitlines(keepends=True)
    assert lines == [f'{{"line": {number}}}\n' for number in range(len(lines))]


def test_lines_wait_for_a_flush_and_are_there_after_the_end(tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"
    file = EventFile(path)
    file.write("one\n")
    assert path.read_text() == ""
    file.flush()
    assert path.read_text() == "one\n"
    file.write("two\n")
    file.close()
    file.close()
    assert path.read_text() == "one\ntwo\n"


def test_many_lines_are_written_before_anybody_flushes(tmp_path: Path) -> None:
    file = EventFile(tmp_path / "events.jsonl")
    for _ in range(11):
        file.write("x" * 100_000 + "\n")
    assert (tmp_path / "events.jsonl").stat().st_size > 1_000_000
    file.close()


def test_a_summary_that_cannot_be_written_names_its_file_and_leaves_nothing(tmp_path: Path) -> None:
    with RunDirectory(tmp_path / "run") as directory:
        (tmp_path / "run" / "summary.json").mkdir()  # no file can take its place
        with pytest.raises(RecordsError, match=r"summary\.json: not written: "):
            directory.summary({"a": 1})
        assert {path.name for path in (tmp_path / "run").iterdir()} == {"events.jsonl", "summary.json"}

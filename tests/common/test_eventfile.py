"""events.jsonl has whole lines, also where the disk is full."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from common.errors import RecordsError
from common.records.directory import RunDirectory
from common.records.events import EventFile

# A limit on the size of a process's files fails in the midst of a write, as a full disk does, for any user.
LIMITED = """
import resource, sys
from pathlib import Path
resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))
from common.errors import RecordsError
from common.records.events import EventFile
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
    file.write("{}\n")
    assert file.size == 0
    now[0] = 0.9
    file.write("{}\n")
    assert file.size == 0
    now[0] = 1.0
    file.write("{}\n")
    assert file.size == 9
    now[0] = 1.5
    file.write("{}\n")
    assert file.size == 9
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

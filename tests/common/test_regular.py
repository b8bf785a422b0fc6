"""Files that somebody else may have left: what is no regular file is neither followed nor waited for."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from common.records.directory import EventFile
from common.records.gradient_log import LogDamagedError, LogReader
from common.records.regular import plain_json, regular_bytes, regular_object


def test_a_regular_file_is_read_up_to_its_bound(tmp_path: Path) -> None:
    path = tmp_path / "one"
    path.write_bytes(b"12345")
    assert regular_bytes(path, 5) == b"12345"
    with pytest.raises(OSError, match="more than 4 bytes"):
        regular_bytes(path, 4)
    with pytest.raises(FileNotFoundError):
        regular_bytes(tmp_path / "two", 4)


def test_what_is_no_regular_file_is_refused_at_once(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "folder").mkdir()
    (tmp_path / "file").write_bytes(b"{}")
    (tmp_path / "link").symlink_to("file")
    (tmp_path / "endless").symlink_to("/dev/zero")
    for name in ("pipe", "folder", "link", "endless"):
        with pytest.raises(OSError):
            regular_bytes(tmp_path / name, 100)
    with pytest.raises(OSError, match="not a regular file"):
        regular_bytes(Path("/dev/zero"), 100)


def test_an_object_is_an_object_and_not_too_deep(tmp_path: Path) -> None:
    path = tmp_path / "one.json"
    path.write_text('{"a": 1}')
    assert regular_object(path) == {"a": 1}
    for content, words in ((b"[]", "not a JSON object"), (b'{"a":' * 100_000, "nested too deeply")):
        path.write_bytes(content)
        with pytest.raises(ValueError, match=words):
            regular_object(path)
    with pytest.raises(ValueError, match="nested too deeply"):
        plain_json(b"[" * 100_000)


@pytest.mark.parametrize("resumed", [False, True])
def test_events_are_written_to_no_pipe_and_through_no_link(tmp_path: Path, resumed: bool) -> None:
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "other").write_bytes(b"another's")
    (tmp_path / "link").symlink_to("other")
    for name in ("pipe", "link"):
        with pytest.raises(OSError):
            EventFile(tmp_path / name, resumed=resumed)
    assert (tmp_path / "other").read_bytes() == b"another's"


def test_a_segment_that_is_a_pipe_is_damage_and_not_waited_for(tmp_path: Path) -> None:
    (tmp_path / "log").mkdir()
    os.mkfifo(tmp_path / "log" / "000001.seg")
    with pytest.raises(LogDamagedError, match="cannot be read: not a regular file"):
        list(LogReader(tmp_path))

"""Checkpoints: whole or not at all, and a damaged one gives way to the one before."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from common.errors import ConfigurationError, RecordsError
from common.records.checkpoint import Checkpoints, pack, unpack


def state(number: int) -> dict[str, Any]:
    return {"t": number, "x": np.arange(4, dtype=np.float32) * number, "list": [1.5, None, "ε", float("inf")]}


def same(one: dict[str, Any], other: dict[str, Any]) -> bool:
    return pack(one) == pack(other)


def test_the_newest_generation_counts_and_a_damaged_one_gives_way(tmp_path: Path) -> None:
    checkpoints, said = Checkpoints(tmp_path), list[str]()
    for number in (1, 2, 3):
        checkpoints.write(number, state(number))
    number, found = checkpoints.newest(said.append)
    assert (number, said) == (3, [])
    assert same(found, state(3))
    for name in ("state.json", "arrays.safetensors"):
        path = checkpoints.folder / "000003" / name
        content = path.read_bytes()
        for place in range(len(content)):
            flipped = bytearray(content)
            flipped[place] ^= 1 << place % 8
            path.write_bytes(flipped)
            number, found = checkpoints.newest(said.append)
            assert number == 2, (name, place)
            assert same(found, state(2))
        path.write_bytes(content)
    assert all("000003: damaged" in line for line in said)
    for number in (1, 2, 3):
        (checkpoints.folder / f"{number:06d}" / "state.json").write_bytes(b"{")
    with pytest.raises(RecordsError, match="no checkpoint that can be read"):
        checkpoints.newest(said.append)


@pytest.mark.parametrize("name", ["state.json", "arrays.safetensors"])
def test_a_checkpoint_that_is_no_file_or_nested_too_deeply_gives_way(tmp_path: Path, name: str) -> None:
    checkpoints, said = Checkpoints(tmp_path), list[str]()
    for number in (1, 2):
        checkpoints.write(number, state(number))
    path = checkpoints.folder / "000002" / name
    path.write_bytes(b'{"a":' * 100_000)
    assert checkpoints.newest(said.append)[0] == 1
    path.unlink()
    os.mkfifo(path)
    assert checkpoints.newest(said.append)[0] == 1
    path.unlink()
    path.symlink_to("/dev/zero")
    assert checkpoints.newest(said.append)[0] == 1
    assert len(said) == 3
    assert "not a regular file" in said[1]


@pytest.mark.parametrize("last", ["arrays.safetensors", "state.json"])
def test_what_ends_in_the_midst_of_a_checkpoint_leaves_the_one_before(
    tmp_path: Path, last: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    usual, checkpoints = Checkpoints._file, Checkpoints(tmp_path)

    def until(self: Checkpoints, path: Path, content: bytes) -> None:
        usual(self, path, content)
        if path.name == last:
            raise KeyboardInterrupt

    checkpoints.write(1, state(1))
    with monkeypatch.context() as ending:
        ending.setattr(Checkpoints, "_file", until)
        with pytest.raises(KeyboardInterrupt):
            checkpoints.write(2, state(2))
    assert checkpoints.numbers == [1]
    assert checkpoints.newest(print)[0] == 1
    checkpoints.write(2, state(2))
    checkpoints.prune(keep_first=False)
    assert sorted(path.name for path in checkpoints.folder.iterdir()) == ["000001", "000002"]


def test_two_generations_are_kept_and_the_first_where_a_replay_begins(tmp_path: Path) -> None:
    checkpoints = Checkpoints(tmp_path)
    for number in range(1, 6):
        checkpoints.write(number, state(number))
    checkpoints.prune(keep_first=True)
    assert checkpoints.numbers == [1, 4, 5]
    assert checkpoints.oldest_needed() == 4
    checkpoints.prune(keep_first=False)
    assert checkpoints.numbers == [4, 5]


def test_another_format_is_refused_and_not_taken_for_damage(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as later:
        later.setattr("common.records.checkpoint.FORMAT", 2)
        newer, packed = pack(state(1))
    with pytest.raises(ConfigurationError, match="format 2: this version reads format 1 alone"):
        unpack(newer, packed)
    checkpoints = Checkpoints(tmp_path, power=True)
    checkpoints.write(1, state(1))
    (checkpoints.folder / "000001" / "state.json").write_bytes(newer)
    with pytest.raises(ConfigurationError, match="format 2"):
        checkpoints.newest(print)


def test_a_checkpoint_that_cannot_be_written_leaves_nothing(tmp_path: Path) -> None:
    checkpoints = Checkpoints(tmp_path / "gone")
    checkpoints.write(1, state(1))
    shutil.rmtree(tmp_path / "gone")
    (tmp_path / "gone").write_text("a file")
    with pytest.raises(RecordsError, match="000002: cannot be written: "):
        checkpoints.write(2, state(2))

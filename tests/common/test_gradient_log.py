"""The gradient log: what is written is read; a torn tail is told from damage, wherever it is cut or flipped."""

from __future__ import annotations

import importlib
import importlib.util
import os
import struct
import zlib
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from common.errors import RecordsError
from common.messages import GradientArrived
from common.quantities import EdgeId, NoisyGradient
from common.records import gradient_log
from common.records.gradient_log import (
    Entry,
    Kind,
    LogDamagedError,
    LogReader,
    LogWriter,
    pack_record,
    segment_name,
)
from common.wire.codec import encode_gradient

N = 5
CHECKSUMS: dict[str, Callable[..., int]] = {"zlib": zlib.crc32}
if importlib.util.find_spec("isal"):  # of the extra `fast`
    CHECKSUMS["isal"] = importlib.import_module("isal.isal_zlib").crc32


@pytest.fixture(autouse=True, params=CHECKSUMS)
def _checksum(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each library's checksum, of which every installation has one."""
    monkeypatch.setattr(gradient_log, "crc32", CHECKSUMS[request.param])


def test_the_bytes_of_a_record_are_the_same_by_every_library(tmp_path: Path) -> None:
    """A log may be read where another library computes its checksums."""
    content = written(tmp_path, ENTRIES)[0].read_bytes()
    assert zlib.crc32(content) == 0x8ED27A05


def gradient(number: int, edge: str = "edge-1") -> Entry:
    values = np.arange(N, dtype=np.float32) + number
    arrived = GradientArrived(EdgeId(edge), number, number, 0.25, NoisyGradient(values), 7)
    return Entry(Kind.GRADIENT, number, 0.5 * number, EdgeId(edge), encode_gradient(arrived))


def written(run: Path, entries: list[Entry], per_segment: int = 100) -> list[Path]:
    log = LogWriter(run, 7, N, 1, power=False)
    for number, entry in enumerate(entries):
        if number and number % per_segment == 0:
            log.next_segment()
        log.append(*entry)
    log.close()
    return LogReader(run).segments


ENTRIES = [
    Entry(Kind.HELLO, 1, 0.0, EdgeId("edge-1"), b"any bytes"),
    gradient(1),
    gradient(2, "e" * 64),
    Entry(Kind.REPEAT, 3, 2.5, EdgeId("edge-1"), gradient(2).body[:40]),
    Entry(Kind.BEGIN, 3, 3.0, EdgeId(""), b""),
    gradient(3),
    Entry(Kind.HALT, 4, 4.0, EdgeId(""), b"interrupted"),
]


def test_a_removed_segment_gives_its_space_back_as_fast_as_the_open_one_grows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    left, shorten = [], os.ftruncate

    def watched(descriptor: int, size: int) -> None:
        shorten(descriptor, size)
        left.append(os.fstat(descriptor).st_size)

    monkeypatch.setattr(gradient_log, "_AT_ONCE", 0)
    monkeypatch.setattr(os, "ftruncate", watched)
    log = LogWriter(tmp_path, 7, N, 1, power=False)
    for number in range(3):
        log.append(*gradient(number))
    assert not left  # nothing is removed yet
    whole = log.size
    log.next_segment()
    log.remove_before(2)
    assert [path.name for path in LogReader(tmp_path, 1).segments] == ["000002.seg"]
    began = log.size
    for number in range(4):
        log.append(*gradient(number))
        assert left[-1] == max(0, whole - (log.size - began))
    assert left[-1] == 0
    log.close()
    assert len(list(LogReader(tmp_path, 2))) == 4


@pytest.mark.parametrize("per_segment", [1, 3, 100])
def test_what_is_written_is_read_in_order_over_segments(tmp_path: Path, per_segment: int) -> None:
    written(tmp_path, ENTRIES, per_segment)
    reader = LogReader(tmp_path)
    assert list(reader) == ENTRIES
    assert reader.torn is None
    assert reader.head is not None
    assert (reader.head.incarnation, reader.head.dimension) == (7, N)
    arrived = ENTRIES[2].arrived
    assert (arrived.sequence, arrived.version, arrived.sensitivity, arrived.incarnation) == (2, 2, 0.25, 7)
    np.testing.assert_array_equal(arrived.gradient, np.arange(N, dtype=np.float32) + 2)
    assert ENTRIES[3].arrived.gradient.size == 0


def test_a_later_segment_can_be_read_alone(tmp_path: Path) -> None:
    written(tmp_path, ENTRIES, 3)
    assert list(LogReader(tmp_path, first=2)) == ENTRIES[3:]


def test_a_tail_cut_at_any_byte_is_reported_and_what_is_whole_stays(tmp_path: Path) -> None:
    (segment,) = written(tmp_path, ENTRIES)
    content = segment.read_bytes()
    ends = [40]
    for entry in ENTRIES:
        ends.append(ends[-1] + sum(map(len, pack_record(*entry))))
    assert ends[-1] == len(content)
    for size in range(len(content)):
        segment.write_bytes(content[:size])
        reader = LogReader(tmp_path)
        whole = sum(end <= size for end in ends) - 1
        assert list(reader) == ENTRIES[: max(whole, 0)]
        assert (reader.torn is None) == (size in ends)
        if reader.torn is not None:
            reader.torn.cut()
            again = LogReader(tmp_path)
            assert list(again) == ENTRIES[: max(whole, 0)]
            assert again.torn is None


def test_one_bit_flipped_anywhere_is_damage_but_in_the_last_record_where_it_is_a_torn_tail(
    tmp_path: Path,
) -> None:
    (segment,) = written(tmp_path, ENTRIES)
    content = segment.read_bytes()
    last = len(content) - sum(map(len, pack_record(*ENTRIES[-1])))
    for place in range(len(content)):
        flipped = bytearray(content)
        flipped[place] ^= 1 << place % 8
        segment.write_bytes(flipped)
        reader = LogReader(tmp_path)
        if place < last:
            with pytest.raises(LogDamagedError):
                list(reader)
        else:
            assert list(reader) == ENTRIES[:-1]
            assert reader.torn is not None


def test_a_torn_record_in_a_segment_that_another_follows_is_damage(tmp_path: Path) -> None:
    first, *_ = written(tmp_path, ENTRIES, 3)
    first.write_bytes(first.read_bytes()[:-8])
    with pytest.raises(LogDamagedError, match="damaged"):
        list(LogReader(tmp_path))


def test_a_missing_segment_one_of_another_run_and_another_format_are_refused(tmp_path: Path) -> None:
    paths = written(tmp_path, ENTRIES, 3)
    kept = [path.read_bytes() for path in paths]
    paths[1].unlink()
    with pytest.raises(LogDamagedError, match=r"000002\.seg: missing"):
        list(LogReader(tmp_path))
    (tmp_path / "other").mkdir()
    other = LogWriter(tmp_path / "other", 8, N, 2, power=False)
    other.close()
    other.path.replace(paths[1])
    with pytest.raises(LogDamagedError, match="another run"):
        list(LogReader(tmp_path))
    changed = bytearray(kept[1])
    changed[8] = 9
    paths[1].write_bytes(changed)
    with pytest.raises(LogDamagedError, match="format 9 of the log; this version reads format 1 alone"):
        list(LogReader(tmp_path))


def test_a_writer_never_goes_on_in_a_segment_of_another(tmp_path: Path) -> None:
    written(tmp_path, ENTRIES)
    with pytest.raises(RecordsError, match=segment_name(1)):
        LogWriter(tmp_path, 7, N, 1, power=False)
    assert list(LogReader(tmp_path)) == ENTRIES


def test_a_tail_that_was_made_to_take_hours_is_damage(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each mark in it claims to begin a record of all that is left, whose checksum is then computed."""
    [path] = written(tmp_path, ENTRIES)
    size, front = 64_000, struct.Struct("<4sBBHIQdI")
    fronts = (front.pack(b"rec1", 1, 0, 0, size - at - 32, 1, 0.0, 0) for at in range(0, size, 32))
    path.write_bytes(path.read_bytes() + b"".join(fronts))
    parse, checked = gradient_log.parse_record, []
    monkeypatch.setattr(gradient_log, "parse_record", lambda *of: checked.append(of) or parse(*of))
    with pytest.raises(RecordsError, match="a record is damaged"):
        list(LogReader(tmp_path))
    assert len(checked) < 300


@pytest.mark.parametrize("taken", [1, 31, 45, 60])
def test_a_write_that_is_taken_in_parts_is_finished(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, taken: int
) -> None:
    write = os.write
    monkeypatch.setattr("os.writev", lambda file, parts: write(file, b"".join(parts)[:taken]))
    monkeypatch.setattr("os.write", lambda file, part: write(file, part[:taken] if len(part) > 100 else part))
    written(tmp_path, ENTRIES)
    reader = LogReader(tmp_path)
    assert list(reader) == ENTRIES
    assert reader.torn is None

"""Safe reads of files of unknown origin: regular ones only, no symbolic links, non-blocking, bounded."""

from __future__ import annotations

import errno
import json
import math
import mmap
import os
from collections.abc import Iterable, Iterator, Mapping
from functools import partial
from pathlib import Path
from stat import S_ISREG
from typing import Any

MOST_JSON = 1 << 26  # bytes of a manifest, a summary or a state
MOST_VALUES = 1 << 22  # in one of them: K = 100,000 edges need 3 million
MOST_MODEL = 1 << 29  # bytes of a model: x and its blocks, twice 64 million numbers, more than MQTT carries
LONGEST_LINE = 1 << 16  # bytes of a line of events.jsonl
LARGEST = 2**53  # whole numbers below are the same in every reader of JSON
_JSON = json.JSONDecoder()
_PIECE = 1 << 20  # bytes of a file in memory at once


def open_regular(
    path: str | Path, flags: int = os.O_RDONLY, mode: int = 0o666, *, within: int | None = None
) -> int:
    """Return a descriptor of a regular file, also as `opener`; OSError for a link, a pipe, a device or a folder."""
    descriptor = os.open(path, flags | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, mode, dir_fd=within)
    if not S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise OSError(errno.EINVAL, "not a regular file", str(path))
    return descriptor


def open_below(folder: Path, name: str) -> int:
    """Return a descriptor of a regular file below a folder; OSError where any part of `name` is a symbolic link."""
    *folders, last = name.split("/")
    at = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        for one in folders:
            below = os.open(one, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=at)
            os.close(at)
            at = below
        return open_regular(last, within=at)
    except OSError as error:
        linked = error.errno in (errno.ELOOP, errno.ENOTDIR)
        why = "is a symbolic link or below one, and none is followed" if linked else error.strerror
        raise OSError(error.errno, why, str(folder / name)) from error
    finally:
        os.close(at)


def regular_bytes(path: Path, most: int) -> bytes:
    """Return the content of a regular file; OSError where it is none, or has more than `most` bytes."""
    return _bounded(open_regular(path), path, most)


def bytes_below(folder: Path, name: str, most: int) -> bytes:
    """Return the content of a regular file below a folder, with no link on the way; OSError as of `regular_bytes`."""
    return _bounded(open_below(folder, name), folder / name, most)


def _bounded(descriptor: int, path: Path, most: int) -> bytes:
    with open(descriptor, "rb") as stream:
        if os.fstat(descriptor).st_size <= most and len(content := stream.read(most + 1)) <= most:
            return content
    raise OSError(errno.EFBIG, f"more than {most} bytes", str(path))


def mapped(descriptor: int) -> memoryview:
    """Return a file's bytes without reading them into memory; the descriptor is closed."""
    with open(descriptor, "rb"):
        if os.fstat(descriptor).st_size == 0:
            return memoryview(b"")
        return memoryview(mmap.mmap(descriptor, 0, access=mmap.ACCESS_READ))


def pieces_of(content: memoryview) -> Iterator[memoryview]:
    """Yield a content in pieces; of a mapped file none stays in memory."""
    for at in range(0, len(content), _PIECE):
        yield content[at : at + _PIECE]
        forget(content)


def forget(content: memoryview) -> None:
    """Let a mapped file leave this process's memory; it is read again from the disk where it is needed."""
    if isinstance(content.obj, mmap.mmap):
        content.obj.madvise(mmap.MADV_DONTNEED)


def lines_of(pieces: Iterable[bytes | memoryview], longest: int = LONGEST_LINE) -> Iterator[bytes]:
    """Yield lines, each with its end unless it was cut off, from one piece at a time; ValueError: one is too long."""
    rest = b""
    for piece in pieces:
        *whole, rest = b"".join((rest, piece)).split(b"\n")
        for line in whole:
            if len(line) >= longest:
                raise ValueError(f"more than {longest} bytes")
            yield line + b"\n"
        if len(rest) >= longest:
            raise ValueError(f"more than {longest} bytes")
    if rest:
        yield rest


def lines_in(path: Path) -> Iterator[bytes]:
    """Yield the lines of a regular file, read as they are asked for; OSError where it is none."""
    with open(path, "rb", opener=open_regular) as stream:
        yield from lines_of(iter(partial(stream.read, _PIECE), b""))


def few_values(content: bytes, most: int = MOST_VALUES) -> bytes:
    """Return JSON as it is; ValueError where it may hold more than `most` values, before any of them takes memory."""
    if len(content) > most and sum(content.count(mark) for mark in (b",", b"[", b"{")) > most:
        raise ValueError(f"more than {most} values")
    return content


def plain_json(content: bytes) -> Any:
    """Return a JSON value; ValueError for anything else, and for one that is nested too deeply or takes too much."""
    text = few_values(content).decode("utf-8").strip(" \t\r\n")
    try:
        value, end = _JSON.raw_decode(text)  # a third less than json.loads of a short line
    except RecursionError:
        raise ValueError("nested too deeply") from None
    if end != len(text):
        raise ValueError(f"more than one value: char {end}")
    return value


def regular_object(path: Path, most: int = MOST_JSON) -> dict[str, Any]:
    """Return the JSON object in a regular file; OSError or ValueError where there is none."""
    value = plain_json(regular_bytes(path, most))
    if not isinstance(value, dict):
        raise ValueError("not a JSON object")
    return value


def sync_path(path: Path) -> None:
    """Wait until a file's bytes, or the names in a folder, are on the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def table(values: Mapping[str, Any] | None, key: str) -> Mapping[str, Any]:
    """Return the object within a JSON object; {}: none."""
    value = (values or {}).get(key)
    return value if isinstance(value, Mapping) else {}


def rows(values: Mapping[str, Any], key: str) -> list[Mapping[str, Any]]:
    """Return the objects of a list within a JSON object; []: none."""
    value = values.get(key)
    return [row for row in value if isinstance(row, Mapping)] if isinstance(value, list) else []


def text(value: object, most: int = 200) -> str | None:
    """Return a text, not too long; None: anything else."""
    return value[:most] if isinstance(value, str) else None


def number(value: object) -> float | None:
    """Return a number that every reader of JSON holds; None: anything else."""
    if type(value) is int:
        return value if -LARGEST < value < LARGEST else None
    return value if type(value) is float and math.isfinite(value) else None


def count(value: object) -> int | None:
    """Return a whole number, 0 or more, that every reader of JSON holds; None: anything else."""
    return value if type(value) is int and 0 <= value < LARGEST else None

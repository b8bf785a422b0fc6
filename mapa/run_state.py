"""One run's folder as others left it: whether it is a run, whether it is being written, and how it ended.

Loads little; follows no link, and waits for nothing.
"""

from __future__ import annotations

import fcntl
import os
import time
from pathlib import Path
from stat import S_ISREG
from typing import Any

from common.records.regular import regular_object

RUNNING, ENDING, KILLED, UNREADABLE = (
    "running",
    "ending",
    "killed",
    "unreadable",
)  # else: the reason of its end
QUIET = 15.0  # seconds without a change after which a run that nobody has locked is not called running
LEAVING = ".removing-"  # begins the name of a folder whose removal has begun
_MARKS = ("manifest.json", "events.jsonl")  # a folder with one of them is a run


def is_run(path: Path) -> bool:
    """Tell whether a folder holds the records of a run; one whose removal has begun holds none any more."""
    return not path.name.startswith(".") and has_records(path)


def has_records(path: Path) -> bool:
    """Tell whether a folder holds them, whatever it is called."""
    return any(regular(path / name) is not None for name in _MARKS)


def state_of(path: Path) -> str:
    """Return whether a run is running, was killed, or why it has ended."""
    summary, alive = read_object(path / "summary.json"), is_alive(path)
    if summary is not None:
        return ENDING if alive else text(summary.get("reason")) or UNREADABLE
    if alive:
        return RUNNING
    if regular(path / "summary.json") is not None or read_object(path / "manifest.json") is None:
        return UNREADABLE
    return KILLED


def is_alive(path: Path) -> bool:
    """Tell whether a program writes the records: it holds their lock; on a disk without locks, it wrote just now."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    except OSError:
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:
        pass
    finally:
        os.close(descriptor)
    return regular(path / "summary.json") is None and wrote_just_now(path)


def wrote_just_now(path: Path) -> bool:
    """Tell whether the records changed a moment ago: a look that takes no lock."""
    times = [found.st_mtime for name in _MARKS if (found := regular(path / name)) is not None]
    return time.time() - max(times, default=0.0) < QUIET


def last_update(path: Path) -> int | None:
    """Return t of the last update on record, of a run without a summary; None: none that can be read."""
    if regular(path / "events.jsonl") is None:
        return None
    from mapa.unfinished import unfinished  # numpy and pydantic, for few

    try:
        left = unfinished(path)
    except (KeyError, TypeError, ValueError, OverflowError, OSError):  # records of somebody else
        return None
    return None if left is None else left.updates


def read_object(path: Path) -> dict[str, Any] | None:
    """Return a JSON object; None where there is none that can be read."""
    try:
        return regular_object(path)
    except (OSError, ValueError):
        return None


def regular(path: Path) -> os.stat_result | None:
    """Return what the disk says of a regular file; None: there is none of this name."""
    try:
        found = path.lstat()
    except (OSError, ValueError):
        return None
    return found if S_ISREG(found.st_mode) else None


def text(value: object) -> str | None:
    """Return a text of somebody else's records, not too long; None: it is no text."""
    return value[:200] if isinstance(value, str) else None

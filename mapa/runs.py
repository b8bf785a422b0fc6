"""One run's folder as others left it: whether it is a run, whether it is being written, and how it ended.

Loads little; follows no link, and waits for nothing.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from stat import S_ISREG
from typing import Any

from common.errors import ConfigurationError
from common.records.regular import open_regular, plain_json, regular_object

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


@dataclass(frozen=True, slots=True, kw_only=True)
class RunLine:
    """One run as a table shows it; None where its records do not say."""

    run: str
    scenario: str | None
    engine: str | None
    state: str
    algorithm: str | None
    model: str | None
    data: str | None
    edges: int | None
    updates: int | None
    iterations: int | None
    metric: str | None
    value: float | None  # of the metric, at the end
    epsilon: float | None  # as the summary states it
    delta: float | None
    reproducible_noise: bool | None  # True: seeded, so the figure is no guarantee
    bytes: int
    started: str | None

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


def run_paths(runs: Path) -> list[Path]:
    """Return every run of the folder, the newest first; a symbolic link is none, wherever it leads."""
    try:
        with os.scandir(runs) as entries:
            found = [Path(one.path) for one in entries if one.is_dir(follow_symlinks=False)]
    except FileNotFoundError:
        return []
    except OSError as error:
        raise ConfigurationError(f"--runs-dir {str(runs)!r}: {error.strerror or error}") from error
    return sorted((path for path in found if is_run(path)), key=_began, reverse=True)


def chosen(name: str, runs: Path) -> Path:
    """Return the one run that a name stands for: its id, `latest`, or the beginning of one id alone."""
    found = run_paths(runs)
    exact = [path for path in found if path.name == name]
    if exact:
        return exact[0]
    if name == "latest" and found:
        return found[0]
    matching = [path for path in found if name and path.name.startswith(name)]
    if len(matching) == 1:
        return matching[0]
    if matching:
        shown = ", ".join(sorted(path.name for path in matching)[:5]) + (" …" if len(matching) > 5 else "")
        raise ConfigurationError(
            f"run = {name!r}: {len(matching)} runs begin so: {shown}; give more of the id"
        )
    known = f"it has {len(found)} runs; `mapa runs list` shows them" if found else "it has no runs"
    raise ConfigurationError(f"run = {name!r}: no such run directory, here or under {runs}: {known}")


def find_run(name: str, runs: Path) -> Path:
    """Return a run's directory: a path, its id under `runs`, `latest`, or the beginning of one id alone."""
    for path in (Path(name), runs / name):
        if (path / "manifest.json").is_file() or (path / "events.jsonl").is_file():
            return path
    return chosen(name, runs)


def line_of_run(path: Path) -> RunLine:
    """Return a run's line; whatever its records are, they are read as somebody else's."""
    manifest, summary = read_object(path / "manifest.json"), read_object(path / "summary.json")
    scenario, privacy = _table(manifest, "scenario"), _table(summary, "privacy")
    metrics = (summary or {}).get("metrics")
    first = metrics[0] if isinstance(metrics, list) and metrics and isinstance(metrics[0], dict) else {}
    metric = text(first.get("name"))
    updates = _count((summary or {}).get("updates")) if summary is not None else last_update(path)
    seeded = privacy.get("reproducible_noise")
    return RunLine(
        run=path.name,
        scenario=text((manifest or {}).get("name")),
        engine=text((manifest or {}).get("engine")),
        state=state_of(path),
        algorithm=text(_table(scenario, "algorithm").get("name")),
        model=text(_table(scenario, "model").get("name")),
        data=text(_table(scenario, "data").get("set")),
        edges=_count(scenario.get("edges")),
        updates=updates,
        iterations=_count(scenario.get("iterations")),
        metric=metric,
        value=_number((summary or {}).get(f"final_{metric}")),
        epsilon=_number(privacy.get("epsilon")),
        delta=_number(privacy.get("delta")),
        reproducible_noise=seeded if isinstance(seeded, bool) else None,
        bytes=sum(size for _, size in files_of(path)),
        started=text((manifest or {}).get("started")),
    )


def files_of(path: Path) -> Iterator[tuple[Path, int]]:
    """Yield every file below, with the bytes that it takes on the disk; links are counted, never followed."""
    folders = [path]
    while folders:
        with contextlib.suppress(OSError), os.scandir(folders.pop()) as entries:
            for entry in entries:
                if entry.is_dir(follow_symlinks=False):
                    folders.append(Path(entry.path))
                    continue
                with contextlib.suppress(OSError):
                    found = entry.stat(follow_symlinks=False)
                    yield Path(entry.path), getattr(found, "st_blocks", -(-found.st_size // 512)) * 512


def _began(path: Path) -> tuple[str, int, str]:
    """Sort by when a run began, as its manifest says; of runs of one second, by when that was written."""
    started = text((read_object(path / "manifest.json") or {}).get("started"))
    found = regular(path / "manifest.json") or regular(path / "events.jsonl")
    return started or "", 0 if found is None else found.st_mtime_ns, path.name


def _table(values: dict[str, Any] | None, key: str) -> dict[str, Any]:
    found = (values or {}).get(key)
    return found if isinstance(found, dict) else {}


def _count(value: object) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def _number(value: object) -> float | None:
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else None


_TAIL = 1 << 16  # bytes from the end in which the last update is looked for
_STAMP = re.compile(r"-\d{8}-\d{6}-[0-9a-f]{8}")  # what new_run_id puts after the name


@dataclass(frozen=True, slots=True)
class Unfinished:
    """A run that has a manifest or events, and no summary."""

    path: Path
    updates: int  # t of the last update on record

    def __str__(self) -> str:
        return f"{self.path}: unfinished: events up to t = {self.updates}, no summary: the cloud has not ended normally"


def unfinished(path: Path) -> Unfinished | None:
    """Return what there is of a run without a summary; None where it has one, or is no run."""
    if (path / "summary.json").exists() or not (path / "manifest.json").is_file():
        return None
    return Unfinished(path, _last_update(path / "events.jsonl"))


def unfinished_runs(name: str, runs: Path) -> Iterator[Unfinished]:
    """Yield the unfinished runs of this name under `runs`, oldest first."""
    for path in sorted(runs.glob(f"{name}-*")):
        found = unfinished(path) if _STAMP.fullmatch(path.name.removeprefix(name)) else None
        if found is not None:
            yield found


def _last_update(path: Path) -> int:
    """Return t of the last whole line that applies a gradient, from the end of the file; 0: none there."""
    try:
        with open(path, "rb", opener=open_regular) as stream:
            stream.seek(max(0, os.fstat(stream.fileno()).st_size - _TAIL))
            lines = stream.read(_TAIL).splitlines()
    except OSError:
        return 0
    for line in reversed(lines):
        try:
            record = plain_json(line)
        except ValueError:  # torn, or begun before the tail
            continue
        if isinstance(record, dict) and record.get("event") == "gradient_applied":
            t = record.get("t")
            return t if type(t) is int else 0
    return 0

"""The runs of a folder: which of its names are runs, the state of each, a line for a table, and finding one by name.

Loads little; follows no link, and waits for nothing.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import time
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from stat import S_ISREG
from typing import Any

from common.errors import ConfigurationError
from common.records.layout import name_before_stamp
from common.records.regular import count, number, open_regular, plain_json, regular_object, rows, table, text

RUNNING, ENDING, KILLED, UNREADABLE = (
    "running",
    "ending",
    "killed",
    "unreadable",
)  # else: the reason of its end
QUIET = 15.0  # seconds without a change after which a run that no program has locked is not called running
LEAVING = ".removing-"  # begins the name of a folder whose removal has begun
_MARKS = ("manifest.json", "events.jsonl")  # a folder with one of them is a run
_TAIL = 1 << 16  # bytes from the end in which the last update is looked for


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


def last_update(path: Path) -> int | None:
    """Return t of the last update on record, from the end of the events; 0: none there, None: no events."""
    try:
        with open(path / "events.jsonl", "rb", opener=open_regular) as stream:
            stream.seek(max(0, os.fstat(stream.fileno()).st_size - _TAIL))
            lines = stream.read(_TAIL).splitlines()
    except OSError:
        return None
    for line in reversed(lines):
        try:
            record = plain_json(line)
        except ValueError:  # torn, or begun before the tail
            continue
        if isinstance(record, dict) and record.get("event") == "gradient_applied":
            return count(record.get("t")) or 0
    return 0


@dataclass(frozen=True, slots=True)
class Unfinished:
    """A run that has a manifest, and no summary: its cloud was killed or is still running."""

    path: Path
    updates: int  # t of the last update on record

    def __str__(self) -> str:
        return f"{self.path}: unfinished: events up to t = {self.updates}, no summary: the cloud has not ended normally"


def unfinished(path: Path) -> Unfinished | None:
    """Return what there is of a run without a summary; None where it has one, or is no run."""
    if (path / "summary.json").exists() or not (path / "manifest.json").is_file():
        return None
    return Unfinished(path, last_update(path) or 0)


def unfinished_runs(name: str, runs: Path) -> Iterator[Unfinished]:
    """Yield the unfinished runs of this name under `runs`, oldest first."""
    for path in sorted(runs.glob(f"{name}-*")):
        left = unfinished(path) if name_before_stamp(path.name) == name else None
        if left is not None:
            yield left


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
    began, ended = shown_of_manifest(manifest or {}), shown_of_summary(summary or {})
    metric, scenario = ended.pop("metric"), began.pop("name")
    del ended["reason"]
    if summary is None:
        ended["updates"] = None if manifest is None else last_update(path)
    return RunLine(
        run=path.name,
        scenario=scenario,
        state=state_of(path),
        metric=metric.get("name"),
        value=ended.pop("final"),
        bytes=sum(size for _, size in files_of(path)),
        **began,
        **ended,
    )


def shown_of_manifest(manifest: Mapping[str, Any]) -> dict[str, Any]:
    """Return what a line shows of a manifest."""
    scenario = table(manifest, "scenario")
    return {
        **{key: text(manifest.get(key)) for key in ("name", "engine", "started")},
        "algorithm": text(table(scenario, "algorithm").get("name")),
        "model": text(table(scenario, "model").get("name")),
        "data": text(table(scenario, "data").get("set")),
        "edges": number(scenario.get("edges")),
        "iterations": number(scenario.get("iterations")),
    }


def shown_of_summary(summary: Mapping[str, Any]) -> dict[str, Any]:
    """Return what a line shows of a summary."""
    first, privacy = next(iter(rows(summary, "metrics")), {}), table(summary, "privacy")
    metric = {
        key: value if type(value) is bool else text(value)
        for key in ("name", "better", "share")
        if (value := first.get(key)) is not None
    }
    seeded = privacy.get("reproducible_noise")
    return {
        "updates": number(summary.get("updates")),
        "reason": text(summary.get("reason")),
        "metric": metric,
        "final": number(summary.get(f"final_{metric.get('name')}")),
        "epsilon": number(privacy.get("epsilon")),
        "delta": number(privacy.get("delta")),
        "reproducible_noise": seeded if isinstance(seeded, bool) else None,
    }


def statement_of(summary: Mapping[str, Any]) -> list[str]:
    """Return the privacy statement in words; empty: none was written."""
    words = table(summary, "privacy").get("words")
    return [word for word in words if isinstance(word, str)] if isinstance(words, list) else []


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

"""The runs of a folder: which of its names are runs, the state of each, a line for a table, and finding one by name.

Loads little; follows no link, and waits for nothing.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from stat import S_ISREG
from typing import Any

from common.errors import ConfigurationError
from common.records.layout import name_before_stamp
from common.records.regular import count, number, open_regular, plain_json, regular_object, rows, table, text

# states beside the reasons of an end
RUNNING, ENDING, KILLED, UNREADABLE = "running", "ending", "killed", "unreadable"
QUIET = 15.0  # seconds without a change after which a run that no program has locked is not called running
LEAVING = ".removing-"  # begins the name of a folder whose removal has begun
_MARKS = ("manifest.json", "events.jsonl")  # a folder with one of them is a run
_TAIL = 1 << 16  # bytes from the end in which the last update is looked for


def is_run(path: Path) -> bool:
    """Tell whether a folder holds the records of a run; one whose removal has begun holds none any more."""
    return not path.name.startswith(".") and has_records(path)


def has_records(path: Path) -> bool:
    """Tell whether a folder holds them, whatever it is called."""
    return any(_stat(path / name) is not None for name in _MARKS)


def state_of(path: Path) -> str:
    """Return whether a run is running, was killed, or why it has ended."""
    summary, alive = read_object(path / "summary.json"), is_alive(path)
    if summary is not None:
        return ENDING if alive else text(summary.get("reason")) or UNREADABLE
    if alive:
        return RUNNING
    torn = _stat(path / "summary.json") is not None or read_object(path / "manifest.json") is None
    return UNREADABLE if torn else KILLED


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
    return _stat(path / "summary.json") is None and wrote_just_now(path)


def wrote_just_now(path: Path) -> bool:
    """Tell whether the records changed a moment ago, without taking a lock."""
    times = [found.st_mtime for name in _MARKS if (found := _stat(path / name)) is not None]
    return time.time() - max(times, default=0.0) < QUIET


def read_object(path: Path) -> dict[str, Any] | None:
    """Return a JSON object; None where there is none that can be read."""
    try:
        return regular_object(path)
    except (OSError, ValueError):
        return None


def _stat(path: Path) -> os.stat_result | None:
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
        with contextlib.suppress(ValueError):  # torn, or begun before the tail
            record = plain_json(line)
            if isinstance(record, dict) and record.get("event") == "gradient_applied":
                return count(record.get("t")) or 0
    return 0


class NewRun:
    """The one run directory that appears under `runs` from now on."""

    def __init__(self, runs: Path) -> None:
        self._runs, self._known = runs, set(runs.glob("*"))

    @property
    def path(self) -> Path | None:
        """The run's directory; None: not there yet."""
        return max(set(self._runs.glob("*")) - self._known, default=None)

    @property
    def updates(self) -> int:
        """How many updates are on record."""
        return (self.path and last_update(self.path)) or 0

    def summary(self) -> dict[str, Any] | None:
        """Return summary.json; None: not written yet."""
        return None if self.path is None else read_object(self.path / "summary.json")

    def reported(self) -> dict[str, Any] | None:
        """Return the summary with the run's path, as `report` takes it."""
        summary = self.summary()
        return None if summary is None else {**summary, "path": str(self.path)}


def unfinished(path: Path) -> str | None:
    """Return what there is of a run without a summary; None where it has one, or is no run."""
    if (path / "summary.json").exists() or not (path / "manifest.json").is_file():
        return None
    updates = last_update(path) or 0
    return f"{path}: unfinished: events up to t = {updates}, no summary: the cloud has not ended normally"


def unfinished_runs(name: str, runs: Path) -> Iterator[tuple[Path, str]]:
    """Yield the unfinished runs of this name under `runs`, and what there is of each, oldest first."""
    for path in sorted(runs.glob(f"{name}-*")):
        left = unfinished(path) if name_before_stamp(path.name) == name else None
        if left is not None:
            yield path, left


# -- by name ------------------------------------------------------------------------------------------------


def run_paths(runs: Path) -> list[Path]:
    """Return every run of the folder, the newest first; a symbolic link is none, wherever it leads."""
    try:
        with os.scandir(runs) as entries:
            found = [Path(one.path) for one in entries if one.is_dir(follow_symlinks=False)]
    except FileNotFoundError:
        return []
    except OSError as error:
        raise ConfigurationError(f"--runs-dir {str(runs)!r}: {error.strerror or error}") from error
    return sorted(filter(is_run, found), key=_began, reverse=True)


def _began(path: Path) -> tuple[str, int, str]:
    """Sort by when a run began, as its manifest says; of runs of one second, by when that was written."""
    started = text((read_object(path / "manifest.json") or {}).get("started"))
    found = _stat(path / "manifest.json") or _stat(path / "events.jsonl")
    return started or "", 0 if found is None else found.st_mtime_ns, path.name


def chosen(name: str, runs: Path) -> Path:
    """Return the one run that a name stands for: its id, `latest`, or the beginning of one id alone."""
    found = run_paths(runs)
    matching = [path for path in found if path.name == name] or (found[:1] if name == "latest" else [])
    matching = matching or [path for path in found if name and path.name.startswith(name)]
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
        if any((path / mark).is_file() for mark in _MARKS):
            return path
    return chosen(name, runs)


# -- what is shown of one -----------------------------------------------------------------------------------


def line_of_run(path: Path) -> dict[str, Any]:
    """Return a run's line, None where its records do not say; whoever wrote them, they are read as untrusted."""
    manifest, summary = read_object(path / "manifest.json"), read_object(path / "summary.json")
    began, ended = shown_of_manifest(manifest or {}), shown_of_summary(summary or {})
    if summary is None:
        ended["updates"] = None if manifest is None else last_update(path)
    return {
        "run": path.name,
        "scenario": began["name"],
        "engine": began["engine"],
        "state": state_of(path),
        **{key: began[key] for key in ("algorithm", "model", "data", "edges")},
        "updates": ended["updates"],
        "iterations": began["iterations"],
        "metric": ended["metric"].get("name"),
        "value": ended["final"],  # of the metric
        **{key: ended[key] for key in ("epsilon", "delta", "reproducible_noise")},  # as the summary states
        "bytes": sum(size for _, size in files_of(path)),
        "started": began["started"],
    }


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
        "reproducible_noise": seeded if isinstance(seeded, bool) else None,  # True: ε is no guarantee
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

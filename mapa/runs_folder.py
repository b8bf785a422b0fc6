"""The folder of runs as a list: which names in it are runs, and a line for each. Loads little; follows no link."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from stat import S_ISREG
from typing import Any

from common.errors import ConfigurationError

RUNNING, ENDING, KILLED, UNREADABLE = (
    "running",
    "ending",
    "killed",
    "unreadable",
)  # else: the reason of its end
QUIET = 15.0  # seconds without a change after which a run that nobody has locked is not called running
_MOST_BYTES = 1 << 27  # of a manifest or a summary; a larger one is nobody's record
_MARKS = ("manifest.json", "events.jsonl")  # a folder with one of them is a run


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


def is_run(path: Path) -> bool:
    """Tell whether a folder holds the records of a run; one whose removal has begun holds none any more."""
    return not path.name.startswith(".") and any(_regular(path / name) is not None for name in _MARKS)


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


def line_of_run(path: Path) -> RunLine:
    """Return a run's line; whatever its records are, they are read as somebody else's."""
    manifest, summary = read_object(path / "manifest.json"), read_object(path / "summary.json")
    scenario, privacy = _table(manifest, "scenario"), _table(summary, "privacy")
    metrics = (summary or {}).get("metrics")
    first = metrics[0] if isinstance(metrics, list) and metrics and isinstance(metrics[0], dict) else {}
    metric = _text(first.get("name"))
    updates = _count((summary or {}).get("updates")) if summary is not None else _updates(path)
    seeded = privacy.get("reproducible_noise")
    return RunLine(
        run=path.name,
        scenario=_text((manifest or {}).get("name")),
        engine=_text((manifest or {}).get("engine")),
        state=state_of(path),
        algorithm=_text(_table(scenario, "algorithm").get("name")),
        model=_text(_table(scenario, "model").get("name")),
        data=_text(_table(scenario, "data").get("set")),
        edges=_count(scenario.get("edges")),
        updates=updates,
        iterations=_count(scenario.get("iterations")),
        metric=metric,
        value=_number((summary or {}).get(f"final_{metric}")),
        epsilon=_number(privacy.get("epsilon")),
        delta=_number(privacy.get("delta")),
        reproducible_noise=seeded if isinstance(seeded, bool) else None,
        bytes=sum(size for _, size in files_of(path)),
        started=_text((manifest or {}).get("started")),
    )


def state_of(path: Path) -> str:
    """Return whether a run is running, was killed, or why it has ended."""
    summary, alive = read_object(path / "summary.json"), is_alive(path)
    if summary is not None:
        return ENDING if alive else _text(summary.get("reason")) or UNREADABLE
    if alive:
        return RUNNING
    if _regular(path / "summary.json") is not None or read_object(path / "manifest.json") is None:
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
    return _regular(path / "summary.json") is None and _age(path) < QUIET


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


def read_object(path: Path) -> dict[str, Any] | None:
    """Return a JSON object; None where there is none that can be read."""
    found = _regular(path)
    if found is None or found.st_size > _MOST_BYTES:
        return None
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) else None


def printable(text: str) -> str:
    """Return a name or a text of somebody else's records for a terminal: no control characters."""
    return "".join(one if one.isprintable() else "\N{REPLACEMENT CHARACTER}" for one in text)


def _regular(path: Path) -> os.stat_result | None:
    try:
        found = path.lstat()
    except (OSError, ValueError):
        return None
    return found if S_ISREG(found.st_mode) else None


def _age(path: Path) -> float:
    times = [found.st_mtime for name in _MARKS if (found := _regular(path / name)) is not None]
    return time.time() - max(times, default=0.0)


def _began(path: Path) -> tuple[str, int, str]:
    """Sort by when a run began, as its manifest says; of runs of one second, by when that was written."""
    started = _text((read_object(path / "manifest.json") or {}).get("started"))
    found = _regular(path / "manifest.json") or _regular(path / "events.jsonl")
    return started or "", 0 if found is None else found.st_mtime_ns, path.name


def _updates(path: Path) -> int | None:
    """Return t of the last update on record, of a run without a summary."""
    if _regular(path / "events.jsonl") is None:
        return None
    from mapa.unfinished import unfinished  # numpy and pydantic, for few

    try:
        left = unfinished(path)
    except (KeyError, TypeError, ValueError, OverflowError, OSError):
        return None
    return None if left is None else left.updates


def _table(values: dict[str, Any] | None, key: str) -> dict[str, Any]:
    found = (values or {}).get(key)
    return found if isinstance(found, dict) else {}


def _text(value: object) -> str | None:
    return value[:200] if isinstance(value, str) else None


def _count(value: object) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def _number(value: object) -> float | None:
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else None

"""The folder of runs as a list: which names in it are runs, and a line for each. Loads little; follows no link."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from common.errors import ConfigurationError
from mapa.run_state import is_run, last_update, read_object, regular, state_of, text


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

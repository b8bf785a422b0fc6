"""runs/<id>/ read back, whoever wrote it: simulator or testbed, finished or cut off."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from common.errors import ConfigurationError


@dataclass(frozen=True, slots=True)
class Seen:
    """One evaluation; `seconds` count from the first update, virtual in a simulation."""

    updates: int
    accuracy: float
    loss: float | None
    seconds: float | None


@dataclass(slots=True)
class RunRecords:
    """What the records of one run say."""

    path: Path
    manifest: dict[str, Any]
    summary: dict[str, Any]  # empty: the run did not get that far
    evaluations: list[Seen] = field(default_factory=list)
    staleness: Counter[int] = field(default_factory=Counter)
    stages: list[dict[str, Any]] = field(default_factory=list)
    last_update: int = 0  # t of the last update on record

    @property
    def name(self) -> str:
        return self.path.resolve().name  # `.` has none by itself

    @property
    def scenario(self) -> dict[str, Any]:
        found: dict[str, Any] = self.manifest.get("scenario", {})
        return found

    @property
    def timed(self) -> bool:
        return bool(self.evaluations) and all(seen.seconds is not None for seen in self.evaluations)


def find_run(name: str, runs: Path) -> Path:
    """Return a run's directory, given as a path or by its id under `runs`."""
    for path in (Path(name), runs / name):
        if (path / "manifest.json").is_file() or (path / "events.jsonl").is_file():
            return path
    raise ConfigurationError(f"run = {name!r}: neither a run's directory nor one under {runs}")


def read_run(path: Path) -> RunRecords:
    """Read a run. Without events.jsonl the evaluations come from the summary and have no times."""
    run = RunRecords(path, _json(path / "manifest.json"), _json(path / "summary.json"))
    times: dict[int, float] = {}  # of updates
    when: dict[int, float] = {}  # of evaluations, where their update has none
    found: dict[int, tuple[float, float | None]] = {}
    for record in _lines(path / "events.jsonl"):
        event, time = record.get("event"), record.get("time")
        if event == "gradient_applied":
            run.staleness[record["staleness"]] += 1
            run.last_update = record["t"]
            if time is not None:
                times[record["t"]] = time
        elif event == "evaluated":
            found[record["t"]] = (record["accuracy"], record["loss"])
            if time is not None:
                when[record["t"]] = time
        elif event == "stage_opened":
            run.stages.append(record)
    for row in run.summary.get("evaluations", []) if not found else []:
        found[row["updates"]] = (row["accuracy"], row["loss"])
    origin = min(times.values(), default=None)
    for t, (accuracy, loss) in sorted(found.items()):
        # the evaluation itself takes time that the training does not wait for
        at = times.get(t, when.get(t))
        seconds = None if at is None or origin is None else max(0.0, at - origin)
        run.evaluations.append(Seen(t, accuracy, loss, seconds))
    if not run.stages:
        run.stages = list(run.summary.get("stages", []))
    return run


def read_manifest(path: Path) -> dict[str, Any]:
    """Return what a run was; empty where nothing says it."""
    return _json(path / "manifest.json")


def read_events(path: Path) -> list[dict[str, Any]]:
    """Return a run's events; a last line that was cut off is left out."""
    return _lines(path / "events.jsonl")


def _json(path: Path) -> dict[str, Any]:
    try:
        values = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return {}
    except (OSError, ValueError) as error:
        raise ConfigurationError(f"{path}: {error}") from error
    if not isinstance(values, dict):
        raise ConfigurationError(f"{path}: not a JSON object")
    return values


def _lines(path: Path) -> list[dict[str, Any]]:
    """Return the records; a last line that was cut off is left out."""
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        return []
    lines = text.splitlines()
    records = []
    for number, line in enumerate(lines, start=1):
        try:
            records.append(json.loads(line))
        except ValueError as error:
            if number == len(lines):
                break
            raise ConfigurationError(f"{path}, line {number}: {error}") from error
    return records

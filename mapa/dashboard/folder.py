"""The folder of runs: which names in it are runs, and a line for each. Nothing outside it is ever opened."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from common.errors import ConfigurationError
from common.records.reader import JsonFile
from mapa.dashboard.page_tally import number
from mapa.dashboard.sections import rows, table
from mapa.runs import LEAVING, has_records, is_run, last_update, text, wrote_just_now

NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,199}")
_UNENDED: dict[str, Any] = {
    "reason": None,
    "metric": {},
    "final": None,
    "epsilon": None,
}  # what a summary would say
_MOST = 500  # runs in the list, the newest


@dataclass(slots=True)
class RunsFolder:
    """runs/, as it is now."""

    path: Path
    _manifests: dict[str, JsonFile] = field(default_factory=dict)
    _summaries: dict[str, JsonFile] = field(default_factory=dict)

    def find(self, name: str) -> Path | None:
        """Return the folder of a run by its name; None: no folder of `runs`, whatever the name says."""
        if not NAME.fullmatch(name):
            return None
        path = self.path / name
        try:
            if path.is_symlink() or not path.is_dir() or path.resolve().parent != self.path.resolve():
                return None
            return path if is_run(path) else None
        except OSError:
            return None

    def names(self) -> tuple[list[str], int]:
        """Return the names of all runs, the newest first, and how many more folders hold records under other names."""
        try:
            here = list(self.path.iterdir())
            found = [path for one in here if (path := self.find(one.name)) is not None]
            return [path.name for path in sorted(found, key=_began, reverse=True)], sum(map(_unnamed, here))
        except OSError as error:
            raise ConfigurationError(f"--runs-dir {self.path}: {error}") from error

    def lines(self) -> dict[str, Any]:
        """Return a line for each run."""
        names, unnamed = self.names()
        for known in (self._manifests, self._summaries):
            for name in known.keys() - set(names[:_MOST]):
                del known[name]
        return {
            "runs": [self._line(name) for name in names[:_MOST]],
            "hidden": max(0, len(names) - _MOST) + unnamed,
            "unnamed": unnamed,
        }

    def _line(self, name: str) -> dict[str, Any]:
        path = self.path / name
        manifest = self._manifests.setdefault(name, JsonFile(path / "manifest.json", _of_manifest)).look()
        summary = self._summaries.setdefault(name, JsonFile(path / "summary.json", _of_summary)).look()
        shown = manifest or _of_manifest({})
        ended = summary or {**_UNENDED, "updates": last_update(path)}
        return {"run": name, "state": state_of(path, summary), **shown, **ended}


def _of_manifest(manifest: dict[str, Any]) -> dict[str, Any]:
    """Return what a line shows of a manifest; nothing else of it is kept."""
    scenario = table(manifest, "scenario")
    return {
        **{key: text(manifest.get(key)) for key in ("name", "engine", "started")},
        "algorithm": text(table(scenario, "algorithm").get("name")),
        "model": text(table(scenario, "model").get("name")),
        "data": text(table(scenario, "data").get("set")),
        "edges": number(scenario.get("edges")),
        "iterations": number(scenario.get("iterations")),
    }


def _of_summary(summary: dict[str, Any]) -> dict[str, Any]:
    """Return what a line shows of a summary; {} where there is none."""
    if not summary:
        return {}
    first = next(iter(rows(summary, "metrics")), {})
    metric = {
        key: one if type(one) is bool else text(one)
        for key in ("name", "better", "share")
        if (one := first.get(key)) is not None
    }
    return {
        "updates": number(summary.get("updates")),
        "reason": text(summary.get("reason")),
        "metric": metric,
        "final": number(summary.get(f"final_{metric.get('name')}")),
        "epsilon": number(table(summary, "privacy").get("epsilon")),
    }


def state_of(path: Path, summary: dict[str, Any], halted: str = "") -> str:
    """Return `ended`, `live`, or `quiet`: without a summary, and nothing was written for a while.

    By the age of the files alone: a page that looks every second must not take the lock that a run is about to take.
    """
    if summary:
        return "ended"
    recent = wrote_just_now(path)
    return "ending" if recent and halted else "live" if recent else "quiet"


def _unnamed(path: Path) -> bool:
    """Tell whether a folder has the records of a run, and a name that no address of the page takes."""
    if NAME.fullmatch(path.name) or path.name.startswith(LEAVING):
        return False
    return not path.is_symlink() and has_records(path)


def _began(path: Path) -> tuple[float, str]:
    """Sort by when the manifest was written: at the run's beginning, and never again."""
    for file in (path / "manifest.json", path / "events.jsonl"):
        try:
            return file.stat().st_mtime, path.name
        except OSError:
            continue
    return 0.0, path.name

"""The folder of runs: which names in it are runs, and a line for each. Nothing outside it is ever opened."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from common.errors import ConfigurationError
from common.records.reader import JsonFile
from mapa import runs

NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,199}")
_OF_SUMMARY = ("updates", "reason", "metric", "final", "epsilon")
_MOST = 500  # runs in the list, the newest


@dataclass(slots=True)
class RunsFolder:
    path: Path
    _known: dict[str, tuple[JsonFile, JsonFile]] = field(default_factory=dict)  # manifest and summary

    def find(self, name: str) -> Path | None:
        """Return the folder of a run by its name; None: no folder of `runs`, whatever the name says."""
        path = self.path / name
        try:
            inside = NAME.fullmatch(name) and not path.is_symlink() and path.is_dir()
            if not inside or path.resolve().parent != self.path.resolve():
                return None
            return path if runs.is_run(path) else None
        except OSError:
            return None

    def lines(self) -> dict[str, Any]:
        """Return a line for each of the newest runs, and how many more folders hold records."""
        try:
            here = list(self.path.iterdir())
            named = [path for one in here if (path := self.find(one.name)) is not None]
            unnamed = sum(map(_unnamed, here))
        except OSError as error:
            raise ConfigurationError(f"--runs-dir {self.path}: {error}") from error
        shown = [path.name for path in sorted(named, key=_began, reverse=True)[:_MOST]]
        for name in self._known.keys() - {*shown}:
            del self._known[name]
        return {
            "runs": [self._line(name) for name in shown],
            "hidden": len(named) - len(shown) + unnamed,
            "unnamed": unnamed,
        }

    def _line(self, name: str) -> dict[str, Any]:
        path = self.path / name
        if name not in self._known:
            manifest = JsonFile(path / "manifest.json", runs.shown_of_manifest)
            self._known[name] = manifest, JsonFile(path / "summary.json", _of_summary)
        began, ended = (file.look() for file in self._known[name])
        unended: dict[str, Any] = {**dict.fromkeys(_OF_SUMMARY), "metric": {}}
        return {
            "run": name,
            "state": page_state(path, ended),
            **(began or runs.shown_of_manifest({})),
            **(ended or {**unended, "updates": runs.last_update(path)}),
        }


def _of_summary(summary: dict[str, Any]) -> dict[str, Any]:
    shown = runs.shown_of_summary(summary)
    return {key: shown[key] for key in _OF_SUMMARY} if summary else {}


def page_state(path: Path, summary: dict[str, Any], halted: str = "") -> str:
    """Return `ended`, `live`, or `quiet`: without a summary, and nothing was written for a while.

    By the age of the files alone: a page that looks every second must not take the lock that a run is about to take.
    """
    if summary:
        return "ended"
    recent = runs.wrote_just_now(path)
    return "ending" if recent and halted else "live" if recent else "quiet"


def _unnamed(path: Path) -> bool:
    """Tell whether a folder has the records of a run, and a name that no address of the page takes."""
    if NAME.fullmatch(path.name) or path.name.startswith(runs.LEAVING):
        return False
    return not path.is_symlink() and runs.has_records(path)


def _began(path: Path) -> tuple[float, str]:
    """Sort by when the manifest was written: at the run's beginning, and never again."""
    for file in (path / "manifest.json", path / "events.jsonl"):
        try:
            return file.stat().st_mtime, path.name
        except OSError:
            continue
    return 0.0, path.name

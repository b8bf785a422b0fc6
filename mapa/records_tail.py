"""The records of a run that is being written: read on as they grow."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any


class Tail:
    """The one run directory that appears under `runs` from now on, and its events so far."""

    def __init__(self, runs: Path) -> None:
        self._runs = runs
        self._known = {path.name for path in runs.iterdir()} if runs.is_dir() else set()
        self._read = 0  # bytes
        self._path: Path | None = None
        self.events: list[dict[str, Any]] = []

    @property
    def path(self) -> Path | None:
        """The run's directory; None: not there yet."""
        if self._path is None:
            new = sorted(path for path in self._runs.iterdir() if path.name not in self._known)
            self._path = new[-1] if new else None
        return self._path

    def look(self) -> list[dict[str, Any]]:
        """Return every event so far; a line that is still being written comes with the next look."""
        file = None if self.path is None else self.path / "events.jsonl"
        if file is not None and file.is_file():
            with file.open("rb") as stream:
                stream.seek(self._read)
                grown = stream.read()
            whole = grown[: grown.rfind(b"\n") + 1]
            self._read += len(whole)
            self.events += [json.loads(line) for line in whole.splitlines()]
        return self.events

    def named(self, event: str) -> list[dict[str, Any]]:
        return [record for record in self.look() if record["event"] == event]

    @property
    def updates(self) -> int:
        """How many updates are on record."""
        applied = self.named("gradient_applied")
        return int(applied[-1]["t"]) if applied else 0

    @property
    def edges(self) -> set[int]:
        """The indices of the edges whose gradients were applied."""
        return {int(record["edge"]) for record in self.named("gradient_applied")}

    def summary(self) -> dict[str, Any] | None:
        """Return summary.json; None: not written yet."""
        file = None if self.path is None else self.path / "summary.json"
        if file is None or not file.is_file():
            return None
        summary: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
        return summary

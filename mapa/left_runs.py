"""Which run a cloud that is started again goes on with; loads little, since every container begins here."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from common.records.keeping import keeps_gradients
from common.records.naming import HALT_OWED, RESUME
from common.records.regular import regular_object

_STAMP = re.compile(r"-\d{8}-\d{6}-[0-9a-f]{8}")  # what new_run_id puts after the name

_AS_WANTED = ("finished", "interrupted")  # ends after which no policy starts a container again
_AT_ONCE = 120.0  # seconds within which a policy does


def ended_with(path: Path) -> str | None:
    """Return the reason for which a run has ended; None: it has not, or its last records or its halt are owed."""
    summary = _json(path / "summary.json")
    return None if summary is None or _owes(path, summary) else str(summary.get("reason"))


def _owes(path: Path, summary: dict[str, Any]) -> bool:
    """Tell whether a resumed cloud has yet to tell the halt, state the privacy, or remove a log that is not kept."""
    if not any(path.glob("checkpoints/[0-9]*")):
        return False  # nobody can go on with it
    if (_json(path / RESUME) or {}).get(HALT_OWED) is True:
        return True
    scenario = (_json(path / "manifest.json") or {}).get("scenario") or {}
    asked = scenario.get("records", {}).get("keep_gradients")
    kept = keeps_gradients(asked, summary.get("iterations", 0), summary.get("parameters", 0))
    return "privacy" not in summary or (not kept and (path / "log").exists())


def name_of(path: Path) -> str:
    """Return the name of a run on its broker, from that of its directory."""
    stamp = _STAMP.search(path.name)
    return path.name[: stamp.start()] if stamp is not None and stamp.end() == len(path.name) else path.name


def to_go_on_with(runs: Path, *, run: str | None, started_by: str, now: float) -> Path | None:
    """Return the run that a container goes on with, or that it must not begin anew; None: it begins a new one.

    The newest run that this very container began, where it has not ended; else, where the run has a name, the newest
    of that name likewise. A restart policy starts a container again at once when its run has ended badly (no budget,
    divergence): such a run is returned too, so that the container ends as it did. A later start, or one after a run
    that was finished or interrupted, is a person's, who wants a new run.
    """
    begun = sorted(_begun(path) for path in runs.iterdir()) if runs.is_dir() else []
    own = [path for started, path, starter in begun if started and starter and starter == started_by]
    if own and _is_left(own[-1], now):
        return own[-1]
    named = [path for started, path, _ in begun if started and run and name_of(path) == run]
    return named[-1] if named and ended_with(named[-1]) is None else None


def _is_left(path: Path, now: float) -> bool:
    ended = ended_with(path)
    if ended is None:
        return True
    return ended not in _AS_WANTED and now - (path / "summary.json").stat().st_mtime < _AT_ONCE


def _begun(path: Path) -> tuple[str, Path, str]:
    """Return when a run began, and by whom; "" where it never did, or no cloud can go on with it."""
    manifest = _json(path / "manifest.json")
    whole = manifest is not None and (ended_with(path) is not None or any(path.glob("checkpoints/[0-9]*")))
    if manifest is None or not whole:
        return "", path, ""
    return str(manifest.get("started")), path, str(manifest.get("started_by") or "")


def _json(path: Path) -> dict[str, Any] | None:
    """Return an object; None where there is none, or it cannot be read."""
    try:
        return regular_object(path)
    except (OSError, ValueError):
        return None

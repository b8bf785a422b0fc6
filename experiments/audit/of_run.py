"""The audit of a run on record: its own scenario is audited, and the report is kept beside its records."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

from common.errors import ConfigurationError, RecordsError
from common.scenario.scenario import Scenario
from mapa.runs import read_object
from mapa.verification.log_replay import scenario_of
from mapa.verification.untrusted_files import NotCheckedError, UnreadableError

AUDIT = "audit.json"  # mapa/dashboard shows it, mapa runs rm removes it with the run


def scenario_of_run(path: Path, allowed: Collection[str]) -> Scenario:
    """Return the scenario that a run was recorded with, its noise and rate as they were; ConfigurationError: none."""
    try:
        return scenario_of(read_object(path / "manifest.json") or {}, allowed)
    except (UnreadableError, NotCheckedError) as error:
        raise ConfigurationError(f"{path}: cannot be audited: {error}") from error


def keep(path: Path, report: Mapping[str, Any]) -> Path:
    """Write the report into the run's folder, as a whole or not at all."""
    file, draft = path / AUDIT, path / f".{AUDIT}.tmp"
    try:
        draft.write_text(json.dumps(report, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
        draft.replace(file)
    except OSError as error:
        with contextlib.suppress(OSError):
            draft.unlink(missing_ok=True)
        raise RecordsError(f"{file}: not written: {error.strerror or error}") from error
    return file

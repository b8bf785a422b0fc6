"""A run's records into event files: at once, or on while the run writes them."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from mapa.dashboard.reading import JsonFile, Tail
from mapa.export.event_files import EventFiles
from mapa.export.tables import Curves, epsilons, parameters_of, started, statement_of
from mapa.run_reader import read_manifest

EVERY = 0.5  # seconds between two looks at a run that is being written
SUMMARY = 600.0  # seconds after the halt for the statement: the accountant may take minutes


def write_events(
    run: Path,
    folder: Path,
    *,
    follow: bool,
    wait: Callable[[float], None] = time.sleep,
) -> tuple[int, bool]:
    """Write what there is, or go on until the run's end; return how many points, and whether with a statement."""
    manifest = read_manifest(run)
    tail, summary, curves = Tail(run / "events.jsonl"), JsonFile(run / "summary.json"), Curves()
    with EventFiles(folder, started(manifest)) as files:
        files.parameters(run.resolve().name, parameters_of(manifest.get("scenario")))
        waited = 0.0
        while True:
            ended = "privacy" in summary.look()  # it comes last: a summary without it is written first
            files.add(curves.take(tail.look()[1]))
            if tail.behind:
                continue
            over = curves.halted or bool(summary.value)
            if not follow or ended or (over and waited >= SUMMARY):
                break
            files.flush()
            wait(EVERY)
            waited = waited + EVERY if over else 0.0
        _finish(files, curves, summary.look(), without_events=tail.offset == 0)
        return files.points, "privacy" in summary.value


def _finish(files: EventFiles, curves: Curves, summary: dict[str, Any], *, without_events: bool) -> None:
    if without_events:
        files.add(curves.evaluations(summary.get("evaluations")))
    if not curves.t and type(summary.get("updates")) is int:
        curves.t = summary["updates"]
    files.add(epsilons(summary, curves.t, curves.seconds))
    files.statement(statement_of(summary) or ["no statement was written"])

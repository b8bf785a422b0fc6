"""What a run has left on disk, read for the judge."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Collection, Sequence
from pathlib import Path

from cloud.recovery_log import USED_UP
from common.errors import ConfigurationError, MapaError
from common.records.log_format import Kind
from common.records.log_reader import LogReader
from common.wire.v1 import HEADER
from mapa.chaos.judge import Applied, Ended, Evidence
from mapa.chaos.watch import Watch
from mapa.verification.check import Check
from mapa.verification.untrusted_files import LedgerStatement, find_ledgers
from mapa.verification.verify import Verification


def gather(
    run: Path,
    *,
    iterations: int,
    states: Sequence[Path],
    watch: Watch,
    ended: Sequence[Ended],
    logs: Sequence[Path],
    allowed: Collection[str],
) -> Evidence:
    """Read everything; what is missing is missing in the evidence too, and the judge says so."""
    summary = {}
    with contextlib.suppress(OSError, json.JSONDecodeError):
        summary = json.loads((run / "summary.json").read_text(encoding="utf-8"))
    here = [state for state in states if _has_account(run, state)]
    refused = summary.get("refused", {})
    return Evidence(
        iterations=iterations,
        updates=summary.get("updates", 0),
        reason=summary.get("reason", "no summary"),
        applied=_applied(run),
        received=_received(run),
        released={one.edge_id: one.releases for state in here for one in _statements(run, state)},
        used_up=sum(refused.get(reason, 0) for reason in USED_UP),
        verified=[(one.name, one.status.value, one.detail) for one in _checks(run, here, allowed)],
        reworded=tuple(watch.reworded),
        newest=watch.newest,
        ended=tuple(ended),
        tracebacks=[path.name for path in logs if path.exists() and b"Traceback (most" in path.read_bytes()],
    )


def _has_account(run: Path, state: Path) -> bool:
    """Tell whether an edge ever had an account of the run: one that came too late has none."""
    try:
        return bool(_statements(run, state))
    except ConfigurationError:
        return False


def _statements(run: Path, state: Path) -> list[LedgerStatement]:
    return find_ledgers(run, run.resolve().name, [state]).statements


def _applied(run: Path) -> list[Applied]:
    found = []
    with contextlib.suppress(OSError), (run / "events.jsonl").open(encoding="utf-8") as lines:
        for line in lines:
            event = json.loads(line)
            if event["event"] == "gradient_applied":
                found.append(Applied(event["t"], event["edge_id"], event["sequence"]))
    return found


def _received(run: Path) -> dict[str, int]:
    """Return how many distinct sequences of each edge the log holds."""
    found: dict[str, set[int]] = {}
    with contextlib.suppress(OSError, MapaError):
        for entry in LogReader(run):
            if entry.kind is Kind.GRADIENT:
                found.setdefault(str(entry.edge_id), set()).add(HEADER.unpack_from(entry.body)[2])
    return {edge_id: len(sequences) for edge_id, sequences in found.items()}


def _checks(run: Path, states: Sequence[Path], allowed: Collection[str]) -> list[Check]:
    try:
        return list(Verification.of(run, allowed, states).checks())
    except (OSError, MapaError):
        return []  # then every required check is missing

"""A run's directory without a summary: its cloud was killed or is still running. What follows from its events."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from common.accounting.releases import ReleaseKind
from common.errors import ConfigurationError
from common.noise.registry import describe_law
from common.records.regular import open_regular, plain_json
from common.scenario.parts import least_records
from common.scenario.scenario import parse_scenario
from mapa.run_reader import read_events, read_manifest
from mapa.statement import OWN, EdgeReleases

_TAIL = 1 << 16  # bytes from the end in which the last update is looked for
_STAMP = re.compile(r"-\d{8}-\d{6}-[0-9a-f]{8}")  # what new_run_id puts after the name


@dataclass(frozen=True, slots=True)
class Unfinished:
    """A run that has a manifest or events, and no summary."""

    path: Path
    updates: int  # t of the last update on record

    def __str__(self) -> str:
        return f"{self.path}: unfinished: events up to t = {self.updates}, no summary: the cloud has not ended normally"


def unfinished(path: Path) -> Unfinished | None:
    """Return what there is of a run without a summary; None where it has one, or is no run."""
    if (path / "summary.json").exists() or not (path / "manifest.json").is_file():
        return None
    return Unfinished(path, _last_update(path / "events.jsonl"))


def unfinished_runs(name: str, runs: Path) -> Iterator[Unfinished]:
    """Yield the unfinished runs of this name under `runs`, oldest first."""
    for path in sorted(runs.glob(f"{name}-*")):
        found = unfinished(path) if _STAMP.fullmatch(path.name.removeprefix(name)) else None
        if found is not None:
            yield found


def releases_on_record(path: Path) -> list[EdgeReleases]:
    """Return what the events prove that each edge has released: at least that, for the last ones may be missing."""
    manifest = read_manifest(path)
    scenario, sizes = parse_scenario(manifest["scenario"]), manifest.get("shard_sizes")
    least = least_records(scenario)
    if sizes is None:
        raise ConfigurationError(
            f"{path}: its manifest has no shard_sizes, so ε cannot be computed from the events; see the edges' ledgers"
        )
    if least is not None:
        sizes = [least] * scenario.workers
    joined: dict[int, dict[str, Any]] = {}
    last: dict[int, int] = {}
    known = range(scenario.workers)
    for record in read_events(path):
        if record["event"] in ("edge_joined", "gradient_applied") and record["edge"] not in known:
            raise ConfigurationError(
                f"{path}: events of edge {record['edge']!r:.40}; it has {scenario.workers}"
            )
        if record["event"] == "edge_joined":
            joined[record["edge"]] = record
        elif record["event"] == "gradient_applied":
            last[record["edge"]] = max(last.get(record["edge"], 0), record["sequence"])
    if not last:
        raise ConfigurationError(f"{path}: unfinished, and no gradient is on record: no release is known")
    return [
        EdgeReleases(
            edge=k,
            edge_id=joined[k]["edge_id"],
            kind=ReleaseKind(scenario.mechanism(_law(joined[k])), sizes[k]),
            releases=last[k],
            reproducible=scenario.seed is not None,
            at_least=least is not None,
            notes=() if least is None else (OWN.format(least=least),),
        )
        for k in sorted(last)
    ]


def _law(joined: dict[str, Any]) -> Any:
    if joined["noise"] == "none":
        return None
    law = describe_law(joined["noise"])
    return law.make({key: joined[key] for key in law.names if joined.get(key) is not None})


def _last_update(path: Path) -> int:
    """Return t of the last whole line that applies a gradient, from the end of the file; 0: none there."""
    try:
        with open(path, "rb", opener=open_regular) as stream:
            stream.seek(max(0, os.fstat(stream.fileno()).st_size - _TAIL))
            lines = stream.read(_TAIL).splitlines()
    except OSError:
        return 0
    for line in reversed(lines):
        try:
            record = plain_json(line)
        except ValueError:  # torn, or begun before the tail
            continue
        if isinstance(record, dict) and record.get("event") == "gradient_applied":
            t = record.get("t")
            return t if type(t) is int else 0
    return 0

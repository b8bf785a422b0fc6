"""A month of records without a month of running: the updates of a short run, repeated under their own numbers.

python -m experiments.bench.long_records RUN NEW-FOLDER 2600000
"""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path

from common.records.reader import read_events

_EVALUATED = 5000  # updates between two evaluations


def write_long(run: Path, folder: Path, updates: int) -> None:
    """Copy a run's records with `updates` updates in the place of its own; for readers, for no check of the run."""
    skipped = shutil.ignore_patterns("log", "checkpoints", "state", "events.jsonl")
    shutil.copytree(run, folder, ignore=skipped)
    told = list(read_events(run))
    applied = {one["edge"]: one for one in told if one["event"] == "gradient_applied"}
    edges = list(applied.values())
    with (folder / "events.jsonl").open("w", encoding="utf-8") as stream:
        for one in told:
            if one["event"] in ("edge_joined", "stage_opened"):
                stream.write(f"{json.dumps(one)}\n")
        for t in range(1, updates + 1):
            version = max(1, t - len(edges))
            place = {
                "t": t,
                "sequence": 1 + (t - 1) // len(edges),
                "version": version,
                "staleness": t - version,
            }
            stream.write(f"{json.dumps(edges[(t - 1) % len(edges)] | place | {'time': float(t)})}\n")
            if t % _EVALUATED == 0:
                values = {"stage": 1, "accuracy": 0.5, "loss": 0.5, "time": float(t)}
                stream.write(f"{json.dumps({'event': 'evaluated', 't': t, **values})}\n")


if __name__ == "__main__":
    write_long(Path(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3]))

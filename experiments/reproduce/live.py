"""Experiment 5: one point between real processes over real MQTT, as `mapa run` does it."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

from common.errors import MapaError
from experiments.local import one_thread_each
from experiments.records import read_run
from experiments.reproduce.points import Point
from experiments.reproduce.results import Result

_SECONDS_AN_UPDATE = 0.5  # far beyond any: a run that takes longer hangs
_PROCESSES = 4  # that share the edges: every one of them imports torch


class LiveRunError(MapaError):
    """A run on the testbed did not end as it should."""


def run_live(point: Point, *, data_dir: Path, runs: Path) -> Result:
    """Run the point in a process of its own and read its records."""
    command = [sys.executable, "-m", "experiments.cli", "run", point.file, "--json"]
    for change in point.changes:
        command += ["--set", change]
    command += ["--seed", str(point.seed), "--runs-dir", str(runs), "--data-dir", str(data_dir)]
    command += ["--processes", str(_PROCESSES)]
    patience = 180 + _SECONDS_AN_UPDATE * point.scenario.iterations
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=patience, env=one_thread_each(), check=False
        )
    except subprocess.TimeoutExpired as error:
        raise LiveRunError(f"{point.line}: not done after {patience:.0f} s") from error
    if done.returncode != 0:
        raise LiveRunError(f"{point.line}: exit code {done.returncode}: {done.stderr.strip()[-500:]}")
    summary = json.loads(done.stdout)
    run = read_run(Path(summary["path"]))
    seen = [one for one in run.evaluations if one.updates]
    b = point.scenario.batch_size
    return Result(
        key=point.key,
        digest=point.scenario.digest,
        engine=point.engine,
        t=[one.updates for one in seen],
        accuracy=[one.accuracy for one in seen],
        loss=[one.loss for one in seen],
        seconds=[one.seconds for one in seen if one.seconds is not None] if run.timed else None,
        staleness=dict(run.staleness),
        clips=[(stage["t"], b * stage["sensitivity"] / 2) for stage in run.stages],
        run=summary["run"],
    )

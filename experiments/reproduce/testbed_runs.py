"""A point on the testbed: between real processes as `mapa run` does it, or containers as `mapa containers` does."""

from __future__ import annotations

import contextlib
import json
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from common.errors import MapaError
from experiments.reproduce.points import PROCESSES, Point
from experiments.reproduce.results import Result
from mapa.process_run import one_thread_each
from mapa.processes import interruptible
from mapa.run_reader import read_run

_SECONDS_AN_UPDATE = 0.5  # far beyond any: a run that takes longer hangs
_GRACE = 120.0  # seconds in which a run that was interrupted takes its containers down


class LiveRunError(MapaError):
    """A run on the testbed did not end as it should."""


def run_live(point: Point, *, data_dir: Path, runs: Path) -> Result:
    """Run the point in a process of its own and read its records."""
    try:
        summary = json.loads(_said_by(live_command(point, data_dir=data_dir, runs=runs), point))
        run = read_run(runs / summary["run"])
    except (OSError, ValueError, TypeError, KeyError) as error:
        raise LiveRunError(f"{point.line}: no summary or records: {type(error).__name__}: {error}") from error
    seen = [one for one in run.evaluations if one.updates]
    if not seen:
        raise LiveRunError(f"{point.line}: {run.path} has no evaluation")
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


def live_command(point: Point, *, data_dir: Path, runs: Path) -> list[str]:
    """Return the command; containers get the data folder only where there is one, since it is mounted."""
    word = "containers" if point.engine == "containers" else "run"
    command = [sys.executable, "-P", "-m", "mapa.cli", word, point.file, "--json"]
    for change in point.changes:
        command += ["--set", change]
    command += ["--seed", str(point.seed), "--runs-dir", str(runs)]
    if word == "run":
        return [*command, "--data-dir", str(data_dir), "--processes", str(PROCESSES)]
    command += ["--data-dir", str(data_dir)] if data_dir.is_dir() else []
    return [*command, "--timeout", f"{patience(point):g}"]


def patience(point: Point) -> float:
    """Return the seconds after which a run is given up."""
    return 180 + _SECONDS_AN_UPDATE * point.scenario.iterations


def _said_by(command: Sequence[str], point: Point) -> str:
    """Return what the command printed. However we end, it is interrupted once and may tidy up."""
    with subprocess.Popen(
        interruptible(command),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=one_thread_each(),
        start_new_session=True,  # a second Ctrl-C of the terminal's would leave containers behind
    ) as child:
        try:
            out, errors = child.communicate(timeout=2 * patience(point))  # `mapa containers` has its own
        except subprocess.TimeoutExpired as error:
            _interrupt(child)
            raise LiveRunError(f"{point.line}: timed out after {2 * patience(point):.0f} s") from error
        except BaseException:
            _interrupt(child)
            raise
    if child.returncode != 0 and not _diverged(out):
        raise LiveRunError(f"{point.line}: exit code {child.returncode}: {errors.strip()[-500:]}")
    return out


def _diverged(out: str) -> bool:
    """Whether that is the summary of a model that is no longer finite: a result, as in a simulation."""
    try:
        summary = json.loads(out)
    except ValueError:
        return False
    return isinstance(summary, dict) and summary.get("reason") == "diverged"


def _interrupt(child: subprocess.Popen[str]) -> None:
    child.send_signal(signal.SIGINT)
    with contextlib.suppress(subprocess.TimeoutExpired):
        child.communicate(timeout=_GRACE)
    child.kill()

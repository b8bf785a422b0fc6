"""Runs of a reproduction: points grouped into tasks, each simulated, attacked, or run live on the testbed."""

from __future__ import annotations

import contextlib
import io
import json
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from cloud.assembly import settled
from common.errors import ConfigurationError, MapaError
from common.messages import Fact
from common.randomness import streams_for
from common.records.reader import read_run
from common.records.recorder import Journal
from common.records.tally import Evaluation
from common.scenario.scenario import Scenario
from edge.shards import shards_for
from experiments.harness import Job, require_end
from experiments.reconstruction import Reconstruction, attack
from experiments.reproduce.catalogue import ATTACK, PROCESSES, FigurePoint, Result
from mapa.budget import calibrated
from mapa.processes import interruptible, one_thread_each
from mapa.simulation.simulator import Outcome, World, simulate
from mapa.simulation.synchronous import simulate_synchronously
from mapa.simulation.vectorised import simulate_many

LIVE = ("testbed", "containers")  # need the whole machine, or other work would slow them down
TESTBEDS = ("auto", "containers", "processes")
_TOGETHER = 8  # runs of one product; more gain nothing
_LONGEST = 40.0  # seconds of one task of several runs
_HELD_BYTES = 200e6  # K models of every run
_OUTPUTS = {"lr": 1, "svm": 10, "softmax": 10}
_SECONDS = {"lr": 45e-6, "svm": 180e-6, "softmax": 180e-6, "cnn": 4e-3}  # an update
_SECONDS_AN_UPDATE = 0.5  # far beyond any: a live run that takes longer hangs
_GRACE = 120.0  # seconds in which a live run that was interrupted takes its containers down
_BINS = 150  # of the gradient norms over the iterations
_CELL = ("law", "epsilon", "t", "psnr", "ssim", "correlation", "label_accuracy")
_ROUNDED = {"correlations": 4, "picture": 3, "truth": 3}  # digits


class LiveRunError(MapaError):
    """A run on the testbed did not end as it should."""


def jobs_of(points: Sequence[FigurePoint], data_dir: Path, runs: Path) -> list[Job[Result]]:
    """Group what can run as one product; the longest first, since several cores share the last ones best if short.

    `runs` takes the records of the testbed.
    """
    groups: dict[tuple[object, ...], list[FigurePoint]] = {}
    for point in {point.key: point for point in points}.values():
        s = point.scenario
        data = (s.data.set, s.data.holdout)
        shape = (data, s.model.name, s.workers, s.batch_size, s.iterations, s.evaluate_every)
        groups.setdefault(shape if point.engine == "block" else (point.key,), []).append(point)
    products = []
    for group in groups.values():
        s = group[0].scenario
        held = s.workers * 785 * _OUTPUTS.get(s.model.name, 1) * 4
        width = max(1, min(_TOGETHER, int(_HELD_BYTES // held), int(_LONGEST // cost(group[0]))))
        products += [group[i : i + width] for i in range(0, len(group), width)]
    jobs = [
        Job(
            name=product[0].line,
            labels={point.key: point.label for point in product},
            work=partial(run_points, product, data_dir, runs),
            cost=sum(map(cost, product)),
            alone=product[0].engine in LIVE,
        )
        for product in products
    ]
    return sorted(jobs, key=lambda job: -job.cost)


def cost(point: FigurePoint) -> float:
    """Return how many seconds a point takes, roughly."""
    s = point.scenario
    seconds = _SECONDS.get(s.model.name, 1e-3) * max(1.0, s.batch_size / 24)
    work = s.iterations * (seconds if point.engine == "block" else max(seconds, 120e-6))
    if point.engine in LIVE:
        return (12 if point.engine == "testbed" else 30 + 2 * s.workers) + 2 * work
    return 1 + work


def run_points(points: Sequence[FigurePoint], data_dir: Path, runs: Path) -> list[Result]:
    began = time.perf_counter()
    if points[0].engine == "block":
        outcomes = simulate_many([world_for(point.scenario, data_dir) for point in points], blocks=True)
        results = [_of_outcome(point, outcome) for point, outcome in zip(points, outcomes, strict=True)]
    else:
        results = [_run_alone(point, data_dir, runs) for point in points]
    share = (time.perf_counter() - began) / len(results)
    return [replace(result, wall=share) for result in results]


def _run_alone(point: FigurePoint, data_dir: Path, runs: Path) -> Result:
    if point.engine in LIVE:
        return run_live(point, data_dir=data_dir, runs=runs)
    world = world_for(point.scenario, data_dir)
    if point.engine == "attack":
        return _result(point, [], cells=attack_cells(world, point.updates))
    if point.engine == "synchronous":
        rounds = simulate_synchronously(world)
        require_end(point.line, rounds)
        result = _result(point, rounds.tally.evaluations)
        return replace(result, seconds=rounds.seconds[len(rounds.seconds) - len(result.t) :])
    journal = MemoryJournal()
    result = _of_outcome(point, simulate(world, journal=journal))
    return replace(
        result,
        seconds=journal.times if len(journal.times) == len(result.t) else None,
        norms=journal.norms(world.scenario.workers) if world.scenario.records.diagnostics else None,
    )


def world_for(scenario: Scenario, data_dir: Path) -> World:
    """Return the scenario's world; it shares data, features and test set with the last one of the same data and model.

    There are no caps: z covers an even share of T and one more, which the cyclic order never exceeds.
    """
    shared = _shared_world(scenario, data_dir)
    rows = shards_for(scenario, shared.dataset.train)
    scenario = settled(calibrated(scenario, [len(shard) for shard in rows]), shared.model)
    streams = streams_for(scenario.seed)
    return replace(shared, scenario=scenario, rows=rows, streams=streams, caps=[None] * len(rows))


_last_world: dict[tuple[str, int, str, Path], World] = {}


def _shared_world(scenario: Scenario, data_dir: Path) -> World:
    key = (scenario.data.set, scenario.data.holdout, scenario.model.model_dump_json(), data_dir)
    if key not in _last_world:
        _last_world.clear()  # MNIST's features take 190 MB: one at a time
        open_budget = {"total_epsilon": None, "noise_multiplier": [1.0]}  # z is found for each scenario
        privacy = scenario.privacy.model_copy(update=open_budget)
        _last_world[key] = World.of(scenario.model_copy(update={"privacy": privacy}), data_dir)
    return _last_world[key]


class MemoryJournal(Journal):
    """Keeps times of evaluations and norms of gradients in memory, and nothing else."""

    def __init__(self) -> None:
        super().__init__(io.StringIO())
        self.times: list[float] = []
        self._norms: list[tuple[int, int, float]] = []  # k, n, ‖g‖

    def fact(self, fact: Fact, time: float | None = None) -> None:
        pass

    def write(self, event: str, fields: Mapping[str, Any], time: float | None = None) -> None:
        if event == "evaluated" and time is not None and fields["t"]:
            self.times.append(time)
        elif event == "diagnostic":
            self._norms.append((fields["edge"], fields["sequence"], fields["gradient_norm"]))

    def norms(self, workers: int) -> dict[str, list[float]]:
        """Return mean and deciles of ‖g‖ before clipping, in bins of the update that applies it (cyclic)."""
        t = np.array([(n - 1) * workers + k + 1 for k, n, _ in self._norms])
        norm = np.array([value for _, _, value in self._norms])
        edges = np.linspace(1, t.max() + 1, min(_BINS, len(t)) + 1)
        bins = np.digitize(t, edges) - 1
        rows = [
            (t[bins == i].mean(), norm[bins == i].mean(), *np.quantile(norm[bins == i], (0.1, 0.9)))
            for i in np.unique(bins)
        ]
        columns = zip(("t", "mean", "low", "high"), zip(*rows, strict=True), strict=True)
        return {name: [round(float(value), 5) for value in values] for name, values in columns}


def _of_outcome(point: FigurePoint, outcome: Outcome) -> Result:
    require_end(point.line, outcome)
    tally = outcome.tally
    clips = _clips(point, tally.stages)
    return _result(point, tally.evaluations, staleness=dict(tally.staleness), clips=clips)


def _clips(point: FigurePoint, stages: Sequence[Mapping[str, Any]]) -> list[tuple[int, float]]:
    return [(stage["t"], point.scenario.batch_size * stage["sensitivity"] / 2) for stage in stages]


def _result(point: FigurePoint, evaluations: Sequence[Evaluation], **more: Any) -> Result:
    """Leave out x₁, which no training has changed: the paper's windows and thresholds count updates."""
    seen = [evaluation for evaluation in evaluations if evaluation.updates]
    return Result(
        key=point.key,
        digest=point.scenario.digest,
        engine=point.engine,
        t=[evaluation.updates for evaluation in seen],
        accuracy=[round(evaluation.accuracy, 6) for evaluation in seen],
        loss=[None if evaluation.loss is None else round(evaluation.loss, 6) for evaluation in seen],
        **more,
    )


# -- live runs: processes as `mapa run` starts them, or containers as `mapa containers` does ----------


def run_live(point: FigurePoint, *, data_dir: Path, runs: Path) -> Result:
    """Run the point in a process of its own and read its records."""
    try:
        summary = json.loads(_output_of(live_command(point, data_dir=data_dir, runs=runs), point))
        run = read_run(runs / summary["run"])
    except (OSError, ValueError, TypeError, KeyError) as error:
        raise LiveRunError(f"{point.line}: no summary or records: {type(error).__name__}: {error}") from error
    timed = [e.seconds for e in run.evaluations if e.updates and e.seconds is not None]
    result = _result(
        point,
        run.evaluations,
        seconds=timed if run.timed else None,
        staleness=dict(run.tally.staleness),
        clips=_clips(point, run.stages),
        run=summary["run"],
    )
    if not result.t:
        raise LiveRunError(f"{point.line}: {run.path} has no evaluation")
    return result


def live_command(point: FigurePoint, *, data_dir: Path, runs: Path) -> list[str]:
    """Return the command; containers get the data folder only where it exists, since it is mounted."""
    command = [sys.executable, "-P", "-m", "mapa.cli", *point.words, "--json", "--runs-dir", str(runs)]
    if point.engine == "testbed":
        return [*command, "--data-dir", str(data_dir), "--processes", str(PROCESSES)]
    command += ["--data-dir", str(data_dir)] if data_dir.is_dir() else []
    return [*command, "--timeout", f"{patience(point):g}"]


def patience(point: FigurePoint) -> float:
    """Return the seconds after which a live run is given up."""
    return 180 + _SECONDS_AN_UPDATE * point.scenario.iterations


def _output_of(command: Sequence[str], point: FigurePoint) -> str:
    """Return what the command printed. However this ends, the command is interrupted once and may clean up."""
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
        except BaseException as error:
            child.send_signal(signal.SIGINT)
            with contextlib.suppress(subprocess.TimeoutExpired):
                child.communicate(timeout=_GRACE)
            child.kill()
            if isinstance(error, subprocess.TimeoutExpired):
                raise LiveRunError(f"{point.line}: timed out after {2 * patience(point):.0f} s") from error
            raise
    with contextlib.suppress(ValueError, TypeError, KeyError):
        # a model that is no longer finite is a result, as in a simulation
        if child.returncode == 0 or json.loads(out)["reason"] == "diverged":
            return out
    raise LiveRunError(f"{point.line}: exit code {child.returncode}: {errors.strip()[-500:]}")


def choose_containers(wanted: str, size: str, lacking: Callable[[], str | None]) -> tuple[bool, str]:
    """Return whether live runs are containers, and why not where one might expect them.

    `auto` takes containers at full size alone: quick must end in minutes. `lacking` says what is missing here.
    """
    if wanted not in TESTBEDS:
        raise ConfigurationError(f"testbed = {wanted!r}: allowed are {', '.join(TESTBEDS)}")
    if wanted == "processes" or (wanted == "auto" and size != "full"):
        return False, ""
    missing = lacking()
    if missing is None:
        return True, ""
    if wanted == "containers":
        raise ConfigurationError(f"testbed = 'containers': {missing}; or use --testbed processes")
    return False, missing


def lacking_here() -> str | None:
    """Return what containers lack on this machine and what to do about it; None: nothing."""
    try:
        from mapa.container_run import Images, connect  # the docker library is an extra
    except ImportError:
        return "the docker library is not installed (pip install 'mapa-testbed[containers]')"
    try:
        client = connect()
    except ConfigurationError as error:
        return str(error)
    with contextlib.closing(client):
        present = {tag for image in client.images.list() for tag in image.tags}
    needed = Images()
    images = (needed.cloud, needed.edge, needed.broker)
    missing = [name for name in images if not present & {name, f"{name}:latest"}]
    return f"no image {', '.join(missing)} (`make images` builds the images)" if missing else None


def attack_cells(world: World, updates: Sequence[int]) -> list[dict[str, Any]]:
    """Return what the attack sees, with pictures, as JSON can hold it."""
    shape = list(world.dataset.shape)
    return [
        {
            **{key: getattr(cell, key) for key in _CELL},
            **{key: [round(float(v), n) for v in getattr(cell, key)] for key, n in _ROUNDED.items()},
            "shape": shape,
        }
        for cell in attack(world, iterations=updates, **ATTACK)
    ]


def cell_of(values: Mapping[str, Any]) -> Reconstruction:
    """Return what `attack_cells` wrote, as far as it was rounded."""
    arrays: dict[str, Any] = {key: np.array(values[key]) for key in _ROUNDED}
    return Reconstruction(**{key: values[key] for key in _CELL}, **arrays)

"""mapa chaos: a scenario under faults that follow from a seed, and whether it came through."""

from __future__ import annotations

import secrets
import shutil
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from common.errors import ConfigurationError
from common.quantities import RunId
from common.records.directory import new_run_id
from common.wire.topics import run_id
from mapa.chaos.faults import Fault, choose, make_kills, make_schedule, parse_schedule, shrink
from mapa.chaos.processes import in_processes
from mapa.chaos.trial import ChaosTrial, Environment, MakeEnvironment, TrialOutcome, TrialPlan, plan_of
from mapa.commands import options

_say = partial(print, flush=True)
DISKS = {
    False: "disks: full by RLIMIT_FSIZE of one process, slow by a wait before every write",
    True: "disks: one in memory for every service, full by a file beside its own, slow by a wait before every write",
}


def chaos_command(
    scenario: options.ScenarioName = "quickstart",
    changes: options.Changes = None,
    edges: Annotated[int | None, typer.Option(help="K, instead of the scenario's")] = None,
    iterations: Annotated[int | None, typer.Option(help="T, instead of the scenario's")] = None,
    seed: Annotated[int, typer.Option(help="of the first run's faults; the next run has the next seed")] = 1,
    minutes: Annotated[float, typer.Option(min=0.0, help="begin runs for this many minutes")] = 1.0,
    runs: Annotated[int | None, typer.Option(min=1, help="maximum number of runs")] = None,
    count: Annotated[int, typer.Option(help="faults of a run")] = 6,
    kills: Annotated[
        int | None, typer.Option(help="kill the cloud this often in a run, instead of other faults")
    ] = None,
    faults: Annotated[
        Path | None, typer.Option(help="file with a fault a line, instead of those of the seed; one run")
    ] = None,
    only: Annotated[str | None, typer.Option(help="numbers of the faults to apply, as 3,7; one run")] = None,
    shrinking: Annotated[
        bool, typer.Option("--shrink", help="run a schedule that fails again with fewer faults")
    ] = False,
    tries: Annotated[int, typer.Option(min=1, help="runs of --shrink, at most")] = 12,
    containers: Annotated[
        bool, typer.Option("--containers", help="in containers, instead of processes of this machine")
    ] = False,
    edge_image: Annotated[
        str | None, typer.Option(help="with --containers: image of the edges; absent: what the model needs")
    ] = None,
    keep: Annotated[
        bool, typer.Option("--keep", help="keep the directories of runs that passed too")
    ] = False,
    runs_dir: options.RunsDir = Path("runs"),
    data_dir: options.DataDir = None,
) -> None:
    """Train under kills, cuts and full disks; check what became of it.

    Faults: kills, pauses, partitions, full disks and disordered messages, chosen by the seed.
    """
    if edge_image is not None and not containers:
        raise ConfigurationError("--edge-image: is for --containers")
    if kills is not None and faults is not None:
        raise ConfigurationError("--kills and --faults: give one of them")
    folder = options.data_dir_or_default(data_dir)
    plan = plan_of(scenario, changes or (), edges, iterations, folder, containers=containers)
    given = None if faults is None else parse_schedule(_text(faults), plan.bounds)
    single = given is not None or only is not None
    environment = container_environment(plan, edge_image, data_dir) if containers else in_processes
    attempt = partial(_tried, plan, environment, runs_dir)
    _say(DISKS[containers])
    until = time.monotonic() + 60 * minutes
    done = 0
    while not done or (time.monotonic() < until and not single and done != runs):
        number = seed + done
        if given is not None:
            schedule = given
        elif kills is None:
            schedule = make_schedule(number, plan.bounds, count)
        else:
            schedule = make_kills(number, plan.bounds, kills)
        chosen = schedule if only is None else choose(schedule, only)
        applied = [f"  {place}. {fault}" for place, fault in enumerate(schedule, start=1) if fault in chosen]
        announced = "\n".join([f"seed {number}: {len(chosen)} faults", *applied])
        _say(announced)
        outcome = attempt(number, chosen)
        done += 1
        if outcome.wrong:
            where = f"after {outcome.seconds:.0f} s; everything is in {outcome.directory}"
            wrong = "\n".join(f"  {line}" for line in outcome.wrong)
            _say(f"FAILED: seed {number}, {where}\n{wrong}\n{announced}")
            if shrinking:
                _shrink(attempt, number, chosen, tries)
            raise typer.Exit(1)
        if not keep:
            shutil.rmtree(outcome.directory)
    _say(f"{done} runs came through")


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigurationError(f"--faults {path}: {error}") from error


def container_environment(plan: TrialPlan, edge_image: str | None, data_dir: Path | None) -> MakeEnvironment:
    """Return how containers for each run are made; raise ConfigurationError before anything starts."""
    from mapa.chaos.containers import disk_sizes, in_containers  # the docker library is an extra
    from mapa.commands.containers import container_run
    from mapa.container_run import Stack, connect

    disk_sizes(plan)
    client = connect()

    def make(plan: TrialPlan, run: RunId, directory: Path) -> AbstractContextManager[Environment]:
        containers = container_run(
            Stack(client, f"mapa-chaos-{secrets.token_hex(4)}"),
            *(plan.name, plan.scenario, plan.settings, directory / "runs", data_dir, edge_image),
            gather=600,
            variables={"RUN": run, "MAPA_RUN_FILE": "", "CONNECT_TIMEOUT": "600"},
        )
        containers.retries = 0
        return in_containers(containers, plan, directory)

    return make


Try = Callable[[int, tuple[Fault, ...]], TrialOutcome]


def _tried(
    plan: TrialPlan, environment: MakeEnvironment, runs_dir: Path, seed: int, faults: tuple[Fault, ...]
) -> TrialOutcome:
    """Run once with these faults, and say how it came through."""
    name = f"chaos-{seed}"
    directory = runs_dir / new_run_id(name)
    outcome = ChaosTrial(plan, run_id(name), faults, directory, _say, environment).outcome()
    for line in outcome.skipped:
        _say(f"  not applied: {line}")
    if not outcome.wrong and outcome.evidence is not None:
        evidence = outcome.evidence
        released, received = sum(evidence.released.values()), sum(evidence.received.values())
        _say(
            f"seed {seed}: T = {evidence.updates} reached in {outcome.seconds:.0f} s;"
            f" cloud resumed {outcome.resumed} times, {outcome.again} models sent again;"
            f" released {released} ≥ received {received} ≥ applied {len(evidence.applied)} = distinct;"
            f" mapa verify: {sum(result == 'passed' for _, result, _ in evidence.verified)} checks passed"
        )
    return outcome


def _shrink(attempt: Try, seed: int, faults: tuple[Fault, ...], tries: int) -> None:
    """Look for fewer faults that fail too. Timing is real: what passes once may fail another time."""

    def fails(part: tuple[Fault, ...]) -> bool:
        _say(f"with {len(part)} of {len(faults)} faults:")
        outcome = attempt(seed, part)
        if outcome.wrong:
            _say(f"  fails: {outcome.wrong[0]}")
        else:
            shutil.rmtree(outcome.directory)
        return bool(outcome.wrong)

    left, tried = shrink(faults, fails, tries)
    _say(f"after {tried} tries these faults still fail; write them to a file for --faults:")
    for fault in left:
        _say(str(fault))

"""mapa chaos: a scenario under faults that follow from a seed, and whether it came through."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from common.errors import ConfigurationError
from common.quantities import RunId
from common.records.directory import new_run_id
from common.wire.topics import run_id
from mapa.chaos.node import Bed
from mapa.chaos.ordeal import Ordeal, Outcome
from mapa.chaos.plan import Plan, plan_of
from mapa.chaos.process_bed import ProcessBed
from mapa.chaos.schedule import Fault, choose, make_schedule, parse_schedule, shrink
from mapa.commands import options

Beds = Callable[[Plan, RunId, Path], Bed]
DISKS = {
    False: "disks: full by RLIMIT_FSIZE of one process, slow by a wait before every write",
    True: "disks: one in memory for every node, full by a file beside its own, slow by a wait before every write",
}


def chaos_command(
    scenario: options.ScenarioName = "quickstart",
    changes: options.Changes = None,
    edges: Annotated[int | None, typer.Option(help="K, instead of the scenario's")] = None,
    iterations: Annotated[int | None, typer.Option(help="T, instead of the scenario's")] = None,
    seed: Annotated[int, typer.Option(help="of the first run's faults; the next run has the next seed")] = 1,
    minutes: Annotated[float, typer.Option(min=0.0, help="begin runs until so many minutes are over")] = 1.0,
    runs: Annotated[int | None, typer.Option(min=1, help="begin at most so many runs")] = None,
    count: Annotated[int, typer.Option(help="faults of a run")] = 6,
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
    """Train under kills, pauses, partitions, full disks and disordered messages; check what became of the run."""
    if edge_image is not None and not containers:
        raise ConfigurationError("--edge-image: is for --containers")
    folder = options.data_dir_or_default(data_dir)
    plan = plan_of(scenario, changes or (), edges, iterations, folder, containers=containers)
    bounds = plan.bounds
    given = None if faults is None else parse_schedule(_text(faults), bounds)
    single = given is not None or only is not None
    console = Console(highlight=False, markup=False, soft_wrap=True)
    bed: Beds = ProcessBed
    if containers:
        from mapa.commands.chaos_containers import boxes_for  # the docker library is an extra

        bed = boxes_for(scenario, plan, edge_image, data_dir).bed
    console.print(DISKS[containers])
    until = time.monotonic() + 60 * minutes
    done = 0
    while not done or (time.monotonic() < until and not single and done != runs):
        number = seed + done
        schedule = make_schedule(number, bounds, count) if given is None else given
        chosen = schedule if only is None else choose(schedule, only)
        _announce(console, number, schedule, chosen)
        outcome = _undergo(plan, bed, number, chosen, runs_dir, console)
        done += 1
        if outcome.wrong:
            _complain(console, number, schedule, chosen, outcome)
            if shrinking:
                _shrink(plan, bed, number, chosen, runs_dir, tries, console)
            raise typer.Exit(1)
        if not keep:
            shutil.rmtree(outcome.directory)
    console.print(f"{done} runs came through")


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigurationError(f"--faults {path}: {error}") from error


def _undergo(
    plan: Plan, bed: Beds, seed: int, faults: tuple[Fault, ...], runs_dir: Path, console: Console
) -> Outcome:
    name = f"chaos-{seed}"
    outcome = Ordeal(plan, run_id(name), faults, runs_dir / new_run_id(name), console.print, bed).undergo()
    for line in outcome.skipped:
        console.print(f"  not applied: {line}")
    if not outcome.wrong and outcome.evidence is not None:
        evidence = outcome.evidence
        released, received = sum(evidence.released.values()), sum(evidence.received.values())
        console.print(
            f"seed {seed}: T = {evidence.updates} reached in {outcome.seconds:.0f} s;"
            f" cloud resumed {outcome.resumed} times, {outcome.again} models sent again;"
            f" released {released} ≥ received {received} ≥ applied {len(evidence.applied)} = distinct;"
            f" mapa verify: {sum(result == 'passed' for _, result, _ in evidence.verified)} checks passed"
        )
    return outcome


def _announce(console: Console, seed: int, schedule: Sequence[Fault], chosen: Sequence[Fault]) -> None:
    console.print(f"seed {seed}: {len(chosen)} faults")
    for number, fault in enumerate(schedule, start=1):
        if fault in chosen:
            console.print(f"  {number}. {fault}")


def _complain(
    console: Console, seed: int, schedule: Sequence[Fault], chosen: Sequence[Fault], outcome: Outcome
) -> None:
    console.print(f"FAILED: seed {seed}, after {outcome.seconds:.0f} s; everything is in {outcome.directory}")
    for wrong in outcome.wrong:
        console.print(f"  {wrong}")
    _announce(console, seed, schedule, chosen)


def _shrink(
    plan: Plan, bed: Beds, seed: int, faults: tuple[Fault, ...], runs_dir: Path, tries: int, console: Console
) -> None:
    """Look for fewer faults that fail too. Timing is real: what passes once may fail another time."""

    def fails(part: tuple[Fault, ...]) -> bool:
        console.print(f"with {len(part)} of {len(faults)} faults:")
        outcome = _undergo(plan, bed, seed, part, runs_dir, console)
        if outcome.wrong:
            console.print(f"  fails: {outcome.wrong[0]}")
        else:
            shutil.rmtree(outcome.directory)
        return bool(outcome.wrong)

    left, tried = shrink(faults, fails, tries)
    console.print(f"after {tried} tries these faults still fail; write them to a file for --faults:")
    for fault in left:
        console.print(str(fault))

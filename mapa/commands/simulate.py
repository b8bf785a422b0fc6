"""mapa simulate: one scenario, no network."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from mapa.commands import options
from mapa.output import note, progress_console


def simulate_command(
    scenario: options.ScenarioName,
    changed: options.ScenarioOptions,
    engine: Annotated[
        str,
        typer.Option(help="events; vectorised or block (linear models, cyclic delays); synchronous (rounds)"),
    ] = "events",
    runs: options.RunsDir = Path("runs"),
    data_dir: options.DataDir = None,
    data: Annotated[
        list[Path] | None,
        typer.Option(help='records of one edge, with data.set = "local"; once for each edge, in their order'),
    ] = None,
    test_data: options.TestData = None,
    as_json: options.AsJson = False,
) -> None:
    """Simulate a scenario without a network."""
    from cloud.assembly import explained  # the help needs none of these
    from mapa.cloud_run import EXIT_CODES
    from mapa.recording import check_engine, record_simulation
    from mapa.run_parts import OwnFiles
    from mapa.run_view import bar_on, report, shown_on
    from mapa.simulation.simulator import World, interrupt_between_events

    name, resolved = changed.load(scenario)
    check_engine(resolved, engine)
    own = OwnFiles(tuple(data or ()), test_data) if data or test_data is not None else None
    world = World.of(resolved, options.data_dir_or_default(data_dir), own, say=note)
    if words := explained(world.scenario, world.model):
        note(words)
    # From here on a signal ends the run between two events, so that its directory gets a summary.
    bar = bar_on(progress_console(), f"{resolved.algorithm.name} {resolved.model.name}", resolved.iterations)
    with interrupt_between_events(), bar:
        summary = record_simulation(
            world, name=name, runs=runs, engine=engine, progress=shown_on(bar), say=note
        )
    report(summary, as_json=as_json)
    raise typer.Exit(EXIT_CODES.get(summary["reason"], 1))

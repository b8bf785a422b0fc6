"""mapa simulate: one scenario, no network."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from common.datasets.catalogue import data_directory
from common.errors import ConfigurationError
from common.tally import Tally
from experiments.recording import ENGINES, record_simulation
from experiments.scenario_files import load_scenario
from experiments.simulator import check_world
from experiments.summary_table import print_summary
from experiments.vectorised import check_vectorised
from experiments.world import World


def simulate_command(
    scenario: Annotated[str, typer.Argument(help="a shipped scenario's name, or a TOML file")],
    changes: Annotated[
        list[str] | None, typer.Option("--set", help="KEY=VALUE for any field; empty VALUE removes it")
    ] = None,
    seed: Annotated[int | None, typer.Option(help="instead of the scenario's")] = None,
    edges: Annotated[int | None, typer.Option(help="K, instead of the scenario's")] = None,
    engine: Annotated[
        str, typer.Option(help="events, or vectorised (linear models, cyclic delay)")
    ] = "events",
    runs: Annotated[Path, typer.Option("--runs-dir", help="where runs/<id>/ goes")] = Path("runs"),
    data_dir: Annotated[Path | None, typer.Option(help="instead of MAPA_DATA_DIR")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="print the summary as JSON")] = False,
) -> None:
    """Simulate a scenario: a progress bar, a summary, and runs/<id>/ on disk."""
    if engine not in ENGINES:
        raise ConfigurationError(f"engine = {engine!r}: allowed are {', '.join(ENGINES)}")
    name, resolved = load_scenario(scenario, changes or [], seed=seed, edges=edges)
    world = World.of(resolved, data_dir or data_directory(os.environ))
    check_world(world)
    if engine == "vectorised":
        check_vectorised([world])
    with _progress_bar(resolved.iterations) as bar:
        task = bar.add_task(
            f"{resolved.algorithm.name} {resolved.model.name}", total=resolved.iterations, note=""
        )

        def show(tally: Tally) -> None:
            last = tally.evaluations[-1] if tally.evaluations else None
            bar.update(
                task, completed=tally.updates, note="" if last is None else f"accuracy {last.accuracy:.2%}"
            )

        summary = record_simulation(world, name=name, runs=runs, engine=engine, progress=show)
    _report(summary, as_json)
    if summary["reason"] == "interrupted":
        raise typer.Exit(130)


def _progress_bar(total: int) -> Progress:
    console = Console(stderr=True)
    return Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
        TextColumn("{task.fields[note]}"),
        console=console,
        transient=True,
        disable=not console.is_terminal or total < 1,
    )


def _report(summary: dict[str, Any], as_json: bool) -> None:
    if as_json:
        print(json.dumps(summary, indent=2, ensure_ascii=False))
    else:
        print_summary(summary)

"""mapa run: one scenario between real processes on this machine."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from common.connection import Credentials
from common.rundir import RunDirectory, new_run_id
from common.wire.topics import run_id
from experiments.brokers import resolve_broker
from experiments.cloud_run import EXIT_CODES, Stage, open_cloud
from experiments.commands import options
from experiments.commands.report import report
from experiments.live import view_for
from experiments.local import EdgesFailedError, edge_counts, edge_processes
from experiments.recording import record_cloud
from experiments.scenario_files import load_scenario


def run_command(
    scenario: options.ScenarioName = "quickstart",
    changes: options.Changes = None,
    seed: options.Seed = None,
    edges: options.Edges = None,
    broker: Annotated[
        str, typer.Option(help="auto, mosquitto, embedded, or HOST[:PORT] of a running one")
    ] = "auto",
    processes: Annotated[
        int | None, typer.Option(min=1, help="edge processes; more edges than that share one")
    ] = None,
    runs: options.RunsDir = Path("runs"),
    data_dir: options.DataDir = None,
    as_json: options.AsJson = False,
) -> None:
    """Train with real edges over real MQTT on this machine: the staleness is the network's own."""
    name, resolved = load_scenario(scenario, changes or [], seed=seed, edges=edges)
    data = options.data_dir_or_default(data_dir)
    stage = Stage.of(resolved, data)
    resolved = stage.scenario
    run = run_id(new_run_id(name))
    counts = edge_counts(resolved.workers, processes or 8)
    console = Console(stderr=True)
    with (
        RunDirectory(runs / run) as directory,
        resolve_broker(
            broker,
            directory.path / "broker",
            max_payload=stage.payload_bytes,
            say=None if as_json else sys.stderr,
        ) as address,
        view_for(resolved, console, quiet=as_json) as view,
    ):
        over: list[str] = []
        with (
            open_cloud(
                stage,
                run=run,
                broker=address,
                credentials=Credentials(),
                directory=directory,
                view=view,
                edges_at_least=resolved.workers,
            ) as cloud,
            edge_processes(
                resolved, run=run, broker=address, directory=directory.path, data_dir=data, counts=counts
            ) as children,
        ):
            children.watch(cloud.loop, view, over)
            reason = cloud.serve()
        if over and cloud.service.halted is None:
            raise EdgesFailedError(over[0])
        summary = record_cloud(cloud, name=name, reason=reason, engine="testbed")
    report(summary, as_json=as_json)
    raise typer.Exit(EXIT_CODES.get(reason, 1))

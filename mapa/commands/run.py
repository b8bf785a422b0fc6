"""mapa run: one scenario in processes on this machine."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from common.records.rundir import new_run_id
from common.transport.connection import Credentials
from common.wire.topics import run_id
from mapa.brokers import private, resolve_broker
from mapa.cloud_run import EXIT_CODES, Setting, open_cloud
from mapa.commands import options
from mapa.commands.groups import with_groups
from mapa.commands.report import report
from mapa.commands.scenario_options import ScenarioOptions
from mapa.live import view_for
from mapa.local_run import EdgesFailedError, edge_counts, edge_processes
from mapa.recording import open_records, record_cloud, write_manifest

_OWN_BROKER = 2.0  # seconds for the halt where the broker is ours: one that has died does not come back


@with_groups()
def run_command(
    changed: ScenarioOptions,
    scenario: options.ScenarioName = "quickstart",
    broker: Annotated[
        str, typer.Option(help="auto, mosquitto, embedded, or HOST[:PORT] of a running broker")
    ] = "auto",
    processes: Annotated[
        int | None,
        typer.Option(min=1, help="maximum number of edge processes, which the edges share; default 8"),
    ] = None,
    runs: options.RunsDir = Path("runs"),
    data_dir: options.DataDir = None,
    as_json: options.AsJson = False,
) -> None:
    """Train with a broker, a cloud and edge processes on this machine."""
    name, resolved = changed.load(scenario)
    ours = private(broker)
    data = options.data_dir_or_default(data_dir)
    setting = Setting.of(resolved, data)
    resolved = setting.scenario
    run = run_id(new_run_id(name))
    counts = edge_counts(resolved.workers, processes or 8)
    console = Console(stderr=True)
    with (
        open_records(runs / run) as directory,
        resolve_broker(
            broker,
            directory.path / "broker",
            max_payload=setting.payload_bytes,
            say=None if as_json else sys.stderr,
        ) as address,
        view_for(resolved, console, quiet=as_json) as view,
    ):
        over: list[str] = []
        with (
            open_cloud(
                setting,
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
            write_manifest(
                directory,
                resolved,
                setting.dataset,
                name=name,
                engine="processes",
                shard_sizes=setting.shard_sizes,
            )
            cloud.patience = _OWN_BROKER if ours else cloud.patience
            children.watch(cloud.loop, view, over)
            reason = cloud.serve()
            failed = bool(over) and cloud.service.halted is None
            if cloud.channel.owing:
                children.patience = 0.0  # they will not hear of the halt
            if not failed:  # the records first: edges take their time, and a second Ctrl-C takes it away
                summary = record_cloud(cloud, name=name, reason=reason, engine="processes", own_edges=True)
        if failed:
            raise EdgesFailedError(over[0])
    report(summary, as_json=as_json)
    raise typer.Exit(EXIT_CODES.get(reason, 1))

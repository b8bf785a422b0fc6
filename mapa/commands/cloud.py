"""mapa cloud: the cloud of one run, on any broker."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from common.datasets.source import LOCAL
from common.records.rundir import new_run_id
from mapa import environment
from mapa.cloud_run import EXIT_CODES, Setting, open_cloud
from mapa.commands import options
from mapa.commands.groups import with_groups
from mapa.commands.options import Connection
from mapa.commands.report import report
from mapa.commands.scenario_options import ScenarioOptions
from mapa.live import view_for
from mapa.recording import open_records, record_cloud, write_manifest
from mapa.run_parts import OwnFiles
from mapa.unfinished import unfinished_runs


@with_groups(environment.CLOUD)
def cloud_command(
    scenario: options.ScenarioName,
    connection: Connection,
    changed: ScenarioOptions,
    edges_at_least: Annotated[
        int | None, typer.Option(min=1, help="edges to wait for before the first update")
    ] = None,
    gather: Annotated[
        float | None, typer.Option(min=0.1, help="start with the edges present after N idle seconds")
    ] = None,
    runs_dir: options.RunsDir = Path("runs"),
    data_dir: options.DataDir = None,
    test_data: options.TestData = None,
    as_json: options.AsJson = False,
) -> None:
    """Serve one run until its T updates are applied."""
    name, resolved = changed.load(scenario)
    address, checked = connection.address, connection.run_id
    introduced = connection.credentials()
    own = OwnFiles(test=test_data) if resolved.data.set == LOCAL or test_data is not None else None
    setting = Setting.of(resolved, options.data_dir_or_default(data_dir), own)
    resolved = setting.scenario
    console = Console(stderr=True)
    with (
        open_records(runs_dir / new_run_id(checked)) as directory,
        view_for(resolved, console, quiet=as_json) as view,
    ):
        with open_cloud(
            setting,
            run=checked,
            broker=address,
            credentials=introduced,
            directory=directory,
            view=view,
            edges_at_least=min(edges_at_least or resolved.testbed.edges_at_least, resolved.workers),
            connect_timeout=connection.connect_timeout,
            gather=gather,
        ) as cloud:
            for left in unfinished_runs(checked, runs_dir):
                view.say(f"{left}; this cloud starts a new run at t = 1")
            write_manifest(
                directory,
                resolved,
                setting.dataset,
                name=name,
                engine="network",
                shard_sizes=[len(rows) for rows in setting.rows],  # none where only the edges know
            )
            view.say(
                f"serving run {checked!r} on {address}; edges: mapa edge --broker {address} --run {checked}"
            )
            reason = cloud.serve()
        summary = record_cloud(cloud, name=name, reason=reason, engine="network")
    report(summary, as_json=as_json)
    raise typer.Exit(EXIT_CODES.get(reason, 1))

"""mapa cloud: the cloud of one run, on a broker somewhere."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from common.connection import parse_address
from common.rundir import new_run_id
from common.wire.topics import run_id
from experiments.cloud_run import EXIT_CODES, Setting, open_cloud
from experiments.commands import options
from experiments.commands.report import report
from experiments.live import view_for
from experiments.recording import open_records, record_cloud, write_manifest
from experiments.scenario_files import load_scenario
from experiments.unfinished import unfinished_runs


def cloud_command(
    scenario: options.ScenarioName,
    broker: Annotated[str, typer.Option(help="HOST[:PORT]")],
    run: options.RunName,
    changes: options.Changes = None,
    seed: options.Seed = None,
    edges: options.Edges = None,
    edges_at_least: Annotated[
        int | None, typer.Option(min=1, help="hellos to wait for before the first update")
    ] = None,
    gather: Annotated[
        float | None, typer.Option(min=0.1, help="begin with fewer after so many seconds without a new hello")
    ] = None,
    runs: options.RunsDir = Path("runs"),
    data_dir: options.DataDir = None,
    username: options.Username = None,
    password_file: options.PasswordFile = None,
    tls: options.Tls = False,
    tls_ca: options.TlsCa = None,
    cert: options.Cert = None,
    key: options.Key = None,
    connect_timeout: Annotated[float, typer.Option(help="seconds to wait for the broker at first")] = 60.0,
    as_json: options.AsJson = False,
) -> None:
    """Serve a run until T. 0: finished; 3: no edge has budget left; 130: interrupted."""
    name, resolved = load_scenario(scenario, changes or [], seed=seed, edges=edges)
    address, checked = parse_address(broker), run_id(run)
    introduced = options.credentials(username, password_file, tls, tls_ca, cert, key)
    setting = Setting.of(resolved, options.data_dir_or_default(data_dir))
    resolved = setting.scenario
    console = Console(stderr=True)
    with (
        open_records(runs / new_run_id(checked)) as directory,
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
            connect_timeout=connect_timeout,
            gather=gather,
        ) as cloud:
            for left in unfinished_runs(checked, runs):
                view.say(f"{left}; this cloud begins a new run at t = 1")
            write_manifest(
                directory,
                resolved,
                setting.dataset,
                name=name,
                engine="testbed",
                shard_sizes=setting.shard_sizes,
            )
            view.say(
                f"serving run {checked!r} on {address}; edges: mapa edge --broker {address} --run {checked}"
            )
            reason = cloud.serve()
        summary = record_cloud(cloud, name=name, reason=reason, engine="testbed")
    report(summary, as_json=as_json)
    raise typer.Exit(EXIT_CODES.get(reason, 1))

"""mapa run: one scenario in processes on this machine."""

from __future__ import annotations

import contextlib
import sys
from pathlib import Path
from typing import Annotated

import typer

from mapa.commands import options
from mapa.commands.options import ScenarioOptions
from mapa.output import is_quiet, note, progress_console, say


def run_command(
    changed: ScenarioOptions,
    scenario: options.ScenarioName = "quickstart",
    broker: Annotated[
        str, typer.Option(help="auto, mosquitto, embedded, or HOST[:PORT] of a running broker")
    ] = "auto",
    processes: Annotated[
        int | None,
        typer.Option(
            min=1,
            help="maximum number of edge processes, which edges share; default: one a core, up to 8",
        ),
    ] = None,
    runs: options.RunsDir = Path("runs"),
    data_dir: options.DataDir = None,
    as_json: options.AsJson = False,
    dashboard: Annotated[
        bool,
        typer.Option(
            "--dashboard",
            help="serve the live page too; in a terminal it stays after the run until Ctrl-C",
        ),
    ] = False,
) -> None:
    """Train with a broker, a cloud and edge processes on this machine."""
    from mapa.brokers import private  # the help needs none of these
    from mapa.cloud_run import EXIT_CODES, Setting
    from mapa.commands.dashboard import page_beside
    from mapa.process_run import run_in_processes
    from mapa.run_view import report, view_for

    name, resolved = changed.load(scenario)
    private(broker)  # an address that is none ends here
    data = options.data_dir_or_default(data_dir)
    setting = Setting.of(resolved, data, say=note)
    with page_beside(runs) if dashboard else contextlib.nullcontext() as page:
        if page is not None:
            say(f"watch it live: {page.address}")
        summary = run_in_processes(
            setting,
            view_for(setting.scenario, progress_console(), quiet=as_json),
            name=name,
            runs=runs,
            data_dir=data,
            broker=broker,
            processes=processes,
            say=None if as_json or is_quiet() else sys.stderr,
        )
        report(summary, as_json=as_json)
        watched = sys.stdin.isatty() and sys.stderr.isatty()  # else it must end by itself
        if page is not None and summary["reason"] != "interrupted" and watched:
            say(f"the page stays at {page.address} until Ctrl-C; later: mapa dashboard --runs-dir {runs}")
            with contextlib.suppress(KeyboardInterrupt):
                page.child.wait()
    raise typer.Exit(EXIT_CODES.get(summary["reason"], 1))

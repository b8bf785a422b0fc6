"""mapa cloud: the cloud of one run, on any broker."""

from __future__ import annotations

import sys
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, NoReturn

import typer

from common.datasets.source import LOCAL
from common.errors import ConfigurationError
from common.own_code import allowing
from common.quantities import RunId
from common.records.directory import RunDirectory, new_run_id
from common.records.layout import folder_name
from common.records.reader import records_in
from common.wire.topics import run_id
from mapa.cloud_run import EXIT_CODES, Setting, open_cloud
from mapa.commands import options
from mapa.commands.options import Allowed, Connection, Metrics, ScenarioOptions
from mapa.output import note, printable, progress_console
from mapa.recording import open_records, record_cloud, write_manifest
from mapa.resume import Resumable, ended_with
from mapa.run_parts import OwnFiles
from mapa.run_view import report, view_for
from mapa.runs import find_run, read_object, unfinished_runs

OptionalScenario = Annotated[
    str | None, typer.Argument(help="name of a shipped scenario, or a TOML file; none with --resume")
]


@dataclass(frozen=True, slots=True, kw_only=True)
class CloudConnection(Connection):
    run: Annotated[str | None, typer.Option(help="name of the run on the broker")] = None  # type: ignore[assignment]

    @property
    def run_id(self) -> RunId:
        if self.run is None:
            raise ConfigurationError("--run: missing; the edges need the same name")
        name = run_id(self.run)
        if folder_name(name) != name:
            raise ConfigurationError(
                f"--run {name!r}: must begin with a letter, a digit or _: the folder of its records has this name"
            )
        return name


def cloud_command(
    connection: CloudConnection,
    changed: ScenarioOptions,
    metrics: Metrics,
    scenario: OptionalScenario = None,
    resume: Annotated[
        str | None, typer.Option(help="go on with this run, an id or a directory, where its cloud was killed")
    ] = None,
    started_by: Annotated[
        str | None, typer.Option(hidden=True, help="who starts it: kept in the manifest, for a container")
    ] = None,
    suspend: Annotated[
        bool, typer.Option("--suspend", help="SIGTERM ends the cloud, not its run: --resume goes on with it")
    ] = False,
    edges_at_least: Annotated[
        int | None,
        typer.Option(
            min=1,
            help="edges to wait for before the first update; default: testbed.edges_at_least, or all of them with"
            ' data.set = "local" or --gather',
        ),
    ] = None,
    gather: Annotated[
        float | None,
        typer.Option(
            min=0.1,
            help="start with the edges present after N idle seconds; where edges are slow to come, up to 10 N. With"
            ' data.set = "local" only beside --edges-at-least',
        ),
    ] = None,
    allow: Allowed = None,
    code: options.Code = None,
    runs_dir: options.RunsDir = Path("runs"),
    data_dir: options.DataDir = None,
    test_data: options.TestData = None,
    as_json: options.AsJson = False,
) -> None:
    """Serve one run until its T updates are applied."""
    if resume is None and (allow or code):
        raise ConfigurationError("--allow, --code: only with --resume; a SCENARIO is run with what it names")
    options.use_code(code)
    if resume is not None:
        given = scenario is not None or edges_at_least is not None or gather is not None
        if given or changed != ScenarioOptions():
            raise ConfigurationError(
                f"--resume {resume}: a run goes on as it began; leave out SCENARIO and what changes it"
            )
        resumed = _resumable(find_run(resume, runs_dir), connection)
        reached = {**_reached(connection, metrics), "suspends": suspend}
        _serve(
            resumed.setting(data_dir, test_data),
            open_records(resumed.path, resumed=True),
            lambda _, say: say(f"serving run {resumed.run!r} on {connection.address} again"),
            (resumed.name, resumed.engine),
            {**reached, "run": resumed.run, "edges_at_least": 1, "incarnation": resumed.incarnation},
            as_json=as_json,
        )
    if scenario is None:
        raise ConfigurationError("SCENARIO: missing; or --resume RUN")
    name, resolved = changed.load(scenario)
    run, address = connection.run_id, connection.address
    reached = {**_reached(connection, metrics), "suspends": suspend}
    local = resolved.data.set == LOCAL
    own = OwnFiles(test=test_data) if local or test_data is not None else None
    if edges_at_least is None and (local or gather is not None):
        told = "edges_at_least" in resolved.testbed.model_fields_set
        edges_at_least = resolved.testbed.edges_at_least if told else resolved.workers
        gather = None if local else gather
    awaited = min(edges_at_least or resolved.testbed.edges_at_least, resolved.workers)
    setting = Setting.of(resolved, options.data_dir_or_default(data_dir), own, say=note)

    def begin(directory: RunDirectory, say: Callable[[str], None]) -> None:
        for path, left in unfinished_runs(run, runs_dir):
            code = allowing((read_object(path / "manifest.json") or {}).get("scenario"))
            say(f"{left}; this cloud starts a new run at t = 1; that one goes on with --resume {path}{code}")
        write_manifest(directory, setting, name=name, engine="network", started_by=started_by)
        more = " --data FILE" if local else ""
        say(f"serving run {run!r} on {address}; edges: mapa edge --broker {address} --run {run}{more}")
        if awaited > 1:
            sooner = "" if gather is None else f", or {gather:g} s without a new one"
            say(f"waiting for {awaited} edges before the first update{sooner}; --edges-at-least changes that")

    _serve(
        setting,
        open_records(runs_dir / new_run_id(run)),
        begin,
        (name, "network"),
        {**reached, "run": run, "edges_at_least": awaited, "gather": gather},
        as_json=as_json,
    )


def _reached(connection: CloudConnection, metrics: Metrics) -> dict[str, Any]:
    """Return what `open_cloud` is told of the broker and of the port for metrics."""
    credentials = connection.credentials()
    if warning := options.unproven(connection.address, [credentials]):
        note(warning)
    return {
        "broker": connection.address,
        "credentials": credentials,
        "connect_timeout": connection.connect_timeout,
        "reached": connection.words,
        "metrics": metrics.listener(),
    }


def _resumable(path: Path, connection: CloudConnection) -> Resumable:
    """Return the run of a directory; of one that has ended, print how, and exit as it did."""
    with records_in(path):
        ended = ended_with(path)
        if ended is None:
            run = Resumable.of(path)
    if ended is not None:
        print(f"{path}: has ended, {printable(ended)}: nothing to resume", file=sys.stderr)
        raise typer.Exit(EXIT_CODES.get(ended, 1))
    if connection.run not in (None, run.run):
        raise ConfigurationError(f"--run {connection.run}: the run that is resumed is called {run.run!r}")
    return run


def _serve(
    setting: Setting,
    records: AbstractContextManager[RunDirectory],
    begin: Callable[[RunDirectory, Callable[[str], None]], None],
    named: tuple[str, str],  # scenario and engine, in the summary
    how: dict[str, Any],  # for `open_cloud`
    *,
    as_json: bool,
) -> NoReturn:
    """Serve a run to its end, print its summary, and exit."""
    with records as directory, view_for(setting.scenario, progress_console(), quiet=as_json) as view:
        with open_cloud(setting, directory=directory, view=view, **how) as cloud:
            begin(directory, view.say)
            reason = cloud.serve()
        summary = record_cloud(cloud, name=named[0], reason=reason, engine=named[1])
    report(summary, as_json=as_json)
    raise typer.Exit(cloud.exit_code(reason))

"""mapa doctor: what this machine has, what is missing, and the command that fixes it."""

from __future__ import annotations

from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from common.errors import ConfigurationError
from common.transport.connection import MqttOptions
from mapa import output
from mapa.commands import options
from mapa.commands.common_options import with_groups
from mapa.commands.options import Connection
from mapa.doctor import BASIC, OK, THIS_BROKER, MachineCheck, check_broker, examine

_STYLES = {"ok": "green", "note": "cyan", "missing": "yellow", "broken": "bold red"}


@dataclass(frozen=True, slots=True, kw_only=True)
class AnyBroker(Connection):
    """A broker to look at, or none; no run."""

    broker: Annotated[str | None, typer.Option(help="connect to it, HOST[:PORT], and measure it")] = None  # type: ignore[assignment]
    run: Annotated[str | None, typer.Option(hidden=True)] = None  # type: ignore[assignment]
    connect_timeout: Annotated[float, typer.Option(help="seconds to wait for a connection")] = 5.0


@with_groups()
def doctor_command(
    connection: AnyBroker,
    purposes: Annotated[
        list[str] | None,
        typer.Option(
            "--for",
            help="what must work beside the basic use: containers, dashboard, an extra, a data set …; repeatable",
        ),
    ] = None,
    checksums: Annotated[
        bool,
        typer.Option("--checksums/--no-checksums", help="read the data sets and compare their checksums"),
    ] = True,
    runs: options.RunsDir = Path("runs"),
    data_dir: options.DataDir = None,
    as_json: options.AsJson = False,
) -> None:
    """Check this machine: what is missing, what it is needed for, how to mend it. Changes nothing."""
    mqtt = _broker(connection)
    checks = list(examine(runs, options.data_dir_or_default(data_dir), checksums=checksums))
    known = {purpose for check in checks for purpose in check.purposes}
    for purpose in purposes or ():
        if purpose not in known:
            near = get_close_matches(purpose, known, n=1)
            hint = f"; did you mean {near[0]!r}?" if near else ""
            raise ConfigurationError(f"--for {purpose!r}: allowed are {', '.join(sorted(known))}{hint}")
    asked = {BASIC, *(purposes or ())}
    if mqtt is not None:
        checks += check_broker(mqtt, connection.connect_timeout)
        asked.add(THIS_BROKER)
    wrong = [check for check in checks if check.is_in_the_way(asked)]
    if as_json:
        document = {
            "works": not wrong,
            "purposes": sorted(asked),
            "wrong": [check.name for check in wrong],
            "findings": [check.as_dict() for check in checks],
        }
        output.print_json(document)
    else:
        _print(checks, wrong, asked)
    raise typer.Exit(1 if wrong else 0)


def _broker(connection: AnyBroker) -> MqttOptions | None:
    if connection.broker is None:
        if connection != AnyBroker(connect_timeout=connection.connect_timeout):
            raise ConfigurationError("--username, --tls and their like: require --broker")
        return None
    given = connection.credentials()
    return MqttOptions(
        address=connection.address,
        client_id="doctor",
        username=given.username,
        password=given.password,
        tls=given.tls,
    )


def _print(checks: list[MachineCheck], wrong: list[MachineCheck], asked: set[str]) -> None:
    table = Table("", "state", "found", "needed for", show_lines=False)
    for check in checks:
        state = Text(check.state, style=_STYLES[check.state])
        table.add_row(check.name, state, Text(output.visible(check.found)), check.needed_for)
    console = Console()
    console.width = console.width if console.is_terminal else max(console.width, 200)
    console.print(table)
    console = Console(soft_wrap=True, highlight=False, markup=False)
    fixes = [check for check in checks if check.fix and check.state != OK]
    if fixes:
        console.print("to fix it:")
    for check in fixes:
        console.print(f"  {check.name}: {check.fix}")
    works = f"all that is needed for {', '.join(sorted(asked))} works"
    console.print(f"not {works}: {', '.join(check.name for check in wrong)}" if wrong else works)

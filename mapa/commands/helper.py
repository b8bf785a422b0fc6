"""mapa helper: one blind helper of a run's secure sums, on any broker."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from mapa import output
from mapa.commands.options import Connection


def helper_command(
    connection: Connection,
    name: Annotated[str, typer.Option(help="name of this helper: its branch of topics, and its broker user")],
    place: Annotated[
        int, typer.Option(min=0, max=6, help="place among the run's helpers, from 0; each has one of its own")
    ],
    state_dir: Annotated[
        Path,
        typer.Option(help="folder of its keys and of what it signed; never delete it, never put a copy back"),
    ] = Path("helper-state"),
) -> None:
    """Open sums of a run's masked releases, and see none of them."""
    from common.wire.topics import edge_id
    from mapa.helper.program import serve_helper  # cryptography: the help does without

    code = serve_helper(
        connection.run_id,
        edge_id(name),
        place,
        state_dir,
        connection.address,
        connection.credentials(),
        connect_timeout=connection.connect_timeout,
        say=_say,
    )
    raise typer.Exit(code)


def _say(text: str) -> None:
    print(output.visible(text), file=sys.stderr, flush=True)

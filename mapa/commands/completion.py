"""mapa completion: a script that completes the program's words in a shell."""

from __future__ import annotations

from typing import Annotated

import typer

from common.errors import ConfigurationError


def completion_command(shell: Annotated[str, typer.Argument(help="bash, zsh or fish")]) -> None:
    """Print a script that completes commands, options, scenarios and run ids in a shell."""
    from mapa.completion import SHELLS, script

    if shell not in SHELLS:
        raise ConfigurationError(f"shell = {shell!r}: allowed are {', '.join(SHELLS)}")
    print(script(shell), end="")

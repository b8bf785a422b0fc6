"""mapa ledger: `show`, which is meant where no command is named, and `charge`."""

from __future__ import annotations

from typing import Any

import typer
from typer.core import TyperGroup

from mapa.commands.charge import charge_command
from mapa.commands.ledger import ledger_command

_USUAL = "show"


class LedgerGroup(TyperGroup):
    """`mapa ledger RUN` is `mapa ledger show RUN`; a run that is named as a command is called by its path."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        if args and args[0] not in {*self.commands, "--help"}:
            args = [_USUAL, *args]
        return super().parse_args(ctx, args)


app = typer.Typer(
    cls=LedgerGroup,
    no_args_is_help=True,
    help="Privacy spent: `mapa ledger RUN` is short for `mapa ledger show RUN`.",
)
app.command(_USUAL)(ledger_command)
app.command("charge")(charge_command)

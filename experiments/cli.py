"""mapa: every command, and the one place where an error becomes an exit code."""

from __future__ import annotations

import sys

import typer
from rich.console import Console

from common.errors import ConfigurationError, MapaError
from experiments.commands import scenario
from experiments.commands.cloud import cloud_command
from experiments.commands.data import app as data_app
from experiments.commands.edge import edge_command
from experiments.commands.ledger import calibrate_command, ledger_command
from experiments.commands.run import run_command
from experiments.commands.schedule import schedule
from experiments.commands.simulate import simulate_command

app = typer.Typer(
    name="mapa",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    help="Asynchronous federated learning with differential privacy: AUDP and MAPA, simulated and on a real network.",
)
app.command("schedule")(schedule)
app.command("simulate")(simulate_command)
app.command("run")(run_command)
app.command("cloud")(cloud_command)
app.command("edge")(edge_command)
app.command("ledger")(ledger_command)
app.command("calibrate")(calibrate_command)
app.add_typer(scenario.app, name="scenario")
app.add_typer(data_app, name="data")


def main() -> None:
    """Run a command; 0 done, 1 failed, 2 wrong configuration or usage, 130 interrupted."""
    try:
        app()
    except ConfigurationError as error:
        _say(f"configuration error: {error}")
        sys.exit(2)
    except MapaError as error:
        _say(f"error: {error}")
        sys.exit(1)
    except KeyboardInterrupt:
        sys.exit(130)


def _say(text: str) -> None:
    Console(stderr=True, soft_wrap=True, highlight=False).print(text, style="red", markup=False)


if __name__ == "__main__":
    main()

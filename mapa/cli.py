"""mapa: all commands, and the one place where an error becomes an exit code."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Sequence
from importlib.metadata import version as version_of
from typing import Annotated

import typer

from common.errors import ConfigurationError, MapaError
from mapa.command_help import epilog
from mapa.signals import interrupted_by_signals
from mapa.threads import one_thread

# Loaded when asked for: an edge on a small board needs none of the others, and starts twice as fast.
COMMANDS = {
    "init": "mapa.commands.init:init_command",
    "simulate": "mapa.commands.simulate:simulate_command",
    "run": "mapa.commands.run:run_command",
    "cloud": "mapa.commands.cloud:cloud_command",
    "edge": "mapa.commands.edge:edge_command",
    "containers": "mapa.commands.containers:containers_command",
    "chaos": "mapa.commands.chaos:chaos_command",
    "schedule": "mapa.commands.schedule:schedule",
    "algorithms": "mapa.commands.algorithms:algorithms_command",
    "calibrate": "mapa.commands.ledger:calibrate_command",
    "attack": "experiments.commands.attack:attack_command",
    "observe": "experiments.commands.observe:observe_command",
    "audit": "experiments.commands.audit:audit_command",
    "reproduce": "experiments.commands.reproduce:reproduce_command",
    "compare": "mapa.commands.compare:compare_command",
    "dashboard": "mapa.commands.dashboard:dashboard_command",
    "replay": "mapa.commands.replay:replay_command",
    "bundle": "mapa.commands.verify:bundle_command",
    "verify": "mapa.commands.verify:verify_command",
}
GROUPS = {
    "ledger": "mapa.commands.ledger_group:app",
    "scenario": "mapa.commands.scenario:app",
    "data": "mapa.commands.data:app",
    "devices": "mapa.commands.devices:app",
}

FORMER_NAMES = {"testbed": "containers"}  # still accepted, and in no help

_SERVICES = (
    "run",
    "cloud",
    "edge",
    "chaos",
    "replay",
    "verify",
    "devices",
)  # one BLAS thread each; the others may use what they find
_CHEAPEST = "schedule"  # a program needs a command, also where it only prints its version


def build(arguments: Sequence[str]) -> typer.Typer:
    """Return the program with the one command that the arguments name, or with all of them."""
    app = typer.Typer(name="mapa", no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False)

    @app.callback(epilog=epilog("mapa"))
    def mapa(
        version: Annotated[
            bool,
            typer.Option("--version", callback=_say_version, is_eager=True, help="show the version"),
        ] = False,
    ) -> None:
        """Asynchronous federated learning with differential privacy: AUDP and MAPA, simulated or over MQTT."""

    wanted = arguments[0] if arguments and arguments[0] in {*COMMANDS, *GROUPS} else None
    if list(arguments) == ["--version"]:
        wanted = _CHEAPEST
    for name, place in {**COMMANDS, **GROUPS}.items():
        if wanted in (None, name):
            module, _, attribute = place.partition(":")
            loaded = importlib.import_module(module)
            if name in GROUPS:
                group: typer.Typer = getattr(loaded, attribute)
                for command in group.registered_commands:
                    command.epilog = epilog(
                        f"{name} {command.name or getattr(command.callback, '__name__', '')}"
                    )
                app.add_typer(group, name=name, epilog=epilog(name))
            else:
                kind = getattr(loaded, "COMMAND_CLASS", None)
                app.command(name, cls=kind, epilog=epilog(name))(getattr(loaded, attribute))
    return app


def main() -> None:
    """Run a command; 0 done, 1 failed, 2 wrong configuration or usage, 130 interrupted."""
    arguments = current_name(sys.argv[1:])
    if arguments and arguments[0] in _SERVICES:
        one_thread()  # before a command imports numpy
    try:
        with interrupted_by_signals():
            build(arguments)(arguments, prog_name="mapa")
    except ConfigurationError as error:
        _say(f"configuration error: {error}")
        sys.exit(2)
    except MapaError as error:
        _say(f"error: {error}")
        sys.exit(1)
    except KeyboardInterrupt:
        sys.exit(130)


def current_name(arguments: Sequence[str]) -> list[str]:
    """Return the arguments with a command's former name replaced by its present one; print that once."""
    name, rest = arguments[:1], arguments[1:]
    if name and name[0] in FORMER_NAMES:
        present = FORMER_NAMES[name[0]]
        print(f"`mapa {name[0]}` is now `mapa {present}`; the old name still works", file=sys.stderr)
        name = [present]
    return [*name, *rest]


def _say_version(asked: bool) -> None:
    if asked:
        print(f"mapa {version_of('mapa-testbed')}")
        raise typer.Exit


def _say(text: str) -> None:
    print(f"\033[31m{text}\033[0m" if sys.stderr.isatty() else text, file=sys.stderr)


if __name__ == "__main__":
    main()

"""mapa: all commands, and the one place where an error becomes an exit code."""

from __future__ import annotations

import importlib
import os
import sys
import traceback
from collections.abc import Sequence
from typing import Annotated, Any

import typer
from typer.core import TyperCommand, TyperGroup

from common.errors import ConfigurationError, MapaError
from mapa import output
from mapa.command_help import ABOUT, epilog
from mapa.commands.common_options import with_common_options
from mapa.commands.completion import VARIABLE
from mapa.processes import interrupted_by_signals, one_thread

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
    "pace": "mapa.commands.devices:pace_command",
    "calibrate": "mapa.commands.ledger:calibrate_command",
    "attack": "experiments.commands.attack:attack_command",
    "observe": "experiments.commands.attack:observe_command",
    "audit": "experiments.commands.audit:audit_command",
    "reproduce": "experiments.commands.reproduce:reproduce_command",
    "compare": "mapa.commands.compare:compare_command",
    "dashboard": "mapa.commands.dashboard:dashboard_command",
    "export": "mapa.commands.export:export_command",
    "replay": "mapa.commands.verify:replay_command",
    "bundle": "mapa.commands.verify:bundle_command",
    "verify": "mapa.commands.verify:verify_command",
    "scenarios": "mapa.commands.scenario:scenarios_command",
    "doctor": "mapa.commands.doctor:doctor_command",
    "completion": "mapa.commands.completion:completion_command",
}
GROUPS = {
    "runs": "mapa.commands.runs:app",
    "ledger": "mapa.commands.ledger:app",
    "scenario": "mapa.commands.scenario:app",
    "data": "mapa.commands.data:app",
    "devices": "mapa.commands.devices:app",
}

FORMER_NAMES = {"testbed": "containers"}  # still accepted, and in no help

# One BLAS thread each; the others may use what they find.
_SERVICES = ("run", "cloud", "edge", "pace", "chaos", "replay", "verify", "devices")


class LazyGroup(TyperGroup):
    """The program: it knows the first line of every command's help, and imports the one that is called."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        for name, about in ABOUT.items():
            self.commands.setdefault(name, TyperCommand(name=name, help=about))

    def list_commands(self, ctx: Any) -> list[str]:  # noqa: ARG002
        return [*COMMANDS, *GROUPS]

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        if args[0] in self.commands:
            program: Any = typer.main.get_command(build(args[:1]))
            self.commands[args[0]] = program.commands[args[0]]
        return super().resolve_command(ctx, args)


def build(arguments: Sequence[str]) -> typer.Typer:
    """Return the program with the one command loaded that the arguments name, or with all of them."""
    app, wanted = _program(), named_in(arguments)
    for name in (wanted,) if wanted is not None else {**COMMANDS, **GROUPS}:
        _load(app, name)
    return app


def named_in(arguments: Sequence[str]) -> str | None:
    """Return the command that the arguments name, behind the program's own options; None: none that we have."""
    word = next((word for word in arguments if not word.startswith("-")), None)
    return word if word in {*COMMANDS, *GROUPS} else None


def _program() -> typer.Typer:
    app = typer.Typer(
        name="mapa", cls=LazyGroup, no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False
    )

    @app.callback(epilog=epilog("mapa"))
    def mapa(
        version: Annotated[  # noqa: ARG001
            bool,
            typer.Option("--version", callback=_say_version, is_eager=True, help="show the version"),
        ] = False,
        debug: Annotated[
            bool, typer.Option("--debug", help="show the traceback of an error; also MAPA_DEBUG=1")
        ] = False,
    ) -> None:
        """Asynchronous federated learning with differential privacy: AUDP and MAPA, simulated or over MQTT."""
        if debug:
            output.debug()

    return app


def _load(app: typer.Typer, name: str) -> None:
    module, _, attribute = {**COMMANDS, **GROUPS}[name].partition(":")
    loaded: Any = importlib.import_module(module)
    found = getattr(loaded, attribute)
    if name not in GROUPS:
        kind = getattr(loaded, "COMMAND_CLASS", None)
        app.command(name, cls=kind, epilog=epilog(name))(with_common_options(found, name))
        return
    group: typer.Typer = found
    for command in group.registered_commands:
        path = f"{name} {command.name or getattr(command.callback, '__name__', '')}"
        command.epilog = epilog(path)
        if command.callback is not None:
            command.callback = with_common_options(command.callback, path)
    app.add_typer(group, name=name, epilog=epilog(name))


def main() -> None:
    """Run a command, and turn whatever ends it into one of `command_help.EXIT_CODES`."""
    output.begin(os.environ)
    arguments = current_name(sys.argv[1:])
    name = named_in(arguments)
    if name in _SERVICES:
        one_thread()  # before a command imports numpy
    try:
        with interrupted_by_signals():
            if VARIABLE in os.environ:
                from typer.completion import get_completion_inspect_parameters

                get_completion_inspect_parameters()  # registers the shells
            _program()(arguments, prog_name="mapa")
    except SystemExit as end:
        sys.exit(output.flushed(end.code))
    except BrokenPipeError:
        sys.exit(output.flushed(1))
    except KeyboardInterrupt:
        sys.exit(130)
    except Exception as error:
        if isinstance(error, OSError) and output.flushed(0):
            sys.exit(1)  # it was the output that could not be written
        _tell(error)
        sys.exit(2 if isinstance(error, ConfigurationError) else 1)


def _tell(error: Exception) -> None:
    """Say what went wrong in one line, with its traceback where that was asked for."""
    if output.wants_tracebacks():
        traceback.print_exception(error)
    if isinstance(error, ConfigurationError):
        _say(f"configuration error: {error}")
    elif isinstance(error, MapaError):
        _say(f"error: {error}")
    else:
        _say(output.unexpected(error))


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
        from importlib.metadata import version as version_of  # slow to load, and nobody else asks

        print(f"mapa {version_of('mapa-testbed')}")
        raise typer.Exit


def _say(text: str) -> None:
    text = output.visible(text)  # a file may have named what is wrong
    print(f"\033[31m{text}\033[0m" if output.coloured(sys.stderr) else text, file=sys.stderr)


if __name__ == "__main__":
    main()

"""mapa: all commands, what their help says, and the one place where an error becomes an exit code."""

from __future__ import annotations

import importlib
import os
import sys
import traceback
from collections.abc import Sequence
from typing import Annotated, Any

import typer
from typer.core import TyperCommand

from common.errors import ConfigurationError, MapaError
from mapa import output
from mapa.commands.completion import VARIABLE
from mapa.commands.help import SETTINGS, PanelledCommand, SectionedGroup
from mapa.commands.options import with_added_options
from mapa.processes import interrupted_by_signals, one_thread

EXIT_CODES = {  # every code of every command; each command's help says which are its own
    0: "done, finished, or nothing found wrong",
    1: "failed: an error while it ran, a check that did not hold, a run that diverged, a closed pipe",
    2: "wrong configuration or usage: nothing was started",
    3: "no edge has budget left",
    4: "an edge found no free shard",
    5: "the run has ended, but its halt was not delivered: the command that it prints tells the edges",
    143: "a cloud with --suspend got SIGTERM: its run goes on with --resume",
    130: "interrupted by Ctrl-C or SIGTERM (of an edge that takes part: by Ctrl-C); records are kept",
}
_WRONG = "2 wrong configuration or usage"
_DONE = f"0 done, 1 failed, {_WRONG}, 130 interrupted"
_TRAINED = (
    f"0 finished or at its time limit, 1 failed or diverged, {_WRONG}, 3 no edge has budget left, 130 interrupted"
    " (records are kept)"
)


# By the words behind `mapa`: the first line of the help, which `mapa --help` shows without loading a command ("": it is
# one of a group), and the words behind the name as an example.
COMMANDS = {
    "init": ("Write a project: a scenario, a model of your own, how to run it.", "my-project"),
    "simulate": ("Simulate a scenario without a network.", "quickstart --seed 1 --set algorithm.theta=0.7"),
    "run": (
        "Train with a broker, a cloud and edge processes on this machine.",
        "quickstart --edges 5 --links wan",
    ),
    "cloud": (
        "Serve one run until its T updates are applied.",
        "quickstart --broker vm.example.org --run first --edges-at-least 3",
    ),
    "edge": (
        "Take part in a run until it ends or the budget is spent.",
        "--broker vm.example.org --run first --total-epsilon 2",
    ),
    "helper": (
        "Open sums of a run's masked releases, and see none of them.",
        "--broker 127.0.0.1:1883 --run first --name witness-0 --place 0",
    ),
    "containers": (
        "Train in containers on this machine, with faults on request.",
        "quickstart --edges 5 --fault 'kill edge-3 at t=500 for 2s'",
    ),
    "kubernetes": (
        "Train on a Kubernetes cluster, one pod per edge, with an authority and a broker of the run's own.",
        "quickstart --edges 20 --overlay several-nodes",
    ),
    "chaos": (
        "Train under kills, cuts and full disks; check what became of it.",
        "quickstart --seed 1 --minutes 10",
    ),
    "schedule": (
        "Print ΔS, Δ_b, P, γ and T_s of the stages within T updates.",
        "--batch-size 12 --sigma 30 --smoothness 10 --delta 1e-3 --theta 0.5"
        " --epsilon 0.1 --tau-max 5 --loss-gap 2.3 --iterations 25000",
    ),
    "algorithms": (
        "List the algorithms: what each does, and its options.",
        "mapa",
    ),
    "pace": (
        "Measure how many gradients a second this machine makes.",
        "quickstart --seconds 5",
    ),
    "calibrate": (
        "Find the smallest noise multiplier z within a total (ε, δ).",
        "--total-epsilon 2 --releases 200 --batch-size 32 --shard 1000",
    ),
    "attack": (
        "Reconstruct images from gradients that the edge code released.",
        "quickstart --epsilon 0.1 --epsilon 1",
    ),
    "observe": (
        "Record the gradients of a run as any reader of its topics can.",
        "--broker vm.example.org --run first --out payloads --limit 10",
    ),
    "audit": (
        "Bound ε from below by attacking the real release code.",
        "quickstart --rounds 20000",
    ),
    "reproduce": (
        "Run the paper's experiments and judge its claims.",
        "--quick",
    ),
    "compare": (
        "Plot runs: a metric over updates and over seconds.",
        "RUN ANOTHER-RUN --out comparison",
    ),
    "dashboard": (
        "Serve a live page of the runs in a folder; changes nothing.",
        "--runs-dir runs --open",
    ),
    "export": (
        "Write a run's records for another program.",
        "RUN --to tensorboard --follow",
    ),
    "replay": (
        "Compute a run's model from its gradient log; same bit for bit?",
        "RUN --algorithm audp",
    ),
    "bundle": (
        "Put a run that has ended into one file, with hashes.",
        "RUN --ledger state --out run.mapa.zip",
    ),
    "verify": (
        "Check that records, log, statements and model of a run agree.",
        "run.mapa.zip",
    ),
    "scenarios": (
        "Show the shipped scenarios as a table.",
        "--model lr",
    ),
    "doctor": (
        "Check this machine: what is missing, and how to fix it.",
        "--for containers --for dashboard",
    ),
    "completion": (
        "Print a script that completes commands, options, scenarios and run ids in a shell.",
        "bash",
    ),
    "runs": ("Runs on record: list, show, rm.", "list --state finished --sort started"),
    "runs list": ("", "--state finished --sort started"),
    "runs show": ("", "latest"),
    "runs rm": ("", "quickstart-20260101-120000-0123abcd --yes"),
    "ledger": ("Privacy spent; `mapa ledger RUN` is `mapa ledger show RUN`.", "runs/RUN"),
    "ledger show": ("", "runs/RUN"),
    "ledger charge": ("", "--state state --run first --edge edge-0123456789ab --through 58"),
    "scenario": ("Scenario files: one TOML = one run.", "show quickstart --set edges=20"),
    "scenario list": ("", "--figures"),
    "scenario schema": ("", ""),
    "scenario show": ("", "quickstart --set edges=20"),
    "data": ("Data sets: list, get, where, show.", "get mnist usps"),
    "data list": ("", "--json"),
    "data where": ("", ""),
    "data show": ("", "quickstart --set data.partition=dirichlet"),
    "data get": ("", "--scenario cnn-mnist"),
    "certs": ("Identities by certificate: make, enrol, revoke.", "init vm.example.org"),
    "certs init": ("", "vm.example.org 192.0.2.7"),
    "certs cloud": ("", ""),
    "certs edge": ("", "lab-0 lab-1"),
    "certs helper": ("", "witness"),
    "certs bridge": ("", "north lab=10 --host 10.0.0.5 --to vm.example.org"),
    "certs enrol": ("", "north south --host vm.example.org"),
    "certs revoke": ("", "north"),
    "certs rotate": ("", "lab-0 broker"),
    "certs show": ("", "--json"),
    "certs passwords": ("", "lab=10 desk=2"),
    "devices": (
        "Devices that edges pose as: presets, and this machine measured.",
        "measure --name attic --against 0.4",
    ),
    "devices list": ("", "--json"),
    "devices measure": ("", "--name attic --against 0.4"),
}
SECTIONS = {  # of `mapa --help`
    "Start": ("init", "scenarios", "scenario", "data", "doctor", "completion"),
    "Run": ("simulate", "run", "cloud", "edge", "helper", "containers", "kubernetes"),
    "Look": ("runs", "dashboard", "compare", "export", "verify", "bundle", "replay"),
    "Privacy": ("ledger", "calibrate", "audit", "attack", "observe"),
    "Research": ("algorithms", "schedule", "reproduce"),
    "Operate": ("certs", "chaos", "devices", "pace"),
}
GROUPS = ("runs", "ledger", "scenario", "data", "certs", "devices")
_PLACES = {  # where a command's function is, if not NAME_command in mapa/commands/NAME.py
    "schedule": "mapa.commands.schedule:schedule",
    "pace": "mapa.commands.devices:pace_command",
    "calibrate": "mapa.commands.ledger:calibrate_command",
    "attack": "experiments.commands.attack:attack_command",
    "observe": "experiments.commands.attack:observe_command",
    "audit": "experiments.commands.audit:audit_command",
    "reproduce": "experiments.commands.reproduce:reproduce_command",
    "replay": "mapa.commands.verify:replay_command",
    "bundle": "mapa.commands.verify:bundle_command",
    "scenarios": "mapa.commands.scenario:scenarios_command",
}
_CODES = {  # of the others _DONE
    "simulate": f"0 finished or at its time limit, 1 diverged or no gradients pending, {_WRONG},"
    " 3 no edge has budget left, 130 interrupted (records are kept)",
    "run": _TRAINED,
    "cloud": f"{_TRAINED}, 5 ended, but the edges were not told: the command that it prints does that,"
    " 143 SIGTERM with --suspend",
    "edge": "0 run ended, budget spent or SIGTERM, 1 failed, 2 refused or wrong configuration,"
    " 4 no free shard, 130 interrupted by Ctrl-C",
    "helper": "0 the run ended, or SIGTERM, 1 failed, 2 wrong configuration, 130 interrupted by Ctrl-C",
    "containers": _TRAINED,
    "kubernetes": _TRAINED,
    "chaos": f"0 every run came through, 1 one did not (its directory is kept), {_WRONG}, 130 interrupted",
    "observe": f"0 done or interrupted, 1 failed, {_WRONG}",
    "audit": f"0 no claim refuted, 1 a claim refuted, or failed, {_WRONG}, 130 interrupted",
    "reproduce": f"0 all runs done, 1 a run failed, {_WRONG}, 130 interrupted (finished runs are kept)",
    "dashboard": f"0 stopped by Ctrl-C or SIGTERM, 1 failed, {_WRONG}",
    "export": f"0 written, 1 failed, {_WRONG} or library missing, 130 interrupted",
    "replay": f"0 the same model bit for bit, 1 another one, {_WRONG} or no log, 130 interrupted",
    "verify": f"0 verified, 1 not verified: a check failed or could not be made, {_WRONG} or neither"
    " bundle nor run, 130 interrupted",
    "doctor": f"0 all that is needed works, 1 something that is needed is missing or broken, {_WRONG}",
    "runs rm": f"0 removed, 1 a run was refused or not confirmed, {_WRONG}: nothing was removed",
    "ledger charge": f"0 charged, 1 failed, {_WRONG}: nothing was charged",
}
FORMER_NAMES = {"testbed": "containers"}  # still accepted, and in no help

# One BLAS thread each; the others may use what they find.
_ONE_THREAD = ("run", "simulate", "cloud", "edge", "helper", "pace", "chaos", "replay", "verify", "devices")


def example(name: str) -> str:
    """Return a line that runs the command; "": the program."""
    return f"mapa {name} {COMMANDS[name][1]}".rstrip() if name else "mapa run quickstart"


def exit_codes(name: str) -> str:
    """Return what a command may exit with, and why."""
    return _CODES.get(name, _DONE)


def _epilog(name: str) -> str:
    return f"Example: {example(name)}\n\nExit codes: {exit_codes(name)}."


class LazyGroup(SectionedGroup):
    """The program: it knows the first line of every command's help, and imports the one that is called."""

    sections = SECTIONS

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        for name in self.list_commands(None):
            self.commands.setdefault(name, TyperCommand(name=name, help=COMMANDS[name][0]))

    def list_commands(self, ctx: Any) -> list[str]:  # noqa: ARG002
        return [name for name in COMMANDS if " " not in name]

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        if args[0] in self.commands:
            program: Any = typer.main.get_command(build(args[:1]))
            self.commands[args[0]] = program.commands[args[0]]
        return super().resolve_command(ctx, args)


def build(arguments: Sequence[str]) -> typer.Typer:
    """Return the program with the one command loaded that the arguments name, or with all of them."""
    app = _program()
    wanted = named_in(arguments)
    for name in COMMANDS if wanted is None else (wanted,):
        if " " in name:
            continue
        usual = f"mapa.commands.{name}:{'app' if name in GROUPS else f'{name}_command'}"
        module, _, attribute = _PLACES.get(name, usual).partition(":")
        loaded: Any = importlib.import_module(module)
        found = getattr(loaded, attribute)
        if name not in GROUPS:
            kind = getattr(loaded, "COMMAND_CLASS", PanelledCommand)
            app.command(name, cls=kind, epilog=_epilog(name))(with_added_options(found, name))
            continue
        for command in found.registered_commands:
            words = f"{name} {command.name or getattr(command.callback, '__name__', '')}"
            command.epilog, command.cls = _epilog(words), PanelledCommand
            if command.callback is not None:
                command.callback = with_added_options(command.callback, words)
        app.add_typer(found, name=name, cls=found.info.cls or SectionedGroup, epilog=_epilog(name))
    return app


def named_in(arguments: Sequence[str]) -> str | None:
    """Return the command that the arguments name, behind the program's own options; None: unknown."""
    word = next((word for word in arguments if not word.startswith("-")), None)
    return word if word in COMMANDS else None


def _program() -> typer.Typer:
    app = typer.Typer(
        name="mapa",
        cls=LazyGroup,
        context_settings=SETTINGS,
        rich_markup_mode=None,
        add_completion=False,
        pretty_exceptions_enable=False,
    )

    @app.callback(epilog=_epilog(""))
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
            output.ask(debug=True)

    return app


def main() -> None:
    """Run a command, and turn whatever ends it into one of EXIT_CODES."""
    output.begin(os.environ)
    arguments = current_name(sys.argv[1:])
    if named_in(arguments) in _ONE_THREAD:
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
        if output.wants_tracebacks():
            traceback.print_exception(error)
        _say(_line(error))
        sys.exit(2 if isinstance(error, ConfigurationError) else 1)


def _line(error: Exception) -> str:
    if isinstance(error, ConfigurationError):
        return f"configuration error: {error}"
    return f"error: {error}" if isinstance(error, MapaError) else output.unexpected(error)


def current_name(arguments: Sequence[str]) -> list[str]:
    """Return the arguments with a command's former name replaced by its present one; print that once."""
    former = arguments[0] if arguments else ""
    if former not in FORMER_NAMES:
        return list(arguments)
    present = FORMER_NAMES[former]
    print(f"`mapa {former}` is now `mapa {present}`; the old name still works", file=sys.stderr)
    return [present, *arguments[1:]]


def _say_version(asked: bool) -> None:
    if asked:
        from importlib.metadata import version as version_of  # slow to load

        print(f"mapa {version_of('mapa-testbed')}")
        raise typer.Exit


def _say(text: str) -> None:
    text = output.visible(text)  # a file may have named what is wrong
    print(f"\033[31m{text}\033[0m" if output.coloured(sys.stderr) else text, file=sys.stderr)


if __name__ == "__main__":
    main()

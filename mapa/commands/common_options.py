"""Options that are added to commands: common ones, groups of them, environment variables, completion.

--debug on each, --quiet and --verbose where one reports, --allow where a file may name code. A dataclass as the
parameter of a command stands for one option for each of its fields.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Collection, Iterator
from copy import copy
from dataclasses import MISSING, fields, is_dataclass
from typing import Annotated, Any, get_args, get_origin, get_type_hints

import typer
from typer.models import ParameterInfo

from common.errors import ConfigurationError
from common.own_code import only_code
from mapa import output
from mapa.commands.completion import completer
from mapa.option_variables import PREFIX

# Commands that show how far they are, beside their result.
REPORTING = ("simulate", "run", "cloud", "edge", "containers", "reproduce", "audit", "data get")
# Commands that run a scenario with the code that it names, which is what they are called for, or take a dotted path as
# an argument; an edge asks its policy. All others read files of unknown origin, and import only what --allow names.
RUNNING = (
    *("simulate", "run", "cloud", "edge", "containers", "chaos", "pace", "attack", "audit", "reproduce"),
    "algorithms",
)
RECORDED = {
    "cloud": "resume",
    "audit": "run",
}  # the option with which they take a run on record: files, again
ALLOWING = (
    "compare",
    "ledger show",
    "scenario show",
    "data show",
)  # may need code; others have --allow themselves
_MARK = "__common_options__"
_Debug = Annotated[bool, typer.Option("--debug", help="show the traceback of an error; also MAPA_DEBUG=1")]
Allowed = Annotated[
    list[str] | None,
    typer.Option("--allow", help="package.module:Class that the file may name, imported; repeatable"),
]
_Quiet = Annotated[
    bool, typer.Option("--quiet", "-q", help="no progress and no notes: the result, and errors")
]
_Verbose = Annotated[
    bool, typer.Option("--verbose", "-v", help="progress as lines, each second, and more of it")
]


def with_common_options(command: Callable[..., Any], name: str) -> Callable[..., Any]:
    """Return the command with the options added to its own; what they say is set before it begins."""
    if getattr(command, _MARK, False):
        return command
    flags = {"debug": _Debug, **({"quiet": _Quiet, "verbose": _Verbose} if name in REPORTING else {})}
    added = {**({"allow": Allowed} if name in ALLOWING else {}), **flags}

    @functools.wraps(command)
    def listening(**given: Any) -> Any:
        asked = {key: given.pop(key) for key in added}
        if asked["debug"]:
            output.debug()
        if asked.get("quiet") and asked.get("verbose"):
            raise ConfigurationError("--quiet and --verbose: give at most one of them")
        if asked.get("quiet"):
            output.speak(output.Loudness.QUIET)
        if asked.get("verbose"):
            output.speak(output.Loudness.VERBOSE)
        if name in RUNNING and given.get(RECORDED.get(name, "")) is None:
            return command(**given)
        with only_code(asked.get("allow") or given.get("allow") or ()):
            return command(**given)

    hints = get_type_hints(command, include_extras=True)
    own = []
    for one in inspect.signature(command).parameters.values():
        kind = hints[one.name] if isinstance(one.annotation, str) else one.annotation
        completed = _noted(kind, autocompletion=completer(name, one.name))
        own.append(one.replace(annotation=completed, kind=inspect.Parameter.KEYWORD_ONLY))
    more = [
        inspect.Parameter(
            key, inspect.Parameter.KEYWORD_ONLY, default=False if key in flags else None, annotation=kind
        )
        for key, kind in added.items()
    ]
    listening.__signature__ = inspect.Signature([*own, *more])  # type: ignore[attr-defined]  # typer reads it
    setattr(listening, _MARK, True)
    return listening


Command = Callable[..., None]


def with_groups(environment: Collection[str] = ()) -> Callable[[Command], Command]:
    """Return a decorator for commands with groups; options named in `environment` have MAPA_<NAME> too."""

    def decorate(command: Command) -> Command:
        groups: dict[str, Any] = {
            name: kind for name, kind in get_type_hints(command).items() if is_dataclass(kind)
        }

        @functools.wraps(command)
        def expanded(**given: Any) -> None:
            for name, kind in groups.items():
                given[name] = kind(**{field.name: given.pop(field.name) for field in fields(kind)})
            command(**given)

        variables = {name.lower(): PREFIX + name for name in environment}
        parameters = [
            parameter.replace(annotation=_noted(parameter.annotation, envvar=variables.get(parameter.name)))
            for parameter in _parameters(command)
        ]
        expanded.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]  # typer reads it
        return expanded

    return decorate


def _parameters(command: Command) -> Iterator[inspect.Parameter]:
    """Yield a command's parameters, a group's fields in its place; by keyword, so in any order."""
    hints = get_type_hints(command, include_extras=True)
    for own in inspect.signature(command).parameters.values():
        kind = hints[own.name]
        if not is_dataclass(kind):
            yield own.replace(annotation=kind, kind=inspect.Parameter.KEYWORD_ONLY)
            continue
        types = get_type_hints(kind, include_extras=True)
        for field in fields(kind):
            default = inspect.Parameter.empty if field.default is MISSING else field.default
            yield inspect.Parameter(
                field.name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=types[field.name]
            )


def _noted(kind: Any, **said: Any) -> Any:
    """Return an annotation whose option or argument says this, too; what is None is left as it was."""
    said = {key: value for key, value in said.items() if value is not None}
    if not said or get_origin(kind) is not Annotated:
        return kind
    plain, *notes = get_args(kind)
    notes = [copy(note) for note in notes]
    for note in notes:
        if isinstance(note, ParameterInfo):
            for key, value in said.items():
                setattr(note, key, value)
    return Annotated[(plain, *notes)]

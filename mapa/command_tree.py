"""Every command as plain values, read from the parser: what the reference and the shells' completion are made of."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from types import UnionType
from typing import Annotated, Any, Union, get_args, get_origin

import typer

from mapa.cli import build
from mapa.command_help import HELP

_TYPES = {Path: "PATH", int: "INTEGER", float: "NUMBER", str: "TEXT", bool: ""}


@dataclass(frozen=True, slots=True, kw_only=True)
class Parameter:
    """One option or argument."""

    name: str  # as the code calls it
    options: tuple[str, ...]  # --seed, -s; none: an argument
    value: str  # what it takes: TEXT, INTEGER, NUMBER, PATH or a word of its own; "": a flag
    help: str
    default: str
    required: bool
    repeatable: bool
    variable: str | None  # of the environment


@dataclass(frozen=True, slots=True, kw_only=True)
class Command:
    """One command, or a group of them."""

    words: tuple[str, ...]  # behind `mapa`
    about: str
    parameters: tuple[Parameter, ...]
    example: str
    codes: str
    is_group: bool

    @property
    def arguments(self) -> tuple[Parameter, ...]:
        return tuple(one for one in self.parameters if not one.options)

    @property
    def options(self) -> tuple[Parameter, ...]:
        return tuple(one for one in self.parameters if one.options)


def command_tree() -> list[Command]:
    """Return all commands: the program itself first, each group before its commands, in the order of the help."""
    app = build([])
    root: Any = typer.main.get_command(app)
    types = dict(_types(app))
    found = [_command((), root, {})]
    for name, command in root.commands.items():
        found.append(_command((name,), command, types.get(name, {})))
        found += [
            _command((name, inner), one, types.get(f"{name} {inner}", {}))
            for inner, one in getattr(command, "commands", {}).items()
        ]
    return found


def _command(words: tuple[str, ...], command: Any, types: dict[str, Any]) -> Command:
    example, codes = HELP[" ".join(words) or "mapa"]
    return Command(
        words=words,
        about=" ".join((command.help or "").split()),
        parameters=tuple(
            _parameter(one, types) for one in command.params if not getattr(one, "hidden", False)
        ),
        example=example,
        codes=codes,
        is_group=bool(getattr(command, "commands", None)),
    )


def _parameter(one: Any, types: dict[str, Any]) -> Parameter:
    option = one.param_type_name == "option"
    value = _TYPES.get(types.get(one.name, str), "TEXT")
    default = one.default
    shown = "" if default in (None, False, ()) or (not option and one.required) else str(default)
    return Parameter(
        name=one.name,
        options=(*one.opts, *one.secondary_opts) if option else (),
        value=""
        if getattr(one, "is_flag", False)
        else one.metavar or (value if option else one.name.upper()),
        help=" ".join((one.help or "").split()),
        default=shown,
        required=bool(one.required),
        repeatable=bool(getattr(one, "multiple", False)) or one.nargs == -1,
        variable=one.envvar if isinstance(one.envvar, str) else None,
    )


def _types(app: typer.Typer) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield the types of each command's parameters: the parser keeps them in no public place."""
    for info in app.registered_commands:
        if info.callback is not None and info.name is not None:
            yield info.name, _annotations(info.callback)
    for group in app.registered_groups:
        for info in group.typer_instance.registered_commands if group.typer_instance is not None else ():
            if info.callback is not None:
                own = info.name or getattr(info.callback, "__name__", "").replace("_", "-")
                yield f"{group.name} {own}", _annotations(info.callback)


def _annotations(callback: Callable[..., Any]) -> dict[str, Any]:
    return {name: _plain(one.annotation) for name, one in inspect.signature(callback).parameters.items()}


def _plain(annotation: Any) -> Any:
    """Return the type without notes, without None and without a list around it."""
    if get_origin(annotation) is Annotated:
        return _plain(get_args(annotation)[0])
    if get_origin(annotation) in (Union, UnionType):
        return _plain(next(one for one in get_args(annotation) if one is not type(None)))
    if get_origin(annotation) in (list, tuple):
        return _plain(get_args(annotation)[0])
    return annotation

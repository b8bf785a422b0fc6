"""Option groups: a dataclass as the parameter of a command stands for one option for each of its fields."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Collection, Iterator
from copy import copy
from dataclasses import MISSING, fields, is_dataclass
from typing import Annotated, Any, get_args, get_origin, get_type_hints

from typer.models import OptionInfo

from mapa.option_variables import PREFIX

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

        parameters = [
            parameter.replace(annotation=_with_variable(parameter, environment))
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


def _with_variable(parameter: inspect.Parameter, environment: Collection[str]) -> Any:
    kind, name = parameter.annotation, parameter.name.upper()
    if name not in environment or get_origin(kind) is not Annotated:
        return kind
    plain, *notes = get_args(kind)
    notes = [copy(note) for note in notes]
    for note in notes:
        if isinstance(note, OptionInfo):
            note.envvar = PREFIX + name
    return Annotated[(plain, *notes)]

"""Options that commands have in common and do not know of: --debug on each, --quiet and --verbose where one reports."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Annotated, Any, get_type_hints

import typer

from common.errors import ConfigurationError
from mapa import output

# Commands that show how far they are, beside their result.
REPORTING = ("simulate", "run", "cloud", "containers", "reproduce", "audit", "data get")
_MARK = "__common_options__"
_Debug = Annotated[bool, typer.Option("--debug", help="show the traceback of an error; also MAPA_DEBUG=1")]
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
    added = {"debug": _Debug, **({"quiet": _Quiet, "verbose": _Verbose} if name in REPORTING else {})}

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
        return command(**given)

    hints = get_type_hints(command, include_extras=True)
    own = [
        one.replace(
            annotation=hints[one.name] if isinstance(one.annotation, str) else one.annotation,
            kind=inspect.Parameter.KEYWORD_ONLY,
        )
        for one in inspect.signature(command).parameters.values()
    ]
    more = [
        inspect.Parameter(key, inspect.Parameter.KEYWORD_ONLY, default=False, annotation=kind)
        for key, kind in added.items()
    ]
    listening.__signature__ = inspect.Signature([*own, *more])  # type: ignore[attr-defined]  # typer reads it
    setattr(listening, _MARK, True)
    return listening

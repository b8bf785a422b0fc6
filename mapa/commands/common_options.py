"""Options that commands have in common and do not know of, and what code a command may import.

--debug on each, --quiet and --verbose where one reports, --allow where a file may name code.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Annotated, Any, get_type_hints

import typer

from common.errors import ConfigurationError
from common.own_code import only_code
from mapa import output

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
    own = [
        one.replace(
            annotation=hints[one.name] if isinstance(one.annotation, str) else one.annotation,
            kind=inspect.Parameter.KEYWORD_ONLY,
        )
        for one in inspect.signature(command).parameters.values()
    ]
    more = [
        inspect.Parameter(
            key, inspect.Parameter.KEYWORD_ONLY, default=False if key in flags else None, annotation=kind
        )
        for key, kind in added.items()
    ]
    listening.__signature__ = inspect.Signature([*own, *more])  # type: ignore[attr-defined]  # typer reads it
    setattr(listening, _MARK, True)
    return listening

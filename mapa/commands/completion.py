"""mapa completion: typer's script for a shell, and what completes the values of options and arguments."""

from __future__ import annotations

import importlib
import re
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Annotated

import typer

from common.errors import ConfigurationError

SHELLS = ("bash", "zsh", "fish")
VARIABLE = "_MAPA_COMPLETE"  # set by the script where it asks the program
_PLAIN = re.compile(r"[\w.][\w.-]*")  # a name that a shell takes as it is: another one might hold a command
_RUNS = {
    *(("replay", "run"), ("bundle", "run"), ("verify", "subject"), ("compare", "names"), ("export", "run")),
    *(("runs show", "run"), ("runs rm", "names"), ("ledger show", "run"), ("cloud", "resume")),
}
_ALGORITHMS = ("common.algorithms:algorithm_names",)
_DATA_SETS = ("common.datasets.catalogue:DATA_SETS",)
_LINKS = ("lan", "wifi", "5g", "4g", "wan", "satellite")
_ENGINES = ("mapa.recording:ENGINES",)
# The words of a parameter, by command and name ("": of any command); "module:name" is loaded when it is asked for.
WORDS: dict[tuple[str, str], tuple[str, ...]] = {
    ("", "algorithm"): _ALGORITHMS,
    ("algorithms", "names"): _ALGORITHMS,
    ("data get", "names"): _DATA_SETS,
    ("scenarios", "data"): _DATA_SETS,
    ("", "links"): _LINKS,
    ("", "link"): _LINKS,
    ("simulate", "engine"): _ENGINES,
    ("runs list", "engine"): (*_ENGINES, "processes", "network"),
    ("runs list", "state"): ("running", "killed", "finished", "interrupted", "diverged", "no-budget"),
    ("runs list", "sort"): ("mapa.commands.runs:SORT_KEYS",),
    ("run", "broker"): ("auto", "mosquitto", "embedded"),
    ("completion", "shell"): SHELLS,
    ("doctor", "purposes"): ("containers", "dashboard", "cnn", "chaos", *_DATA_SETS),
}


def completion_command(shell: Annotated[str, typer.Argument(help="bash, zsh or fish")]) -> None:
    """Print a script that completes commands, options, scenarios and run ids in a shell."""
    from typer.completion import get_completion_script  # type: ignore[attr-defined]  # has no public name

    if shell not in SHELLS:
        raise ConfigurationError(f"shell = {shell!r}: allowed are {', '.join(SHELLS)}")
    print(get_completion_script(prog_name="mapa", complete_var=VARIABLE, shell=shell))


def completer(command: str, parameter: str) -> Callable[..., list[str]] | None:
    """Return what completes a parameter's value, for typer; None: the shell does, by files."""
    words = WORDS.get((command, parameter)) or WORDS.get(("", parameter))
    of_runs = (command, parameter) in _RUNS
    if not of_runs and words is None and parameter != "scenario":
        return None

    def complete(ctx: typer.Context) -> list[str]:
        if of_runs:  # a run is removed by its whole id alone
            names: Iterable[str] = [*_runs(ctx), *([] if command == "runs rm" else ["latest"])]
        else:
            names = _scenarios() if words is None else loaded(words)
        return [name for name in names if _PLAIN.fullmatch(name.rstrip("/"))]

    return complete


def loaded(words: Iterable[str]) -> Iterator[str]:
    """Yield the words; for "module:name" those found there, or returned where it is a function."""
    for word in words:
        module, colon, name = word.partition(":")
        if not colon:
            yield word
            continue
        found = getattr(importlib.import_module(module), name)
        yield from found() if callable(found) else found


def _scenarios() -> Iterator[str]:
    """Yield the shipped scenarios, the TOML files here, and the folders in which there may be more."""
    from mapa.scenario_files import shipped_names

    yield from shipped_names()
    for path in sorted(Path().iterdir()):
        if path.suffix == ".toml" or path.is_dir():
            yield f"{path.name}/" if path.is_dir() else path.name


def _runs(ctx: typer.Context) -> list[str]:
    """Return the ids of the runs in --runs-dir; a link is no run."""
    folder = Path(ctx.params.get("runs_dir") or ctx.params.get("runs") or "runs")
    found = [path.parent for path in folder.glob("*/manifest.json") if not path.is_symlink()]
    return sorted(path.name for path in found if not path.is_symlink())

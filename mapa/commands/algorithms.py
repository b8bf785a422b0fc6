"""mapa algorithms: list the algorithms and their options."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from common.algorithms import AlgorithmDescription, algorithm_names, describe
from common.own_code import use_code_beside


def algorithms_command(
    names: Annotated[
        list[str] | None,
        typer.Argument(
            help="only these; package.module:Class for one of your own, installed or in the current folder"
        ),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="print JSON")] = False,
) -> None:
    """List the algorithms: what each does, whether its edges clip and noise, and its options."""
    for name in names or ():  # the user's own word, not a file's
        use_code_beside(name, Path.cwd(), "algorithm")
    found = [describe(name) for name in names or algorithm_names()]
    if as_json:
        print(json.dumps([_row(one) for one in found], indent=2, ensure_ascii=False))
        return
    table = Table("algorithm", "private", "about", "options", show_lines=True)
    for one in found:
        lines = [_option(option) for option in _row(one)["options"]]
        table.add_row(one.name, "yes" if one.private else "no", one.about, "\n".join(lines) or "none")
    Console().print(table)


def _row(one: AlgorithmDescription) -> dict[str, Any]:
    return {
        "name": one.name,
        "about": one.about,
        "private": one.private,
        "centralised": one.centralised,
        "requires": list(one.requires),
        "options": [
            {
                "name": option.name,
                "allowed": option.words,
                "default": option.default,
                "about": option.range.about,
            }
            for option in one.options
        ],
    }


def _option(option: dict[str, Any]) -> str:
    default = "required" if option["default"] is None else f"default {option['default']!r}"
    return f"{option['name']}: {option['about']} ({option['allowed']}; {default})"

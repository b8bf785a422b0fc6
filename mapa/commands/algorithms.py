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
from mapa.commands import options


def algorithms_command(
    names: Annotated[
        list[str] | None,
        typer.Argument(
            help="only these; package.module:Class for one of your own, installed or in the current folder"
        ),
    ] = None,
    as_json: options.AsJson = False,
) -> None:
    """List the algorithms: what each does, and its options."""
    for name in names or ():  # the user's own word, not a file's
        use_code_beside(name, Path.cwd(), "algorithm")
    rows = [_row(describe(name)) for name in names or algorithm_names()]
    if as_json:
        print(json.dumps(rows, indent=2, ensure_ascii=False))
        return
    table = Table("algorithm", "private", "about", "options", show_lines=True)
    for row in rows:
        lines = []
        for option in row["options"]:
            default = "required" if option["default"] is None else f"default {option['default']!r}"
            lines.append(f"{option['name']}: {option['about']} ({option['allowed']}; {default})")
        table.add_row(
            row["name"], "yes" if row["private"] else "no", row["about"], "\n".join(lines) or "none"
        )
    Console().print(table)


def _row(one: AlgorithmDescription) -> dict[str, Any]:
    return {
        **{key: getattr(one, key) for key in ("name", "about", "private", "centralised")},
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

"""Shipped scenarios described by a file of patterns: lines of the figures, and recipes of private training."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterable, Mapping
from functools import cache
from pathlib import Path
from typing import Any

from common.errors import ConfigurationError

FOLDER = Path(__file__).parent / "scenarios" / "figures"
PREFIX = "figures/"
RECIPES = Path(__file__).parent / "scenarios" / "recipes"
_TITLES = {"mnist": "MNIST", "fashion": "Fashion-MNIST", "cifar10": "CIFAR-10"}
_LINES, _PRIVATE = FOLDER / "lines.toml", RECIPES / "private.toml"


def line_names() -> tuple[str, ...]:
    """Return the names of all lines, without the prefix."""
    return _names(_LINES)


def recipe_names() -> tuple[str, ...]:
    return _names(_PRIVATE)


@cache
def _names(path: Path) -> tuple[str, ...]:
    """Return the names in a file of patterns, sorted as files of these names would be.

    Runs of one vectorised product round alike, so another order would change the last digits of results.
    """
    names = (name for pattern in _read(path)["names"] for name in alternatives(pattern))
    return tuple(sorted(names, key=lambda name: f"{name}.toml"))


def line_of(name: str) -> str | None:
    """Return the line that a scenario's name or path stands for; None: no line of a figure.

    A file goes first. Earlier versions had one for each line, and their reports name it: scenarios/figures/<line>.toml.
    """
    path = Path(name)
    if path.is_file() or not (name.startswith(PREFIX) or path.parent.resolve() == FOLDER.resolve()):
        return None
    line = name.removeprefix(PREFIX) if name.startswith(PREFIX) else path.name
    line = line.removesuffix(".toml")
    return line if line in line_names() else None


def matching_lines(pattern: str) -> list[str]:
    return [name for name in line_names() if matches(pattern, name)]


def values_of(name: str) -> dict[str, Any]:
    """Return what a scenario file of this line or recipe would hold: all matching patterns, later ones over earlier."""
    if name not in (*line_names(), *recipe_names()):
        raise ConfigurationError(
            f"figure line = {name!r}: unknown; `mapa scenario list --figures` lists them"
        )
    values: dict[str, Any] = {}
    for pattern, changes in _read(_PRIVATE if name in recipe_names() else _LINES)["values"].items():
        if matches(pattern, name):
            values = merged(values, changes)
    return values


def about_line(line: str) -> str:
    """Return what a line is: experiment, model and data set, variant."""
    experiment, model, data, _ = line.split("-", 3)
    variant = [text for pattern, text in _read(_LINES)["variants"].items() if matches(pattern, line)][-1]
    return f"{_read(_LINES)['experiments'][experiment]}, {model.upper()} on {data.upper()}: {variant}"


def about_recipe(name: str) -> str:
    """Return what a recipe is, as the first line of its file would say."""
    values = values_of(name)
    privacy, title = values["privacy"], _TITLES[name.split("-")[1]]
    return (
        f"Softmax on fixed scattering features of {title}, {values['edges']} edges, each with a total budget of"
        f" (ε = {privacy['total_epsilon']:g}, δ = {privacy['total_delta']:g})"
    )


@cache
def _read(path: Path) -> dict[str, Any]:
    return tomllib.loads(path.read_text(encoding="utf-8"))


@cache
def _expression(pattern: str) -> re.Pattern[str]:
    """Return a pattern as a regular expression: {a,b} is either, * is anything, ? is one character."""
    signs = {"*": ".*", "?": ".", "{": "(?:", "}": ")", ",": "|"}
    return re.compile("".join(signs.get(character, re.escape(character)) for character in pattern))


def matches(pattern: str, name: str) -> bool:
    return _expression(pattern).fullmatch(name) is not None


def alternatives(pattern: str) -> Iterable[str]:
    """Return the names that a pattern of {a,b} alone stands for."""
    head, brace, rest = pattern.partition("{")
    if not brace:
        return [head]
    choices, _, tail = rest.partition("}")
    return [f"{head}{choice}{end}" for choice in choices.split(",") for end in alternatives(tail)]


def merged(values: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    """Return values with the changes; tables are merged key by key, anything else is replaced."""
    result = dict(values)
    for key, value in changes.items():
        old = result.get(key)
        result[key] = (
            merged(old if isinstance(old, dict) else {}, value) if isinstance(value, dict) else value
        )
    return result

"""Private training as scenarios: one file of patterns gives each name of data set, budget and edges its values."""

from __future__ import annotations

import tomllib
from functools import cache
from pathlib import Path
from typing import Any

from mapa.figure_lines import alternatives, matching_values

FOLDER = Path(__file__).parent / "scenarios" / "recipes"
_TITLES = {"mnist": "MNIST", "fashion": "Fashion-MNIST", "cifar10": "CIFAR-10"}


@cache
def recipe_names() -> tuple[str, ...]:
    """Return the names of all recipes, sorted."""
    return tuple(sorted(name for pattern in _patterns()["names"] for name in alternatives(pattern)))


def recipe_values(name: str) -> dict[str, Any]:
    """Return what a scenario file of this name would hold: all matching patterns, later ones over earlier ones."""
    return matching_values(_patterns()["values"], name)


def about_recipe(name: str) -> str:
    """Return what a recipe is, as the first line of its file would say."""
    values = recipe_values(name)
    privacy, title = values["privacy"], _TITLES[name.split("-")[1]]
    return (
        f"Softmax on fixed scattering features of {title}, {values['edges']} edges, each with a total budget of"
        f" (ε = {privacy['total_epsilon']:g}, δ = {privacy['total_delta']:g})"
    )


@cache
def _patterns() -> dict[str, Any]:
    return tomllib.loads((FOLDER / "private.toml").read_text(encoding="utf-8"))

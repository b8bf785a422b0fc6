"""mapa scenarios: the shipped scenarios side by side."""

from __future__ import annotations

import json
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from common.scenario.scenario import Scenario
from mapa.commands.run_options import AsJson
from mapa.commands.scenario import about
from mapa.scenario_files import load_scenario, shipped_names

COLUMNS = ("scenario", "model", "data", "K", "T", "algorithm", "budget", "for")


def scenarios_command(
    model: Annotated[str | None, typer.Option(help="only scenarios with this model")] = None,
    data: Annotated[str | None, typer.Option(help="only scenarios on this data set")] = None,
    algorithm: Annotated[str | None, typer.Option(help="only scenarios with this algorithm")] = None,
    as_json: AsJson = False,
) -> None:
    """Show the shipped scenarios as a table: model, data, K, T, algorithm, budget, purpose."""
    wanted = {"model": model, "data": data, "algorithm": algorithm}
    rows = [
        row
        for row in (scenario_row(name) for name in shipped_names())
        if all(value is None or row[key] == value for key, value in wanted.items())
    ]
    if as_json:
        print(json.dumps(rows, indent=2, ensure_ascii=False))
        return
    table = Table()
    for column in COLUMNS:
        table.add_column(column, justify="right" if column in ("K", "T") else "left", overflow="fold")
    for row in rows:
        table.add_row(*(Text(f"{row[key]:,}" if key == "T" else str(row[key])) for key in COLUMNS))
    console = Console()
    console.width = console.width if console.is_terminal else max(console.width, 220)
    console.print(table)
    if console.is_terminal:
        Console(stderr=True).print(
            "`mapa scenario show NAME` prints every value; `mapa scenario list --figures` lists the paper's lines",
            highlight=False,
            markup=False,
        )


def scenario_row(name: str) -> dict[str, Any]:
    """Return what a person chooses a scenario by."""
    scenario = load_scenario(name)[1]
    return {
        "scenario": name,
        "model": scenario.model.name,
        "data": scenario.data.set,
        "K": scenario.edges,
        "T": scenario.iterations,
        "algorithm": scenario.algorithm.name,
        "budget": _budget(scenario),
        "for": about(name),
    }


def _budget(scenario: Scenario) -> str:
    """Return the total that each edge may spend, else the noise of one release."""
    if not scenario.private:
        return "none: not private"
    privacy = scenario.privacy.model_dump(exclude_none=True)
    total = privacy.get("total_epsilon")
    if total is not None:
        return f"ε ≤ {_numbers(total)} in all"
    if "noise_multiplier" in privacy:
        return f"z = {_numbers(privacy['noise_multiplier'])} a release"
    if "epsilon" in privacy:
        return f"ε = {_numbers(privacy['epsilon'])} a release"
    return str(privacy.get("noise"))


def _numbers(values: Any) -> str:
    return ", ".join(f"{value:g}" for value in values) if isinstance(values, list | tuple) else f"{values:g}"

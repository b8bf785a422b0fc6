"""mapa scenarios: the shipped scenarios side by side."""

from __future__ import annotations

import json
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from common.mechanism.guarantee import Adjacency
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
    """Return the total that each edge may spend, else what one release guarantees; never a figure without meaning."""
    if not scenario.private:
        return "none: no noise"
    total = scenario.privacy.total_epsilon
    said = _release(scenario) if total is None else f"ε ≤ {_numbers(total)} in all"
    if said is None:
        return "none: not DP"
    return said if scenario.seed is None else "none: seeded"


def _release(scenario: Scenario) -> str | None:
    """Return what a release of the least protected edge guarantees; None: nothing."""
    laws = [scenario.law(k) for k in range(scenario.workers)]
    stated = [scenario.mechanism(law).guarantee(Adjacency.ZERO_OUT) for law in laws if law is not None]
    if len(stated) < len(laws) or not all(one.is_private for one in stated):
        return None
    epsilons = [one.epsilon for one in stated if one.epsilon is not None]
    multipliers = [one.noise_multiplier for one in stated if one.noise_multiplier is not None]
    parts = [f"ε = {max(epsilons):g}"] if epsilons else []
    parts += [f"z = {min(multipliers):g}"] if multipliers else []
    return f"{', '.join(parts)} a release"


def _numbers(values: Any) -> str:
    return ", ".join(f"{value:g}" for value in values) if isinstance(values, list | tuple) else f"{values:g}"

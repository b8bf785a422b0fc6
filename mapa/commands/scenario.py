"""mapa scenario: list the shipped scenarios, print the schema, show a resolved scenario."""

from __future__ import annotations

import json
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from common.algorithms import algorithm_names, describe
from common.mechanism.guarantee import Adjacency
from common.noise.registry import law_names
from common.scenario.scenario import Scenario
from mapa import output
from mapa.commands.options import AsJson, Changes
from mapa.scenario_files import SHIPPED, load_scenario, shipped_names
from mapa.scenario_patterns import PREFIX, about_line, about_recipe, line_names, recipe_names

app = typer.Typer(no_args_is_help=True, help="Scenario files: one TOML = one run.")


@app.command("list")
def list_scenarios(
    figures: Annotated[
        bool, typer.Option("--figures", help="list the lines of the paper's figures and of ours instead")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """List the scenarios that come with mapa."""
    if figures:
        rows = [{"name": f"{PREFIX}{line}", "about": about_line(line)} for line in line_names()]
    else:
        rows = [{"name": name, "about": about(name)} for name in shipped_names()]
    if as_json:
        output.print_json(rows)
        return
    table = Table("scenario", "about")
    for row in rows:
        table.add_row(row["name"], row["about"])
    output.console().print(table)


def about(name: str) -> str:
    """Return the comment on a shipped file's first line; what a recipe's would say."""
    if name in recipe_names():
        return about_recipe(name)
    first = (SHIPPED / f"{name}.toml").read_text(encoding="utf-8").partition("\n")[0]
    return first.removeprefix("#").strip() if first.startswith("#") else ""


@app.command()
def schema() -> None:
    """Print the JSON schema of a scenario."""
    document = Scenario.model_json_schema()
    document["$defs"]["AlgorithmTable"] |= _with_options(document["$defs"]["AlgorithmTable"])
    document["$defs"]["PrivacyTable"]["properties"]["noise"] |= {
        "anyOf": [{"enum": list(law_names())}, {"pattern": ":"}]
    }
    output.print_json(document)


def _with_options(table: dict[str, Any]) -> dict[str, Any]:
    """Return [algorithm] with what each algorithm adds to it; another's own may add anything."""
    known = [describe(name) for name in algorithm_names()]
    names: dict[str, Any] = {"anyOf": [{"enum": [one.name for one in known]}, {"pattern": ":"}]}
    own = [
        {
            "if": {"properties": {"name": {"const": one.name}}, "required": ["name"]},
            "then": {"properties": {option.name: option.json_schema() for option in one.options}},
        }
        for one in known
        if one.options
    ]
    properties = {**table["properties"], "name": table["properties"]["name"] | names}
    return {"properties": properties, "allOf": own}


@app.command()
def show(
    scenario: Annotated[str, typer.Argument(help="name or path")],
    changes: Changes = None,
    as_json: AsJson = False,
) -> None:
    """Print every resolved value of a scenario, including defaults and known constants."""
    _, resolved = load_scenario(scenario, changes or [])
    values = resolved.resolved()
    if as_json:
        output.print_json(values)
    else:
        print("\n".join(_toml(values)))


def _toml(values: dict[str, Any], prefix: str = "") -> list[str]:
    """Write resolved values as TOML; None has no form there and stands as a comment."""
    lines: list[str] = []
    tables: list[tuple[str, dict[str, Any]]] = []
    for key, value in values.items():
        if isinstance(value, dict):
            tables.append((f"{prefix}{key}", value))
        elif value is None:
            lines.append(f"# {key}: not set")
        else:
            lines.append(f"{key} = {_value(value)}")
    for name, table in tables:
        lines += ["", f"[{name}]", *_toml(table, f"{name}.")]
    return lines


def _value(value: Any) -> str:
    if isinstance(value, list):
        return "[" + ", ".join(_value(item) for item in value) + "]"
    if isinstance(value, dict):
        inner = ", ".join(f"{key} = {_value(item)}" for key, item in value.items() if item is not None)
        return "{ " + inner + " }"
    return json.dumps(value, ensure_ascii=False)


COLUMNS = ("scenario", "model", "data", "K", "T", "algorithm", "budget", "for")


def scenarios_command(
    model: Annotated[str | None, typer.Option(help="only scenarios with this model")] = None,
    data: Annotated[str | None, typer.Option(help="only scenarios on this data set")] = None,
    algorithm: Annotated[str | None, typer.Option(help="only scenarios with this algorithm")] = None,
    as_json: AsJson = False,
) -> None:
    """Show the shipped scenarios as a table."""
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

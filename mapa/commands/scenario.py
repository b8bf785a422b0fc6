"""mapa scenario: list the shipped scenarios, print the schema, show a resolved scenario."""

from __future__ import annotations

import json
from typing import Annotated, Any

import typer
from rich.table import Table

from common.algorithms import algorithm_names, describe
from common.noise.registry import law_names
from common.scenario.scenario import Scenario
from mapa import output
from mapa.scenario_files import SHIPPED, load_scenario, shipped_names
from mapa.scenario_patterns import PREFIX, about_line, about_recipe, line_names, recipe_names

app = typer.Typer(no_args_is_help=True, help="Scenario files: one TOML = one run.")


@app.command("list")
def list_scenarios(
    figures: Annotated[
        bool, typer.Option("--figures", help="list the lines of the paper's figures and of ours instead")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="print JSON")] = False,
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
    changes: Annotated[list[str] | None, typer.Option("--set", help="KEY=VALUE")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="print JSON")] = False,
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

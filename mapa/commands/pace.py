"""mapa pace: how fast this machine makes gradients, on made-up rows."""

from __future__ import annotations

import json
from typing import Annotated

import typer

from mapa.commands import options
from mapa.commands.common_options import with_groups
from mapa.commands.scenario_options import ScenarioOptions
from mapa.warm_up import gradients_per_second


@with_groups()
def pace_command(
    scenario: options.ScenarioName,
    changed: ScenarioOptions,
    seconds: Annotated[float, typer.Option(help="how long to measure", min=0.1, max=600)] = 3.0,
    data_dir: options.DataDir = None,
    as_json: options.AsJson = False,
) -> None:
    """Measure how many gradients a second this machine makes of a scenario: on made-up rows, never on records."""
    name, resolved = changed.load(scenario)
    found = gradients_per_second(resolved, options.data_dir_or_default(data_dir), seconds=seconds)
    if as_json:
        print(json.dumps({"scenario": name, "gradients_per_second": found}))
        return
    print(
        f"{found:.4g} gradients per second on made-up rows; without network, and without other edges on this machine"
    )
    print(
        "for privacy.gradients_per_second, with time_limit, or beside others for privacy.paces: docs/pacing.md"
    )

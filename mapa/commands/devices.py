"""mapa devices, mapa pace: list the presets, and measure how fast this machine makes gradients."""

from __future__ import annotations

import json
import math
import platform
import sys
from pathlib import Path
from statistics import median, quantiles
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from common.devices import LARGEST_JITTER, LARGEST_SLOWDOWN, LONGEST_NAME, PRESETS
from common.errors import ConfigurationError
from common.scenario.scenario import parse_scenario
from edge.device import gradient_times, gradients_per_second, made_up_worker
from edge.worker import EdgeWorker
from mapa.commands import options
from mapa.commands.options import ScenarioOptions

app = typer.Typer(
    no_args_is_help=True, help="Devices that edges pose as: presets, and this machine measured."
)

_WORKLOAD = {
    "iterations": 1,
    "batch_size": 64,
    "data": {"set": "mnist", "sampler": "with-replacement"},
    "model": {"name": "softmax", "regularization": 1e-4},
    "privacy": {"noise": "gaussian", "noise_multiplier": 1.0},
}
_WORKLOAD_NAME = "softmax, 28 × 28 pixels, 10 classes, b = 64, gaussian noise, one thread"
_GRADIENTS = 2000
_SECONDS = 5.0


@app.command("list")
def list_devices(as_json: Annotated[bool, typer.Option("--json", help="print JSON")] = False) -> None:
    """List the presets: round figures for orientation, which were not measured."""
    keys = ("name", "slowdown", "jitter")
    rows = [{key: getattr(device, key) for key in keys} for device in PRESETS.values()]
    if as_json:
        print(json.dumps(rows, indent=2))
        return
    table = Table("device", "slowdown", "jitter")
    for row in rows:
        table.add_row(*map(str, row.values()))
    Console().print(table)


@app.command()
def measure(
    name: Annotated[str, typer.Option(help="name of the profile")] = "mine",
    against: Annotated[
        float | None,
        typer.Option(help="gradient_ms that this command printed on the machine that edges run on"),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="print JSON")] = False,
) -> None:
    """Measure the time of a gradient on made-up rows; with --against, print the profile for a scenario."""
    if against is not None and not (0 < against < math.inf):
        raise ConfigurationError(f"--against {against}: must be milliseconds above 0")
    if not 0 < len(name) <= LONGEST_NAME or not name.isprintable():
        raise ConfigurationError(f"--name {name!r}: must be 1 to {LONGEST_NAME} printable characters")
    times = gradient_times(reference_worker(), _GRADIENTS, _SECONDS)
    middle = median(times) * 1e3
    profile: dict[str, object] = {
        "name": name,
        "machine": platform.machine(),
        "workload": _WORKLOAD_NAME,
        "gradients": len(times),
        "gradient_ms": round(middle, 4),
        "jitter": round(min(LARGEST_JITTER, _spread(times)), 3),
    }
    if against is not None:
        ratio = middle / against
        profile["slowdown"] = round(min(LARGEST_SLOWDOWN, max(1.0, ratio)), 2)
        if not 0.95 <= ratio <= LARGEST_SLOWDOWN:  # a little below 1 is the noise of two measurements
            print(
                f"measured {ratio:.4g} times the figure of --against; a device has 1 to {LARGEST_SLOWDOWN:g}",
                file=sys.stderr,
            )
    if as_json:
        print(json.dumps(profile, indent=2, ensure_ascii=False))
        return
    print(f"{profile['gradient_ms']} ms for a gradient, the median of {len(times)}: {_WORKLOAD_NAME}")
    if against is None:
        print(
            "For a profile, measure the machine that edges will run on, and then this one with --against its figure."
        )
    else:
        quoted = json.dumps(name, ensure_ascii=False)
        print(
            f"devices = [{{name = {quoted}, slowdown = {profile['slowdown']}, jitter = {profile['jitter']}}}]"
        )


def _spread(times: list[float]) -> float:
    """Return σ of the logarithm by its quartiles: an interruption by other programs is no part of the device."""
    if len(times) < 2:
        return 0.0
    low, _, high = quantiles(times)
    return math.log(high / low) / 1.349


def reference_worker() -> EdgeWorker:
    """Return an edge of the workload that machines are compared by; no records have a part in it."""
    return made_up_worker(parse_scenario(_WORKLOAD), Path())


def pace_command(
    scenario: options.ScenarioName,
    changed: ScenarioOptions,
    seconds: Annotated[float, typer.Option(help="how long to measure", min=0.1, max=600)] = 3.0,
    data_dir: options.DataDir = None,
    as_json: options.AsJson = False,
) -> None:
    """Measure how many gradients a second this machine makes.

    It measures a scenario on made-up rows, never on records.
    """
    name, resolved = changed.load(scenario)
    rate = gradients_per_second(resolved, options.data_dir_or_default(data_dir), seconds=seconds)
    if as_json:
        print(json.dumps({"scenario": name, "gradients_per_second": rate}))
        return
    print(
        f"{rate:.4g} gradients per second on made-up rows; without network, and without other edges on this machine"
    )
    print(
        "for privacy.gradients_per_second, with time_limit, or beside others for privacy.paces: docs/pacing.md"
    )

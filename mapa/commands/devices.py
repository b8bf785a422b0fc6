"""mapa devices: list the presets, and measure this machine for a profile of its own."""

from __future__ import annotations

import json
import math
import platform
import sys
from statistics import median, quantiles
from typing import Annotated

import numpy as np
import typer
from rich.console import Console
from rich.table import Table

from common.devices import LARGEST_JITTER, LARGEST_SLOWDOWN, LONGEST_NAME, PRESETS
from common.errors import ConfigurationError
from common.mechanism.mechanism import Mechanism
from common.mechanism.samplers.with_replacement import WithReplacement
from common.models.registry import make_model
from common.noise.gaussian import Gaussian
from common.quantities import EdgeId
from common.randomness import CounterStreams
from edge.device import gradient_times
from edge.worker import EdgeWorker, Shard

app = typer.Typer(
    no_args_is_help=True, help="Devices that edges pose as: presets, and this machine measured."
)

_WORKLOAD = "softmax, 28 × 28 pixels, 10 classes, b = 64, gaussian noise, one thread"
_GRADIENTS = 2000
_SECONDS = 5.0


@app.command("list")
def list_devices(as_json: Annotated[bool, typer.Option("--json", help="print JSON")] = False) -> None:
    """List the presets: round figures for orientation, which nobody measured."""
    rows = [{"name": one.name, "slowdown": one.slowdown, "jitter": one.jitter} for one in PRESETS.values()]
    if as_json:
        print(json.dumps(rows, indent=2))
        return
    table = Table("device", "slowdown", "jitter")
    for row in rows:
        table.add_row(*(str(value) for value in row.values()))
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
    middle = median(times)
    found: dict[str, object] = {
        "name": name,
        "machine": platform.machine(),
        "workload": _WORKLOAD,
        "gradients": len(times),
        "gradient_ms": round(middle * 1e3, 4),
        "jitter": round(min(LARGEST_JITTER, _spread(times)), 3),
    }
    if against is not None:
        ratio = middle * 1e3 / against
        found["slowdown"] = round(min(LARGEST_SLOWDOWN, max(1.0, ratio)), 2)
        if not 0.95 <= ratio <= LARGEST_SLOWDOWN:  # a little below 1 is the noise of two measurements
            print(
                f"measured {ratio:.4g} times the figure of --against; a device has 1 to {LARGEST_SLOWDOWN:g}",
                file=sys.stderr,
            )
    if as_json:
        print(json.dumps(found, indent=2, ensure_ascii=False))
        return
    print(f"{found['gradient_ms']} ms for a gradient, the median of {len(times)}: {_WORKLOAD}")
    if against is None:
        print(
            "For a profile, measure the machine that edges will run on, and then this one with --against its figure."
        )
    else:
        quoted = json.dumps(name, ensure_ascii=False)
        print(f"devices = [{{name = {quoted}, slowdown = {found['slowdown']}, jitter = {found['jitter']}}}]")


def _spread(times: list[float]) -> float:
    """Return σ of the logarithm by its quartiles: an interruption by other programs is no part of the device."""
    if len(times) < 2:
        return 0.0
    low, _, high = quantiles(times)
    return math.log(high / low) / 1.349


def reference_worker() -> EdgeWorker:
    """Return an edge that no data set has a part in: the workload that machines are compared by."""
    size = 64
    model = make_model("softmax", shape=(28, 28), classes=10, options={})
    images, labels = np.zeros((size, 28 * 28), np.float32), np.zeros(size, np.int64)
    return EdgeWorker(
        edge_id=EdgeId("made-up"),
        index=0,
        model=model,
        shard=Shard(model.features(images), model.targets(labels), np.arange(size, dtype=np.int64)),
        mechanism=Mechanism(Gaussian(1.0), size, WithReplacement()),
        noised=slice(0, model.dimension),
        regularization=1e-4,
        streams=CounterStreams.seeded(0),
    )

"""make bench: every bar on speed and memory, as ratios measured in one run.

It reports, and ends with 0 unless something is broken: a shared machine misses a bar now and then. --strict makes a
missed bar an exit code 1.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Iterator
from dataclasses import asdict
from importlib.util import find_spec
from pathlib import Path

from rich.console import Console
from rich.table import Table

from common.datasets.catalogue import data_directory
from common.errors import ConfigurationError
from experiments.bench.core import core_ratios
from experiments.bench.memory import large_model_ratios, memory_ratios
from experiments.bench.page import find_chromium, page_ratios
from experiments.bench.ratios import Ratio
from experiments.bench.wire import log_ratios, wire_costs, wire_ratios
from mapa.processes import VARIABLES

PARTS = ("core", "wire", "log", "memory", "large", "page")


def measured(parts: list[str], minutes: float) -> Iterator[Ratio]:
    linux = Path("/proc/self/smaps_rollup").exists()
    if "core" in parts:
        yield from core_ratios(data_directory(os.environ))
    if "wire" in parts:
        yield from wire_ratios()
    if "log" in parts:
        yield from log_ratios()
    if "memory" in parts and linux:
        yield from memory_ratios()
    if "large" in parts and linux:
        yield from large_model_ratios()
    if "page" in parts and find_chromium() is not None and find_spec("playwright") is not None:
        yield from page_ratios(minutes)


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m experiments.bench", description=(__doc__ or "").partition("\n")[0]
    )
    parser.add_argument(
        "parts",
        nargs="*",
        choices=[*PARTS, []],
        metavar="part",
        help=f"{', '.join(PARTS)}; all of them where none is named",
    )
    parser.add_argument("--minutes", type=float, default=1.0, help="of the page; its bars are meant for 10")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--strict", action="store_true", help="end with 1 where a ratio misses its bar")
    arguments = parser.parse_args()
    parts = arguments.parts or list(PARTS)
    console = Console(stderr=arguments.json, width=120)
    table = Table("measured in one run", "ratio", "bar", "", "detail")
    ratios = []
    try:
        for ratio in measured(parts, arguments.minutes):
            ratios.append(ratio)
            bar = f"{'≤' if ratio.at_most else '≥'} {ratio.bar:g}"
            met = "met" if ratio.met else "MISSED"
            table.add_row(ratio.name, f"{ratio.value:.2f}", bar, met, ratio.detail)
    except ConfigurationError as error:
        console.print(f"[red]{error}[/]")
        return 2
    finally:
        console.print(table)
    if "wire" in parts:
        costs = Table("timed apart", "µs")
        for name, cost in wire_costs(data_directory(os.environ)):
            costs.add_row(name, f"{cost:,.1f}")
        console.print(costs)
    if arguments.json:
        print(json.dumps([{**asdict(ratio), "met": ratio.met} for ratio in ratios], indent=2))
    return 1 if arguments.strict and not all(ratio.met for ratio in ratios) else 0


if __name__ == "__main__":
    if any(os.environ.get(variable) != "1" for variable in VARIABLES):  # else the ratios are of thread pools
        os.environ.update(dict.fromkeys(VARIABLES, "1"))
        os.execv(sys.executable, [sys.executable, "-m", "experiments.bench", *sys.argv[1:]])
    if sys.argv[1:2] == ["soak"]:  # long, and no ratio: never a part of `make bench`
        from experiments.bench.soak import main as soak

        sys.exit(soak(sys.argv[2:]))
    if sys.argv[1:2] == ["cloud"]:
        from experiments.bench.clouds import main as cloud

        sys.exit(cloud(sys.argv[2:]))
    sys.exit(main())

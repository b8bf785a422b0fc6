"""make bench: speed and memory, as ratios of things that take turns in one run, each beside its bar.

It reports, and ends with 0 unless something is broken: a shared machine misses a bar now and then. --strict makes a
missed bar, or a turn that failed, an exit code 1. --quick looks at a little of each part, in less than three minutes.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from argparse import Namespace
from collections.abc import Callable, Iterator
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path

from rich.console import Console

from common.datasets.catalogue import data_directory
from common.errors import MapaError
from experiments.bench.clouds import QUICK_CELLS, Plan, cloud_cases, plan_of, proof_cases, scale_cases
from experiments.bench.page import find_chromium, page_cases
from experiments.bench.programs import large_cases, memory_cases, run_cases, start_cases
from experiments.bench.rounds import Case, Measurement, measure
from experiments.bench.simulation import cost_cases, simulation_cases
from experiments.bench.soak import soak_cases
from mapa.processes import VARIABLES


def _plan(given: Namespace) -> Plan:
    more = {"warm": given.warm, "seconds": given.seconds, "against": given.against, "only": given.clouds}
    plan = plan_of(given.k, given.n, given.log, given.tls, **more)
    quick = given.quick and not (given.k or given.n)
    return replace(plan, cells=QUICK_CELLS, seconds=min(0.3, plan.seconds)) if quick else plan


def _page(given: Namespace) -> Iterator[Case]:
    if find_chromium() is not None and find_spec("playwright") is not None:
        yield from page_cases(given.minutes or 1.0)


def _sums(_given: Namespace) -> Iterator[Case]:
    if find_spec("cryptography") is not None:
        from experiments.bench.sums import sums_cases

        yield from sums_cases()


PARTS: dict[str, Callable[[Namespace], Iterator[Case]]] = {
    "start": lambda given: start_cases(given.data_dir, given.against),
    "simulation": lambda given: simulation_cases(given.data_dir),
    "cloud": lambda given: cloud_cases(_plan(given)),
    "scale": lambda given: scale_cases(_plan(given)),
    "proofs": lambda given: proof_cases(_plan(given)),
    "run": lambda given: run_cases(given.data_dir, given.against, given.updates),
    "costs": lambda given: cost_cases(given.data_dir),
    "memory": lambda _given: memory_cases(),
    "large": lambda _given: large_cases(),
    "sums": _sums,
    "page": _page,
    "soak": lambda given: soak_cases(given.edges, given.minutes or 15.0, given.rate, given.out),
}
_LONG = ("soak",)  # only where it is asked for
_QUICK = ("start", "simulation", "cloud", "run", "costs", "memory")  # and a round or two of each


def _numbers(text: str) -> list[int]:
    return [int(part) for part in text.split(",")]


def _words(text: str) -> list[str]:
    return [word for word in text.split(",") if word]


def options() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m experiments.bench", description=(__doc__ or "").partition("\n")[0]
    )
    add = parser.add_argument
    add(
        "parts",
        nargs="*",
        choices=[*PARTS, []],
        metavar="part",
        help=f"{', '.join(PARTS)}; none: all but soak",
    )
    add("--quick", action="store_true", help="two rounds of the shorter parts")
    add("--strict", action="store_true", help="end with 1 where a bar is missed or a turn failed")
    add("--json", nargs="?", const="-", metavar="FILE", help="every turn and ratio; without a file to stdout")
    add("--rounds", type=int, help="instead of each case's own number")
    add(
        "--against",
        type=Path,
        metavar="TREE",
        help="another checkout: cloud, run and start are compared with it",
    )
    clouds = parser.add_argument_group("cloud, scale and proofs")
    clouds.add_argument("--k", type=_numbers, default=[], help="edges: 5,20")
    clouds.add_argument("--n", type=_numbers, default=[], help="parameters: 785,7850")
    clouds.add_argument("--log", type=_words, default=["on", "off"], help="on (for the process), off, power")
    clouds.add_argument(
        "--tls", type=_words, default=["off"], help="between cloud and broker: on, off or off,on"
    )
    clouds.add_argument("--seconds", type=float, default=0.5, help="measured in each turn")
    clouds.add_argument("--warm", type=float, default=0.15, help="seconds before them")
    clouds.add_argument(
        "--clouds", type=_words, default=[], help="these alone: ours,against,raw C,libmosquitto"
    )
    others = parser.add_argument_group("run, page and soak")
    others.add_argument("--updates", type=int, default=1000, help="of `mapa run`")
    others.add_argument(
        "--minutes", type=float, help="of the page, whose bars are meant for 10, and of the soak"
    )
    others.add_argument("--edges", type=int, default=1000, help="of the soak")
    others.add_argument(
        "--rate", type=float, default=500.0, help="updates a second of a soak's edges together"
    )
    others.add_argument("--out", type=Path, help="file for every sample of a soak, as JSON")
    return parser


def main() -> int:
    given = options().parse_args()
    given.data_dir = data_directory(os.environ)
    parts = given.parts or (_QUICK if given.quick else [part for part in PARTS if part not in _LONG])
    rounds = 2 if given.quick and given.rounds is None else given.rounds
    given.updates = min(given.updates, 400) if given.quick else given.updates
    console = Console(stderr=given.json == "-", width=160)
    outcomes: list[Measurement] = []
    try:
        for part in parts:
            outcomes.extend(measure(case, rounds, console) for case in PARTS[part](given))
    except MapaError as error:
        console.print(f"[red]{error}[/]")
        return 2
    finally:
        text = json.dumps([outcome.plain() for outcome in outcomes], indent=1) + "\n"
        if given.json == "-":
            sys.stdout.write(text)
        elif given.json:
            Path(given.json).write_text(text, encoding="utf-8")
    return 1 if given.strict and not all(outcome.held() for outcome in outcomes) else 0


if __name__ == "__main__":
    if any(os.environ.get(variable) != "1" for variable in VARIABLES):  # else the ratios are of thread pools
        os.environ.update(dict.fromkeys(VARIABLES, "1"))
        os.execv(sys.executable, [sys.executable, "-m", "experiments.bench", *sys.argv[1:]])
    sys.exit(main())

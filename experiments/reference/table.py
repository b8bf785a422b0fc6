"""Rows of the reference table: a cell's run, rows as CSV to which others can add theirs, and tables in Markdown."""

from __future__ import annotations

import csv
import math
import shlex
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from functools import partial
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, ClassVar, TypeVar

from common.datasets.catalogue import load_dataset
from common.errors import ConfigurationError
from common.models.model import feature_length
from common.wire.v1 import HEADER_BYTES
from experiments.harness import markdown_table, percent, require_end, result_key
from experiments.reference.cells import MAIN, Cell, Choice, methods
from mapa.recording import privacy_of
from mapa.run_parts import assemble
from mapa.simulation.simulator import check_world, simulate
from mapa.simulation.world import World

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

R = TypeVar("R", bound="DataclassInstance")
FORMAT = 1  # raised whenever the same cell would give other numbers
EVEN, UNEVEN = "lan", "heterogeneous"
TITLES = {"mnist": "MNIST", "fashion": "Fashion-MNIST", "cifar10": "CIFAR-10"}
_MOST_ROWS = 1_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """What the table says of one run; the columns of its CSV."""

    data: str
    edges: int
    epsilon: float  # the budget of each edge
    links: str
    method: str
    seed: int
    accuracy: float  # of the last iterate
    stated_epsilon: float  # of the edge with most
    delta: float
    updates: int
    releases: int  # by all edges
    megabytes: float  # of models and gradients, both ways
    virtual_seconds: float
    seconds: float  # that the simulation took
    evaluated_on: str  # test or held-out
    digest: str  # of the scenario
    command: str
    by: str = "this project"


@dataclass(frozen=True, slots=True)
class CellRun:
    """A cell, and what was chosen for it."""

    cell: Cell
    choice: Choice
    data_dir: Path
    cost: ClassVar[float] = 1.0
    alone: ClassVar[bool] = False

    @property
    def name(self) -> str:
        return self.cell.name

    @property
    def labels(self) -> dict[str, str]:
        return {self.key: self.name}

    @property
    def key(self) -> str:
        """Name of the row in the cache: the cell, its choice, the recipe and the method; sizes may share it."""
        cell = {key: value for key, value in asdict(self.cell).items() if key != "size"}
        base = self.cell.base().digest  # of the recipe with all that the size changes in it
        return result_key(FORMAT, cell, self.choice, base, repr(methods()[self.cell.method]))


def units(cell: Cell, data_dir: Path) -> tuple[float, float]:
    """Return ρ by tuning-free's rule for the cell's recipe, and ℓ."""
    base = assemble(cell.base(), partial(load_dataset, data_dir=data_dir), None, data_dir)
    length = feature_length(base.model)
    assert length is not None  # all recipes are tuning-free
    return float(base.scenario.algorithm.options["rate"]), length


def run_cell(run: CellRun) -> list[Row]:
    """Simulate one cell; return its row."""
    began = time.perf_counter()
    cell = run.cell
    rate, length = units(cell, run.data_dir)
    scenario, words = cell.scenario(run.choice, rate=rate, length=length)
    world = World.of(scenario, run.data_dir)
    check_world(world)
    outcome = simulate(world)
    require_end(cell.name, outcome)
    resolved = world.scenario
    edges = [
        (k, f"edge-{k}", resolved.law(k), len(world.rows[k]), releases)
        for k, releases in enumerate(outcome.releases)
    ]
    releases = sum(outcome.releases)
    message = HEADER_BYTES + 4 * world.model.dimension
    changes = [part for word in words for part in ("--set", word)]
    row = Row(
        data=cell.data,
        edges=cell.edges,
        epsilon=cell.epsilon,
        links=cell.links,
        method=cell.method,
        seed=cell.seed,
        accuracy=float(outcome.tally.evaluations[-1]["accuracy"]),
        stated_epsilon=float(privacy_of(resolved, edges)["epsilon"]),
        delta=resolved.privacy.total_delta,
        updates=outcome.tally.updates,
        releases=releases,
        megabytes=2 * releases * message / 1e6,
        virtual_seconds=outcome.virtual_seconds or 0.0,
        seconds=time.perf_counter() - began,
        evaluated_on="held-out" if cell.held_out else "test",
        digest=scenario.digest,
        command=shlex.join(["mapa", "simulate", cell.recipe, "--seed", str(cell.seed), *changes]),
    )
    return [row]


# -- CSV ---------------------------------------------------------------------------------------------


def write_values(path: Path, kind: type[R], rows: Iterable[R]) -> None:
    """Write dataclasses of one kind, a line each."""
    with path.open("w", newline="", encoding="utf-8") as stream:
        writer = csv.DictWriter(stream, [one.name for one in fields(kind)], lineterminator="\n")
        writer.writeheader()
        for row in rows:
            writer.writerow(
                {key: f"{v:.6g}" if isinstance(v, float) else v for key, v in asdict(row).items()}
            )


def read_rows(path: Path) -> list[Row]:
    """Read rows of any origin; ConfigurationError names the line and what is wrong with it."""
    return [_checked(row, place) for place, row in read_values(path, Row)]


def read_values(path: Path, kind: type[R]) -> list[tuple[str, R]]:
    """Read dataclasses whose fields are int, float and printable str, each with the words for its line."""
    columns = [one.name for one in fields(kind)]
    try:
        with path.open(newline="", encoding="utf-8") as stream:
            reader = csv.DictReader(stream)
            if list(reader.fieldnames or ()) != columns:
                raise ConfigurationError(f"{path}: the columns must be {','.join(columns)}")
            found: list[tuple[str, R]] = []
            for number, values in enumerate(reader, 2):
                place = f"{path}, line {number}"
                if number > _MOST_ROWS:
                    raise ConfigurationError(f"{place}: more than {_MOST_ROWS:,} lines")
                found.append((place, _made(kind, place, values)))
            return found
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise ConfigurationError(f"{path}: {error}") from error


def _made(kind: type[R], place: str, values: Mapping[str, str | None]) -> R:
    made: dict[str, object] = {}
    if None in values.values() or None in values:
        raise ConfigurationError(f"{place}: must have {len(fields(kind))} values")
    for one in fields(kind):
        text = values[one.name] or ""
        try:
            made[one.name] = {"int": int, "float": float, "str": str}[str(one.type)](text)
        except ValueError:
            raise ConfigurationError(f"{place}: {one.name} = {text!r}: not {one.type}") from None
        if not text.isprintable():
            raise ConfigurationError(f"{place}: {one.name}: not printable")
    return kind(**made)


def _checked(row: Row, place: str) -> Row:
    for name in ("epsilon", "stated_epsilon", "megabytes", "virtual_seconds", "seconds"):
        if not 0 <= getattr(row, name) < math.inf:
            raise ConfigurationError(f"{place}: {name} = {getattr(row, name)}: must be at least 0")
    for name, value in (("accuracy", row.accuracy), ("delta", row.delta)):
        if not 0 <= value <= 1:
            raise ConfigurationError(f"{place}: {name} = {value}: must be from 0 to 1")
    return row


# -- tables for readers ------------------------------------------------------------------------------


def markdown(rows: Sequence[Row]) -> str:
    """Return a table for each data set, number of edges and kind of links: methods by budgets."""
    parts: list[str] = []
    by_place: dict[tuple[str, int, str], list[Row]] = {}
    for row in rows:
        by_place.setdefault((row.data, row.edges, row.links), []).append(row)
    for (data, edges, links), some in by_place.items():
        epsilons = sorted({row.epsilon for row in some})
        heads = ["method", *(f"ε = {epsilon:g}" for epsilon in epsilons), "stated ε", "updates", "MB"]
        lines = []
        for method, by in dict.fromkeys((row.method, row.by) for row in some):
            own = [row for row in some if (row.method, row.by) == (method, by)]
            cells = [percent([row.accuracy for row in own if row.epsilon == eps]) for eps in epsilons]
            name = f"`{method}`" + ("" if by == "this project" else f" ({by})")
            main = [row for row in own if row.epsilon == MAIN] or own
            seconds, seeds = between([row.seconds for row in main], ".0f"), len({row.seed for row in own})
            lines.append([name, *cells, *_costs(main), seconds, str(seeds)])
        table = markdown_table([*heads, "virtual s", "simulated in (s)", "seeds"], lines)
        parts.append(f"### {TITLES.get(data, data)}, K = {edges}, {links}\n\n{table}\n")
    return "\n".join(parts)


def every_method(rows: Sequence[Row], links: str) -> str:
    """Return all methods at the main budget over one kind of links: a column for each data set and number of edges."""
    main = [row for row in rows if (row.epsilon, row.links) == (MAIN, links)]
    places = _places(main)
    heads = [f"{TITLES[data]}, K = {edges}" for data, edges in places]
    costs = [f"{cost}, K = 5" for cost in ("stated ε", "updates", "MB", "virtual s")]
    lines = []
    for method in _named(main):
        own = [row for row in main if row.method == method]
        cells = [percent([row.accuracy for row in _of(own, *place)]) for place in places]
        lines.append([f"`{method}`", *cells, *_costs([row for row in own if row.edges == 5])])
    return markdown_table(["", *heads, *costs], lines)


def every_budget(rows: Sequence[Row], links: str) -> str:
    """Return the methods that have every budget over one kind of links: one row for each, data set and K."""
    some = [row for row in rows if row.links == links]
    budgets = sorted({row.epsilon for row in some})
    whole = [m for m in _named(some) if {row.epsilon for row in some if row.method == m} == set(budgets)]
    lines = []
    for data, edges in _places(some):
        for method in whole:
            own = [row for row in _of(some, data, edges) if row.method == method]
            cells = [percent([row.accuracy for row in own if row.epsilon == budget]) for budget in budgets]
            lines.append([f"{TITLES[data]}, K = {edges}", f"`{method}`", *cells])
    return markdown_table(["accuracy in %", "method", *(f"ε = {budget:g}" for budget in budgets)], lines)


def behind(rows: Sequence[Row], method: str, best: str = "tuned") -> str:
    """Return how many points a method is behind another over the cells that both have."""
    gaps: dict[tuple[str, int, float, str], dict[str, list[float]]] = {}
    for row in rows:
        cell = (row.data, row.edges, row.epsilon, row.links)
        gaps.setdefault(cell, {}).setdefault(row.method, []).append(100 * row.accuracy)
    found = [fmean(by[best]) - fmean(by[method]) for by in gaps.values() if {best, method} <= by.keys()]
    average, most = fmean(found), max(found)
    return f"`{method}` is {average:.2f} points behind `{best}` on average over {len(found)} cells, {most:.2f} at most."


def in_short(rows: Sequence[Row]) -> str:
    """Return the main budget at K = 5 and even links: methods by data sets."""
    main = [row for row in rows if (row.epsilon, row.edges, row.links) == (MAIN, 5, EVEN)]
    places = _places(main)
    lines = []
    for method in _named(main):
        own = [row for row in main if row.method == method]
        cells = [f"{100 * fmean(row.accuracy for row in _of(own, *place)):.1f}" for place in places]
        lines.append([f"`{method}`", *cells])
    return markdown_table(["", *(TITLES[data] for data, _ in places)], lines)


def between(values: Sequence[float], form: str = ".3f") -> str:
    """Return the least and the largest, once where they are the same."""
    if not values:
        return "–"
    low, high = format(min(values), form), format(max(values), form)
    return low if low == high else f"{low} … {high}"


def _costs(rows: Sequence[Row]) -> list[str]:
    """Return stated ε, updates, megabytes and virtual seconds."""
    return [
        between([row.stated_epsilon for row in rows]),
        between([row.updates for row in rows], ".0f"),
        between([row.megabytes for row in rows], ".0f"),
        between([row.virtual_seconds for row in rows], ".1f"),
    ]


def _places(rows: Iterable[Row]) -> list[tuple[str, int]]:
    found = {(row.data, row.edges) for row in rows}
    return [(data, edges) for data in TITLES for edges in sorted({e for d, e in found if d == data})]


def _named(rows: Iterable[Row]) -> list[str]:
    used = {row.method for row in rows}
    return [name for name in methods() if name in used]


def _of(rows: Iterable[Row], data: str, edges: int) -> list[Row]:
    return [row for row in rows if (row.data, row.edges) == (data, edges)]

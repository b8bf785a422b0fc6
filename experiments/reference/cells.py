"""Cells of the reference table, their scenarios, and the choices made for them on held-out records."""

from __future__ import annotations

import itertools
import tomllib
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache, partial
from pathlib import Path
from typing import Any

from common.datasets.catalogue import load_dataset
from common.errors import ConfigurationError
from common.models.model import feature_length
from common.scenario.scenario import Scenario
from experiments.harness import matching
from mapa.run_parts import assemble
from mapa.scenario_files import load_scenario

Change = str | int | float | list[float]
Choice = dict[str, Change]  # what was chosen on held-out records, as changes of a scenario

MAIN = 3  # the budget at which every method is run
_HOLDOUT = {"mnist": 10_000, "fashion": 10_000, "cifar10": 5_000}  # records


@dataclass(frozen=True, slots=True)
class Method:
    name: str
    about: str
    set: Mapping[str, Change] = field(default_factory=dict)
    grid: Mapping[str, Sequence[Change]] = field(default_factory=dict)  # tried on held-out records
    links: Sequence[str] = ("lan",)  # on which it is chosen; any other kind takes the first one's
    only: Mapping[str, Sequence[Any]] = field(
        default_factory=dict
    )  # values of a cell's fields; others it has none of

    def has(self, cell: TableCell) -> bool:
        """Return whether it is run there."""
        return all(getattr(cell, key) in values for key, values in self.only.items())

    def candidates(self) -> list[Choice]:
        """Return every combination of the grid, the empty one where there is nothing to choose."""
        keys = list(self.grid)
        return [dict(zip(keys, values, strict=True)) for values in itertools.product(*self.grid.values())]


@dataclass(frozen=True, slots=True)
class TableSize:
    data: Sequence[str]
    edges: Sequence[int]
    epsilons: Sequence[int]
    every: Sequence[str]  # methods at the main budget
    few: Sequence[str]  # at the others
    links: Sequence[str]
    seeds: int
    few_links: Sequence[str] = ("lan",)  # at the other budgets
    set: Mapping[str, Change] = field(default_factory=dict)
    holdout: int | None = None  # records; None: by the data set


@dataclass(frozen=True, slots=True, kw_only=True)
class TableCell:
    data: str
    edges: int
    epsilon: int
    method: str
    links: str
    seed: int
    size: str
    held_out: bool = False  # evaluated on records that were held out of training, not on the test set

    @property
    def recipe(self) -> str:
        return f"private-{self.data}-eps{self.epsilon}" + (f"-k{self.edges}" if self.edges != 5 else "")

    @property
    def name(self) -> str:
        """What --only is matched against."""
        return f"{self.recipe}/{self.links}/{self.method}"

    @property
    def group(self) -> Group:
        """What seeds are averaged over, and choices made for."""
        return self.data, self.edges, self.epsilon, self.links, self.method

    def base(self) -> Scenario:
        """Return the recipe itself for this cell's links: its rate and length are the units of all changes."""
        return load_scenario(self.recipe, _words(self._common()), seed=self.seed)[1]

    def scenario(self, choice: Choice, *, rate: float, length: float) -> tuple[Scenario, list[str]]:
        """Return the cell's scenario, and the changes of the recipe that give it."""
        method = methods()[self.method]
        changes = {**self._common(), **_in_numbers({**method.set, **choice}, rate, length)}
        steps = changes.get("local.steps")
        if steps is not None:
            releases = self.base().privacy.releases
            assert releases is not None
            changes["iterations"] = self.edges * (releases // int(float(str(steps))) - 1) + 1
        words = _words(changes)
        return load_scenario(self.recipe, words, seed=self.seed)[1], words

    def on_held_out(self) -> TableCell:
        """Return the cell on which this one's choice is made."""
        chosen_on = methods()[self.method].links
        links = self.links if self.links in chosen_on else chosen_on[0]
        return replace(self, held_out=True, seed=0, links=links)

    def _common(self) -> dict[str, Change]:
        size = sizes()[self.size]
        changes = {**size.set, **_toml("sizes")["links"][self.links]}
        changes |= {"evaluation.every": 0, "records.events": "false"}
        if self.held_out:
            changes["data.holdout"] = size.holdout or _HOLDOUT[self.data]
        return changes


def _words(changes: Mapping[str, Change]) -> list[str]:
    return [f"{key}={value}" for key, value in changes.items()]


def all_cells(size_name: str, *, seeds: int | None = None, only: Sequence[str] = ()) -> list[TableCell]:
    """Return every cell of a size; `only` are globs of recipe/links/method."""
    size = sizes()[size_name]
    cells = [
        TableCell(data=data, edges=edges, epsilon=eps, method=method, links=links, seed=seed, size=size_name)
        for data in size.data
        for edges in size.edges
        for eps in size.epsilons
        for links in (size.links if eps == MAIN else size.few_links)
        for method in (size.every if eps == MAIN else size.few)
        for seed in range(1, min(size.seeds, seeds or size.seeds) + 1)
    ]
    return matching(
        [cell for cell in cells if methods()[cell.method].has(cell)], only, lambda cell: cell.name
    )


@cache
def methods() -> dict[str, Method]:
    return {name: Method(name, **values) for name, values in _toml("methods").items()}


@cache
def sizes() -> dict[str, TableSize]:
    return {name: TableSize(**values) for name, values in _toml("sizes").items() if name != "links"}


@cache
def _toml(name: str) -> dict[str, Any]:
    return tomllib.loads((Path(__file__).parent / f"{name}.toml").read_text(encoding="utf-8"))


def _in_numbers(changes: Mapping[str, Change], rate: float, length: float) -> dict[str, Change]:
    """Turn "2 rate" and "0.1 length" into numbers."""
    units = {"rate": rate, "length": length}
    parts = {key: str(value).partition(" ") for key, value in changes.items()}
    return {
        key: f"{float(number) * units[unit]:.6g}" if unit in units else changes[key]
        for key, (number, _, unit) in parts.items()
    }


def units(cell: TableCell, data_dir: Path) -> tuple[float, float]:
    """Return ρ by tuning-free's rule for the cell's recipe, and ℓ."""
    base = assemble(cell.base(), partial(load_dataset, data_dir=data_dir), None, data_dir)
    length = feature_length(base.model)
    assert length is not None  # all recipes are tuning-free
    return float(base.scenario.algorithm.options["rate"]), length


Group = tuple[str, int, int, str, str]
_GROUP = ("data", "edges", "epsilon", "links", "method")
FURTHER = 3  # steps at most beyond a grid, for each of its keys


@dataclass(frozen=True, slots=True)
class Chosen:
    choice: Choice
    accuracy: float  # there
    looks: int  # at the held-out records for it


def asked_of(cells: Iterable[TableCell]) -> list[tuple[TableCell, Choice]]:
    """Return every held-out run that the choices of these cells need, each once."""
    asked: dict[tuple[Group, str], tuple[TableCell, Choice]] = {}
    for cell in cells:
        method, trial = methods()[cell.method], cell.on_held_out()
        for choice in method.candidates() if method.grid else ():
            asked[trial.group, repr(choice)] = (trial, choice)
    return list(asked.values())


@dataclass(slots=True)
class Search:
    """The grid of one group, which grows where its best value lies at an end."""

    grid: dict[str, list[Change]]
    choice: Choice = field(default_factory=dict)
    accuracy: float = -1.0
    looks: int = 0
    _added: Counter[str] = field(default_factory=Counter)

    @classmethod
    def of(cls, cell: TableCell) -> Search:
        return cls({key: list(values) for key, values in methods()[cell.method].grid.items()})

    def learn(self, choice: Choice, accuracy: float) -> None:
        """Take what a choice reached on held-out records; of equals the first one stays."""
        self.looks += 1
        if accuracy > self.accuracy:
            self.choice, self.accuracy = choice, accuracy

    def further(self) -> list[Choice]:
        """Return the best choice with a value one step beyond its grid, where it lies at an end; the grid grows."""
        beyond: list[Choice] = []
        for key, values in self.grid.items():
            value = self.choice.get(key)
            if len(values) < 2 or value not in (values[0], values[-1]) or self._added[key] >= FURTHER:
                continue
            self._added[key] += 1
            if value == values[0]:
                following = _after(values[1], values[0])
                values.insert(0, following)
            else:
                following = _after(values[-2], values[-1])
                values.append(following)
            beyond.append({**self.choice, key: following})
        return beyond

    @property
    def chosen(self) -> Chosen:
        return Chosen(self.choice, self.accuracy, self.looks)


def _after(before: Change, end: Change) -> Change:
    """Return the next value of a geometric grid; units stay."""
    first, last = (float(str(value).partition(" ")[0]) for value in (before, end))
    text, unit = f"{last * last / first:.3g}", str(end).partition(" ")[2]
    return f"{text} {unit}" if unit else float(text)


def choice_for(cell: TableCell, chosen: Mapping[Group, Chosen]) -> Choice:
    """Return what the cell is run with; ConfigurationError where its choice has not been made."""
    if not methods()[cell.method].grid:
        return {}
    made = chosen.get(cell.on_held_out().group)
    if made is None:
        raise ConfigurationError(
            f"{cell.name}: nothing was chosen for it on held-out records; run it with --tune first"
        )
    return made.choice


def read_choices(path: Path) -> dict[Group, Chosen]:
    if not path.is_file():
        return {}
    rows = tomllib.loads(path.read_text(encoding="utf-8"))["chosen"]
    made = ("set", "accuracy", "looks")
    return {tuple(row[key] for key in _GROUP): Chosen(*(row[key] for key in made)) for row in rows}


def write_choices(path: Path, chosen: Mapping[Group, Chosen]) -> None:
    """Write them as TOML, sorted, so that a change can be read."""
    lines = [
        "# Chosen on records that were held out of training; written by `mapa reproduce reference --tune`.",
        "# `looks`: how often the held-out records were evaluated for it. The test sets played no part.",
    ]
    for group, made in sorted(chosen.items()):
        changes = ", ".join(f'"{key}" = {_value(value)}' for key, value in made.choice.items())
        lines += ["", "[[chosen]]"]
        lines += [f"{key} = {_value(value)}" for key, value in zip(_GROUP, group, strict=True)]
        lines += [f"set = {{ {changes} }}", f"accuracy = {made.accuracy:.4f}", f"looks = {made.looks}"]
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")


def _value(value: object) -> str:
    return f'"{value}"' if isinstance(value, str) else str(value)

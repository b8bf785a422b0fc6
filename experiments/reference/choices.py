"""What is chosen on held-out records, and how often they were looked at: choices.toml keeps both."""

from __future__ import annotations

import tomllib
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from experiments.reference.cells import Cell, Change, Choice, methods

Group = tuple[str, int, int, str, str]  # data, edges, ε, links, method
FURTHER = 3  # steps at most beyond a grid, for each of its keys


@dataclass(frozen=True, slots=True)
class Chosen:
    """The best of a grid on held-out records."""

    choice: Choice
    accuracy: float  # there
    looks: int  # at the held-out records for it


def asked_of(cells: Iterable[Cell]) -> list[tuple[Cell, Choice]]:
    """Return every held-out run that the choices of these cells need, each once."""
    found: dict[tuple[Group, str], tuple[Cell, Choice]] = {}
    for cell in cells:
        method = methods()[cell.method]
        if not method.grid:
            continue
        trial = cell.on_held_out(method.chosen_on(cell.links))
        for choice in method.candidates():
            found[trial.group, repr(choice)] = (trial, choice)
    return list(found.values())


@dataclass(slots=True)
class Search:
    """The grid of one group, which grows where its best value lies at an end."""

    grid: dict[str, list[Change]]
    choice: Choice = field(default_factory=dict)
    accuracy: float = -1.0
    looks: int = 0
    _added: Counter[str] = field(default_factory=Counter)

    def learn(self, choice: Choice, accuracy: float) -> None:
        """Take what a choice reached on held-out records; of equals the first one stays."""
        self.looks += 1
        if accuracy > self.accuracy:
            self.choice, self.accuracy = choice, accuracy

    def further(self) -> list[Choice]:
        """Return the best choice with a value one step beyond its grid, where it lies at an end; the grid grows."""
        found = []
        for key, values in self.grid.items():
            value = self.choice.get(key)
            if len(values) < 2 or value not in (values[0], values[-1]) or self._added[key] >= FURTHER:
                continue
            self._added[key] += 1
            if value == values[0]:
                values.insert(0, _after(values[1], values[0]))
                found.append({**self.choice, key: values[0]})
            else:
                values.append(_after(values[-2], values[-1]))
                found.append({**self.choice, key: values[-1]})
        return found

    @property
    def chosen(self) -> Chosen:
        return Chosen(self.choice, self.accuracy, self.looks)


def _after(before: Change, end: Change) -> Change:
    """Return the next value of a geometric grid; units stay."""
    first, last = (float(str(value).partition(" ")[0]) for value in (before, end))
    text = f"{last * last / first:.3g}"
    unit = str(end).partition(" ")[2]
    return f"{text} {unit}" if unit else float(text)


def choice_for(cell: Cell, chosen: Mapping[Group, Chosen]) -> Choice | None:
    """Return what the cell is run with; None: its choice has not been made."""
    method = methods()[cell.method]
    if not method.grid:
        return {}
    found = chosen.get(cell.on_held_out(method.chosen_on(cell.links)).group)
    return None if found is None else found.choice


def read_choices(path: Path) -> dict[Group, Chosen]:
    if not path.is_file():
        return {}
    rows = tomllib.loads(path.read_text(encoding="utf-8"))["chosen"]
    return {
        (row["data"], row["edges"], row["epsilon"], row["links"], row["method"]): Chosen(
            row["set"], row["accuracy"], row["looks"]
        )
        for row in rows
    }


def write_choices(path: Path, chosen: Mapping[Group, Chosen]) -> None:
    """Write them as TOML, sorted, so that a change can be read."""
    lines = [
        "# Chosen on records that were held out of training; written by `mapa reproduce reference --tune`.",
        "# `looks`: how often the held-out records were evaluated for it. The test sets played no part.",
    ]
    for (data, edges, epsilon, links, method), one in sorted(chosen.items()):
        changes = ", ".join(f'"{key}" = {_value(value)}' for key, value in one.choice.items())
        lines += [
            "",
            "[[chosen]]",
            f'data = "{data}"',
            f"edges = {edges}",
            f"epsilon = {epsilon}",
            f'links = "{links}"',
            f'method = "{method}"',
            f"set = {{ {changes} }}",
            f"accuracy = {one.accuracy:.4f}",
            f"looks = {one.looks}",
        ]
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")


def _value(value: Change) -> str:
    return f'"{value}"' if isinstance(value, str) else str(value)

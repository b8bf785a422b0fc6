"""Rows as CSV, to which others can add theirs, and the table that people read."""

from __future__ import annotations

import csv
import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, fields
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from common.errors import ConfigurationError
from experiments.reference.runs import Row

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

R = TypeVar("R", bound="DataclassInstance")
COLUMNS = tuple(one.name for one in fields(Row))
TITLES = {"mnist": "MNIST", "fashion": "Fashion-MNIST", "cifar10": "CIFAR-10"}
_MOST_ROWS = 1_000_000


def write_rows(path: Path, rows: Iterable[Row]) -> None:
    write_values(path, Row, rows)


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
    """Read rows of anybody's; ConfigurationError names the line and what is wrong with it."""
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


def markdown(rows: Sequence[Row]) -> str:
    """Return a table for each data set, number of edges and kind of links: methods by budgets."""
    lines: list[str] = []
    by_place: dict[tuple[str, int, str], list[Row]] = {}
    for row in rows:
        by_place.setdefault((row.data, row.edges, row.links), []).append(row)
    for (data, edges, links), some in by_place.items():
        epsilons = sorted({row.epsilon for row in some})
        lines += ["", f"### {TITLES.get(data, data)}, K = {edges}, {links}", ""]
        heads = [f"ε = {epsilon:g}" for epsilon in epsilons]
        lines.append(
            f"| method | {' | '.join(heads)} | stated ε | updates | MB | virtual s | simulated in (s) | seeds |"
        )
        lines.append(f"|---|{'---|' * (len(heads) + 6)}")
        for method, by in dict.fromkeys((row.method, row.by) for row in some):
            own = [row for row in some if (row.method, row.by) == (method, by)]
            cells = [spread([row.accuracy for row in own if row.epsilon == eps]) for eps in epsilons]
            name = f"`{method}`" + ("" if by == "this project" else f" ({by})")
            main = [row for row in own if row.epsilon == 3] or own
            lines.append(
                f"| {name} | {' | '.join(cells)} | {between([row.stated_epsilon for row in main])}"
                f" | {between([row.updates for row in main], '.0f')}"
                f" | {between([row.megabytes for row in main], '.0f')}"
                f" | {between([row.virtual_seconds for row in main], '.1f')}"
                f" | {between([row.seconds for row in main], '.0f')} | {len({row.seed for row in own})} |"
            )
    return "\n".join(lines).lstrip("\n") + "\n"


def spread(values: Sequence[float]) -> str:
    """Return the mean of accuracies in %, and their standard deviation where there are several."""
    if not values:
        return "–"
    mean = 100 * statistics.fmean(values)
    return f"{mean:.2f}" + (f" ± {100 * statistics.stdev(values):.2f}" if len(values) > 1 else "")


def between(values: Sequence[float], form: str = ".3f") -> str:
    """Return the least and the largest, once where they are the same."""
    if not values:
        return "–"
    low, high = format(min(values), form), format(max(values), form)
    return low if low == high else f"{low} … {high}"

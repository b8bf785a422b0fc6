"""Rows as CSV, to which others can add theirs, and the table that people read."""

from __future__ import annotations

import csv
import math
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import asdict, fields
from pathlib import Path

from common.errors import ConfigurationError
from experiments.reference.runs import Row

COLUMNS = tuple(one.name for one in fields(Row))
TITLES = {"mnist": "MNIST", "fashion": "Fashion-MNIST", "cifar10": "CIFAR-10"}
_MOST_ROWS = 1_000_000


def write_rows(path: Path, rows: Iterable[Row]) -> None:
    with path.open("w", newline="", encoding="utf-8") as stream:
        writer = csv.DictWriter(stream, COLUMNS, lineterminator="\n")
        writer.writeheader()
        for row in rows:
            writer.writerow(
                {key: f"{v:.6g}" if isinstance(v, float) else v for key, v in asdict(row).items()}
            )


def read_rows(path: Path) -> list[Row]:
    """Read rows of anybody's; ConfigurationError names the line and what is wrong with it."""
    try:
        with path.open(newline="", encoding="utf-8") as stream:
            reader = csv.DictReader(stream)
            if tuple(reader.fieldnames or ()) != COLUMNS:
                raise ConfigurationError(f"{path}: the columns must be {','.join(COLUMNS)}")
            rows = [_row(path, number, values) for number, values in enumerate(reader, 2)]
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise ConfigurationError(f"{path}: {error}") from error
    return rows


def _row(path: Path, line: int, values: dict[str, str | None]) -> Row:
    if line > _MOST_ROWS or None in values.values() or None in values:
        raise ConfigurationError(f"{path}, line {line}: must have {len(COLUMNS)} values")
    made: dict[str, object] = {}
    for one in fields(Row):
        text = values[one.name] or ""
        try:
            made[one.name] = {"int": int, "float": float, "str": str}[str(one.type)](text)
        except ValueError:
            raise ConfigurationError(f"{path}, line {line}: {one.name} = {text!r}: not {one.type}") from None
    row = Row(**made)  # type: ignore[arg-type]
    for name in ("epsilon", "stated_epsilon", "megabytes", "virtual_seconds", "seconds"):
        if not 0 <= getattr(row, name) < math.inf:
            raise ConfigurationError(
                f"{path}, line {line}: {name} = {getattr(row, name)}: must be at least 0"
            )
    for name, value in (("accuracy", row.accuracy), ("delta", row.delta)):
        if not 0 <= value <= 1:
            raise ConfigurationError(f"{path}, line {line}: {name} = {value}: must be from 0 to 1")
    if not all(isinstance(v, str) is False or v.isprintable() for v in asdict(row).values()):
        raise ConfigurationError(f"{path}, line {line}: not printable")
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
        lines.append(f"| method | {' | '.join(heads)} | stated ε | updates | MB | seconds | seeds |")
        lines.append(f"|---|{'---|' * (len(heads) + 5)}")
        for method, by in dict.fromkeys((row.method, row.by) for row in some):
            own = [row for row in some if (row.method, row.by) == (method, by)]
            cells = [spread([row.accuracy for row in own if row.epsilon == eps]) for eps in epsilons]
            name = f"`{method}`" + ("" if by == "this project" else f" ({by})")
            main = [row for row in own if row.epsilon == 3] or own
            lines.append(
                f"| {name} | {' | '.join(cells)} | {between([row.stated_epsilon for row in main])}"
                f" | {between([row.updates for row in main], '.0f')}"
                f" | {between([row.megabytes for row in main], '.0f')}"
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

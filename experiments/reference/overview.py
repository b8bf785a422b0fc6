"""What docs/results.md and README.md show of the reference table, from its rows."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Sequence

from experiments.reference.cells import MAIN, methods
from experiments.reference.runs import Row
from experiments.reference.table import TITLES, between, spread

EVEN, UNEVEN = "lan", "heterogeneous"


def every_method(rows: Sequence[Row], links: str) -> str:
    """Return all methods at the main budget over one kind of links: a column for each data set and number of edges."""
    main = [row for row in rows if (row.epsilon, row.links) == (MAIN, links)]
    places = _places(main)
    heads = [f"{TITLES[data]}, K = {edges}" for data, edges in places]
    costs_of = ("stated ε", "updates", "MB", "virtual s")
    lines = _heading(["", *heads, *(f"{cost}, K = 5" for cost in costs_of)])
    for method in _named(main):
        own = [row for row in main if row.method == method]
        cells = [spread([row.accuracy for row in _of(own, *place)]) for place in places]
        few = [row for row in own if row.edges == 5]
        costs = [
            between([row.stated_epsilon for row in few]),
            between([row.updates for row in few], ".0f"),
            between([row.megabytes for row in few], ".0f"),
            between([row.virtual_seconds for row in few], ".1f"),
        ]
        lines.append(_line([f"`{method}`", *cells, *costs]))
    return "\n".join(lines)


def every_budget(rows: Sequence[Row], links: str) -> str:
    """Return the methods that have every budget over one kind of links: one row for each, data set and K."""
    some = [row for row in rows if row.links == links]
    budgets = sorted({row.epsilon for row in some})
    whole = [m for m in _named(some) if {row.epsilon for row in some if row.method == m} == set(budgets)]
    lines = _heading(["accuracy in %", "method", *(f"ε = {budget:g}" for budget in budgets)])
    for data, edges in _places(some):
        for method in whole:
            own = [row for row in _of(some, data, edges) if row.method == method]
            cells = [spread([row.accuracy for row in own if row.epsilon == budget]) for budget in budgets]
            lines.append(_line([f"{TITLES[data]}, K = {edges}", f"`{method}`", *cells]))
    return "\n".join(lines)


def behind(rows: Sequence[Row], method: str, best: str = "tuned") -> str:
    """Return how many points a method is behind another over the cells that both have."""
    gaps: dict[tuple[str, int, float, str], dict[str, list[float]]] = {}
    for row in rows:
        cell = (row.data, row.edges, row.epsilon, row.links)
        gaps.setdefault(cell, {}).setdefault(row.method, []).append(100 * row.accuracy)
    found = [
        statistics.fmean(by[best]) - statistics.fmean(by[method])
        for by in gaps.values()
        if {best, method} <= by.keys()
    ]
    average, most = statistics.fmean(found), max(found)
    return f"`{method}` is {average:.2f} points behind `{best}` on average over {len(found)} cells, {most:.2f} at most."


def in_short(rows: Sequence[Row]) -> str:
    """Return the main budget at K = 5 and even links: methods by data sets."""
    main = [row for row in rows if (row.epsilon, row.edges, row.links) == (MAIN, 5, EVEN)]
    places = _places(main)
    lines = _heading(["", *(TITLES[data] for data, _ in places)])
    for method in _named(main):
        own = [row for row in main if row.method == method]
        cells = [f"{100 * statistics.fmean(r.accuracy for r in _of(own, *place)):.1f}" for place in places]
        lines.append(_line([f"`{method}`", *cells]))
    return "\n".join(lines)


def _places(rows: Iterable[Row]) -> list[tuple[str, int]]:
    found = {(row.data, row.edges) for row in rows}
    return [(data, edges) for data in TITLES for edges in sorted({e for d, e in found if d == data})]


def _named(rows: Iterable[Row]) -> list[str]:
    found = {row.method for row in rows}
    return [name for name in methods() if name in found]


def _of(rows: Iterable[Row], data: str, edges: int) -> list[Row]:
    return [row for row in rows if (row.data, row.edges) == (data, edges)]


def _heading(cells: Sequence[str]) -> list[str]:
    return [_line(cells), "|" + "---|" * len(cells)]


def _line(cells: Iterable[str]) -> str:
    return f"| {' | '.join(cells)} |"

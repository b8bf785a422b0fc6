"""The tables of docs/results.md, docs/results/details.md and README.md, from the files in docs/results/.

`python -m experiments.reproduce.results_page docs` writes them between their marks, after a `reproduce` run has been
copied to docs/results/: verdicts.json, or rows.csv of the reference table as reference.csv, and its audited.csv.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

from experiments.harness import markdown_table, percent
from experiments.reference.audited import audited_table, read_audited
from experiments.reference.cells import MAIN, methods
from experiments.reference.table import TITLES, Row, costs, read_rows

EVEN, UNEVEN = "lan", "heterogeneous"
Verdicts = Sequence[Mapping[str, Any]]
_SUMS = "secure-sum"  # methods whose names begin so have a table of their own
_MARKED = re.compile(r"(<!-- generated: ([\w-]+) -->\n).*?(<!-- end -->)", re.DOTALL)


def verdicts(docs: Path) -> Verdicts:
    claims: Verdicts = json.loads((docs / "results" / "verdicts.json").read_text(encoding="utf-8"))
    return claims


def verdict_table(claims: Verdicts) -> str:
    """Return the claims, one a row, without their cases."""
    rows = [
        [_text(claim["claim"]), _where(claim["where"]), f"**{claim['verdict']}**", _text(claim["measured"])]
        for claim in claims
    ]
    return markdown_table(["claim", "where", "verdict", "measured"], rows)


def cases_of(claim: Mapping[str, Any]) -> str:
    """Return a claim's cases, folded, and our explanation where it fails."""
    marks = {"yes": "", "no": " ✗", "undecided": " ?"}
    lines = [f"- {_text(case['case'])}{marks[case['holds']]}" for case in claim["cases"]]
    why = [f"*Our explanation:* {_text(claim['explanation'])}", ""] if "explanation" in claim else []
    return "\n".join([f"**{_text(claim['claim'])}** {claim['measured']}", "", *why, *lines])


def _where(text: str) -> str:
    return _text(text) if text.startswith("ours") else f"`{text}`"


def _text(text: str) -> str:
    return text.replace("<", "&lt;").replace("*", "\\*").replace("_", "\\_")


def every_method(rows: Sequence[Row], links: str) -> str:
    """Return all methods at the main budget over one kind of links: a column for each data set and number of edges."""
    main = [row for row in rows if (row.epsilon, row.links) == (MAIN, links)]
    heads = [f"{TITLES[data]}, K = {edges}" for data, edges in _places(main)]
    heads += [f"{cost}, K = 5" for cost in ("stated ε", "updates", "MB", "virtual s")]
    lines = []
    for method in _named(main):
        own = [row for row in main if row.method == method]
        cells = [percent([row.accuracy for row in _of(own, *place)]) for place in _places(main)]
        lines.append([f"`{method}`", *cells, *costs([row for row in own if row.edges == 5])])
    return markdown_table(["", *heads], lines)


def every_budget(rows: Sequence[Row], links: str) -> str:
    """Return the methods that have every budget over one kind of links: one row for each, data set and K."""
    some = [row for row in rows if row.links == links]
    budgets = sorted({row.epsilon for row in some})
    lines = []
    for data, edges in _places(some):
        for method in _named(some):
            if {row.epsilon for row in some if row.method == method} == set(budgets):
                own = [row for row in _of(some, data, edges) if row.method == method]
                cells = [percent([row.accuracy for row in own if row.epsilon == eps]) for eps in budgets]
                lines.append([f"{TITLES[data]}, K = {edges}", f"`{method}`", *cells])
    return markdown_table(["accuracy in %", "method", *(f"ε = {budget:g}" for budget in budgets)], lines)


def behind(rows: Sequence[Row], method: str, best: str = "tuned") -> str:
    """Return how many points a method is behind another over the cells that both have."""
    cells: dict[tuple[str, int, float, str], dict[str, list[float]]] = {}
    for row in rows:
        cell = (row.data, row.edges, row.epsilon, row.links)
        cells.setdefault(cell, {}).setdefault(row.method, []).append(100 * row.accuracy)
    gaps = [fmean(by[best]) - fmean(by[method]) for by in cells.values() if {best, method} <= by.keys()]
    average, most = fmean(gaps), max(gaps)
    return f"`{method}` is {average:.2f} points behind `{best}` on average over {len(gaps)} cells, {most:.2f} at most."


def in_sums(rows: Sequence[Row]) -> str:
    """Return what sums of m edges' releases reach, beside none, and ε where all others side with the cloud."""
    named = [name for name in _named(rows) if name.startswith(_SUMS)]
    heads = [
        "ε in sums",
        "",
        "`tuning-free`",
        *(f"`{name}`" for name in named),
        *(f"own ε, {name}" for name in named),
    ]
    some = [row for row in rows if row.links == EVEN and row.method in ("tuning-free", *named)]
    lines = []
    for data, edges in _places([row for row in some if row.method in named]):
        for epsilon in sorted({row.epsilon for row in some if row.method in named}):
            own = [row for row in _of(some, data, edges) if row.epsilon == epsilon]
            by = {name: [row for row in own if row.method == name] for name in ("tuning-free", *named)}
            cells = [percent([row.accuracy for row in by[name]]) for name in ("tuning-free", *named)]
            alone = [f"{max(row.own_epsilon for row in by[name]):.1f}" if by[name] else "–" for name in named]
            lines.append([f"{epsilon:g}", f"{TITLES[data]}, K = {edges}", *cells, *alone])
    return markdown_table(heads, lines)


def in_short(rows: Sequence[Row]) -> str:
    """Return the main budget at K = 5 and even links: methods by data sets."""
    main = [row for row in rows if (row.epsilon, row.edges, row.links) == (MAIN, 5, EVEN)]
    lines = []
    for method in _named(main):
        own = [row for row in main if row.method == method]
        cells = [f"{100 * fmean(row.accuracy for row in _of(own, *place)):.1f}" for place in _places(main)]
        lines.append([f"`{method}`", *cells])
    return markdown_table(["", *(TITLES[data] for data, _ in _places(main))], lines)


def _places(rows: Iterable[Row]) -> list[tuple[str, int]]:
    places = {(list(TITLES).index(row.data), row.edges) for row in rows}
    return [(list(TITLES)[data], edges) for data, edges in sorted(places)]


def _named(rows: Iterable[Row]) -> list[str]:
    used = {row.method for row in rows}
    return [name for name in methods() if name in used]


def _of(rows: Iterable[Row], data: str, edges: int) -> list[Row]:
    return [row for row in rows if (row.data, row.edges) == (data, edges)]


def renewed(page: str, docs: Path) -> str:
    claims, every = verdicts(docs), read_rows(docs / "results" / "reference.csv")
    rows = [row for row in every if not row.method.startswith(_SUMS)]
    makers: dict[str, Callable[[], str]] = {
        "verdict-table": lambda: verdict_table(claims),
        "case-lists": lambda: "\n\n".join(map(cases_of, claims)),
        "reference-even": lambda: every_method(rows, EVEN),
        "reference-uneven": lambda: every_method(rows, UNEVEN),
        "reference-budgets": lambda: every_budget(rows, EVEN),
        "reference-behind": lambda: behind(rows, "tuning-free"),
        "reference-sums": lambda: in_sums(every),
        "reference-short": lambda: in_short(rows),
        "reference-audited": lambda: audited_table(read_audited(docs / "results" / "audited.csv")),
    }
    return _MARKED.sub(lambda match: f"{match[1]}\n{makers[match[2]]()}\n\n{match[3]}", page)


def pages(docs: Path) -> list[Path]:
    return [docs / "results.md", docs / "results" / "details.md", docs.parent / "README.md"]


def main(arguments: Sequence[str]) -> None:
    docs = Path(arguments[0])
    for page in pages(docs):
        page.write_text(renewed(page.read_text(encoding="utf-8"), docs), encoding="utf-8")
        print(f"wrote {page}", file=sys.stderr)


if __name__ == "__main__":
    main(sys.argv[1:])

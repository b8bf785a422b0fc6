"""The tables of docs/results.md, docs/results/details.md and README.md, from the files in docs/results/.

`python -m experiments.reproduce.results_page docs` writes them between their marks, after a `reproduce` run has been
copied to docs/results/: verdicts.json, or rows.csv of the reference table as reference.csv, and its audited.csv.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from experiments.harness import markdown_table
from experiments.reference import table as overview
from experiments.reference.audited import audited_table, read_audited
from experiments.reference.table import read_rows

Verdicts = Sequence[Mapping[str, Any]]
_MARKED = re.compile(r"(<!-- generated: ([\w-]+) -->\n).*?(<!-- end -->)", re.DOTALL)


def verdicts(docs: Path) -> Verdicts:
    """Return every claim with its verdict and its cases."""
    claims: list[dict[str, Any]] = json.loads(
        (docs / "results" / "verdicts.json").read_text(encoding="utf-8")
    )
    return claims


def verdict_table(claims: Verdicts) -> str:
    """Return the claims, one a row, without their cases."""
    rows = [
        [_text(claim["claim"]), _where(claim["where"]), f"**{claim['verdict']}**", _text(claim["measured"])]
        for claim in claims
    ]
    return markdown_table(["claim", "where", "verdict", "measured"], rows)


def case_lists(claims: Verdicts) -> str:
    """Return each claim's cases, folded, and our explanation where it fails."""
    return "\n\n".join(map(_cases, claims))


def _cases(claim: Mapping[str, Any]) -> str:
    marks = {"yes": "", "no": " ✗", "undecided": " ?"}
    lines = [f"- {_text(case['case'])}{marks[case['holds']]}" for case in claim["cases"]]
    why = [f"*Our explanation:* {_text(claim['explanation'])}", ""] if "explanation" in claim else []
    return "\n".join([f"**{_text(claim['claim'])}** {claim['measured']}", "", *why, *lines])


def _where(text: str) -> str:
    return _text(text) if text.startswith("ours") else f"`{text}`"


def _text(text: str) -> str:
    return text.replace("<", "&lt;").replace("*", "\\*").replace("_", "\\_")


def renewed(page: str, docs: Path) -> str:
    """Return a page with the text between its marks generated again."""
    claims, rows = verdicts(docs), read_rows(docs / "results" / "reference.csv")
    makers: dict[str, Callable[[], str]] = {
        "verdict-table": lambda: verdict_table(claims),
        "case-lists": lambda: case_lists(claims),
        "reference-even": lambda: overview.every_method(rows, overview.EVEN),
        "reference-uneven": lambda: overview.every_method(rows, overview.UNEVEN),
        "reference-budgets": lambda: overview.every_budget(rows, overview.EVEN),
        "reference-behind": lambda: overview.behind(rows, "tuning-free"),
        "reference-short": lambda: overview.in_short(rows),
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

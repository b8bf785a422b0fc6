"""mapa audit --planted: what each game finds of each planted defect."""

from __future__ import annotations

import json
import math
from functools import partial

import typer
from rich import box
from rich.console import Console
from rich.progress import Progress, SpinnerColumn, TaskID, TextColumn
from rich.table import Table

from experiments.audit.defects import INVISIBLE, Defect, planted, put_to_test
from experiments.audit.game import Finding, familywise, finite
from mapa.output import progress_console


def audit_planted(*, confidence: float, rounds: int, seed: int, as_json: bool) -> None:
    """Play the battery against every defect; exit 1 where one is neither refuted nor known to be invisible.

    α is divided among the games of a battery, as where `mapa audit` plays it: could that command have seen it?
    """
    console = progress_console()
    columns = (SpinnerColumn(), TextColumn("{task.description}"))
    found: list[tuple[Defect, list[Finding]]] = []
    with Progress(
        *columns, console=console, transient=True, disable=not console.is_terminal or console.quiet
    ) as bar:
        task = bar.add_task("", total=None)
        for place, defect in enumerate(planted()):
            games = defect.games(rounds)
            findings = put_to_test(
                games,
                alpha=familywise(confidence, len(games)),
                seed=100_000 * seed + 100 * place,
                progress=partial(_show, bar, task, defect.name),
            )
            found.append((defect, findings))
    missed = [
        defect.name
        for defect, findings in found
        if not findings[-1].violated and defect.name not in INVISIBLE
    ]
    if as_json:
        print(json.dumps(_report(found, confidence, missed), indent=2, ensure_ascii=False))
    else:
        _print(found, confidence, missed)
    if missed:
        raise typer.Exit(1)


def _show(bar: Progress, task: TaskID, defect: str, game: str) -> None:
    bar.update(task, description=f"{defect}: {game}")


def _report(
    found: list[tuple[Defect, list[Finding]]], confidence: float, missed: list[str]
) -> dict[str, object]:
    return {
        "confidence": confidence,
        "missed": missed,
        "invisible": INVISIBLE,
        "defects": [
            {
                "name": defect.name,
                "refuted": findings[-1].violated,
                "games": [
                    {
                        "name": finding.name,
                        "figure": finding.figure,
                        "claimed": finite(finding.claimed),
                        "lower_bound": finite(finding.lower_bound),
                        "rounds": finding.rounds,
                        "violated": finding.violated,
                    }
                    for finding in findings
                ],
            }
            for defect, findings in found
        ],
    }


def _print(found: list[tuple[Defect, list[Finding]]], confidence: float, missed: list[str]) -> None:
    console = Console(highlight=False)
    console.width = max(console.width, 140)
    table = Table(title=f"planted defects, {confidence:g} for the games of each together", box=box.SIMPLE)
    for column in ("defect", "game", "claimed", "at least", "verdict"):
        table.add_column(column, justify="right" if column in ("claimed", "at least") else "left")
    for defect, findings in found:
        for place, finding in enumerate(findings):
            table.add_row(
                "" if place else defect.name,
                finding.name,
                f"{finding.figure} {finding.claimed:.3f}",
                f"{finding.figure} {'∞' if math.isinf(finding.lower_bound) else f'{finding.lower_bound:.3f}'}",
                "refuted" if finding.violated else "",
            )
        if not findings[-1].violated:
            table.add_row("", INVISIBLE.get(defect.name, "no game refutes it"), "", "", "NOT REFUTED")
    console.print(table)
    console.print(
        f"{len(found) - len(missed)} of {len(found)} defects are refuted or known to be invisible."
        + (f" Missed: {'; '.join(missed)}." if missed else "")
    )

"""A run's summary as a table."""

from __future__ import annotations

import json
from typing import Any

from rich.console import Console
from rich.table import Table

from common.metrics import Metric
from mapa import output


def print_summary(summary: dict[str, Any], console: Console | None = None) -> None:
    """Print the result, the staleness, the privacy cost, and where the records are."""
    console = console or output.console()
    table = Table(title=f"{summary['name']}: {summary['algorithm']} {summary['model']} on {summary['data']}")
    table.add_column("")
    table.add_column("", justify="right")
    for label, text in _rows(summary):
        table.add_row(label, text)
    console.print(table)
    if "rate" in summary:
        console.print(f"rate: {summary['rate']}", soft_wrap=True, highlight=False)
    for line in summary.get("privacy", {}).get("words", []):
        console.print(line, soft_wrap=True, highlight=False)
    if "warning" in summary:
        console.print(summary["warning"], style="yellow", soft_wrap=True)
    console.print(f"records: {summary['path']}", soft_wrap=True, highlight=False)


def _rows(summary: dict[str, Any]) -> list[tuple[str, str]]:
    stale, stages = summary["staleness"], summary["stages"]
    rows = [
        ("updates", f"{summary['updates']:,} of {summary['iterations']:,} ({summary['reason']})"),
        *_metric_rows(summary),
        ("edges", f"{len(summary['edges'])}"),
    ]
    if stale["mean"] is not None:
        quantiles = f"mean {stale['mean']:.2f}, median {stale['p50']}, 99% {stale['p99']}, max {stale['max']}"
        rows.append(("staleness", quantiles))
    if stages:
        first, last = stages[0], stages[-1]
        rows.append(
            ("stages", f"{last['stage']} (ΔS {first['sensitivity']:.4g} → {last['sensitivity']:.4g})")
        )
    if summary["refused"]:
        rows.append(
            ("refused", ", ".join(f"{count} {reason}" for reason, count in summary["refused"].items()))
        )
    if summary["iterations_per_second"]:
        rows.append(("speed", f"{summary['iterations_per_second']:,.0f} updates/s"))
    return rows


def _metric_rows(summary: dict[str, Any]) -> list[tuple[str, str]]:
    metrics = [Metric.from_dict(fields) for fields in summary["metrics"]]
    first = metrics[0]
    best, when = summary[f"best_{first.name}"], summary[f"best_{first.name}_at"]
    if not summary["evaluations"]:
        return [("evaluation", "none (no test data)")]
    final = [(f"final {metric.name}", metric.text(summary[f"final_{metric.name}"])) for metric in metrics]
    return [final[0], (f"best {first.name}", f"{first.text(best)} at {when}"), *final[1:]]


def report(summary: dict[str, Any], *, as_json: bool) -> None:
    if as_json:
        print(json.dumps(summary, indent=2, ensure_ascii=False))
    else:
        print_summary(summary)

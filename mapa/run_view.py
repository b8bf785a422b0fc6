"""A run on the terminal: a live view or plain lines while it goes on, then its summary as a table."""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import Iterable
from types import TracebackType
from typing import Any, Protocol, Self

from rich.console import Console, Group
from rich.live import Live
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table
from rich.text import Text

from cloud.service import CloudService
from common.metrics import Metric
from common.records.tally import headline
from common.scenario.scenario import Scenario
from mapa import output
from mapa.output import is_verbose

_ROWS = 24  # edges shown one by one
_BARS = 10  # of the staleness histogram
_BLOCKS = " ▁▂▃▄▅▆▇█"
_LEFT = {  # by the reason of an edge's leave
    "budget": "budget spent",
    "refused": "refused the run",
    "failed": "failed",
    "shutdown": "ended by its operator",
    "away": "away",
}


class View(Protocol):
    """What a cloud tells of a run while it goes on."""

    def __enter__(self) -> Self: ...
    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...
    def attach(self, service: CloudService) -> None:
        """Show this service from now on."""

    def refresh(self) -> None:
        """Look at the service again."""

    def say(self, text: str) -> None:
        """Show a line that matters."""


class PlainView:
    """A line every few seconds."""

    def __init__(self, scenario: Scenario, console: Console, *, every: float = 5.0) -> None:
        self._scenario, self._console, self._every = scenario, console, every
        self._service: CloudService | None = None
        self._last = time.monotonic()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        return None

    def attach(self, service: CloudService) -> None:
        self._service = service

    def refresh(self) -> None:
        service, now = self._service, time.monotonic()
        if service is None or now - self._last < self._every:
            return
        self._last = now
        self.say(describe(service, self._scenario))

    def say(self, text: str) -> None:
        if self._every != float("inf"):
            self._console.print(text, soft_wrap=True, highlight=False, markup=False)


class LiveView:
    """Progress, stage, accuracy, staleness and edges, redrawn in place."""

    def __init__(self, scenario: Scenario, console: Console) -> None:
        self._scenario, self._console = scenario, console
        self._service: CloudService | None = None
        self._said: list[str] = []
        self._progress = Progress(
            TextColumn("{task.description}"),
            BarColumn(bar_width=None),
            MofNCompleteColumn(),
            TextColumn("{task.fields[rate]}"),
            TimeRemainingColumn(),
            console=console,
        )
        self._task = self._progress.add_task("updates", total=scenario.iterations, rate="")
        self._live = Live(console=console, auto_refresh=False, transient=True)

    def __enter__(self) -> Self:
        self._live.__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._live.__exit__(kind, error, trace)

    def attach(self, service: CloudService) -> None:
        self._service = service

    def refresh(self) -> None:
        if self._service is not None:
            self._live.update(self._draw(self._service), refresh=True)

    def say(self, text: str) -> None:
        self._said = [*self._said[-4:], text]
        self.refresh()

    def _draw(self, service: CloudService) -> Group:
        self._progress.update(self._task, completed=service.server.updates, rate=f"{rate(service):,.0f}/s")
        return Group(
            self._progress,
            Text(describe(service, self._scenario)),
            Text(f"staleness  {histogram(service.tally.staleness)}"),
            edge_table(service),
            *(Text(line, style="yellow") for line in self._said),
        )


def view_for(scenario: Scenario, console: Console, *, quiet: bool = False) -> PlainView | LiveView:
    """Return the view that fits the console."""
    if quiet or console.quiet:
        return PlainView(scenario, console, every=float("inf"))
    if is_verbose():
        return PlainView(scenario, console, every=1.0)
    return LiveView(scenario, console) if console.is_terminal else PlainView(scenario, console)


def rate(service: CloudService) -> float:
    """Return applied updates per second since the first one."""
    if service.first_update is None:
        return 0.0
    return service.server.updates / max(service.loop.now() - service.first_update, 1e-9)


def describe(service: CloudService, scenario: Scenario) -> str:
    """Return the run in one line."""
    server, tally = service.server, service.tally
    present = sum(account.present for account in server.edges.values())
    left = Counter(_LEFT.get(account.left, "other") for account in server.edges.values() if account.left)
    gone = ", ".join(f"{count} {reason}" for reason, count in sorted(left.items()))
    edges = f"edges {present} (left: {gone})" if gone else f"edges {present}"
    parts = [f"t {server.updates:,}/{scenario.iterations:,}", f"{rate(service):,.0f}/s", edges]
    if server.schedule is not None:
        parts.append(f"stage {server.stage}")
        if server.schedule.sensitivity:
            parts.append(f"ΔS {server.schedule.sensitivity:.4g}")
    if tally.evaluations:
        last = tally.evaluations[-1]
        parts.append(f"{headline(last)} (at {last.updates:,})")
    parts.append(f"staleness max {server.tau_seen}")
    if service.dropped:
        parts.append(f"dropped {sum(service.dropped.values())}")
    return "  ".join(parts)


def histogram(counts: Counter[int]) -> str:
    """Return staleness as a row of bars from 0 to its maximum."""
    if not counts:
        return "no updates yet"
    width = max(1, -(-(max(counts) + 1) // _BARS))
    bins = Counter[int]()
    for value, count in counts.items():
        bins[value // width] += count
    highest = max(bins.values())
    bars = (f"{k * width}{_BLOCKS[-(-bins[k] * 8 // highest)]}" for k in range(max(bins) + 1))
    return " ".join(bars)


def edge_table(service: CloudService) -> Table:
    table = Table("k", "edge", "applied", "staleness", "round trip", "", box=None, pad_edge=False)
    for row in edge_rows(service):
        table.add_row(*row)
    hidden = len(service.server.edges) - _ROWS
    if hidden > 0:
        table.add_row("…", f"{hidden} more", "", "", "", "")
    return table


def edge_rows(service: CloudService) -> Iterable[tuple[str, ...]]:
    for account in list(service.server.edges.values())[:_ROWS]:
        contact, tally = service.peers.get(account.edge_id), service.tally.edges.get(account.index)
        trip = "-"
        if contact is not None and contact.turnarounds:
            trip = f"{contact.turnaround_sum / contact.turnarounds * 1e3:.1f} ms"
        stale = f"{tally.staleness_sum / tally.applied:.1f}" if tally is not None and tally.applied else "-"
        state = "" if account.present else (tally.gone if tally is not None else "gone")
        yield str(account.index), account.edge_id, f"{account.applied:,}", stale, trip, state


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
    """Print a summary as a table, or as JSON."""
    if as_json:
        print(json.dumps(summary, indent=2, ensure_ascii=False))
    else:
        print_summary(summary)

"""A run where a person looks: a bar, a live view or lines while it goes on, then its summary as a table."""

from __future__ import annotations

import json
import math
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from functools import partial
from html import escape
from typing import Any

from rich.console import Console, Group
from rich.live import Live
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table
from rich.text import Text

from cloud.service import CloudService
from common.metrics import Metric
from common.records.tally import Tally, headline
from common.scenario.scenario import Scenario
from mapa import output

OnProgress = Callable[[int, int], None]  # updates so far, and of how many
_EVERY = 0.1  # seconds between two looks at a simulation, and two pictures of a notebook's bar
_LINES = 5.0  # seconds between two lines where there is no terminal
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

# -- bars ----------------------------------------------------------------------------------------


class Bar(AbstractContextManager["Bar"]):
    """How far a run is; this one shows nothing, and tells a function where there is one."""

    def __init__(self, tell: Callable[[int], None] | None = None) -> None:
        self._tell = tell

    def __exit__(self, *_: object) -> None:
        self.end()

    def show(self, done: int, note: str = "") -> None:  # noqa: ARG002
        """Show how many updates are done; the note has the last evaluation."""
        if self._tell is not None:
            self._tell(done)

    def end(self) -> None:
        """Show where it ended."""


def bar_for(title: str, total: int, progress: bool | OnProgress = True) -> Bar:
    """Return what fits the place; False: nothing is shown; a function: it is called instead."""
    if callable(progress):
        return Bar(lambda done: progress(done, total))
    if not progress:
        return Bar()
    if (display := notebook_display()) is not None:
        return NotebookBar(title, total, display)
    return bar_on(Console(stderr=True), title, total)


def bar_on(console: Console, title: str, total: int) -> Bar:
    """Return a bar, or lines: now and then where there is no terminal, each second where --verbose asks for them."""
    if output.is_verbose() or not console.is_terminal:
        return LineBar(title, total, console, every=1.0 if output.is_verbose() else _LINES)
    return TerminalBar(title, total, console)


def shown_on(bar: Bar) -> Callable[[Tally], None]:
    """Return what an engine may call as often as it likes: the bar is shown ten times a second, by the clock.

    A call takes a quarter of a microsecond, the least update thirty.
    """
    due = -math.inf

    def show(tally: Tally) -> None:
        nonlocal due
        now = time.monotonic()
        if now >= due:
            due = now + _EVERY
            bar.show(tally.updates, headline(tally.evaluations[-1]) if tally.evaluations else "")

    return show


def notebook_display() -> Callable[..., Any] | None:
    """Return IPython's `display` where a notebook's kernel runs this; None elsewhere."""
    shell = sys.modules.get("IPython")
    running = None if shell is None else shell.get_ipython()
    if running is None or not hasattr(running, "kernel"):
        return None
    from IPython.display import display

    found: Callable[..., Any] = display
    return found


class TerminalBar(Bar):
    """A line in a terminal that goes away at the end."""

    def __init__(self, title: str, total: int, console: Console) -> None:
        self._progress = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TimeRemainingColumn(),
            TextColumn("{task.fields[note]}"),
            console=console,
            transient=True,
            disable=console.quiet or total < 1,
        )
        self._task = self._progress.add_task(title, total=total, note="")

    def __enter__(self) -> TerminalBar:
        self._progress.start()
        return self

    def show(self, done: int, note: str = "") -> None:
        self._progress.update(self._task, completed=done, note=note)

    def end(self) -> None:
        self._progress.stop()


class LineBar(Bar):
    """A line at a fixed interval, in a terminal or not; where there are any, the last one says where it ended."""

    def __init__(self, title: str, total: int, console: Console, *, every: float = 1.0) -> None:
        self._title, self._total = f"{title}: " if title else "", total
        self._console, self._every = console, every
        self._last, self._line, self._said = time.monotonic(), "", output.is_verbose()

    def end(self) -> None:
        if self._line and self._said:
            print_line(self._console, self._line)

    def show(self, done: int, note: str = "") -> None:
        self._line = f"{self._title}t {done:,}/{self._total:,}  {note}".rstrip()
        if time.monotonic() - self._last >= self._every:
            self._last, self._said = time.monotonic(), True
            print_line(self._console, self._line)
            self._line = ""


class NotebookBar(Bar):
    """One output of a cell, as HTML or plain text, redrawn in place; it stays at the end, and shows no times."""

    def __init__(self, title: str, total: int, display: Callable[..., Any]) -> None:
        self._title, self._total, self._done, self._note = title, total, 0, ""
        self._handle = display(self, display_id=True)
        self._last = time.monotonic()

    def end(self) -> None:
        self._last = time.monotonic()
        self._handle.update(self)

    def show(self, done: int, note: str = "") -> None:
        self._done, self._note = done, note
        if time.monotonic() - self._last >= _EVERY:
            self.end()

    def __repr__(self) -> str:
        return f"{self._title}: {self._done:,} of {self._total:,} updates  {self._note}".rstrip()

    def _repr_html_(self) -> str:
        bar = f'<progress value="{self._done}" max="{self._total}" style="width: 20em"></progress>'
        return f"{bar} {escape(repr(self))}"


def print_line(console: Console, line: str) -> None:
    console.print(line, soft_wrap=True, highlight=False, markup=False)


# -- of a networked run -------------------------------------------------------------------------------------


class View(AbstractContextManager["View"]):
    """What a cloud tells of a run while it goes on."""

    _service: CloudService | None = None

    def attach(self, service: CloudService) -> None:
        """Show this service from now on."""
        self._service = service

    def refresh(self) -> None:
        """Look at the service again."""
        if self._service is not None:
            self._show(self._service)

    def _show(self, service: CloudService) -> None:
        raise NotImplementedError

    def say(self, text: str) -> None:
        """Show a line that matters."""
        raise NotImplementedError


def view_for(scenario: Scenario, console: Console, *, quiet: bool = False) -> View:
    """Return the view that fits the console."""
    if quiet or console.quiet:
        return BarView(Bar(), lambda _: None)
    if console.is_terminal and not output.is_verbose():
        return LiveView(console, scenario.iterations)
    return BarView(bar_on(console, "", scenario.iterations), partial(print_line, console))


class BarView(View):
    """A bar or lines; what else matters is said beside it."""

    def __init__(self, bar: Bar, say: Callable[[str], None] = output.say) -> None:
        self._bar, self._say = bar, say

    def __enter__(self) -> BarView:
        self._bar.__enter__()
        return self

    def __exit__(self, *_: object) -> None:
        self.refresh()
        self._bar.end()

    def _show(self, service: CloudService) -> None:
        self._bar.show(service.server.updates, describe(service))

    def say(self, text: str) -> None:
        self._say(text)


class LiveView(View):
    """Progress, stage, accuracy, staleness and edges, redrawn in place."""

    def __init__(self, console: Console, total: int) -> None:
        self._said: list[str] = []
        self._progress = Progress(
            TextColumn("{task.description}"),
            BarColumn(bar_width=None),
            MofNCompleteColumn(),
            TextColumn("{task.fields[rate]}"),
            TimeRemainingColumn(),
            console=console,
        )
        self._task = self._progress.add_task("updates", total=total, rate="")
        self._live = Live(console=console, auto_refresh=False, transient=True)

    def __enter__(self) -> LiveView:
        self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._live.stop()

    def _show(self, service: CloudService) -> None:
        self._progress.update(self._task, completed=service.server.updates, rate=f"{rate(service):,.0f}/s")
        view = Group(
            self._progress,
            Text(describe(service)),
            Text(f"staleness  {histogram(service.tally.staleness)}"),
            edge_table(service),
            *(Text(line, style="yellow") for line in self._said),
        )
        self._live.update(view, refresh=True)

    def say(self, text: str) -> None:
        self._said = [*self._said[-4:], text]
        self.refresh()


def rate(service: CloudService) -> float:
    """Return applied updates per second since the first one."""
    if service.first_update is None:
        return 0.0
    return service.server.updates / max(service.loop.now() - service.first_update, 1e-9)


def describe(service: CloudService) -> str:
    """Return a run in one line, but how many updates it has."""
    server, tally = service.server, service.tally
    present = sum(account.present for account in server.edges.values())
    left = Counter(_LEFT.get(account.left, "other") for account in server.edges.values() if account.left)
    gone = ", ".join(f"{count} {reason}" for reason, count in sorted(left.items()))
    edges = f"edges {present} (left: {gone})" if gone else f"edges {present}"
    parts = [f"{rate(service):,.0f}/s", edges]
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
    for account in list(service.server.edges.values())[:_ROWS]:
        peer, tally = service.peers.get(account.edge_id), service.tally.edges.get(account.index)
        trip = "-"
        if peer is not None and peer.turnarounds:
            trip = f"{peer.turnaround_sum / peer.turnarounds * 1e3:.1f} ms"
        stale = f"{tally.staleness_sum / tally.applied:.1f}" if tally is not None and tally.applied else "-"
        state = "" if account.present else (tally.gone if tally is not None else "gone")
        table.add_row(str(account.index), account.edge_id, f"{account.applied:,}", stale, trip, state)
    hidden = len(service.server.edges) - _ROWS
    if hidden > 0:
        table.add_row("…", f"{hidden} more", "", "", "", "")
    return table


# -- at the end ---------------------------------------------------------------------------------------------


def report(summary: dict[str, Any], *, as_json: bool) -> None:
    """Print a summary as a table, or as JSON."""
    if as_json:
        print(json.dumps(summary, indent=2, ensure_ascii=False))
    else:
        print_summary(summary)


def print_summary(summary: dict[str, Any], console: Console | None = None) -> None:
    """Print the result, the staleness, the privacy cost, and where the records are."""
    console = console or output.console()
    table = Table(title=f"{summary['name']}: {summary['algorithm']} {summary['model']} on {summary['data']}")
    table.add_column("")
    table.add_column("", justify="right")
    for label, text in _rows(summary):
        table.add_row(label, text)
    console.print(table)
    rate = [f"rate: {summary['rate']}"] if "rate" in summary else []
    for line in (*rate, *summary.get("privacy", {}).get("words", [])):
        console.print(line, soft_wrap=True, highlight=False)
    if "warning" in summary:
        console.print(summary["warning"], style="yellow", soft_wrap=True)
    console.print(f"records: {summary['path']}", soft_wrap=True, highlight=False)


def _rows(summary: dict[str, Any]) -> Iterator[tuple[str, str]]:
    yield "updates", f"{summary['updates']:,} of {summary['iterations']:,} ({summary['reason']})"
    first, *others = (Metric.from_dict(fields) for fields in summary["metrics"])
    if summary["evaluations"]:
        best, when = summary[f"best_{first.name}"], summary[f"best_{first.name}_at"]
        yield f"final {first.name}", first.text(summary[f"final_{first.name}"])
        yield f"best {first.name}", f"{first.text(best)} at {when}"
        for metric in others:
            yield f"final {metric.name}", metric.text(summary[f"final_{metric.name}"])
    else:
        yield "evaluation", "none (no test data)"
    yield "edges", f"{len(summary['edges'])}"
    stale, stages = summary["staleness"], summary["stages"]
    if stale["mean"] is not None:
        quantiles = f"median {stale['p50']}, 99% {stale['p99']}, max {stale['max']}"
        yield "staleness", f"mean {stale['mean']:.2f}, {quantiles}"
    if stages:
        first_bound, last_bound = (stages[place]["sensitivity"] for place in (0, -1))
        yield "stages", f"{stages[-1]['stage']} (ΔS {first_bound:.4g} → {last_bound:.4g})"
    if summary["refused"]:
        yield "refused", ", ".join(f"{count} {reason}" for reason, count in summary["refused"].items())
    if summary["iterations_per_second"]:
        yield "speed", f"{summary['iterations_per_second']:,.0f} updates/s"

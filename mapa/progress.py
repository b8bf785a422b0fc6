"""How far a run is, where a person looks: a bar in a terminal, one in a notebook, a callback, or nothing."""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Callable
from html import escape
from types import TracebackType
from typing import Any, Self

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from cloud.service import CloudService
from common.records.tally import Tally, headline
from common.scenario.scenario import Scenario
from mapa.output import is_verbose
from mapa.run_view import describe

OnProgress = Callable[[int, int], None]  # updates so far, and of how many
_EVERY = 0.1  # seconds between two looks at a simulation, and two pictures of a notebook's bar
_LINES = 5.0  # seconds between two lines where there is no terminal


class Bar:
    """How far a simulation is."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.end()

    def show(self, done: int, note: str = "") -> None:
        """Show how many updates are done; the note has the last evaluation."""
        raise NotImplementedError

    def end(self) -> None:
        """Show where it ended."""


def bar_for(title: str, total: int, progress: bool | OnProgress = True) -> Bar:
    """Return what fits the place; False: nothing is shown; a function: it is called instead."""
    if callable(progress):
        return CallbackBar(total, progress)
    display = notebook_display() if progress else None
    if display is not None:
        return NotebookBar(title, total, display)
    return bar_on(Console(stderr=True, quiet=not progress), title, total)


def bar_on(console: Console, title: str, total: int) -> Bar:
    """Return a bar, or lines: now and then where there is no terminal, each second where --verbose asks for them."""
    if is_verbose() or not console.is_terminal:
        return LineBar(title, total, console, every=1.0 if is_verbose() else _LINES)
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


class CallbackBar(Bar):
    def __init__(self, total: int, tell: OnProgress) -> None:
        self._total, self._tell = total, tell

    def show(self, done: int, note: str = "") -> None:  # noqa: ARG002
        self._tell(done, self._total)


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

    def __enter__(self) -> Self:
        self._progress.start()
        return self

    def show(self, done: int, note: str = "") -> None:
        self._progress.update(self._task, completed=done, note=note)

    def end(self) -> None:
        self._progress.stop()


class LineBar(Bar):
    """A line at a fixed interval, in a terminal or not; where there are any, the last one says where it ended."""

    def __init__(self, title: str, total: int, console: Console, *, every: float = 1.0) -> None:
        self._title, self._total, self._console, self._every = title, total, console, every
        self._last, self._line, self._said = time.monotonic(), "", is_verbose()

    def end(self) -> None:
        if self._line and self._said:
            self._print()

    def show(self, done: int, note: str = "") -> None:
        self._line = f"{self._title}: t {done:,}/{self._total:,}  {note}".rstrip()
        if time.monotonic() - self._last >= self._every:
            self._last, self._said = time.monotonic(), True
            self._print()
            self._line = ""

    def _print(self) -> None:
        self._console.print(self._line, soft_wrap=True, highlight=False, markup=False)


class NotebookBar(Bar):
    """One output of a cell, redrawn in place, without ipywidgets; it stays at the end, and shows no times."""

    def __init__(self, title: str, total: int, display: Callable[..., Any]) -> None:
        self._picture = _Picture(title, total)
        self._handle = display(self._picture, display_id=True)
        self._last = time.monotonic()

    def end(self) -> None:
        self._draw()

    def show(self, done: int, note: str = "") -> None:
        self._picture.done, self._picture.note = done, note
        if time.monotonic() - self._last >= _EVERY:
            self._draw()

    def _draw(self) -> None:
        self._last = time.monotonic()
        self._handle.update(self._picture)


class _Picture:
    """The bar as a notebook asks for it: as HTML, or as plain text."""

    def __init__(self, title: str, total: int) -> None:
        self.title, self.total, self.done, self.note = title, total, 0, ""

    def __repr__(self) -> str:
        return f"{self.title}: {self.done:,} of {self.total:,} updates  {self.note}".rstrip()

    def _repr_html_(self) -> str:
        bar = f'<progress value="{self.done}" max="{self.total}" style="width: 20em"></progress>'
        return f"{bar} {escape(repr(self))}"


class BarView:
    """A networked run's view on a bar; lines that matter are kept in `said`."""

    def __init__(self, scenario: Scenario, bar: Bar) -> None:
        self._scenario, self._bar = scenario, bar
        self._service: CloudService | None = None
        self.said: list[str] = []

    def __enter__(self) -> Self:
        self._bar.__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.refresh()
        self._bar.__exit__(kind, error, trace)

    def attach(self, service: CloudService) -> None:
        self._service = service

    def refresh(self) -> None:
        if self._service is not None:
            self._bar.show(self._service.server.updates, describe(self._service, self._scenario))

    def say(self, text: str) -> None:
        self.said.append(text)
        print(text, file=sys.stderr)

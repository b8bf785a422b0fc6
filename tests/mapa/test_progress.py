"""How far a simulation is: said by the clock, in every engine, with and without a terminal."""

from __future__ import annotations

import io
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
from rich.console import Console

from common.records.tally import Tally
from mapa import progress
from mapa.progress import Bar, LineBar, TerminalBar, bar_on, shown_on
from mapa.simulation.simulator import simulate
from mapa.simulation.synchronous import simulate_synchronously
from mapa.simulation.vectorised import simulate_rounds
from tests.core_support import small_world

ENGINES: dict[str, Callable[..., Any]] = {
    "events": simulate,
    "vectorised": simulate_rounds,
    "block": lambda world, **how: simulate_rounds(world, blocks=True, **how),
    "synchronous": simulate_synchronously,
}


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """A clock that stands still until a test moves it."""
    now = [100.0]
    monkeypatch.setattr(progress, "time", SimpleNamespace(monotonic=lambda: now[0]))
    return now


class Kept:
    """A bar that remembers what it was shown."""

    def __init__(self) -> None:
        self.shown: list[int] = []

    def show(self, done: int, note: str = "") -> None:  # noqa: ARG002
        self.shown.append(done)


@pytest.mark.parametrize("engine", ENGINES)
def test_every_engine_tells_how_far_it_is_in_a_run_of_few_updates(engine: str) -> None:
    changes: dict[str, Any] = {"delays": {"kind": "constant"}} if engine == "synchronous" else {}
    seen: list[int] = []
    ENGINES[engine](small_world(iterations=40, **changes), progress=lambda tally: seen.append(tally.updates))
    assert seen == sorted(seen)
    assert len(set(seen) - {0, 40}) >= 9  # at least once in a round of the four edges


def test_a_bar_is_shown_by_the_clock_however_often_an_engine_calls(clock: list[float]) -> None:
    bar = Kept()
    show = shown_on(bar)  # type: ignore[arg-type]
    for done in range(1000):
        clock[0] = 100 + done / 1000  # a second in all
        show(Tally(updates=done))
    assert bar.shown[0] == 0
    assert 9 <= len(bar.shown) <= 11


def lines(clock: list[float], bar: Bar, seconds: int) -> None:
    with bar:
        for second in range(seconds + 1):
            clock[0] = 100.0 + second
            bar.show(second, "accuracy 50.00%")


def test_without_a_terminal_a_line_comes_now_and_then_and_tells_the_end(clock: list[float]) -> None:
    out = io.StringIO()
    bar = bar_on(Console(file=out, force_terminal=False), "mapa lr", 1200)
    assert isinstance(bar, LineBar)
    lines(clock, bar, 12)
    assert out.getvalue().splitlines() == [f"mapa lr: t {t}/1,200  accuracy 50.00%" for t in (5, 10, 12)]


def test_without_a_terminal_a_short_run_says_nothing(clock: list[float]) -> None:
    out = io.StringIO()
    lines(clock, bar_on(Console(file=out, force_terminal=False), "mapa lr", 3), 3)
    assert out.getvalue() == ""


def test_quiet_is_quiet_with_and_without_a_terminal(clock: list[float]) -> None:
    for terminal in (False, True):
        out = io.StringIO()
        lines(clock, bar_on(Console(file=out, force_terminal=terminal, quiet=True), "mapa lr", 20), 20)
        assert out.getvalue() == ""


def test_a_terminal_gets_a_bar() -> None:
    assert isinstance(bar_on(Console(file=io.StringIO(), force_terminal=True), "mapa lr", 20), TerminalBar)

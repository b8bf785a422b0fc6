"""How far a simulation is: said by the clock, in every engine, with and without a terminal."""

from __future__ import annotations

import io
import re
import threading
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from rich.console import Console

from common.accounting import budget as budgets
from common.accounting.releases import Budget, ReleaseKind
from common.errors import ConfigurationError
from common.records.tally import Tally
from mapa import run_view
from mapa.budget import calibrated
from mapa.output import said_if_slow
from mapa.recording import record_simulation
from mapa.run_view import Bar, LineBar, TerminalBar, bar_on, shown_on
from mapa.simulation.simulator import World, simulate
from mapa.simulation.synchronous import simulate_synchronously
from mapa.simulation.vectorised import simulate_rounds
from tests.core_support import small_dataset, small_scenario, small_world

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
    monkeypatch.setattr(run_view, "time", SimpleNamespace(monotonic=lambda: now[0]))
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


@pytest.mark.parametrize(
    ("terminal", "quiet", "seconds"), [(False, False, 3), (False, True, 20), (True, True, 20)]
)
def test_a_short_run_without_a_terminal_and_any_run_where_quiet_was_asked_for_say_nothing(
    clock: list[float], terminal: bool, quiet: bool, seconds: int
) -> None:
    out = io.StringIO()
    console = Console(file=out, force_terminal=terminal, quiet=quiet)
    lines(clock, bar_on(console, "mapa lr", seconds), seconds)
    assert out.getvalue() == ""


def test_a_terminal_gets_a_bar() -> None:
    assert isinstance(bar_on(Console(file=io.StringIO(), force_terminal=True), "mapa lr", 20), TerminalBar)


# -- noise, which takes longest -----------------------------------------------------------------------------


def test_a_run_says_what_noise_it_looks_for_and_its_summary_holds_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MAPA_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setenv("MAPA_CACHE_MB", "1")
    monkeypatch.setattr("common.accounting.kept._WORTH", 0.0)
    searched: list[int] = []
    of = budgets._least_multiplier

    def search(budget: Budget, unit: ReleaseKind, charges: int) -> float:
        searched.append(charges)
        return of(budget, unit, charges)

    monkeypatch.setattr(budgets, "_least_multiplier", search)
    scenario = small_scenario(batch_size=60, data={"sampler": "poisson"}, privacy={"total_epsilon": 3.0})
    stated = []
    for _process in range(2):
        for function in (budgets._calibrated, budgets.max_charges):
            function.cache_clear()
        said: list[str] = []
        found = calibrated(scenario, [60] * 4, said.append)
        z = found.privacy.noise_multiplier
        assert said[0] == (
            "finding z: the least noise for ε = 3, δ = 1e-05 with 16 releases of 60 of 60 records (poisson)"
        )
        assert re.fullmatch(r"z = [\d.]+, found in \d+\.\d s", said[1])
        stated.append(z)
    assert stated[0] == stated[1]
    assert searched == [16]
    world = World.on(scenario, small_dataset())
    summary = record_simulation(world, name="budgeted", runs=tmp_path)
    assert summary["noise"] == {
        "law": "gaussian",
        "noise_multiplier": world.scenario.privacy.noise_multiplier,
    }


def test_what_takes_long_is_said_and_what_does_not_is_not() -> None:
    said: list[str] = []
    heard = threading.Event()

    def say(text: str) -> None:
        said.append(text)
        heard.set()

    with said_if_slow(say, "accounting", after=0.0):
        assert heard.wait(60)
    with said_if_slow(say, "not this", after=3600.0), said_if_slow(None, "nor this", after=0.0):
        pass
    assert said == ["accounting"]


def test_a_wrong_size_of_the_cache_is_refused_before_a_run_begins(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MAPA_CACHE_MB", "lots")
    with pytest.raises(ConfigurationError, match="MAPA_CACHE_MB = 'lots'"):
        calibrated(small_scenario(), [60] * 4)

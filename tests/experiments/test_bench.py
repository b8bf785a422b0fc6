"""What the bench measures, how it ends, what it takes off for a busy host, and when a soak calls something flat."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

from common.errors import ConfigurationError
from experiments.bench import __main__ as bench
from experiments.bench import page, ratios
from experiments.bench.core import sweep_worlds
from experiments.bench.memory import held_by
from experiments.bench.page import Stolen, Watched, stolen_ticks
from experiments.bench.ratios import Ratio, compare, work
from experiments.bench.soak import Slope, fit_slope, last_part
from mapa.simulation.vectorised import check_vectorised, simulate_many

NOWHERE = Path("/nonexistent")


def test_the_sweep_that_is_timed_runs_every_seed_and_epsilon_as_one_product() -> None:
    worlds = sweep_worlds(NOWHERE, edges=7, iterations=20)
    check_vectorised(worlds, blocks=True)
    assert len({(w.scenario.seed, w.scenario.law(0)) for w in worlds}) == 8
    outcomes = simulate_many(worlds, blocks=True)
    assert [outcome.tally.updates for outcome in outcomes] == [20] * 8
    assert len({outcome.x.tobytes() for outcome in outcomes}) == 8


@pytest.mark.parametrize(("value", "at_most", "met"), [(3, True, False), (1, True, True), (3, False, True)])
def test_a_bar_is_a_ceiling_or_a_floor(value: float, at_most: bool, met: bool) -> None:
    assert Ratio("r", value, 2.0, at_most, "").met is met


@pytest.mark.parametrize(("at_most", "ratio"), [(True, 100.0), (False, 0.01)])
def test_work_is_timed_per_iteration_and_in_turns(
    at_most: bool, ratio: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[str] = []
    clock = 0.0
    monkeypatch.setattr(ratios.time, "process_time", lambda: clock)

    def task(name: str, seconds: float) -> Callable[[], None]:
        def do() -> None:
            nonlocal clock
            calls.append(name)
            clock += seconds

        return do

    first, second = work(task("a", 2.0), 1), work(task("b", 2.0), 100)  # the same, said to be a hundred
    found = compare("r", 1.0, first, second, "b", at_most=at_most, rounds=4)
    assert calls == ["a", "b", "a", "b", "b", "a", "a", "b", "b", "a"]
    assert found.value == pytest.approx(ratio)


def missed(_parts: list[str], _minutes: float) -> Iterator[Ratio]:
    yield Ratio("fast", 3.0, 2.0, False, "")
    yield Ratio("small", 3.0, 2.0, True, "")


def broken(_parts: list[str], _minutes: float) -> Iterator[Ratio]:
    yield Ratio("fast", 3.0, 2.0, False, "")
    raise ConfigurationError("no mosquitto")


@pytest.mark.parametrize(
    ("measured", "words", "code"), [(missed, [], 0), (missed, ["--strict"], 1), (broken, [], 2)]
)
def test_the_bench_reports_and_only_a_strict_one_fails_by_a_bar(
    measured: Callable[[list[str]], Iterator[Ratio]],
    words: list[str],
    code: int,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(bench, "measured", measured)
    monkeypatch.setattr(sys, "argv", ["bench", "core", "--json", *words])
    assert bench.main() == code
    out, err = capsys.readouterr()
    assert "fast" in err
    if measured is missed:
        assert "MISSED" in err
        assert [row["met"] for row in json.loads(out)] == [True, False]


@pytest.mark.skipif(not Path("/proc/self/smaps_rollup").exists(), reason="Linux counts it")
def test_memory_is_what_the_kernel_counts() -> None:
    own, resident = held_by(os.getpid())
    assert 0 < own <= resident


# -- time that the host of a virtual machine gave to others -------------------------------------------

STAT = """cpu  2828107 1036237 413111 702464 38132 0 28210 318051 0 0
cpu0 1414053 518118 206555 351232 19066 0 14105 159025 0 0
cpu1 1414054 518119 206556 351232 19066 0 14105 159026 0 0
intr 1 2 3
"""


def taken(*rows: tuple[float, *tuple[int, ...]]) -> Stolen:
    found = Stolen()
    for when, *ticks in rows:
        found.take(when, dict(enumerate(ticks)))
    return found


@pytest.mark.parametrize(
    ("text", "ticks"), [(STAT, {0: 159025, 1: 159026}), ("cpu 1 2 3\ncpu0 1 2 3\n", {0: 0}), ("", {})]
)
def test_the_ticks_of_each_processor_are_read(text: str, ticks: dict[int, int]) -> None:
    assert stolen_ticks(text) == ticks


def test_the_processor_that_was_without_its_host_for_longest_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(page, "_TICKS", 100)
    found = taken((0.0, 0, 0), (1.0, 0, 11), (2.0, 31, 11))
    assert found.own((0.0, 1.0)) == pytest.approx(0.90)  # 11 ticks, of which one may be too many
    assert found.own((0.0, 2.0)) == pytest.approx(1.70)
    assert found.own((1.0, 1.5)) == pytest.approx(0.355)  # half of what came between two looks
    assert found.own((1.0, 1.0)) == 0.0
    assert found.own((0.0, 2.0), {1}) == pytest.approx(1.90)
    assert found.share == pytest.approx(0.42 / 2 / 2)
    assert taken((0.0, 5), (10.0, 5)).own((1.0, 2.0)) == Stolen().own((0.0, 1.0)) == 1.0
    assert Stolen().share == 0.0


def test_the_slowest_input_is_told_with_and_without_what_was_stolen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(page, "_TICKS", 100)
    found = taken((0.0, 0), (1.0, 0), (2.0, 51), (3.0, 51))
    seen = Watched(inputs=[(0.5, 0.59), (1.0, 2.0)], events=1000)
    assert seen.slowest() == pytest.approx(1000)
    assert seen.slowest(found) == pytest.approx(500)
    assert seen.usual() == pytest.approx(16)  # the browser tells of none below


def test_events_that_waited_together_are_one_moment() -> None:
    spans = [(1.0, 1.2), (1.1, 1.3), (1.25, 1.4), (2.0, 2.05), (3.0, 3.2), (3.0, 3.2)]
    assert Watched(inputs=spans).moments(Stolen(), {0}) == 2
    assert Watched().moments(Stolen(), {0}) == 0


# -- the slope of a soak ------------------------------------------------------------------------------


def test_the_interval_covers_the_true_slope_although_samples_are_alike() -> None:
    rng, times = np.random.default_rng(0), np.arange(600.0)
    covered = 0
    for _ in range(200):
        noise = rng.normal(size=600)
        for place in range(1, 600):  # each sample keeps a share of the last
            noise[place] += 0.8 * noise[place - 1]
        found = fit_slope(times, list(0.01 * times + noise))
        covered += found.low <= 0.01 <= found.high
    assert covered >= 180  # 95 % of 200, with room for chance


def test_growth_is_seen_and_what_stays_or_shrinks_is_flat() -> None:
    rng, times = np.random.default_rng(1), np.arange(600.0)
    noise = 50 * rng.normal(size=600)
    assert not fit_slope(times, list(1000 + 16.0 * times + noise)).flat(1.0)
    assert fit_slope(times, list(1000 + noise)).flat(1.0)
    assert fit_slope(times, list(1000 - 16.0 * times + noise)).flat(1.0)
    assert fit_slope(times, [7.0] * 600) == Slope(0.0, 0.0, 0.0)
    with pytest.raises(ConfigurationError, match="at least 20"):
        fit_slope([1.0] * 19, [1.0] * 19)


def test_a_slope_is_counted_per_update_over_the_last_two_thirds() -> None:
    assert Slope(100.0, 50.0, 150.0).per(50.0) == Slope(2.0, 1.0, 3.0)
    with pytest.raises(ConfigurationError, match="0 updates a second"):
        Slope(1.0, 0.0, 2.0).per(0.0)
    assert last_part([float(second) for second in range(901)]) == slice(300, 901)

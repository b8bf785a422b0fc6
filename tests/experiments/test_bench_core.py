"""What the bench measures, and how it ends."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from common.errors import ConfigurationError
from experiments.bench import __main__ as bench
from experiments.bench import ratios
from experiments.bench.core import sweep_worlds
from experiments.bench.memory import held_by
from experiments.bench.ratios import Ratio, compare
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


def test_work_is_timed_per_iteration_and_in_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[str] = []
    clock = 0.0
    monkeypatch.setattr(ratios.time, "process_time", lambda: clock)

    def work(name: str, seconds: float, iterations: int) -> int:
        nonlocal clock
        calls.append(name)
        clock += seconds
        return iterations

    found = compare(lambda: work("a", 2.0, 1), lambda: work("b", 2.0, 100), rounds=5)
    assert calls == ["a", "b"] * 6
    assert found == pytest.approx((2.0, 0.02, 100.0))  # the same work, said to be a hundred iterations


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

"""What the bench measures, how it ends, what it takes off for a busy host, and when a soak calls something flat."""

from __future__ import annotations

import json
import os
import sys
from argparse import Namespace
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from common.errors import ConfigurationError, MapaError
from experiments.bench import __main__ as bench
from experiments.bench import page
from experiments.bench.bed import held_by, peak
from experiments.bench.page import Stolen, Watched, stolen_ticks
from experiments.bench.rounds import Case, Figures, Measurement, Ratio, measure, work
from experiments.bench.simulation import sweep_worlds
from experiments.bench.soak import fit_slope, judge, last_part
from mapa.simulation.vectorised import check_vectorised, simulate_many

NOWHERE = Path("/nonexistent")


def test_the_sweep_that_is_timed_runs_every_seed_and_epsilon_as_one_product() -> None:
    worlds = sweep_worlds(NOWHERE, edges=7, iterations=20)
    check_vectorised(worlds, blocks=True)
    assert len({(w.scenario.seed, w.scenario.law(0)) for w in worlds}) == 8
    outcomes = simulate_many(worlds, blocks=True)
    assert [outcome.tally.updates for outcome in outcomes] == [20] * 8
    assert len({outcome.x.tobytes() for outcome in outcomes}) == 8


@pytest.mark.parametrize(
    ("ratio", "met"),
    [
        (Ratio("f", "a", at_least=2.0), True),
        (Ratio("f", "a", at_most=2.0), False),
        (Ratio("f", "a", at_most=3.0, at_least=3.0), True),
        (Ratio("f", "a"), True),
    ],
)
def test_a_bar_is_a_ceiling_or_a_floor(ratio: Ratio, met: bool) -> None:
    outcome = Measurement(Case("c", {}, [ratio]), [{"a": {"f": 3.0}}])
    assert ratio.met(3.0) is outcome.held() is met


def test_turns_go_forwards_and_backwards_and_a_ratio_is_one_of_the_same_round() -> None:
    calls: list[str] = []
    figures: Iterator[float] = iter([0, 0, *(100, 1), *(2, 400), *(300, 1)])

    def turn(name: str) -> Figures:
        calls.append(name)
        return {"rate": next(figures)}

    turns = {name: lambda name=name: turn(name) for name in "ab"}
    outcome = measure(Case("c", turns, [ratio := Ratio("rate", "a", "b")], rounds=3, warm=True))
    assert "".join(calls) == "baabbaab"
    assert outcome.each(ratio) == [100, 200, 300]
    (told,) = outcome.plain()["ratios"]
    assert (told["low"], told["median"], told["high"], told["met"]) == (150, 200, 250, True)


def test_a_turn_that_fails_is_told_and_its_round_has_no_ratio() -> None:
    turns = iter([1.0, None, 4.0])

    def shaky() -> Figures:
        if (rate := next(turns)) is None:
            raise MapaError("gone")
        return {"rate": rate}

    case = Case("c", {"a": shaky, "b": lambda: {"rate": 2.0}}, [ratio := Ratio("rate", "a", "b")], rounds=3)
    outcome = measure(case)
    assert outcome.each(ratio) == [0.5, 2.0]
    assert outcome.failures == {"a": "gone"}
    assert not outcome.held()
    with pytest.raises(ConfigurationError, match="--rounds 0"):
        measure(case, rounds=0)


def test_work_is_timed_for_one_of_it(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = 0.0
    monkeypatch.setattr("experiments.bench.rounds.time.process_time", lambda: clock)
    monkeypatch.setattr("experiments.bench.rounds.time.perf_counter", lambda: 2 * clock)

    def do() -> None:
        nonlocal clock
        clock += 3.0

    assert work(do, 100)() == pytest.approx({"rate": 100 / 3, "cpu": 30_000, "wall": 60_000})


def missed(_given: Namespace) -> Iterator[Case]:
    bars = [Ratio("rate", "ours", at_least=4.0), Ratio("rate", "ours", at_most=4.0)]
    yield Case("fast", {"ours": lambda: {"rate": 3.0}}, bars)


def broken(given: Namespace) -> Iterator[Case]:
    yield from missed(given)
    raise ConfigurationError("no mosquitto")


@pytest.mark.parametrize("part", [missed, broken])
@pytest.mark.parametrize("strict", [False, True])
def test_the_bench_reports_and_only_a_strict_one_fails_by_a_bar(
    part: object,
    strict: bool,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
) -> None:
    monkeypatch.setitem(bench.PARTS, "costs", part)
    words = ["bench", "costs", "--rounds", "1", *(["--strict"] if strict else [])]
    for file in ("-", str(tmp_path / "out.json")):
        monkeypatch.setattr(sys, "argv", [*words, "--json", file])
        assert bench.main() == (2 if part is broken else int(strict))
        out, err = capsys.readouterr()
        assert "MISSED" in out + err
        (told,) = json.loads(out if file == "-" else Path(file).read_text())
        assert [ratio["met"] for ratio in told["ratios"]] == [False, True]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["cloud", "--against", "/nonexistent"], "no checkout"),
        (["cloud", "--log", "of"], "--log of"),
        (["cloud", "--tls", "of"], "--tls of"),
        (["cloud", "--clouds", "other"], "--clouds other"),
        (["costs", "--rounds", "0"], "--rounds 0"),
        (["soak", "--edges", "1251"], "--edges 1251"),
        (["soak", "--minutes", "0.5"], "--minutes 0.5"),
    ],
)
def test_a_wrong_option_is_told_before_anything_starts(
    words: list[str], said: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "argv", ["bench", *words])
    assert bench.main() == 2
    assert said in capsys.readouterr().out


@pytest.mark.skipif(not Path("/proc/self/smaps_rollup").exists(), reason="Linux counts it")
def test_memory_is_what_the_kernel_counts() -> None:
    own, resident = held_by(os.getpid())
    assert 0 < own <= resident <= peak(os.getpid()) * 1.5
    assert peak(1 << 30) == 0.0


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


def test_the_share_of_the_pages_server_counts_from_its_opening() -> None:
    seen = Watched(served=[(10.0, 1.0), (20.0, 2.0), (30.0, 3.0), (75.0, 3.9)])
    assert seen.server_share(0, 15) == pytest.approx(10)
    assert seen.server_share(20, 1e9) == pytest.approx(2)


# -- the slope of a soak ------------------------------------------------------------------------------


def test_the_interval_covers_the_true_slope_although_samples_are_alike() -> None:
    rng, times = np.random.default_rng(0), np.arange(600.0)
    covered = 0
    for _ in range(200):
        noise = rng.normal(size=600)
        for place in range(1, 600):  # each sample keeps a share of the last
            noise[place] += 0.8 * noise[place - 1]
        _, low, high = fit_slope(times, list(0.01 * times + noise))
        covered += low <= 0.01 <= high
    assert covered >= 180  # 95 % of 200, with room for chance


def test_growth_is_seen_and_what_stays_or_shrinks_is_flat() -> None:
    rng, times = np.random.default_rng(1), np.arange(600.0)
    noise = 50 * rng.normal(size=600)
    for slope, flat in ((16.0, False), (0.0, True), (-16.0, True)):
        assert bool(fit_slope(times, list(1000 + slope * times + noise))[2] < 1.0) is flat
    assert fit_slope(times, [7.0] * 600).tolist() == [0.0, 0.0, 0.0]
    with pytest.raises(ConfigurationError, match="at least 20"):
        fit_slope([1.0] * 19, [1.0] * 19)


def test_a_slope_is_counted_per_update_over_the_last_two_thirds() -> None:
    times = [float(second) for second in range(901)]
    assert last_part(times) == slice(300, 901)
    samples = [{"cloud resident": 1000 + 100 * when, "run disk": 2e6} for when in times]
    figures, bars = judge(times, samples, np.arange(0, 900, 0.02))  # 50 a second
    assert figures["rate"] == pytest.approx(50, rel=1e-3)
    assert figures["cloud resident, most"] == pytest.approx(2.0, rel=1e-3)
    assert figures["run disk MB, most"] == 2.0
    assert [bar.figure for bar in bars] == ["cloud resident, most", "run disk MB, most"]
    with pytest.raises(MapaError, match="nothing to divide by"):
        judge(times, samples, np.array([0.0]))

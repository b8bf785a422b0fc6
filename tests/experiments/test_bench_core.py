"""What the bench times: a sweep that is one product, and a bar that is a floor or a ceiling."""

from __future__ import annotations

from pathlib import Path

import pytest

from experiments.bench.core import sweep_worlds
from experiments.bench.ratios import Ratio, compare
from experiments.vectorised import check_vectorised, simulate_many

NOWHERE = Path("/nonexistent")


def test_the_sweep_that_is_timed_runs_every_seed_and_epsilon_as_one_product() -> None:
    worlds = sweep_worlds(NOWHERE, edges=7, iterations=20)
    check_vectorised(worlds, blocks=True)
    assert len({(w.scenario.seed, w.scenario.privacy.parameter(0)) for w in worlds}) == 8
    outcomes = simulate_many(worlds, blocks=True)
    assert [outcome.tally.updates for outcome in outcomes] == [20] * 8
    assert len({outcome.x.tobytes() for outcome in outcomes}) == 8


@pytest.mark.parametrize(("value", "at_most", "met"), [(3, True, False), (1, True, True), (3, False, True)])
def test_a_bar_is_a_ceiling_or_a_floor(value: float, at_most: bool, met: bool) -> None:
    assert Ratio("r", value, 2.0, at_most, "").met is met


def test_work_is_timed_per_iteration_and_in_turns() -> None:
    calls: list[str] = []

    def work(name: str, size: int, iterations: int) -> int:
        calls.append(name)
        sum(range(size))
        return iterations

    _, _, ratio = compare(lambda: work("a", 200_000, 1), lambda: work("b", 200_000, 100), rounds=5)
    assert calls == ["a", "b"] * 6
    assert 20 < ratio < 500  # the same work, said to be a hundred iterations

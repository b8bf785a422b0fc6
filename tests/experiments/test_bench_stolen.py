"""What the host of a virtual machine took, read from the kernel's counters."""

from __future__ import annotations

import pytest

from experiments.bench import stolen
from experiments.bench.page import Watched, length
from experiments.bench.stolen import Stolen, stolen_ticks

STAT = """cpu  2828107 1036237 413111 702464 38132 0 28210 318051 0 0
cpu0 1414053 518118 206555 351232 19066 0 14105 159025 0 0
cpu1 1414054 518119 206556 351232 19066 0 14105 159026 0 0
intr 1 2 3
ctxt 4
"""


def taken(*rows: tuple[float, *tuple[int, ...]]) -> Stolen:
    found = Stolen()
    for when, *ticks in rows:
        found.take(when, dict(enumerate(ticks)))
    return found


def test_the_ticks_of_each_processor_are_read() -> None:
    assert stolen_ticks(STAT) == {0: 159025, 1: 159026}
    assert stolen_ticks("cpu 1 2 3\ncpu0 1 2 3\n") == {0: 0}  # an old kernel
    assert stolen_ticks("") == {}


def test_the_processor_that_was_without_its_host_for_longest_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stolen, "_TICKS", 100)
    found = taken((0.0, 0, 0), (1.0, 0, 11), (2.0, 31, 11))
    assert found.within(0.0, 1.0) == pytest.approx(0.10)  # 11 ticks, of which one may be too many
    assert found.within(0.0, 2.0) == pytest.approx(0.30)
    assert found.within(1.0, 1.5) == pytest.approx(0.145)  # half of what came between two looks
    assert found.within(1.0, 1.0) == 0.0
    assert found.within(0.0, 2.0, {1}) == pytest.approx(0.10)
    assert found.share == pytest.approx(0.42 / 2 / 2)


def test_nothing_is_taken_off_where_nothing_was_stolen() -> None:
    found = taken((0.0, 5), (10.0, 5))
    assert found.within(1.0, 2.0) == 0.0
    assert Stolen().within(0.0, 1.0) == 0.0
    assert Stolen().share == 0.0
    assert length((1.0, 1.25), found) == 0.25


def test_the_slowest_input_is_told_with_and_without_what_was_stolen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stolen, "_TICKS", 100)
    found = taken((0.0, 0), (1.0, 0), (2.0, 51), (3.0, 51))
    seen = Watched(inputs=[(0.5, 0.59), (1.0, 2.0)], events=1000)
    assert seen.slowest() == pytest.approx(1000)
    assert seen.slowest(found) == pytest.approx(500)
    assert seen.usual() == pytest.approx(16)  # the browser tells of none below


def test_events_that_waited_together_are_one_moment() -> None:
    spans = [(1.0, 1.2), (1.1, 1.3), (1.25, 1.4), (2.0, 2.05), (3.0, 3.2), (3.0, 3.2)]
    assert Watched(inputs=spans).moments(Stolen(), {0}) == 2
    assert Watched().moments(Stolen(), {0}) == 0


def test_the_machines_own_counters_can_be_looked_at() -> None:
    found = Stolen()
    with found.looking():
        pass
    assert 0.0 <= found.share <= 1.0

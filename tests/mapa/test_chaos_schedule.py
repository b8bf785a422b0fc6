"""Schedules of faults: from a seed, as text, chosen from, and shrunk."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from common.errors import ConfigurationError
from mapa.chaos.schedule import (
    BROKER,
    CLOUD,
    TARGETS,
    Bounds,
    Fault,
    Kind,
    choose,
    make_schedule,
    parse_fault,
    parse_schedule,
    shrink,
)

BOUNDS = st.builds(Bounds, st.integers(40, 10**6), st.integers(1, 50), st.floats(0.1, 1000.0))
SEEDS = st.integers(0, 2**32)


@given(SEEDS, BOUNDS, st.integers(0, 40))
def test_a_seed_always_makes_the_same_faults_and_each_fits_the_run(
    seed: int, bounds: Bounds, count: int
) -> None:
    faults = make_schedule(seed, bounds, count)
    assert faults == make_schedule(seed, bounds, count)
    assert len(faults) == count
    assert [one.at for one in faults] == sorted(one.at for one in faults)
    assert not count or any(one.kind is Kind.KILL and one.target == CLOUD for one in faults)
    for fault in faults:
        bounds.check(fault)
        assert fault.target.partition("-")[0] in TARGETS[fault.kind]


@given(SEEDS, BOUNDS, st.integers(0, 40))
def test_a_schedule_is_read_as_it_is_printed(seed: int, bounds: Bounds, count: int) -> None:
    faults = make_schedule(seed, bounds, count)
    text = "\n# a remark\n\n".join(map(str, faults))
    assert parse_schedule(text, bounds) == faults


def test_another_seed_makes_other_faults_and_all_kinds_come() -> None:
    bounds = Bounds(1000, 5, 2.0)
    schedules = [make_schedule(seed, bounds, 8) for seed in range(60)]
    assert len(set(schedules)) == 60
    seen = {(one.kind, one.target.partition("-")[0]) for faults in schedules for one in faults}
    assert seen == {(kind, target) for kind, targets in TARGETS.items() for target in targets}


def test_silence_lasts_shorter_and_longer_than_the_cloud_waits() -> None:
    bounds = Bounds(1000, 5, 2.0)
    lasting = [
        one.seconds
        for seed in range(40)
        for one in make_schedule(seed, bounds, 8)
        if one.kind in (Kind.PAUSE, Kind.PARTITION, Kind.CUT)
    ]
    assert min(lasting) < 2.0 < max(lasting)


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("kill nobody at t=5 for 1s", "nobody"),
        ("maim cloud at t=5 for 1s", "maim"),
        ("restart cloud at t=5 for 1s", "restart is for broker"),
        ("fill broker at t=5 for 1s", "fill is for cloud, edge"),
        ("kill cloud at t=5", "expected"),
        ("kill edge-0 at t=5 for 1s", "expected"),
        ("kill edge-4 at t=5 for 1s", "edge-1 … edge-3"),
        ("scale 3 at t=5 for 1s", "1 … 2 edges"),
        ("kill cloud at t=96 for 1s", "from 1 to 85"),
        ("kill cloud at t=5 for 61s", "at most 60"),
        ("kill cloud at t=5 for 0s", "above 0"),
    ],
)
def test_what_is_no_fault_of_this_run_is_refused(text: str, named: str) -> None:
    with pytest.raises(ConfigurationError, match=named.replace(".", r"\.")):
        parse_schedule(text, Bounds(100, 3, 1.0))


def test_faults_are_chosen_by_number() -> None:
    faults = make_schedule(3, Bounds(1000, 3, 1.0), 5)
    assert choose(faults, "4,2") == (faults[1], faults[3])
    for wrong in ("0", "6", "x", "", "1;2"):
        with pytest.raises(ConfigurationError, match="--only"):
            choose(faults, wrong)


def numbered(count: int) -> tuple[Fault, ...]:
    return tuple(Fault(Kind.KILL, BROKER, t, 1.0) for t in range(1, count + 1))


@given(st.integers(1, 40), st.data())
def test_shrinking_finds_the_faults_that_matter(count: int, data: st.DataObject) -> None:
    faults = numbered(count)
    guilty = frozenset(data.draw(st.sets(st.sampled_from(faults), min_size=1, max_size=4)))
    left, _ = shrink(faults, lambda part: guilty <= set(part), tries=10_000)
    assert set(left) == guilty
    assert [one.at for one in left] == sorted(one.at for one in left)


@given(st.integers(2, 40), st.integers(1, 6))
def test_shrinking_stops_after_its_tries_with_what_still_fails(count: int, tries: int) -> None:
    asked: list[tuple[Fault, ...]] = []

    def fails(part: tuple[Fault, ...]) -> bool:
        asked.append(part)
        return numbered(count)[-1] in part

    left, tried = shrink(numbered(count), fails, tries)
    assert tried == len(asked) <= tries
    assert fails(left)


def test_a_fault_is_a_value() -> None:
    fault = parse_fault("  scale 2   at t=30 for 1.5s ")
    assert fault == Fault(Kind.SCALE, "edges", 30, 1.5, 2)
    assert str(replace(fault, edges=1)) == "scale 1 at t=30 for 1.5s"

"""Faults: schedules from a seed, as text, chosen from, shrunk, and when each begins and ends in a run."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from math import inf

import pytest
from hypothesis import given
from hypothesis import strategies as st

from common.errors import ConfigurationError
from mapa.chaos.faults import (
    BROKER,
    CLOUD,
    TARGETS,
    Bounds,
    Fault,
    FaultKind,
    Injector,
    choose,
    make_kills,
    make_schedule,
    parse_container_fault,
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
    assert not count or any(one.kind is FaultKind.KILL and one.target == CLOUD for one in faults)
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
        one.seconds or 0.0
        for seed in range(40)
        for one in make_schedule(seed, bounds, 8)
        if one.kind in (FaultKind.PAUSE, FaultKind.PARTITION, FaultKind.CUT)
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
    return tuple(Fault(FaultKind.KILL, BROKER, t, 1.0) for t in range(1, count + 1))


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
    assert fault == Fault(FaultKind.SCALE, "edges", 30, 1.5, 2)
    assert str(replace(fault, edges=1)) == "scale 1 at t=30 for 1.5s"


@given(SEEDS, st.integers(40, 10**6), st.integers(1, 60))
def test_repeated_kills_hit_the_cloud_alone_also_while_it_starts(
    seed: int, iterations: int, count: int
) -> None:
    bounds = Bounds(iterations, 3, 2.0)
    kills = make_kills(seed, bounds, count)
    assert len(kills) == count
    assert {(one.kind, one.target) for one in kills} == {(FaultKind.KILL, CLOUD)}
    assert parse_schedule("\n".join(map(str, kills)), bounds) == kills
    for before, kill in pairwise(kills):
        assert before.at <= kill.at
        assert kill.after == 0 or (kill.at == before.at and kill.after > before.after)


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("kill edge-3 at t=500 for 2s", Fault(FaultKind.KILL, "edge-3", 500, 2.0)),
        ("pause  broker at 80 for 0.5", Fault(FaultKind.PAUSE, "broker", 80, 0.5)),
        ("partition cloud at t=1", Fault(FaultKind.PARTITION, "cloud", 1)),
        ("crash cloud at t=7", Fault(FaultKind.CRASH, "cloud", 7)),
        ("scale 20 at t=300", Fault(FaultKind.SCALE, "edges", 300, edges=20)),
    ],
)
def test_faults_of_containers_have_names(text: str, fault: Fault) -> None:
    assert parse_container_fault(text) == fault


@pytest.mark.parametrize(
    ("text", "named"),
    [
        *(
            (text, "expected")
            for text in ("", "kill", "kill data at 5", "scale -1 at t=3", "scale 2 at 3 for 1s")
        ),
        *((text, "expected") for text in ("slow cloud at t=5 for 1s", "kill cloud at t=5+1s")),
        ("crash cloud at 5 for 2s", "restart policy"),
        ("crash broker at 5", "restart policy"),
    ],
)
def test_what_is_no_fault_of_containers_is_refused(text: str, named: str) -> None:
    with pytest.raises(ConfigurationError, match=named):
        parse_container_fault(text)


class Played:
    """Faults played against a clock of one's own."""

    def __init__(self, *texts: str) -> None:
        self.log: list[str] = []
        self.ready = True
        self.injector = Injector([parse_container_fault(text) for text in texts], self._begin, self._end)

    def _begin(self, fault: Fault) -> bool:
        self.log.append(f"+{fault.target}")
        return True

    def _end(self, fault: Fault) -> bool:
        if self.ready:
            self.log.append(f"-{fault.target}")
        return self.ready

    def at(self, t: int, now: float) -> list[str]:
        self.log.clear()
        self.injector.end_due(now)
        self.injector.begin_due(t, now)
        return list(self.log)


def test_faults_begin_at_their_t_and_one_place_has_one_at_a_time() -> None:
    played = Played("kill cloud at t=5 for 2s", "pause cloud at t=6 for 1s", "partition cloud at t=6 for 9s")
    assert played.at(4, 0.0) == []
    assert played.at(6, 1.0) == ["+cloud", "+cloud"]  # its process, and its connection
    assert played.injector.holds("cloud")
    assert played.at(7, 2.9) == []
    played.ready = False  # it has not come back yet
    assert played.at(7, 3.0) == []
    played.ready = True
    assert played.at(7, 3.1) == ["-cloud", "+cloud"]
    assert played.injector.waiting == []
    assert played.injector.lasts(9.9)
    assert played.at(7, inf) == ["-cloud", "-cloud"]
    assert played.injector.idle


def test_a_fault_for_good_has_no_end_and_stands_in_nobodys_way() -> None:
    played = Played("kill edge-1 at t=5", "crash cloud at t=5", "scale 2 at t=5")
    assert played.at(5, 0.0) == ["+edge-1", "+cloud", "+edges"]
    assert played.injector.idle


def test_a_fault_may_begin_some_time_after_its_update() -> None:
    log: list[float] = []
    faults = [parse_fault("kill cloud at t=5 for 0.1s"), parse_fault("kill cloud at t=5+0.7s for 0.1s")]
    injector = Injector(faults, lambda fault: log.append(fault.after) is None, lambda _: True)
    for now in (10.0, 10.5, 10.7):
        injector.end_due(now)
        injector.begin_due(5, now)
        assert log == ([0.0] if now < 10.7 else [0.0, 0.7])

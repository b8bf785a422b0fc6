"""When simulated gradients arrive."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from common.errors import ConfigurationError
from common.messages import GradientArrived
from common.quantities import EdgeId, NoisyGradient
from common.randomness import CounterStreams
from common.scenario.tables import DelaysTable
from mapa.simulation.delays import Arrivals, arrivals_for, at_once, drawn_trips, recorded_trips

KINDS = ["constant", "uniform", "exponential", "lognormal"]


def table(kind: str, **fields: Any) -> DelaysTable:
    return DelaysTable.model_validate({"kind": kind, "compute": 0.1, "network": 0.3, **fields})


def arrived(edge: int, sequence: int) -> GradientArrived:
    return GradientArrived(EdgeId(str(edge)), sequence, 1, 1.0, NoisyGradient(np.zeros(1, np.float32)))


def order(arrivals: Arrivals) -> list[tuple[float | None, str, int]]:
    found = []
    while (due := arrivals.next()) is not None:
        found.append((due[0], due[1].edge_id, due[1].sequence))
    return found


def test_cyclic_arrivals_keep_the_order_of_sending() -> None:
    arrivals = Arrivals(at_once)
    for k in (2, 0, 1):
        arrivals.send(k, 0.0, arrived(k, 1))
    assert order(arrivals) == [(0.0, "2", 1), (0.0, "0", 1), (0.0, "1", 1)]
    assert arrivals.next() is None


def test_timed_arrivals_come_in_order_of_time_and_ties_in_order_of_sending() -> None:
    times = {(0, 1): 5.0, (1, 1): 1.0, (2, 1): 5.0, (1, 2): 3.5}
    arrivals = Arrivals(lambda edge, n: (0.0, times[edge, n], 0.0))
    for k in range(3):
        arrivals.send(k, 0.0, arrived(k, 1))
    first = arrivals.next()
    assert first is not None
    assert (first[0], first[1].edge_id) == (1.0, "1")
    arrivals.send(1, 1.0, arrived(1, 2))
    assert order(arrivals) == [(4.5, "1", 2), (5.0, "0", 1), (5.0, "2", 1)]


@given(st.lists(st.floats(0, 10), min_size=1, max_size=30))
def test_time_never_runs_backwards(trips: list[float]) -> None:
    arrivals = Arrivals(lambda edge, n: (0.0, trips[edge], 0.0))  # noqa: ARG005
    for k in range(len(trips)):
        arrivals.send(k, 0.0, arrived(k, 1))
    times = [when for when, _, _ in order(arrivals)]
    assert times == sorted(trips)


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_has_the_configured_means(kind: str) -> None:
    trip = drawn_trips(table(kind), CounterStreams.seeded(1))
    trips = np.array([trip(0, n) for n in range(1, 3001)])
    spread = {
        "constant": 0,
        "uniform": 0.5 / math.sqrt(3),
        "exponential": 1,
        "lognormal": math.sqrt(math.expm1(0.25)),
    }
    for column, mean in zip(trips.T, (0.3, 0.1, 0.3), strict=True):
        error = spread[kind] * mean / math.sqrt(3000)
        assert abs(column.mean() - mean) <= 5 * error + 1e-12
        assert (column >= 0).all()


@pytest.mark.parametrize(
    ("kind", "law"),
    [
        ("uniform", stats.uniform(0.05, 0.1)),
        ("exponential", stats.expon(scale=0.1)),
        ("lognormal", stats.lognorm(s=0.5, scale=0.1 * math.exp(-0.125))),
    ],
)
def test_every_kind_has_its_own_law(kind: str, law: Any) -> None:
    trip = drawn_trips(table(kind), CounterStreams.seeded(2))
    compute = [trip(3, n)[1] for n in range(1, 3001)]
    assert stats.kstest(compute, law.cdf).pvalue > 1e-3


def test_constant_times_are_constant() -> None:
    trip = drawn_trips(table("constant"), CounterStreams.seeded(2))
    assert {trip(k, n) for k in range(3) for n in range(1, 5)} == {(0.3, 0.1, 0.3)}


@pytest.mark.parametrize("kind", KINDS)
def test_a_speed_divides_the_compute_time_alone(kind: str) -> None:
    slow = drawn_trips(table(kind), CounterStreams.seeded(3))
    fast = drawn_trips(table(kind, speeds=[1.0, 4.0]), CounterStreams.seeded(3))
    for k in range(4):
        speed = [1.0, 4.0][k % 2]
        down, compute, up = slow(k, 1)
        assert fast(k, 1) == pytest.approx((down, compute / speed, up))


@given(st.sampled_from(KINDS), st.permutations([(k, n) for k in range(3) for n in (1, 2, 3)]))
def test_a_trip_does_not_depend_on_who_travelled_before(kind: str, asked: list[tuple[int, int]]) -> None:
    trip = drawn_trips(table(kind), CounterStreams.seeded(4))
    for k, n in asked:
        assert trip(k, n) == drawn_trips(table(kind), CounterStreams.seeded(4))(k, n)


def test_the_three_parts_of_a_trip_are_drawn_apart() -> None:
    trip = drawn_trips(table("exponential", compute=0.3), CounterStreams.seeded(5))
    assert len(set(trip(0, 1))) == 3
    assert trip(0, 1) != trip(0, 2) != trip(1, 2)


def test_recorded_trips_are_cycled_and_unknown_edges_take_those_of_others(tmp_path: Path) -> None:
    file = tmp_path / "delays.csv"
    file.write_text("edge,compute,up,down\n0,1,2,3\n0,4,5,6\n7,0.5,0,0\n")
    trip = recorded_trips(file)
    assert [trip(0, n) for n in (1, 2, 3)] == [(3, 1, 2), (6, 4, 5), (3, 1, 2)]
    assert trip(7, 5) == (0, 0.5, 0)
    assert trip(1, 1) == (0, 0.5, 0)  # the second of the file's edges
    assert trip(2, 1) == (3, 1, 2)
    arrivals = arrivals_for(table("recorded", file=str(file)), CounterStreams.seeded(0))
    arrivals.send(0, 1.0, arrived(0, 1))
    assert order(arrivals) == [(7.0, "0", 1)]


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"edge,compute,up,down\n",
        b"edge,compute,up\n0,1,2\n",
        b"edge,compute,up,down\n0,1,2\n",
        b"edge,compute,up,down\n0,1,2,-3\n",
        b"edge,compute,up,down\n0,1,2,inf\n",
        b"edge,compute,up,down\n0,1,2,soon\n",
        b"edge,compute,up,down\nzero,1,2,3\n",
        b"\xff\xfe\x00",
        b"edge,compute,up,down\n0,1,2," + b"9" * 200_000,
    ],
)
def test_a_file_that_holds_no_delays_is_refused_by_name(tmp_path: Path, content: bytes) -> None:
    file = tmp_path / "delays.csv"
    file.write_bytes(content)
    with pytest.raises(ConfigurationError, match=r"delays\.file = '.*delays\.csv'"):
        recorded_trips(file)


def test_a_file_that_is_not_there_is_refused_by_name(tmp_path: Path) -> None:
    with pytest.raises(
        ConfigurationError, match=r"delays\.file = .*nowhere\.csv.*columns edge,compute,up,down"
    ):
        recorded_trips(tmp_path / "nowhere.csv")

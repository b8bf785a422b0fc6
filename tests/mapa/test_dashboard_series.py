"""Curves and counts in bounded memory: nothing that matters is lost, whatever their length."""

from __future__ import annotations

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mapa.dashboard.series import Counts, Durations, Envelope, HeatMap

VALUES = st.lists(st.floats(allow_nan=False, allow_infinity=False), min_size=1, max_size=400)


@settings(deadline=None)
@given(VALUES, st.integers(2, 16))
def test_an_envelope_keeps_extrema_first_and_last_and_stays_bounded(
    values: list[float], buckets: int
) -> None:
    envelope = Envelope(buckets)
    for x, y in enumerate(values):
        envelope.add(x, y, x / 2)
        assert len(envelope.points()) <= 2 * buckets + 2
    points = envelope.points()
    kept = [y for _, y, _ in points]
    assert (min(kept), max(kept)) == (min(values), max(values))
    assert (points[0], points[-1]) == (
        (0, values[0], 0.0),
        (len(values) - 1, values[-1], (len(values) - 1) / 2),
    )
    places = [x for x, _, _ in points]
    assert places == sorted(set(places))
    assert all(
        values[int(x)] == y and seconds == x / 2 for x, y, seconds in points
    )  # points of the curve, none made up


@settings(deadline=None)
@given(VALUES)
def test_a_short_curve_is_kept_as_it_is(values: list[float]) -> None:
    envelope = Envelope(401)
    for x, y in enumerate(values):
        envelope.add(x, y)
    assert [y for _, y, _ in envelope.points()] == values


def test_every_bucket_keeps_its_own_extrema() -> None:
    """A spike of one update in a million shows."""
    envelope = Envelope(64)
    for x in range(100_000):
        envelope.add(x, 5.0 if x in (12_345, 70_001) else 1.0)
    assert [x for x, y, _ in envelope.points() if y == 5.0] == [12_345, 70_001]


@settings(deadline=None)
@given(st.lists(st.floats(0, 1e9), max_size=200), st.integers(1, 40))
def test_counts_lose_nothing_and_stay_bounded(places: list[float], buckets: int) -> None:
    counts = Counts(buckets, 0.25)
    for x in places:
        counts.add(x)
    assert sum(counts.counts) == len(places)
    assert len(counts.counts) <= buckets
    for i, count in enumerate(counts.counts):
        low, high = i * counts.width, (i + 1) * counts.width
        assert count == sum(low <= x < high for x in places)


@settings(deadline=None)
@given(st.lists(st.tuples(st.integers(0, 10**9), st.integers(0, 10**6)), max_size=100))
def test_a_heat_map_loses_nothing_and_stays_bounded(places: list[tuple[int, int]]) -> None:
    heat = HeatMap(8, 4)
    for x, y in places:
        heat.add(x, y)
    assert len(heat.cells) <= 8
    assert all(len(column) <= 4 for column in heat.cells)
    for i, column in enumerate(heat.cells):
        for j, count in enumerate(column):
            inside = [1 for x, y in places if int(x / heat.width) == i and y // heat.height == j]
            assert count == len(inside)
    assert sum(map(sum, heat.cells)) == len(places)


@given(st.lists(st.floats(1e-5, 1e5), min_size=1, max_size=200), st.sampled_from([0.5, 0.9, 0.99]))
def test_a_percentile_of_durations_is_within_5_percent(values: list[float], share: float) -> None:
    durations = Durations()
    for value in values:
        durations.add(value)
    exact = sorted(values)[max(0, math.ceil(share * len(values)) - 1)]
    assert durations.percentile(share) == pytest.approx(exact, rel=0.05)


def test_durations_are_bounded_and_none_has_no_percentile() -> None:
    durations = Durations()
    assert durations.percentile(0.5) is None
    for power in range(-400, 400):
        durations.add(2.0**power)
    durations.add(-1.0)
    assert len(durations.counts) <= 8 * 41

"""The audit of sums: planted defects are refuted, sound settings are not."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest

from common.mechanism.grid import Grid
from common.mechanism.mechanism import Mechanism
from edge.worker import EdgeWorker
from experiments.audit.summed import SumGame, Uncounted, at_the_edge_of_rounding, noised

ALPHA = 0.01
SUMS = SumGame(grid=Grid(16, members=4), noise_multiplier=1.0, rounds=700)


def first_twice(edges: Sequence[EdgeWorker]) -> list[EdgeWorker]:
    """Return a set in which one contribution takes the place of another."""
    return [edges[0], edges[0], *edges[2:]]


def shares_of_shares(mechanism: Mechanism) -> Mechanism:
    """Plant a share that was divided by √m twice."""
    return noised(1 / 2)(mechanism)


def of_a_grid(kind: type[Grid], grid: Grid) -> Grid:
    return kind(grid.bits, grid.members)


def test_half_the_noise_is_refuted() -> None:
    assert replace(SUMS, plant=noised(0.5)).play(alpha=ALPHA, seed=1).violated


def test_a_share_that_is_divided_twice_is_refuted() -> None:
    assert replace(SUMS, plant=shares_of_shares).play(alpha=ALPHA, seed=1).violated


def test_a_contribution_counted_twice_is_refuted() -> None:
    assert replace(SUMS, added=first_twice).play(alpha=ALPHA, seed=1).violated


@pytest.mark.slow
def test_a_set_of_one_edge_where_two_are_claimed_is_refuted() -> None:
    pair = replace(SUMS, grid=Grid(16, members=2), rounds=1500)
    assert not pair.play(alpha=ALPHA, seed=1).violated
    assert replace(pair, added=lambda edges: edges[:1]).play(alpha=ALPHA, seed=1).violated


@pytest.mark.slow
def test_edges_that_collude_and_are_not_counted_are_refuted() -> None:
    """A sum from which two of four edges have taken their noise, claimed as if they had not."""
    ignored = replace(SUMS, added=lambda edges: edges[:2], rounds=1500)
    assert ignored.play(alpha=ALPHA, seed=1).violated
    counted = replace(SUMS, grid=Grid(16, members=4, colluding=2), rounds=1500)
    assert counted.claim.value == pytest.approx(2**0.5)
    assert not counted.play(alpha=ALPHA, seed=1).violated


@pytest.mark.slow
def test_rounding_that_is_not_counted_is_refuted() -> None:
    grid = Grid(8)
    z = 10**0.5 / 2 * (1 - 1e-9)  # without rounding its noise is 128·√10 steps, no more: c = 1, 3
    honest = SumGame(grid=grid, noise_multiplier=z, rounds=1500, **at_the_edge_of_rounding())
    uncounted = replace(honest, plant=lambda mechanism: replace(mechanism, grid=of_a_grid(Uncounted, grid)))
    assert uncounted.play(alpha=ALPHA, seed=1).violated
    found = honest.play(alpha=ALPHA, seed=1)
    assert not found.violated
    assert found.lower_bound > 0.5 * found.claimed


@pytest.mark.extended
@pytest.mark.parametrize(
    ("grid", "z"),
    [
        (Grid(16, members=2), 1.0),
        (Grid(16, members=4), 4.0),
        (Grid(16, members=5, colluding=2), 1.0),
        (Grid(20, members=10), 0.5),
        (Grid(12), 1.0),
    ],
)
def test_no_sound_setting_is_refuted_in_twenty_seeds(grid: Grid, z: float) -> None:
    """All hundred together at 95 %."""
    game = SumGame(grid=grid, noise_multiplier=z, rounds=500)
    refuted = [seed for seed in range(20) if game.play(alpha=0.05 / 100, seed=seed).violated]
    assert not refuted

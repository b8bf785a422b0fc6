"""The slope of the soak: its interval covers what is true, and growth is not taken for flat."""

from __future__ import annotations

import numpy as np
import pytest

from common.errors import ConfigurationError
from experiments.bench.soak_slope import Slope, fit_slope, last_part


def walk(rng: np.random.Generator, count: int, memory: float) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
    """Return autocorrelated noise: each sample keeps a share of the last."""
    values = np.zeros(count)
    for place in range(1, count):
        values[place] = memory * values[place - 1] + rng.normal()
    return values


def test_the_interval_covers_the_true_slope_although_samples_are_alike() -> None:
    rng, times = np.random.default_rng(0), np.arange(600.0)
    covered = 0
    for _ in range(200):
        found = fit_slope(times, list(0.01 * times + walk(rng, 600, 0.8)))
        covered += found.low <= 0.01 <= found.high
    assert covered >= 180  # 95 % of 200, with room for chance


def test_growth_is_seen_and_what_stays_or_shrinks_is_flat() -> None:
    rng, times = np.random.default_rng(1), np.arange(600.0)
    noise = 50 * rng.normal(size=600)
    assert not fit_slope(times, list(1000 + 16.0 * times + noise)).flat(1.0)
    assert fit_slope(times, list(1000 + noise)).flat(1.0)
    assert fit_slope(times, list(1000 - 16.0 * times + noise)).flat(1.0)
    assert fit_slope(times, [7.0] * 600) == Slope(0.0, 0.0, 0.0)


def test_a_slope_is_counted_per_update() -> None:
    assert Slope(100.0, 50.0, 150.0).per(50.0) == Slope(2.0, 1.0, 3.0)
    with pytest.raises(ConfigurationError, match="0 updates a second"):
        Slope(1.0, 0.0, 2.0).per(0.0)


def test_the_first_third_is_left_out() -> None:
    assert last_part([float(second) for second in range(901)]) == slice(300, 901)


def test_too_few_samples_are_refused() -> None:
    with pytest.raises(ConfigurationError, match="at least 20"):
        fit_slope([1.0] * 19, [1.0] * 19)

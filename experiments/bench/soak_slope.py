"""Whether a sampled quantity grows: a slope with its confidence interval, from block means. Pure."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy.stats import t as student

from common.errors import ConfigurationError

BLOCKS = (
    10  # of a minute each in a soak of 15 minutes: memory moves in steps that last for several checkpoints
)


@dataclass(frozen=True, slots=True)
class Slope:
    """Change a second, with the bounds of a 95 % confidence interval."""

    value: float
    low: float
    high: float

    def per(self, rate: float) -> Slope:
        """Return the slope per event where `rate` of them come a second."""
        if not rate > 0:
            raise ConfigurationError(f"soak: {rate:g} updates a second: nothing to divide by")
        return Slope(self.value / rate, self.low / rate, self.high / rate)

    def flat(self, bound: float) -> bool:
        """Tell whether growth above the bound is excluded; what shrinks is no leak."""
        return self.high < bound


def fit_slope(times: Sequence[float], values: Sequence[float], blocks: int = BLOCKS) -> Slope:
    """Fit a line to the means of blocks.

    One second's sample is nearly the last one's: a fit to all of them would take them for independent, and its
    interval for far too small. Means over blocks that are longer than what makes them alike (a checkpoint comes every
    30 s or more) are closer to it.
    """
    if len(times) != len(values) or len(times) < 2 * blocks or blocks < 3:
        raise ConfigurationError(f"soak: {len(times)} samples: must be at least {2 * blocks}")
    x = np.array([part.mean() for part in np.array_split(np.asarray(times, float), blocks)])
    y = np.array([part.mean() for part in np.array_split(np.asarray(values, float), blocks)])
    centred = x - x.mean()
    spread = float(centred @ centred)
    slope = float(centred @ y) / spread
    residuals = y - y.mean() - slope * centred
    error = math.sqrt(float(residuals @ residuals) / (blocks - 2) / spread)
    reach = float(student.ppf(0.975, blocks - 2)) * error
    return Slope(slope, slope - reach, slope + reach)


def last_part(times: Sequence[float], share: float = 2 / 3) -> slice:
    """Return where the last `share` of the time begins, as a slice of the samples."""
    begin = times[-1] - share * (times[-1] - times[0])
    return slice(int(np.searchsorted(np.asarray(times), begin)), len(times))

"""Total ε where the terms of later releases may have been chosen after a look at the earlier ones.

PLDs and KOV's bounds compose releases whose z, ε and q were fixed beforehand (Rogers, Roth, Ullman, Vadhan 2016).
Rényi divergences add up all the same (Feldman and Zrnic 2021; Lécuyer 2021), which this uses.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from common.accounting.gaussian import GaussianReleases, rdp_curve
from common.accounting.pure import PureReleases

# α. Few, since each takes its share of δ; a finer grid gains less than that costs.
ORDERS = tuple(1 + 2.0**power for power in range(-2, 11))


def odometer(gaussian: Sequence[GaussianReleases], pure: Sequence[PureReleases], delta: float) -> float:
    """Return ε at δ: the least Σ ρ(α) + ln(|orders|/δ)/(α − 1), whoever chose the terms and when to stop.

    With L the privacy loss so far, exp((α − 1)(L − Σ ρ(α))) is a supermartingale that begins at 1, so it ever
    reaches |orders|/δ with probability δ/|orders| at most (Ville), and for any of the orders with δ at most.
    """
    if delta == 0:
        return math.inf
    orders = np.array(ORDERS)
    spent: npt.NDArray[np.float64] = np.zeros_like(orders)
    for group in gaussian:
        spent += group.count * rdp_curve(group.noise_multiplier, group.rate, ORDERS)
    for release in pure:  # ε-DP: ρ(α) ≤ ε, and ≤ αε²/2 (Bun and Steinke 2016)
        spent += release.count * np.minimum(release.epsilon, orders * release.epsilon**2 / 2)
    return float(np.min(spent + math.log(len(ORDERS) / delta) / (orders - 1)))

"""How often each edge releases, fixed before the first release: from numbers that a scenario declares.

Never from timings on records: how long a batch takes depends on how many records it has.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from common.errors import ConfigurationError
from common.scenario.scenario import Scenario

_DRAWN = ("constant", "uniform", "exponential", "lognormal")  # delays whose mean is declared
_NEEDED = (
    "privacy.pace = 'own': needs a pace for each edge: privacy.paces, devices with a slowdown, delays.speeds, or"
    " privacy.gradients_per_second with time_limit"
)


def planned_releases(scenario: Scenario) -> list[int]:
    """Return R_k of every edge: what it makes within the time limit, or its share of T by its pace."""
    given = scenario.privacy.gradients_per_second
    if given is None:
        return shared_out(scenario.iterations, declared_paces(scenario))
    assert scenario.time_limit is not None  # Scenario has checked it
    paces = cycled(given, scenario.workers)
    releases = [max(1, math.floor(scenario.time_limit * pace)) for pace in paces]
    if sum(releases) > scenario.iterations:
        raise ConfigurationError(
            f"iterations = {scenario.iterations}: must be at least {sum(releases)}, what all edges release in"
            f" time_limit = {scenario.time_limit:g} s by privacy.gradients_per_second"
        )
    return releases


def declared_paces(scenario: Scenario) -> list[float]:
    """Return how fast edges are beside each other: as given, or by their devices and the simulated delays."""
    workers = scenario.workers
    if scenario.privacy.paces is not None:
        return cycled(scenario.privacy.paces, workers)
    delays = scenario.delays
    speeds = cycled(delays.speeds, workers)
    slowdowns = _slowdowns(scenario)
    if delays.kind == "recorded" or (len(set(speeds)) == 1 and slowdowns is None):
        raise ConfigurationError(_NEEDED)
    pairs = zip(speeds, slowdowns or [1.0] * workers, strict=True)
    seconds = [slowdown / speed for speed, slowdown in pairs]
    if delays.kind in _DRAWN:
        seconds = [2 * delays.network + delays.compute * one for one in seconds]
    if not min(seconds) > 0:
        raise ConfigurationError(
            "delays.compute = 0, delays.network = 0: no pace follows from them; give privacy.paces"
        )
    return [1 / one for one in seconds]


def _slowdowns(scenario: Scenario) -> list[float] | None:
    """Return how many times as long a gradient takes on the device of each edge; None: no devices are declared."""
    devices: Sequence[Any] = getattr(scenario, "profiles", ())
    return [float(device.slowdown) for device in devices] or None


def cycled(values: Sequence[float], workers: int) -> list[float]:
    return [values[k % len(values)] for k in range(workers)]


def shared_out(total: int, paces: Sequence[float]) -> list[int]:
    """Return whole numbers, each at least 1, that add up to `total` and are in the proportion of the paces."""
    if total < len(paces):
        raise ConfigurationError(f"iterations = {total}: must be at least {len(paces)}, one for each edge")
    whole = sum(paces)
    exact = [total * pace / whole for pace in paces]
    shares = [max(1, math.floor(share)) for share in exact]
    # the largest remainders get what is left; where the floor of 1 gave too much, the largest shares pay
    order = sorted(range(len(paces)), key=lambda k: (shares[k] - exact[k], k))
    place = 0
    while sum(shares) < total:
        shares[order[place % len(order)]] += 1
        place += 1
    while sum(shares) > total:
        shares[max(range(len(shares)), key=shares.__getitem__)] -= 1
    return shares

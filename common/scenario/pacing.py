"""How often each edge releases, fixed before the first release: from numbers that a scenario declares.

Never from timings on records: how long a batch takes depends on how many records it has.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Sequence

from common.errors import ConfigurationError, require
from common.scenario.scenario import Scenario

_DRAWN = ("constant", "uniform", "exponential", "lognormal")  # delays whose mean is declared
_NEEDED = (
    "privacy.pace = 'own': needs a pace for each edge: privacy.paces, devices with a slowdown, delays.speeds, or"
    " privacy.gradients_per_second with time_limit"
)


def planned_releases(scenario: Scenario) -> list[int]:
    """Return R_k of every edge, in messages: what it makes within the time limit, or its share of T by its pace."""
    given = scenario.privacy.gradients_per_second
    if given is None:
        return shared_out(scenario.iterations, declared_paces(scenario))
    assert scenario.time_limit is not None  # Scenario has checked it
    paces = cycled(given, scenario.workers)
    releases = [max(1, math.floor(scenario.time_limit * pace)) for pace in paces]
    limit = f"time_limit = {scenario.time_limit:g} s by privacy.gradients_per_second"
    enough = f"at least {sum(releases)}, what all edges release in {limit}"
    require(sum(releases) <= scenario.iterations, "iterations", scenario.iterations, enough)
    return releases


def declared_paces(scenario: Scenario) -> list[float]:
    """Return how fast edges are beside each other: as given, or by their devices and the simulated delays."""
    workers = scenario.workers
    if scenario.privacy.paces is not None:
        return cycled(scenario.privacy.paces, workers)
    seconds = _seconds(scenario)
    if seconds is None:
        raise ConfigurationError(_NEEDED)
    if not min(seconds) > 0:
        raise ConfigurationError(
            "delays.compute = 0, delays.network = 0: no pace follows from them; give privacy.paces"
        )
    return [1 / one for one in seconds]


def _seconds(scenario: Scenario) -> list[float] | None:
    """Return how long a gradient of each edge takes by what is declared, or in proportion to it; None: unknown."""
    delays, devices = scenario.delays, scenario.profiles
    speeds = cycled(delays.speeds, scenario.workers)
    if delays.kind == "recorded" or not (devices or len(set(speeds)) > 1):
        return None
    slowdowns = [device.slowdown for device in devices] or [1.0] * scenario.workers
    references = [device.reference_ms for device in devices] or [None] * scenario.workers
    drawn = delays.kind in _DRAWN
    if not drawn and len({reference is None for reference in references}) > 1:
        return None  # milliseconds of some cannot be compared with the proportions of others
    whole = delays.compute if drawn else 1.0
    compute = [
        slowdown * (whole / speed if reference is None else reference / 1000)
        for slowdown, speed, reference in zip(slowdowns, speeds, references, strict=True)
    ]
    return [2 * delays.network + one for one in compute] if drawn else compute


def cycled(values: Sequence[float], workers: int) -> list[float]:
    return [values[k % len(values)] for k in range(workers)]


def shared_out(total: int, paces: Sequence[float]) -> list[int]:
    """Return whole numbers, each at least 1, that add up to `total` and are in the proportion of the paces."""
    require(total >= len(paces), "iterations", total, f"at least {len(paces)}, one for each edge")
    most = max(paces)  # so that no sum overflows
    whole = sum(pace / most for pace in paces)
    exact = [total * (pace / most) / whole for pace in paces]
    shares = [max(1, math.floor(share)) for share in exact]
    missing = total - sum(shares)
    # the largest remainders get what is left; where the floor of 1 gave too much, the largest shares pay
    for k in sorted(range(len(paces)), key=lambda k: (shares[k] - exact[k], k))[: max(0, missing)]:
        shares[k] += 1
    largest = [(-share, k) for k, share in enumerate(shares)]
    heapq.heapify(largest)
    for _ in range(-missing):
        share, k = heapq.heappop(largest)
        shares[k] -= 1
        heapq.heappush(largest, (share + 1, k))
    return shares

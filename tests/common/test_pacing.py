"""R_k from declared numbers: in proportion to the pace, adding up to T; or by seconds; and what is refused."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from common.errors import ConfigurationError
from common.scenario.pacing import declared_paces, planned_releases, shared_out
from common.scenario.scenario import Scenario, parse_scenario
from tests.core_support import small_scenario

OWN = {"total_epsilon": 3.0, "pace": "own"}


def paced(privacy: dict[str, Any] | None = None, **changes: Any) -> Scenario:
    algorithm = {"name": "constant", "rate": 0.1}
    return small_scenario(privacy={**OWN, **(privacy or {})}, algorithm=algorithm, **changes)


@given(paces=st.lists(st.floats(0.01, 100), min_size=1, max_size=30), more=st.integers(0, 10_000))
def test_shares_add_up_to_the_whole_and_follow_the_paces(paces: list[float], more: int) -> None:
    total = len(paces) + more
    shares = shared_out(total, paces)
    assert (sum(shares), min(shares) >= 1) == (total, True)
    exact = [total * pace / sum(paces) for pace in paces]
    if min(exact) >= 1:  # no floor of 1 had to be paid for
        assert all(abs(share - one) < 1 for share, one in zip(shares, exact, strict=True))
    slow_first = [share for _, share in sorted(zip(paces, shares, strict=True))]
    assert all(slow <= fast + 1 for slow, fast in itertools.pairwise(slow_first))


def test_no_pace_is_too_large_to_be_compared() -> None:
    assert shared_out(90, [1e308, 1e308, 1e308]) == [30, 30, 30]
    assert shared_out(90, [1e308, 1e-308]) == [89, 1]


def test_paces_are_cycled_over_edges() -> None:
    assert planned_releases(paced({"paces": [1.0, 2.0]}, iterations=60)) == [10, 20, 10, 20]


def test_the_delays_of_a_simulation_are_a_declared_profile() -> None:
    delays = {"kind": "constant", "compute": 0.01, "network": 0.0, "speeds": [1.0, 2.0, 4.0, 8.0]}
    assert planned_releases(paced(delays=delays, iterations=150)) == [10, 20, 40, 80]
    slow_network = {**delays, "network": 10.0}  # then speed means next to nothing
    assert planned_releases(paced(delays=slow_network, iterations=60)) == [15] * 4
    assert declared_paces(paced({"paces": [5.0]}, delays=delays)) == [5.0] * 4  # what is given counts


def test_devices_are_a_declared_profile() -> None:
    devices = [{"slowdown": 4.0}, {"slowdown": 2.0}, {"slowdown": 1.0}, {"slowdown": 1.0}]
    assert planned_releases(paced(devices=devices, iterations=110)) == [10, 20, 40, 40]
    drawn = {"kind": "constant", "compute": 0.01, "network": 0.005}  # 0.01 s on the way
    assert declared_paces(paced(devices=devices, delays=drawn)) == pytest.approx([20, 100 / 3, 50, 50])
    timed = [{"slowdown": 2.0, "reference_ms": 10.0}, {"slowdown": 1.0, "reference_ms": 5.0}]
    assert planned_releases(paced(devices=timed, iterations=100)) == [10, 40, 10, 40]
    with pytest.raises(
        ConfigurationError, match="needs a pace for each edge"
    ):  # 10 ms beside "as fast as it is"
        planned_releases(paced(devices=[{"slowdown": 2.0, "reference_ms": 10.0}, {"slowdown": 1.0}]))


def test_with_a_time_limit_releases_follow_from_gradients_per_second() -> None:
    given = paced({"gradients_per_second": [0.5, 2.0]}, iterations=60, time_limit=10.4)
    assert planned_releases(given) == [5, 20, 5, 20]
    with pytest.raises(ConfigurationError, match="iterations = 49: must be at least 50"):
        planned_releases(paced({"gradients_per_second": [0.5, 2.0]}, iterations=49, time_limit=10.4))


@pytest.mark.parametrize(
    ("privacy", "words"),
    [
        (
            {"total_epsilon": None, "noise_multiplier": 1.0, "release_caps": [5]},
            "needs privacy.total_epsilon",
        ),
        ({"noise": "gamma-norm", "epsilon": 1.0, "release_caps": [5]}, "a law that it can calibrate"),
        ({"releases": 5}, "privacy.releases = 5"),
        ({"noise_multiplier": 1.0}, "privacy.release_caps: only beside privacy.noise_multiplier"),
        ({"release_caps": [5]}, "privacy.release_caps: only beside privacy.noise_multiplier"),
        ({"paces": [1.0], "gradients_per_second": [1.0]}, "give one of them"),
        ({"paces": []}, "privacy.paces"),
        ({"paces": [0.0]}, "privacy.paces"),
        ({"gradients_per_second": [1.0]}, "time_limit: needed"),
        ({"pace": "same", "paces": [1.0]}, "only with privacy.pace = 'own'"),
        ({"pace": "fast"}, "privacy.pace"),
    ],
)
def test_a_pace_that_says_too_much_or_too_little_is_refused(privacy: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        paced(privacy)
    assert words in str(caught.value)


def test_a_pace_that_nobody_declares_is_refused() -> None:
    with pytest.raises(ConfigurationError, match=r"needs a pace for each edge: privacy\.paces"):
        planned_releases(paced())
    with pytest.raises(ConfigurationError, match="whose edges clip and noise"):
        small_scenario(privacy=OWN, algorithm={"name": "asgd"})


def test_keys_that_came_later_are_recorded_and_sent_only_where_they_are_set() -> None:
    plain = small_scenario()
    later = {"pace", "paces", "gradients_per_second", "release_caps"}
    assert "time_limit" not in plain.canonical()
    assert not later & set(plain.canonical()["privacy"])
    assert not later & set(plain.for_edge(0)["privacy"])
    assert "time_limit" not in plain.for_edge(0)
    filled = paced(
        {"paces": [1.0, 2.0], "noise_multiplier": [1.0, 2.0], "release_caps": [20, 40]}, time_limit=9.0
    )
    assert parse_scenario(filled.canonical()) == filled
    told = filled.for_edge(3)
    assert told["privacy"]["release_caps"] == [40]  # its own alone
    assert not {"paces", "gradients_per_second"} & set(told["privacy"])

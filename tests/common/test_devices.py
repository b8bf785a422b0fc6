"""Devices and availability: what a scenario may say, what it means, and what is refused."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from common.devices import (
    LEAST_SPAN,
    PRESETS,
    Attendance,
    Churn,
    DeviceProfile,
    JitterLaw,
    Windows,
    device_profile,
    windows_from_csv,
)
from common.errors import ConfigurationError
from common.randomness import CounterStreams
from common.scenario.scenario import Scenario, parse_scenario, parse_welcome
from mapa.scenario_files import load_scenario


def scenario(*devices: dict[str, Any], **fields: Any) -> Scenario:
    return parse_scenario({"iterations": 10, "devices": list(devices), **fields})


def test_devices_are_cycled_over_edges_and_an_edge_is_told_of_its_own_alone() -> None:
    made = scenario({"name": "pi4"}, {"name": "attic", "slowdown": 3.0, "jitter": 0.5}, edges=3)
    assert [profile.name for profile in made.profiles] == ["pi4", "attic", "pi4"]
    for index, wanted in ((0, PRESETS["pi4"]), (1, DeviceProfile(name="attic", slowdown=3.0, jitter=0.5))):
        told = parse_welcome(made.for_edge(index))
        assert len(told.devices) == 1
        assert told.device(index) == wanted


def test_a_preset_takes_numbers_in_place_of_its_own() -> None:
    profile = device_profile({"name": "pi4", "jitter": 0.5, "distribution": "uniform"})
    assert (profile.slowdown, profile.jitter, profile.distribution) == (8, 0.5, JitterLaw.UNIFORM)


@pytest.mark.parametrize(
    "fields",
    [
        {"jitter": 0.1},
        {"name": "attic", "slowdown": 2.0},
        {"name": "attic", "reference_ms": 5.0},
        {"name": "attic", "availability": {"up": 5.0, "down": 1.0}},
    ],
)
def test_a_device_of_ones_own_says_how_slow_it_is_or_when_it_is_there(fields: dict[str, Any]) -> None:
    assert device_profile(fields).name == fields.get("name", "custom")


def test_a_scenario_without_devices_is_recorded_and_sent_as_before() -> None:
    plain = scenario()
    assert "devices" not in plain.canonical()
    assert "devices" not in plain.for_edge(0)
    named = scenario({"name": "pi4"})
    assert parse_scenario(named.canonical()).digest == named.digest != plain.digest


@pytest.mark.parametrize(
    ("device", "said"),
    [
        (
            {"name": "pi44", "jitter": 0.1},
            "device 'pi44': name = 'pi44': allowed are workstation, laptop.*pi4",
        ),
        (
            {"name": "pi44", "distribution": "uniform"},
            "device 'pi44': name = 'pi44': allowed are workstation",
        ),
        ({"name": "pi7"}, "device 'pi7': name = 'pi7': allowed are workstation"),
        ({"name": "pi4", "slowdown": 0.5}, r"slowdown = 0.5: .*≥ 1"),
        ({"slowdown": 1e4}, r"slowdown = 10000.0: .*≤ 1000"),
        ({"slowdown": float("nan")}, "slowdown = nan"),
        ({"slowdown": 2.0, "jitter": -0.1}, r"jitter = -0.1: .*≥ 0"),
        ({"slowdown": 2.0, "jitter": 1.5, "distribution": "uniform"}, "jitter = 1.5: must be from 0 to 1"),
        ({"slowdown": 2.0, "distribution": "normal"}, "distribution = 'normal'"),
        ({"slowdown": 2.0, "reference_ms": 0.0}, r"reference_ms = 0.0: .*> 0"),
        ({"slowdown": 2.0, "speed": 1.0}, "speed = 1.0: unknown key; allowed are name, slowdown"),
        ({"availability": {}}, "availability: has nothing; must be windows"),
        ({"availability": {"up": 5.0}}, "availability: has up; must be windows"),
        ({"availability": {"up": 5.0, "down": 0.01}}, r"down = 0.01: .*≥ 0.1"),
        ({"availability": {"period": 60.0, "share": 1.0}}, r"share = 1.0: .*< 1"),
        ({"availability": {"period": 0.15, "share": 0.5}}, "period = 0.15: must be so long"),
        ({"availability": {"windows": [[0.0, 60.0]]}}, r"windows = \[0.0, 60.0\]: must be shorter"),
        ({"availability": {"windows": [[5.0, 4.0]], "period": 9.0}}, r"windows = \[5.0, 4.0\]: must be"),
        ({"availability": {"windows": [[5.0, 6.0], [1.0, 2.0]]}}, "windows = 1.0: must be in order"),
        ({"availability": {"windows": [[0.0, 1.0], [2.0, 3.0]], "period": 2.5}}, "within 0 to 2.5"),
    ],
)
def test_what_would_stop_an_edge_is_refused_with_key_value_and_range(
    device: dict[str, Any], said: str
) -> None:
    with pytest.raises(ConfigurationError, match=said) as error:
        scenario(device)
    assert "devices" in str(error.value)


@given(st.floats(1, 1000), st.floats(0, 1), st.sampled_from(list(JitterLaw)))
def test_the_jitter_has_mean_one_and_never_turns_time_back(
    slowdown: float, jitter: float, law: JitterLaw
) -> None:
    profile = DeviceProfile(slowdown=slowdown, jitter=jitter, distribution=law)
    rng = np.random.default_rng(1)
    draws = np.array([profile.factor(rng) for _ in range(400)]) / slowdown
    assert draws.min() >= 0
    assert abs(draws.mean() - 1) <= 6 * math.sqrt(math.expm1(jitter**2) / 400) + 1e-9


# -- when an edge is there --------------------------------------------------------------------------------


def times(attendance: Attendance, seconds: float, step: float = 0.01) -> list[bool]:
    return [attendance.at(n * step)[0] for n in range(round(seconds / step))]


def test_windows_repeat_after_their_period() -> None:
    spans = Windows(((1.0, 2.0), (3.0, 4.5)), 6.0)
    assert spans.at(0.5) == (False, pytest.approx(1.0))
    assert spans.at(1.0) == (True, pytest.approx(2.0))
    assert spans.at(4.5) == (False, pytest.approx(7.0))
    assert spans.at(9.2) == (True, pytest.approx(10.5))
    assert spans.longest_absence == pytest.approx(2.5)


@given(st.floats(1, 1e5), st.floats(0.2, 0.8), st.floats(0, 0.999))
def test_a_daily_pattern_is_there_for_its_share_from_its_phase_on(
    period: float, share: float, phase: float
) -> None:
    spans = Windows.daily(period, share, phase)
    middle = (phase + share / 2) % 1
    for day in (0, 3):
        assert spans.at((day + middle) * period)[0]
        assert not spans.at((day + (middle + 0.5) % 1) * period)[0]


@given(st.integers(0, 2**32), st.floats(0.1, 50), st.floats(0.1, 50), st.lists(st.floats(0, 20), max_size=30))
def test_churn_depends_on_seed_and_edge_alone_and_goes_on_from_where_it_was_asked(
    seed: int, up: float, down: float, steps: list[float]
) -> None:
    now, churn = 0.0, Churn(up, down)
    first, second = (Attendance(churn, CounterStreams.seeded(seed), 3) for _ in range(2))
    assert first.at(0.0)[0]
    for step in steps:
        now += step
        here, until = first.at(now)
        assert until > now
        assert second.at(now) == (here, until)
        following = Attendance(churn, CounterStreams.seeded(seed), 3)
        assert following.at(until)[0] != here


def test_churn_has_the_means_that_it_is_given() -> None:
    attendance, now, spent = (
        Attendance(Churn(3.0, 1.0), CounterStreams.seeded(5), 0),
        0.0,
        {True: 0.0, False: 0.0},
    )
    for _ in range(4000):
        here, until = attendance.at(now)
        spent[here] += until - now
        now = until
    assert spent[True] / 2000 == pytest.approx(3.0, rel=0.1)
    assert spent[False] / 2000 == pytest.approx(1.0, rel=0.1)


def test_a_daily_pattern_gives_each_edge_its_phase_and_tells_it_no_other() -> None:
    made = scenario({"availability": {"period": 10.0, "share": 0.3, "phase": [0.0, 0.5]}}, edges=4)
    here = [Attendance(p.availability, CounterStreams.seeded(0), 0).at(1.0)[0] for p in made.profiles]  # type: ignore[arg-type]
    assert here == [True, False, True, False]
    told = made.for_edge(1)["devices"][0]["availability"]
    assert told["phase"] == [0.5]
    assert parse_welcome(made.for_edge(1)).device(1) == made.device(1)


# -- traces from a file -----------------------------------------------------------------------------------

TRACE = "edge,start,end\n0,0,10\n0,20,30\n2,10,20\n2,20,25\n"


def test_a_trace_beside_the_scenario_becomes_windows_of_every_edge(tmp_path: Path) -> None:
    (tmp_path / "trace.csv").write_text(TRACE)
    (tmp_path / "lab.toml").write_text(
        'iterations = 10\nedges = 4\n[[devices]]\nname = "pi4"\navailability = {file = "trace.csv"}\n'
    )
    _, made = load_scenario(str(tmp_path / "lab.toml"))
    spans = [profile.availability for profile in made.profiles]
    first, other = Windows(((0.0, 10.0), (20.0, 30.0)), 30.0), Windows(((10.0, 25.0),), 30.0)
    assert spans == [first, other, other, other]  # 1 and 3 are not in the file: they take its edges in turn
    assert {profile.slowdown for profile in made.profiles} == {8}
    _, more = load_scenario(str(tmp_path / "lab.toml"), edges=6)
    assert [profile.availability for profile in more.profiles] == [first, other, other, other, first, other]


@pytest.mark.parametrize("given", ["", 'name = "attic"\n', 'name = "pi4"\n', "jitter = 0.1\n"])
def test_an_edge_that_a_trace_has_there_all_the_time_is_an_ordinary_one(tmp_path: Path, given: str) -> None:
    (tmp_path / "trace.csv").write_text("edge,start,end\n0,0,100\n1,0,50\n")
    (tmp_path / "lab.toml").write_text(
        f'iterations = 10\nedges = 2\n[[devices]]\n{given}availability = {{file = "trace.csv", period = 100}}\n'
    )
    first, second = load_scenario(str(tmp_path / "lab.toml"))[1].profiles
    assert first.availability is None
    assert second.availability == Windows(((0.0, 50.0),), 100.0)
    assert first.slowdown == second.slowdown == (8 if "pi4" in given else 1)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("edge,start\n0,1\n", "no column 'end'"),
        ("edge,start,end\n", "holds no row"),
        ("edge,start,end\n0,5,4\n", r"line 2: edge = 0, start = 5, end = 4"),
        ("edge,start,end\n-1,0,4\n", r"line 2: edge = -1"),
        ("edge,start,end\n0,nan,4\n", r"line 2: edge = 0, start = nan"),
        ("edge,start,end\n0,0,1e99\n", r"line 2: edge = 0, start = 0, end = 1e\+99"),
        ("edge,start,end\nfirst,0,4\n", "invalid literal"),
        ("edge,start,end\n0,1,2,3,4\n", "line 2: has more values than columns"),
        ("edge,start,end\n" + "".join(f"{k},0,1\n" for k in range(200_001)), "more than 200000 rows"),
        ("edge,start,end\n" + " " * (17 << 20), "more than 16 MiB"),
    ],
)
def test_a_trace_that_cannot_be_meant_is_refused_with_its_line(tmp_path: Path, text: str, said: str) -> None:
    path = tmp_path / "trace.csv"
    path.write_text(text)
    with pytest.raises(ConfigurationError, match=said) as error:
        windows_from_csv(path)
    assert "devices.availability.file" in str(error.value)
    with pytest.raises(ConfigurationError, match="No such file"):
        windows_from_csv(tmp_path / "absent.csv")
    with pytest.raises(ConfigurationError, match="is no regular file"):
        windows_from_csv(Path("/dev/zero"))


def test_windows_of_a_file_that_touch_are_one(tmp_path: Path) -> None:
    path = tmp_path / "trace.csv"
    path.write_text(f"edge,start,end\n0,5,6\n0,0,3\n0,{3 + LEAST_SPAN / 2},4\n0,1,2\n")
    assert windows_from_csv(path) == {0: [(0.0, 4.0), (5.0, 6.0)]}

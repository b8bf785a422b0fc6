"""Link profiles: what was asked for is what is drawn, and nothing overtakes."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from common.errors import ConfigurationError
from common.transport.link import (
    PRESETS,
    DelayDraws,
    Distribution,
    LinkClock,
    LinkProfile,
    link_profile,
    links_from_csv,
)

LAWS = [law for law in Distribution if law is not Distribution.CONSTANT]


def rng(seed: int = 1) -> np.random.Generator:
    return np.random.default_rng(seed)


@pytest.mark.parametrize("law", LAWS)
def test_delays_have_the_mean_that_was_asked_for(law: Distribution) -> None:
    profile = LinkProfile(delay_ms=100, jitter_ms=10, distribution=law)
    draws = DelayDraws(profile, rng())
    delays = 1000 * np.array([draws.next() for _ in range(20_000)])
    added = law in (Distribution.EXPONENTIAL, Distribution.LOGNORMAL, Distribution.PARETO)
    assert profile.mean_delay_ms == (110 if added else 100)
    assert delays.mean() == pytest.approx(profile.mean_delay_ms, abs=0.8)
    if added:
        assert delays.min() >= 100


def test_the_constant_link_is_constant_and_no_delay_is_negative() -> None:
    constant = DelayDraws(LinkProfile(delay_ms=5), rng())
    assert {constant.next() for _ in range(600)} == {0.005}
    wild = DelayDraws(LinkProfile(delay_ms=1, jitter_ms=50, distribution=Distribution.NORMAL), rng())
    drawn = [wild.next() for _ in range(1000)]
    assert min(drawn) == 0.0
    assert max(drawn) > 0.05


@given(
    st.sampled_from(LAWS),
    st.lists(st.tuples(st.floats(0, 0.01), st.integers(0, 5000)), min_size=1, max_size=60),
    st.floats(1, 1e5) | st.none(),
    st.lists(st.tuples(st.floats(0, 1), st.floats(0.001, 1)), max_size=3),
    st.integers(0, 2**32),
)
def test_jitter_never_reorders_and_nothing_is_early_or_inside_a_partition(
    law: Distribution,
    arrivals: list[tuple[float, int]],
    rate: float | None,
    partitions: list[tuple[float, float]],
    seed: int,
) -> None:
    profile = LinkProfile(
        delay_ms=3, jitter_ms=5, distribution=law, rate_kbps=rate, partitions=tuple(partitions)
    )
    clock = LinkClock(profile, rng(seed), opened=100.0)
    now, last, carried = 100.0, 0.0, 0
    for gap, size in arrivals:
        now, carried = now + gap, carried + size
        due = clock.due(now, size)
        assert due >= now
        assert due >= last
        if rate is not None:
            assert due >= 100.0 + carried / (125 * rate) - 1e-6
        for start, length in partitions:
            assert not 100.0 + start <= due < 100.0 + start + length or any(
                # two partitions that overlap are left at the end of the later one
                due == 100.0 + other + span
                for other, span in partitions
            )
        last = due


def test_a_partition_holds_to_its_end_even_where_another_begins_there() -> None:
    profile = LinkProfile(delay_ms=10, partitions=((1, 2), (3, 1), (10, 1)))
    clock = LinkClock(profile, rng(), opened=0.0)
    assert clock.due(0.5, 1) == pytest.approx(0.51)
    assert clock.due(1.0, 1) == 4.0
    assert clock.due(2.0, 1) == 4.0
    assert clock.due(5.0, 1) == pytest.approx(5.01)
    assert clock.due(10.5, 1) == 11.0


def test_a_rate_puts_one_chunk_after_another_on_the_line() -> None:
    clock = LinkClock(LinkProfile(delay_ms=10, rate_kbps=8), rng(), opened=0.0)  # 1,000 bytes per second
    assert [clock.due(0.0, 500) for _ in range(3)] == pytest.approx([0.51, 1.01, 1.51])
    assert clock.due(100.0, 500) == pytest.approx(100.51)


def test_presets_are_named_and_grow_from_lan_to_satellite() -> None:
    assert set(PRESETS) == {"lan", "wifi", "4g", "5g", "wan", "satellite"}
    order = ["lan", "wifi", "5g", "4g", "wan", "satellite"]
    delays = [PRESETS[name].delay_ms for name in order]
    assert delays == sorted(delays)
    assert all(PRESETS[name].name == name for name in PRESETS)


def test_a_preset_can_be_changed_in_part() -> None:
    link = link_profile({"name": "4g", "delay_ms": 60, "jitter_ms": None, "partitions": [[10, 5]]})
    assert (link.name, link.delay_ms, link.jitter_ms) == ("4g", 60.0, PRESETS["4g"].jitter_ms)
    assert link.partitions == ((10.0, 5.0),)
    own = link_profile({"delay_ms": 7, "jitter_ms": 2})
    assert (own.name, own.distribution) == ("custom", Distribution.UNIFORM)
    assert not own.is_free
    assert LinkProfile().is_free


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"name": "carrier-pigeon"}, "carrier-pigeon"),
        ({"delay_ms": -1}, "delay_ms = -1"),
        ({"delay_ms": "fast"}, "'fast'"),
        ({"delay_ms": float("nan")}, "delay_ms = nan"),
        ({"delay_ms": 1, "distribution": "cauchy"}, "cauchy"),
        ({"delay_ms": 1, "jitter_ms": 1, "distribution": "constant"}, "constant link"),
        ({"rate_kbps": 0}, "rate_kbps = 0"),
        ({"partitions": [[1]]}, "partitions"),
        ({"partitions": [[1, 0]]}, "partition"),
        ({"latency": 5}, "latency"),
    ],
)
def test_a_wrong_link_is_refused_by_key_and_value(fields: dict[str, object], words: str) -> None:
    with pytest.raises(ConfigurationError, match=words):
        link_profile(fields)


def test_links_come_from_a_csv(tmp_path: Path) -> None:
    path = tmp_path / "links.csv"
    path.write_text(
        "name, delay_ms, jitter_ms, distribution, rate_kbps, partitions\n"
        "lan,,,,,\n"
        "attic, 12, 3, normal, 2000, 10+5;60+30\n"
        "satellite, 300,,,,\n"
    )
    links = links_from_csv(path)
    assert links[0] == PRESETS["lan"]
    assert links[1] == LinkProfile(
        name="attic",
        delay_ms=12,
        jitter_ms=3,
        distribution=Distribution.NORMAL,
        rate_kbps=2000,
        partitions=((10, 5), (60, 30)),
    )
    assert (links[2].delay_ms, links[2].jitter_ms) == (300, PRESETS["satellite"].jitter_ms)


@pytest.mark.parametrize(
    "text", ["", "name\n", "name,delay_ms\nx,abc\n", "name\npigeon\n", "name\nlan,1,2\n"]
)
def test_a_wrong_csv_is_refused(tmp_path: Path, text: str) -> None:
    path = tmp_path / "links.csv"
    path.write_text(text)
    with pytest.raises(ConfigurationError, match=r"links\.csv"):
        links_from_csv(path)
    with pytest.raises(ConfigurationError, match="absent"):
        links_from_csv(tmp_path / "absent.csv")


@pytest.mark.parametrize(
    "fields",
    [
        {"delay_ms": 1e12},
        {"delay_ms": 60_001},
        {"jitter_ms": 1e9, "distribution": "normal"},
        {"rate_kbps": 1e-9},
        {"delay_ms": 1, "partitions": [[0, 1e12]]},
        {"delay_ms": 1, "partitions": [[1e12, 1]]},
    ],
)
def test_a_link_that_would_hold_an_edge_for_ever_is_refused(fields: dict[str, object]) -> None:
    """A welcome may name one."""
    with pytest.raises(ConfigurationError, match=r"must be|at most"):
        link_profile(fields)

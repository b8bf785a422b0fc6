"""Counter-based streams: a draw depends on (seed, k, purpose, n) alone; secure ones on nothing anybody knows."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st

from common.randomness import CounterStreams, Purpose, streams_for

WORD = 2**64
seeds = st.integers(0, WORD - 1)
places = st.tuples(st.integers(0, 100_000), st.sampled_from(Purpose), st.integers(0, WORD - 1))
Place = tuple[int, Purpose, int]


def words(streams: CounterStreams, place: Place, count: int = 4) -> npt.NDArray[np.uint64]:
    return streams.at(*place).bit_generator.random_raw(count)


@given(seeds, places)
def test_a_stream_is_philox_with_key_seed_k_and_counter_purpose_n(seed: int, place: Place) -> None:
    """What docs and other implementations may rely on."""
    edge, purpose, n = place
    philox = np.random.Philox(key=seed + (edge << 64), counter=(int(purpose) << 128) + (n << 192))
    np.testing.assert_array_equal(words(CounterStreams.seeded(seed), place), philox.random_raw(4))


@given(seeds, places, places)
def test_what_was_drawn_before_leaves_no_trace(seed: int, place: Place, before: Place) -> None:
    used = CounterStreams.seeded(seed)
    rng = used.at(*before)
    rng.standard_normal(3)
    rng.integers(0, 10, 3, dtype=np.int32)  # half a word may be left over
    rng.standard_normal(1, dtype=np.float32)
    fresh = CounterStreams.seeded(seed)
    assert used.at(*place).integers(0, 1000, 5, dtype=np.int32).tolist() == (
        fresh.at(*place).integers(0, 1000, 5, dtype=np.int32).tolist()
    )
    assert used.at(*place).standard_normal(3).tolist() == fresh.at(*place).standard_normal(3).tolist()


@given(seeds, places, places)
def test_two_places_never_share_their_numbers(seed: int, one: Place, other: Place) -> None:
    streams = CounterStreams.seeded(seed)
    assert (words(streams, one).tolist() == words(streams, other).tolist()) == (one == other)


def test_long_draws_of_neighbouring_places_do_not_overlap() -> None:
    """n is in the counter's highest word: a stream would have to draw 2⁶⁶ words to reach the next."""
    streams = CounterStreams.seeded(1)
    seen: set[int] = set()
    for place in [(0, Purpose.NOISE, 1), (0, Purpose.NOISE, 2), (1, Purpose.NOISE, 1), (0, Purpose.BATCH, 1)]:
        drawn = set(words(streams, place, 20_000).tolist())  # type: ignore[arg-type]
        assert not seen & drawn
        seen |= drawn


def test_seeds_differ() -> None:
    place = (0, Purpose.NOISE, 1)
    assert len({words(CounterStreams.seeded(seed), place).tobytes() for seed in range(100)}) == 100


def test_every_purpose_has_a_number_of_its_own() -> None:
    assert len({int(purpose) for purpose in Purpose}) == len(Purpose.__members__)


def test_secure_streams_differ_between_instances_and_between_places() -> None:
    drawn = set()
    for _ in range(20):
        streams = CounterStreams.secure()
        for place in [
            (0, Purpose.NOISE, 1),
            (0, Purpose.NOISE, 2),
            (1, Purpose.NOISE, 1),
            (0, Purpose.BATCH, 1),
        ]:
            drawn.add(words(streams, place).tobytes())  # type: ignore[arg-type]
    assert len(drawn) == 80


def test_a_secure_instance_may_ask_again_for_the_same_place() -> None:
    streams = CounterStreams.secure()
    place = (3, Purpose.NOISE, 9)
    assert words(streams, place).tobytes() == words(streams, place).tobytes()


def test_the_key_is_never_shown() -> None:
    assert repr(CounterStreams.secure()) == "CounterStreams(secure)"
    assert repr(CounterStreams.seeded(123456)) == "CounterStreams(seeded)"


@pytest.mark.parametrize(("seed", "reproducible"), [(None, False), (0, True), (5, True)])
def test_a_seed_decides_which_kind_it_is(seed: int | None, reproducible: bool) -> None:
    assert streams_for(seed).reproducible is reproducible

"""What a welcome can make an edge do, by counts and allocated bytes; docs/bounds.md."""

from __future__ import annotations

import math
import tracemalloc
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgpack
import numpy as np
import pytest
from pydantic import BaseModel

from common.datasets.dataset import Dataset, Samples
from common.devices import device_profile
from common.errors import ConfigurationError, RemoteProtocolError
from common.models import scattering_softmax as likeness
from common.models.registry import make_model
from common.quantities import RunId
from common.randomness import CounterStreams
from common.scenario import tables
from common.scenario.scenario import parse_scenario, parse_welcome
from common.transport.connection import BrokerAddress
from common.wire.codec import decode_answer
from common.wire.topics import EdgeTopic
from common.wire.v1 import WELCOME_LIMIT, bounded
from edge.device import LONGEST_WAIT, EmulatedDevice
from edge.fleet import EdgeFleet, FleetSettings
from edge.joining import MEMORY_LIMIT_MB, MEMORY_VARIABLE, check_model, memory_limit
from edge.worker import EdgeWorker
from tests.core_support import CONSTANTS, small_scenario
from tests.edge_support import EDGE, Stage, prepared, welcome_of

MB = 1 << 20


@contextmanager
def allocating_at_most(limit: int) -> Iterator[None]:
    """Fail where Python or numpy takes more than so many bytes at once."""
    tracemalloc.start()
    try:
        yield
        assert tracemalloc.get_traced_memory()[1] <= limit
    finally:
        tracemalloc.stop()


def data(rows: int, side: int) -> Callable[[str], Dataset]:
    """Return a loader of images that take no memory until they are unpacked."""
    images: Any = np.broadcast_to(np.zeros((1, side * side), np.uint8), (rows, side * side))
    part = Samples(images, np.arange(rows, dtype=np.int64) % 10)
    return lambda _name: Dataset("wide", (side, side), 10, part, part, "1" * 64)


# -- the scenario's values ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    "wrong",
    [
        {"privacy": {"noise": "gamma-norm", "epsilon": [-1.0] * 4000}},
        {"model": {f"k{number}": number for number in range(4000)}},
        {"links": [{"delay_ms": -1.0}] * 2000},
        {"links": [{"name": "x"}] * 2000},
    ],
)
def test_thousands_of_wrong_values_get_a_few_lines(
    monkeypatch: pytest.MonkeyPatch, wrong: dict[str, Any]
) -> None:
    tables._properties.cache_clear()
    calls = []
    schema = BaseModel.model_json_schema.__func__  # type: ignore[attr-defined]
    monkeypatch.setattr(
        BaseModel, "model_json_schema", classmethod(lambda cls: calls.append(cls) or schema(cls))
    )
    values = {**small_scenario().for_edge(0), **wrong}
    assert bounded(values)  # so a welcome may carry it
    with allocating_at_most(16 * MB), pytest.raises(ConfigurationError, match=r"\nand \d{4} more$") as caught:
        parse_welcome(values)
    assert len(str(caught.value).splitlines()) == 11
    assert len(str(caught.value)) < 4096
    assert len(calls) <= 1


def test_a_long_key_and_a_long_value_are_cut() -> None:
    with pytest.raises(ConfigurationError) as caught:
        parse_scenario({"iterations": 10, "k" * 4000: "v" * 4000})
    assert len(str(caught.value)) < 1000


def test_a_welcome_of_many_unknown_fields_is_dropped_before_they_are_explained() -> None:
    fields = {"v": 1, "kind": "welcome", **{f"{number:x}": None for number in range(9000)}}
    payload = msgpack.packb(fields)
    assert len(payload) <= WELCOME_LIMIT
    with pytest.raises(RemoteProtocolError, match="9002 fields, at most 64"):
        decode_answer(EDGE, payload)


TINY, HUGE = 5e-324, 1e300


@pytest.mark.parametrize(
    ("table", "key", "values"),
    [
        ("testbed", "resend_after", [TINY, 0.049, 3601.0, HUGE, math.inf, math.nan]),
        ("testbed", "silent_after", [TINY, 0.099, 86_401.0, HUGE]),
        ("testbed", "edges_at_least", [0, 100_001]),
        ("data", "alpha", [TINY, 9e-5, 1.1e6, HUGE]),
        ("data", "labels_per_edge", [0, 1001]),
        ("privacy", "total_epsilon", [0.0, 1.1e9, HUGE]),
        ("privacy", "releases", [0, 1_000_000_001]),
        ("delays", "compute", [-1.0, 1.1e6]),
        ("delays", "network", [-1.0, 1.1e6]),
        ("delays", "spread", [-1.0, 101.0]),
        ("delays", "speeds", [[], [1.0] * 100_001]),
        ("evaluation", "every", [-1, 1_000_000_001]),
        (None, "edges", [0, 100_001]),
        (None, "iterations", [0, 1_000_000_001]),
        (None, "batch_size", [0, 1_000_001]),
    ],
)
def test_numbers_that_drive_timers_loops_or_memory_have_ranges(
    table: str | None, key: str, values: list[Any]
) -> None:
    privacy = (
        {"noise": "gaussian", "noise_multiplier": [1.0]} if key != "releases" else {"total_epsilon": 1.0}
    )
    base: dict[str, Any] = {"iterations": 10, "privacy": privacy}
    parse_scenario(base)
    for value in values:
        wrong = {**base, **({key: value} if table is None else {table: {**base.get(table, {}), key: value}})}
        named = key if table is None else rf"{table}\.{key}"
        with pytest.raises(ConfigurationError, match=named):
            parse_scenario(wrong)


@pytest.mark.parametrize(
    "link",
    [
        {"delay_ms": 1e12},
        {"delay_ms": 1.0, "jitter_ms": 1e12, "distribution": "uniform"},
        {"rate_kbps": TINY},
        {"partitions": [[0.0, 1e9]]},
        {"partitions": [[1e12, 1.0]]},
        {"partitions": [[float(start), 1.0] for start in range(1001)]},
    ],
)
def test_a_link_that_would_stop_an_edge_is_refused(link: dict[str, Any]) -> None:
    with pytest.raises(ConfigurationError, match=r"links\.0"):
        parse_scenario({"iterations": 10, "links": [link]})


@pytest.mark.parametrize(
    "device",
    [
        {"slowdown": 1e6},
        {"slowdown": 2.0, "jitter": 50.0},
        {"reference_ms": 1e9},
        {"availability": {"up": 1e-9, "down": 1e-9}},
        {"availability": {"up": 1.0, "down": 1e12}},
        {"availability": {"windows": [[float(start), start + 0.5] for start in range(501)]}},
        {"availability": {"windows": [[0.0, 1e-9], [1.0, 2.0]]}},
        {"availability": {"period": 1e-3, "share": 0.5}},
    ],
)
def test_a_device_that_would_stop_an_edge_is_refused(device: dict[str, Any]) -> None:
    with pytest.raises(ConfigurationError, match=r"devices\.0"):
        parse_scenario({"iterations": 10, "devices": [device]})


def test_no_draw_makes_an_edge_wait_for_more_than_an_hour() -> None:
    profile = device_profile({"slowdown": 1000.0, "jitter": 2.0, "reference_ms": 60_000.0})
    device = EmulatedDevice(profile, 0.0, 0, CounterStreams.seeded(0))
    assert max(device.wait(n) for n in range(1, 200)) == LONGEST_WAIT == 3600


# -- memory -------------------------------------------------------------------------------------------


def test_too_many_landmarks_are_refused_before_any_is_drawn(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(likeness, "draw_landmarks", lambda *_: pytest.fail("drawn"))
    for shape, landmarks in (((28, 28), 4000), ((28, 28), 2001), ((256, 256), 1000)):
        with (
            allocating_at_most(64 * MB if shape == (256, 256) else MB),
            pytest.raises(ConfigurationError, match=rf"landmarks = {landmarks}: "),
        ):
            make_model("scattering", shape=shape, classes=10, options={"landmarks": landmarks})


def test_a_shard_beyond_the_limit_is_refused_before_its_features_are_made(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """52 MB of scattering features are refused where 24 are allowed; the pixels take 10, the transform 3."""
    monkeypatch.setenv(MEMORY_VARIABLE, "24")
    scenario = {
        "edges": 1,
        "iterations": 10,
        "model": {"name": "scattering", "options": {"landmarks": 0}},
        "algorithm": {**CONSTANTS},
    }
    values = parse_scenario(scenario).for_edge(0)
    load = data(10_000, 16)
    with allocating_at_most(40 * MB), pytest.raises(ConfigurationError, match=r"about 6\d MB; .* 24 MB"):
        prepared(welcome_of(values, edges=1), load=load)


def test_images_beyond_the_limit_are_not_even_unpacked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(MEMORY_VARIABLE, "1")
    monkeypatch.setattr(Samples, "values", lambda *_: pytest.fail("unpacked"))
    values = parse_scenario({"edges": 1, "iterations": 10, "algorithm": CONSTANTS}).for_edge(0)
    load = data(10_000, 16)
    with allocating_at_most(4 * MB), pytest.raises(ConfigurationError, match="a shard of 10000 records"):
        prepared(welcome_of(values, edges=1), load=load)


class Wide:
    """A model of one's own: N as large as its maker likes, gradients in rows."""

    def __init__(self, dimension: int) -> None:
        self.dimension = dimension
        self.asked = 0

    def features(self, images: Any) -> Any:
        self.asked += 1
        return images


@pytest.mark.parametrize(("dimension", "batch", "asked"), [(100_000_000, 1, 0), (1_000_000, 1000, 1)])
def test_a_model_beyond_the_limit_is_refused_by_its_n_and_by_its_batch(
    dimension: int, batch: int, asked: int
) -> None:
    model: Any = Wide(dimension)
    scenario = parse_scenario({"iterations": 10, "batch_size": batch, "algorithm": CONSTANTS})
    images = np.zeros((1000, 16), np.float32)
    with allocating_at_most(MB), pytest.raises(ConfigurationError, match="takes about"):
        check_model(scenario, model, images)
    assert model.asked == asked
    check_model(parse_scenario({"iterations": 10, "batch_size": 1}), Wide(1_000_000), images)  # type: ignore[arg-type]


def test_the_operator_may_set_the_limit() -> None:
    assert memory_limit({}) == MEMORY_LIMIT_MB * MB
    assert memory_limit({MEMORY_VARIABLE: "7"}) == 7 * MB
    for wrong in ("0", "-1", "1.5", "lots", "9" * 5000):
        with pytest.raises(ConfigurationError, match=MEMORY_VARIABLE):
            memory_limit({MEMORY_VARIABLE: wrong})


# -- messages that come again and again -----------------------------------------------------------------


def test_a_model_that_comes_a_thousand_times_costs_one_gradient_and_one_timer(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    made: list[int] = []
    receive = EdgeWorker.receive
    monkeypatch.setattr(EdgeWorker, "receive", lambda self, sent: made.append(1) or receive(self, sent))
    stage = Stage()
    stage.welcome()
    before = len(stage.broker._timers._heap)
    for _ in range(1000):
        stage.model(acknowledged=0)
    assert len(made) == 1
    assert len(stage.published(EdgeTopic.GRADIENT)) == 1
    assert len(stage.broker._timers._heap) <= before + 1


def test_a_welcome_that_comes_a_hundred_times_is_prepared_once(monkeypatch: pytest.MonkeyPatch) -> None:
    loads: list[str] = []
    load = Stage._load
    monkeypatch.setattr(Stage, "_load", lambda self, name: loads.append(name) or load(self, name))
    stage = Stage()
    for _ in range(100):
        stage.welcome()
    assert len(loads) == 1


# -- packets ------------------------------------------------------------------------------------------


def test_before_its_welcome_an_edge_reads_no_packet_beyond_one(tmp_path: Path) -> None:
    settings = FleetSettings(
        run=RunId("r"), broker=BrokerAddress("127.0.0.1", 1), data_dir=tmp_path, state_dir=tmp_path / "state"
    )
    fleet = EdgeFleet(settings, lambda _text: None)
    try:
        fleet._enlist()
        assert WELCOME_LIMIT <= fleet.channels[0].options.max_packet <= WELCOME_LIMIT + 1024
    finally:
        fleet._release()


def test_lines_of_progress_become_rare_and_are_one_however_many_edges_there_are(tmp_path: Path) -> None:
    settings = FleetSettings(
        run=RunId("r"), broker=BrokerAddress("127.0.0.1", 1), data_dir=tmp_path, state_dir=tmp_path, count=3
    )
    notes: list[str] = []
    fleet = EdgeFleet(settings, lambda _text: None, notes.append)
    waits: list[float] = []
    due: list[Callable[[], None]] = []

    class Clock:
        def call_later(self, wait: float, callback: Callable[[], None]) -> None:
            waits.append(wait)
            due.append(callback)

    for _ in range(3):
        fleet._enlist()
    loop, fleet.loop = fleet.loop, Clock()  # type: ignore[assignment]
    fleet._report_after(10.0)
    for _ in range(9):
        due.pop()()
    assert waits == [10, 20, 40, 80, 160, 320, 600, 600, 600, 600]
    assert len(notes) == 9
    assert notes[1].startswith("after 30 s: 3 of 3 edges take part, 0 releases made; ")
    assert notes[1].endswith("waiting for a connection to the broker")
    fleet._running = 0
    due.pop()()
    assert len(notes) == 9, "nothing is said of edges that have ended"
    fleet.loop = loop
    for client in fleet.clients:
        client.leave("shutdown")
    fleet._release()

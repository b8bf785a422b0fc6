"""The cloud's state outlives its process: a snapshot at any point and the events since make the very same state."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cloud.admission import BANS
from cloud.algorithm import Algorithm
from cloud.assembly import server_for
from cloud.server import CloudServer
from cloud.snapshot import ValueCodec, restore_server, server_state
from common.errors import ConfigurationError
from common.messages import Event, GradientArrived, Hello, Leave
from common.noise.registry import noise_law
from common.quantities import EdgeId, NoisyGradient
from common.randomness import streams_for
from common.records.checkpoint import pack, unpack
from common.scenario.scenario import Scenario
from mapa.simulation.simulator import World
from tests.core_support import small_dataset, small_scenario

LIFE = 5
RATE = {"rate": 0.1}
MEASURED = {"theta": 0.9, "tau_max_from": "measured"}
CHANGES: dict[str, dict[str, Any]] = {
    "mapa": {
        "algorithm": {**MEASURED, "tau_window": 4},
        "privacy": {"noise": "gaussian", "noise_multiplier": 1.0, "noise_multiplier_ceiling": 4.0},
    },
    "asgd": {"algorithm": {"name": "asgd"}},
    "constant": {
        "edges": 2,
        "algorithm": {"name": "constant", **RATE},
        "model": {"regularization": 0.1},
    },
    "fedbuff": {"algorithm": {"name": "tests.algorithms.fedbuff:FedBuff", **RATE}},
    "averaged": {"algorithm": {"name": "tests.algorithms.averaged:Averaged"}},
    "fedasync": {"algorithm": {"name": "fedasync", "mix": "model", "mixing": 0.5, "window": 5, **RATE}},
    "norm-cap": {"algorithm": {"name": "norm-cap", **RATE}},
    "trimmed-mean": {"algorithm": {"name": "trimmed-mean", "buffer": 3, **RATE}},
    "adam-tail": {"algorithm": {"name": "adam", "average": "tail", "average_from": 0.1, **RATE}},
    "tuning-free": {
        "algorithm": {"name": "tuning-free", "rate": 0.3},
        "privacy": {"noise": "gaussian", "noise_multiplier": 1.0, "clipping": "normalised"},
    },
    "paced": {
        "algorithm": {"name": "momentum", "average": "ema", **RATE},
        "privacy": {
            "pace": "own",
            "total_epsilon": 3.0,
            "noise_multiplier": [1.0, 2.0, 4.0],
            "release_caps": [2, 3, 20],
        },
    },
    "mapa-ema": {"algorithm": {**MEASURED, "average": "ema"}},
}
SCENARIOS = {
    name: small_scenario(**{"edges": 3, "iterations": 25, **changes}) for name, changes in CHANGES.items()
}
MODEL = World.on(SCENARIOS["mapa"], small_dataset()).model
EDGE = st.sampled_from(["a", "b", "c", "d"])
LEFT = st.sampled_from(["lost", "silent", "shutdown", "budget", *BANS])
STEP = st.one_of(
    st.tuples(st.just("hello"), EDGE, st.sampled_from("xy"), st.integers(0, 2), st.integers(1, 6), st.booleans()),
    st.tuples(
        st.just("gradient"),
        EDGE,
        st.sampled_from([1, 1, 1, 1, 0, -1, 2]),  # sequence, from the last
        st.sampled_from([0, 0, 0, -1, -3, 1]),  # version, from t
        st.sampled_from([1.0, 1.0, 1.0, 2.0]),  # ΔS, times the right one
        st.sampled_from([0.1, 0.1, 1e6]),  # length
        st.sampled_from([LIFE, LIFE, LIFE, 4]),
    ),
    st.tuples(st.just("leave"), EDGE, st.sampled_from("xy"), LEFT),
    st.tuples(st.just("begin")),
    st.tuples(st.just("halt")),
)  # fmt: skip
STEPS = st.lists(STEP, min_size=1, max_size=60).map(lambda steps: [*JOIN, *steps])
JOIN = [("hello", edge, "x", 0, 1, False) for edge in "abc"]


def new_server(scenario: Scenario, at_least: int = 3) -> CloudServer:
    at_least = min(at_least, scenario.workers)
    return server_for(scenario, MODEL, streams_for(1), edges_at_least=at_least, incarnation=LIFE)


def event_of(step: tuple[Any, ...], server: CloudServer) -> Event | str:
    """Return the event that a step stands for in this state; a text for what is no event."""
    match step:
        case ("hello", edge, nonce, last, number, noisier):
            given_law = (
                {"noise": "gaussian", "parameters": {"noise_multiplier": 1.0 + 2.0 * last}} if noisier else {}
            )
            return Hello(
                edge_id=EdgeId(edge),
                nonce=nonce,
                last_sequence=last,
                number=number,
                incarnation=LIFE,
                preparing=number == 3,
                **given_law,
            )
        case ("gradient", edge, ahead, late, factor, size, incarnation):
            account = server.edges.get(EdgeId(edge))
            last = account.last_sequence if account is not None else 0
            schedule = server.schedule
            sensitivity = 1.0 if schedule is None else factor * schedule.sensitivity
            values = np.full(server.model.size, size * (server.t % 7 - 3), np.float32)
            gradient, version = NoisyGradient(values), max(0, server.t + late)
            return GradientArrived(
                EdgeId(edge), max(1, last + ahead), version, sensitivity, gradient, incarnation
            )
        case ("leave", edge, nonce, reason):
            return Leave(EdgeId(edge), reason, nonce)
        case (word, *_):
            return str(word)


def take(server: CloudServer, event: Event | str) -> None:
    if event == "begin":
        server.begin_with_those_here()
    elif event == "halt":
        server.halt("interrupted")
    else:
        assert not isinstance(event, str)
        server.receive(event)


def bytes_of(server: CloudServer, scenario: Scenario) -> tuple[bytes, bytes]:
    return pack(server_state(server, scenario.described.made))


@pytest.mark.slow
@pytest.mark.parametrize("name", SCENARIOS)
@given(steps=STEPS, cut=st.integers(0, 60), at_least=st.sampled_from([1, 3, 99]))
def test_a_snapshot_anywhere_and_the_events_since_make_the_same_state(
    name: str, steps: list[tuple[Any, ...]], cut: int, at_least: int
) -> None:
    scenario = SCENARIOS[name]
    made = scenario.described.made
    server = new_server(scenario, at_least)
    snapshot, remembered = bytes_of(server, scenario), list[Event | str]()
    for number, step in enumerate(steps):
        if number == cut:
            snapshot, remembered = bytes_of(server, scenario), []
        event, before = event_of(step, server), bytes_of(server, scenario)
        heeded = isinstance(event, str) or server.judge(event).changes
        assert bytes_of(server, scenario) == before  # to ask changes nothing
        take(server, event)
        if heeded:
            remembered.append(event)
        else:
            assert bytes_of(server, scenario) == before, event
    revived = new_server(scenario, at_least)
    restore_server(revived, unpack(*snapshot), made)
    assert bytes_of(revived, scenario) == snapshot  # there and back is the identity
    for event in remembered:
        take(revived, event)
    assert bytes_of(revived, scenario) == bytes_of(server, scenario)
    follow = event_of(("gradient", "a", 1, 0, 1.0, 0.1, LIFE), server)
    assert not isinstance(follow, str)
    assert repr(revived.receive(follow)) == repr(server.receive(follow))


def test_gradients_that_are_not_new_are_heeded_once_for_each_model() -> None:
    server = new_server(SCENARIOS["asgd"], 1)
    take(server, event_of(("hello", "a", "x", 0, 1, False), server))
    take(server, event_of(("hello", "b", "x", 0, 1, False), server))
    for edge in "aab":
        take(server, event_of(("gradient", edge, 1, 0, 1.0, 0.1, LIFE), server))
    again = event_of(("gradient", "a", 0, 0, 1.0, 0.1, LIFE), server)
    assert isinstance(again, GradientArrived)
    assert not server.judge_gradient(again).is_new
    assert server.judge(again).changes  # it is answered with the model of b's update
    server.receive(again)
    assert not server.judge(again).changes  # however often it comes: a flood must not fill a disk


@dataclass(frozen=True, slots=True)
class Momentum:
    values: np.ndarray[Any, Any]
    rate: np.float32


@dataclass(frozen=True, slots=True, eq=False)
class Rich(Algorithm):
    """State of every kind that a checkpoint holds."""

    private: ClassVar[bool] = False

    names: tuple[str, ...] = ("α", "b")
    counts: dict[int, list[float]] = field(default_factory=lambda: {3: [0.1, float("inf")], 1: []})
    momentum: Momentum | None = field(
        default_factory=lambda: Momentum(np.arange(6, dtype=np.float64).reshape(2, 3), np.float32(0.1))
    )
    law: Any = field(default_factory=lambda: noise_law("gaussian", {"noise_multiplier": 1.5}))
    nothing: None = None
    big: int = 2**80
    odd: Any = None


def test_an_algorithms_fields_are_all_that_a_checkpoint_needs() -> None:
    codec = ValueCodec(Rich)
    state = unpack(*pack({"x": codec.plain(Rich())}))
    value = codec.value(state["x"])
    assert isinstance(value, Rich)
    assert (value.names, value.counts, value.big, value.law) == (
        Rich().names,
        Rich().counts,
        2**80,
        Rich().law,
    )
    assert value.momentum is not None
    assert type(value.momentum.rate) is np.float32
    assert value.momentum.values.dtype == np.float64
    np.testing.assert_array_equal(value.momentum.values, np.arange(6).reshape(2, 3))
    assert pack({"x": codec.plain(value)}) == pack({"x": codec.plain(Rich())})


def test_a_field_that_no_checkpoint_holds_is_named() -> None:
    with pytest.raises(
        ConfigurationError, match=r"Rich: state\.odd is a Generator, which no checkpoint holds; allowed"
    ):
        ValueCodec(Rich).plain(Rich(odd=np.random.default_rng()))

"""Devices in the conversation and in the simulator: the same shares and staleness, nothing lost, ledgers right."""

from __future__ import annotations

import tomllib
from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from common.errors import ConfigurationError
from common.messages import GradientApplied
from common.randomness import CounterStreams
from common.records.recorder import Journal, Recorder
from common.scenario.scenario import Scenario, parse_scenario
from edge.device import EmulatedDevice, gradient_seconds
from edge.ledger import Ledger
from edge.worker import EdgeWorker
from mapa.simulation import simulator
from mapa.simulation.simulator import check_world, simulate
from mapa.simulation.synchronous import simulate_synchronously
from tests.core_support import CONSTANTS, small_scenario, small_world
from tests.mapa.test_conversation import Talk
from tests.pages_support import blocks

pytestmark = pytest.mark.slow  # whole runs in virtual time

SPEEDS = [{"slowdown": slowdown, "reference_ms": 200.0} for slowdown in (10.0, 5.0, 2.5, 1.25, 1.0)]
TIMED = {"kind": "constant", "network": 0.0}


def with_devices(devices: Sequence[dict[str, Any]], **changes: Any) -> Scenario:
    return small_scenario(
        **{
            "edges": len(devices),
            "evaluation": {"every": 0},
            "testbed": {"silent_after": 1000.0, "resend_after": 20.0},
            "delays": TIMED,
            "devices": list(devices),
            **changes,
        }
    )


def talked(scenario: Scenario, **more: Any) -> Talk:
    """Run it on the twin, whose time is its own: a wait takes none of ours."""
    run = Talk(scenario, edges_at_least=scenario.edges, **more)
    for _ in range(scenario.edges):
        run.edge()
    run.run()
    return run


def simulated(scenario: Scenario, monkeypatch: pytest.MonkeyPatch) -> list[GradientApplied]:
    """Simulate it and return every update."""
    applied: list[GradientApplied] = []

    class Remembering(Recorder):
        def fact(self, fact: Any, now: float | None = None) -> None:
            super().fact(fact, now)
            if isinstance(fact, GradientApplied):
                applied.append(fact)

    monkeypatch.setattr(simulator, "Recorder", Remembering)
    world = small_world()
    simulate(type(world).on(scenario, world.dataset))
    return applied


def shares(applied: Sequence[GradientApplied]) -> list[float]:
    counts = Counter(fact.edge for fact in applied)
    return [counts[k] / len(applied) for k in sorted(counts)]


def staleness(applied: Sequence[GradientApplied]) -> list[float]:
    return [
        float(np.mean([f.staleness for f in applied if f.edge == k]))
        for k in sorted({f.edge for f in applied})
    ]


def test_slow_devices_have_the_same_part_in_a_run_and_in_its_simulation(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    jittery = [{**device, "jitter": 0.2} for device in SPEEDS]
    scenario = with_devices(jittery, iterations=600)
    run, virtual = talked(scenario), simulated(scenario, monkeypatch)
    run.assert_exactly_once()
    speeds = np.array([1, 2, 4, 8, 10])
    for applied in (run.applied, virtual):
        assert shares(applied) == pytest.approx(list(speeds / speeds.sum()), abs=0.02)
    # the same draws; what is left is what this machine takes for a gradient, of which the wait was made shorter
    assert shares(run.applied) == pytest.approx(shares(virtual), abs=0.01)
    assert staleness(run.applied) == pytest.approx(staleness(virtual), rel=0.05, abs=0.2)
    assert staleness(virtual)[0] > 5 * staleness(virtual)[-1]  # the slow ones are stale


AWAY = [
    {
        "slowdown": 1.0,
        "reference_ms": 300.0,
        "availability": {"period": 20.0, "share": 0.5, "phase": [0.0, 0.1, 0.2]},
    },
]


def test_edges_that_are_away_in_turn_have_the_same_part_in_a_run_and_in_its_simulation(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    scenario = with_devices(AWAY, edges=3, iterations=500)
    run, virtual = talked(scenario), simulated(scenario, monkeypatch)
    run.assert_exactly_once()
    assert shares(run.applied) == pytest.approx(shares(virtual), abs=0.03)
    # staleness stays small: whoever is back works on a new model
    assert max(fact.staleness for fact in (*run.applied, *virtual)) <= 2 * 3


def assert_ledgers_agree(run: Talk) -> None:
    counts = Counter(fact.edge_id for fact in run.applied)
    for client in run.clients:
        assert isinstance(client.ledger, Ledger)
        debited = client.ledger.last_sequence(run.run_id)
        assert debited - 1 <= counts[client.edge_id] <= debited  # one may have been under way at the halt


@settings(max_examples=12, deadline=None)
@given(seed=st.integers(0, 10_000), share=st.sampled_from([0.0, 0.05, 0.2]))
def test_nothing_is_lost_and_T_is_reached_although_all_are_away_for_a_while(seed: int, share: float) -> None:
    device = {"slowdown": 2.0, "jitter": 0.3, "reference_ms": 100.0}
    devices = [
        {**device, "availability": {"windows": [[1.0, 6.0]], "period": 30.0}},
        {**device, "availability": {"windows": [[4.0, 9.0], [12.0, 14.0]], "period": 30.0}},
    ]
    run = Talk(with_devices(devices, iterations=90), share=share, seed=seed)
    for _ in range(2):
        run.edge()
    run.run()
    run.assert_exactly_once()
    assert_ledgers_agree(run)
    run.broker.advance(600)
    assert [client.exit_code for client in run.clients] == [0, 0]
    assert not [line for line in run.said if "duplicate" in line]
    joins = [edge.joins for edge in run.service.tally.edges.values()]
    assert min(joins) > 1
    assert run.broker.now() > 60  # both were away between their windows, twice at least


@settings(max_examples=8, deadline=None)
@given(seed=st.integers(0, 10_000))
def test_churn_loses_nothing_either(seed: int) -> None:
    device = {"slowdown": 1.0, "reference_ms": 50.0, "availability": {"up": 1.0, "down": 2.0}}
    run = talked(with_devices([device] * 3, iterations=150, seed=seed), share=0.05, seed=seed)
    run.assert_exactly_once()
    assert_ledgers_agree(run)


def test_whoever_is_away_hears_that_the_run_has_ended() -> None:
    device = {"reference_ms": 100.0, "availability": {"windows": [[0.0, 2.0]], "period": 100_000.0}}
    run = talked(with_devices([device, {"reference_ms": 100.0}], iterations=100))
    run.assert_exactly_once()
    run.broker.advance(60)  # not a day
    assert [client.exit_code for client in run.clients] == [0, 0]
    assert run.service.tally.edges[0].gone == "away"


def test_records_name_the_device_of_an_edge_that_joins() -> None:
    lines: list[str] = []

    class Lines:
        def write(self, text: str) -> None:
            lines.append(text)

    world = small_world()
    for devices, wanted in (([{"name": "pi4"}, {"slowdown": 2.0}], ["pi4", "custom"]), ([], [])):
        lines.clear()
        scenario = with_devices(devices, edges=2) if devices else small_scenario(edges=2)
        simulate(type(world).on(scenario, world.dataset), Journal(Lines()))
        named = [part for line in lines for part in ("pi4", "custom") if f'"device": "{part}"' in line]
        assert named == wanted
        assert any('"device"' in line for line in lines) == bool(devices)


def test_the_scenarios_of_the_page_train_in_the_simulator() -> None:
    world = small_world()
    for text in blocks("devices.md", "toml"):
        values = {
            **tomllib.loads(text),
            "batch_size": 5,
            "seed": 1,
            "algorithm": {**CONSTANTS, "first_clip": 2.0},
        }
        outcome = simulate(type(world).on(parse_scenario(values), world.dataset))
        assert outcome.reason == "finished"
        assert outcome.tally.updates == values["iterations"]
        assert all(edge.applied for edge in outcome.tally.edges.values())


# -- what an edge waits for -------------------------------------------------------------------------------


def worker() -> EdgeWorker:
    return small_world(edges=1).workers()[0]


def test_a_wait_follows_from_the_seed_the_edge_and_the_sequence_alone() -> None:
    profile = with_devices([{"slowdown": 4.0, "jitter": 0.5, "reference_ms": 100.0}]).device(0)
    assert profile is not None
    first = EmulatedDevice(profile, 0.01, 2, CounterStreams.seeded(3))
    again = EmulatedDevice(profile, 0.01, 2, CounterStreams.seeded(3))
    other = EmulatedDevice(profile, 0.01, 1, CounterStreams.seeded(3))
    waits = [first.wait(n) for n in range(1, 6)]
    assert [again.wait(n) for n in (5, 4, 3, 2, 1)] == waits[::-1]
    assert len({*waits, *(other.wait(n) for n in range(1, 6))}) == 10
    assert min(waits) >= 0


def test_what_this_machine_takes_is_measured_on_made_up_rows_and_leaves_the_edge_as_it_was() -> None:
    made, ticks = worker(), iter(np.cumsum([0.0, 5.0] * 3 + [0.0, 0.3] + [0.0, 0.7] * 10))
    records = made.shard.features.copy()
    rng_before = made.streams.at(0, 2, 1).random()  # type: ignore[arg-type]

    class Untouched:
        """A shard whose records nobody may read; its shape is no secret."""

        dtype, shape = made.shard.features.dtype, made.shard.features.shape

        def take(self, *_: Any, **__: Any) -> None:
            raise AssertionError("a record was read")

    made.shard = type(made.shard)(Untouched(), made.shard.targets, made.shard.rows)  # type: ignore[arg-type]
    assert gradient_seconds(made, lambda: float(next(ticks))) == pytest.approx(
        5.0
    )  # enough after one of them
    assert made.sequence == 0
    assert made.streams.at(0, 2, 1).random() == rng_before  # type: ignore[arg-type]
    assert records.size


# -- what a simulation cannot do --------------------------------------------------------------------------


def test_cyclic_delays_have_no_time_for_devices_and_say_what_has() -> None:
    world = small_world()
    scenario = with_devices([{"name": "pi4"}], delays={"kind": "cyclic"})
    with pytest.raises(ConfigurationError, match=r"delays\.kind = 'cyclic': has no time.*'lognormal'"):
        check_world(type(world).on(scenario, world.dataset))


def test_rounds_take_the_time_of_the_slowest_device_and_wait_for_nobody_who_is_away() -> None:
    world = small_world()
    slow = with_devices(
        [{"slowdown": 8.0}, {"slowdown": 1.0}], iterations=20, delays={**TIMED, "compute": 0.5}
    )
    rounds = simulate_synchronously(type(world).on(slow, world.dataset))
    assert rounds.virtual_seconds == pytest.approx(10 * 8 * 0.5)
    away = with_devices(AWAY, edges=3)
    with pytest.raises(ConfigurationError, match=r"devices\.availability: a synchronous round"):
        simulate_synchronously(type(world).on(away, world.dataset))


def test_times_too_short_for_the_way_end_a_simulation_with_a_word_about_them() -> None:
    world = small_world()
    short = {"availability": {"windows": [[5.0, 5.2]], "period": 10.0}}
    scenario = with_devices([short], edges=2, delays={"kind": "constant", "network": 2.0})
    with pytest.raises(ConfigurationError, match=r"devices\.availability: no edge is there for long enough"):
        simulate(type(world).on(scenario, world.dataset))

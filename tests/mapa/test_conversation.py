"""Cloud and edges in one conversation, on the in-memory twin of a broker that loses and doubles messages."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from common.accounting.total import total
from common.messages import GradientApplied, Halt
from common.quantities import EdgeId, RunId
from common.records.recorder import Recorder
from common.scenario.scenario import Scenario
from common.transport.channel import Bytes
from common.wire.codec import decode_gradient
from edge.client import EdgeClient
from edge.ledger import Ledger
from edge.policy import OperatorPolicy
from edge.session import EXIT_FULL, EXIT_REFUSED, Ending
from mapa.simulation.simulator import World, simulate
from tests.cloud_support import AppliedTally, AtOnce, edge_on, service_on
from tests.core_support import small_dataset, small_scenario
from tests.memory_broker import MemoryBroker, MemoryChannel

RUN = RunId("talk")


class LossyChannel(MemoryChannel):
    """QoS 0 may be lost or doubled; QoS 1 may be doubled. Always the same for the same seed."""

    def __init__(self, broker: MemoryBroker, faults: random.Random, share: float, **more: Any) -> None:
        super().__init__(broker, **more)
        self._faults, self._share = faults, share
        self.mute = False

    def publish(self, topic: str, *payload: Bytes, qos: int = 0, retain: bool = False) -> bool:
        luck = self._faults.random()
        if self.mute or (qos == 0 and luck < self._share):
            return True
        if luck > 1 - self._share:
            super().publish(topic, *payload, qos=qos, retain=retain)
        return super().publish(topic, *payload, qos=qos, retain=retain)


@dataclass
class Talk:
    """A run on the twin."""

    scenario: Scenario
    share: float = 0.0  # of messages with a fault
    seed: int = 0
    edges_at_least: int = 1
    run_id: RunId = RUN
    broker: MemoryBroker = field(default_factory=MemoryBroker)
    clients: list[EdgeClient] = field(default_factory=list)
    said: list[str] = field(default_factory=list)
    applied: list[GradientApplied] = field(default_factory=list)

    def __post_init__(self) -> None:
        world = World.on(self.scenario, small_dataset())
        self.scenario = world.scenario
        self.faults = random.Random(self.seed)
        channel = LossyChannel(self.broker, self.faults, self.share)
        self.service = service_on(
            channel,
            self.broker,
            world,
            self.run_id,
            self.said,
            edges_at_least=self.edges_at_least,
            records=Recorder(tally=AppliedTally(applied=self.applied)),
        )
        self.service.evaluations.executor = AtOnce()
        channel.connect()
        self.service.start()

    def edge(self, policy: OperatorPolicy | None = None, ledger: Ledger | None = None) -> EdgeClient:
        lossy = partial(LossyChannel, faults=self.faults, share=self.share)
        client = edge_on(self.broker, self.run_id, self.said, policy=policy, ledger=ledger, channel_of=lossy)
        self.clients.append(client)
        return client

    def run(self) -> None:
        self.broker.run()
        self.service.records.write()

    def until(self, condition: Callable[[], bool]) -> None:
        """Deliver one message after the other, and let time pass where there is none, until it holds."""
        looks = 0

        def look() -> None:
            nonlocal looks
            looks += 1
            assert looks < 100_000, "in vain"
            if condition():
                self.broker.stop()
            elif looks % 100:
                self.broker.post(look)
            else:
                self.broker.call_later(0.05, look)

        self.broker.post(look)
        self.broker.run()

    def assert_exactly_once(self) -> None:
        assert [fact.t for fact in self.applied] == list(range(1, self.scenario.iterations + 1))
        keys = Counter((fact.edge_id, fact.sequence) for fact in self.applied)
        assert max(keys.values()) == 1
        for edge_id in {fact.edge_id for fact in self.applied}:
            sequences = [fact.sequence for fact in self.applied if fact.edge_id == edge_id]
            assert sequences == list(range(1, len(sequences) + 1))


def talk(**changes: Any) -> Scenario:
    return small_scenario(**{"evaluation": {"every": 0}, "testbed": {"silent_after": 1000.0}, **changes})


@settings(max_examples=25)
@given(seed=st.integers(0, 10_000), share=st.sampled_from([0.0, 0.05, 0.3]), edges=st.integers(1, 4))
def test_every_gradient_is_applied_exactly_once_whatever_the_network_loses_or_doubles(
    seed: int, share: float, edges: int
) -> None:
    """The model is the sum of what went over the wire, of which no edge released more than its ledger debited."""
    run = Talk(talk(algorithm={"name": "asgd"}), share=share, seed=seed)
    x = run.service.server.model.astype(np.float64)
    for _ in range(edges):
        run.edge()
    run.run()
    run.assert_exactly_once()
    wire: dict[tuple[str, int], bytes] = {}
    for topic, payload in run.broker.published:
        if topic.endswith("/gradient"):
            edge_id = EdgeId(topic.split("/")[4])
            sequence = decode_gradient(edge_id, payload, x.size).sequence
            assert wire.setdefault((edge_id, sequence), payload) == payload, "a sequence with other bytes"
    for client in run.clients:
        released = sum(edge_id == client.edge_id for edge_id, _ in wire)
        assert released <= client.ledger.last_sequence(RUN)
    schedule = run.service.server.schedule
    assert schedule is not None
    for fact in run.applied:
        event = decode_gradient(fact.edge_id, wire[fact.edge_id, fact.sequence], x.size)
        x -= schedule.learning_rate(fact.t) * event.gradient
    np.testing.assert_allclose(run.service.server.model, x, rtol=1e-4, atol=1e-5)
    run.broker.advance(600)
    assert [client.exit_code for client in run.clients] == [0] * edges


def test_an_edge_restarted_with_its_ledger_resends_those_very_bytes_and_keeps_its_index() -> None:
    run = Talk(talk(iterations=40))
    first = run.edge()
    run.until(lambda: run.service.server.updates >= 5)
    assert isinstance(first.connection.channel, MemoryChannel)
    first.connection.channel.lose()
    first.session.receive(Ending(0, "left", "killed"))  # the process is dead: nothing of it is performed
    again = run.edge(ledger=first.ledger)  # type: ignore[arg-type]
    run.run()
    run.assert_exactly_once()
    assert again.preparation is not None
    assert first.preparation is not None
    assert again.preparation.worker.index == first.preparation.worker.index


def test_an_edge_whose_ledger_was_lost_goes_on_as_a_newcomer_on_an_unused_shard() -> None:
    run = Talk(talk(iterations=80))
    first = run.edge()
    run.until(lambda: run.service.server.updates >= 5)
    assert isinstance(first.connection.channel, MemoryChannel)
    first.connection.channel.lose()
    first.session.receive(Ending(0, "left", "killed"))  # the process is dead: nothing of it is performed
    impostor = run.edge(ledger=Ledger(first.edge_id))
    run.run()
    assert impostor.edge_id != first.edge_id
    assert impostor.preparation is not None
    assert first.preparation is not None
    assert impostor.preparation.worker.index != first.preparation.worker.index
    run.assert_exactly_once()


def test_an_edge_whose_shard_a_cloud_started_anew_has_dealt_again_stops() -> None:
    scenario = talk(seed=None, iterations=200)
    before = Talk(scenario)
    first = before.edge()
    before.until(lambda: first.session.last_sequence > 3)
    assert isinstance(before.service.channel, MemoryChannel)
    before.service.channel.lose()
    assert isinstance(first.connection.channel, MemoryChannel)
    first.connection.channel.lose()
    after = Talk(scenario, broker=before.broker)  # it knows nothing
    newcomer = after.edge()
    before.until(lambda: newcomer.session.last_sequence > 0)
    first.connection.channel.restore()
    before.until(lambda: first.exit_code is not None)
    assert first.exit_code == EXIT_REFUSED
    assert any("index = 1, not 0" in line for line in before.said)
    after.run()
    assert not after.service.server.edges[first.edge_id].present
    assert {fact.edge_id for fact in after.applied} == {newcomer.edge_id}


@pytest.mark.slow
def test_a_budget_holds_over_two_runs_in_whatever_order_the_edges_come() -> None:
    privacy = {"noise": "gaussian", "noise_multiplier": 3.0, "total_epsilon": 2.0, "total_delta": 1e-5}
    scenario = talk(
        seed=None, edges=2, iterations=100_000, batch_size=60, data={"sampler": "poisson"}, privacy=privacy
    )
    ledgers = [Ledger(), Ledger()]
    for run_id, order in (("one", (0, 1)), ("two", (1, 0))):
        run = Talk(scenario, edges_at_least=2, run_id=RunId(run_id))
        for place in order:
            run.edge(ledger=ledgers[place])
            if place == order[0]:
                run.broker.settle()
        run.run()
        assert run.service.halted is not None
        assert run.service.halted.reason == "no-budget"
    for index, ledger in enumerate(ledgers):
        assert {standing.account.shard.index for standing in ledger.standings()} == {index}
        spent = [standing.spent for standing in ledger.standings()]
        assert sum(one.charges for one in spent) > 0
        assert total(spent, 1e-5).epsilon <= 2.0


def test_a_fleet_that_is_full_turns_the_next_edge_away() -> None:
    run = Talk(talk(edges=1, iterations=30))
    run.edge()
    run.until(lambda: run.service.server.updates >= 1)
    late = run.edge()
    run.until(lambda: late.exit_code is not None)
    assert late.exit_code == EXIT_FULL
    assert any("fleet is full" in line for line in run.said)


def test_a_run_that_names_code_is_refused_unless_the_edge_permits_it() -> None:
    scenario = talk(model={"name": "experiments.examples.own:SquaredHinge"}, iterations=10)
    run = Talk(scenario)
    careful = run.edge()
    run.until(lambda: careful.exit_code is not None)
    assert careful.exit_code == 2
    assert any("--allow experiments.examples.own:SquaredHinge" in line for line in run.said)
    run.edge(OperatorPolicy(allowed=frozenset({"experiments.examples.own:SquaredHinge"})))
    run.run()
    assert run.service.server.updates == 10


def test_an_epsilon_that_does_not_fit_the_law_ends_the_edge_with_2() -> None:
    run = Talk(talk(privacy={"noise_multiplier": 1.0}))
    edge = run.edge(OperatorPolicy(noise="gaussian", parameters={"epsilon": 0.5}))
    run.until(lambda: edge.exit_code is not None)
    assert edge.exit_code == 2
    assert any("takes noise_multiplier" in line for line in run.said)


@pytest.mark.parametrize("privacy", [{"noise": "gamma-norm", "epsilon": 1.0}, {"noise_multiplier": 1.0}])
def test_an_edge_with_its_own_epsilon_noises_with_it(privacy: dict[str, Any]) -> None:
    run = Talk(talk(seed=None, privacy=privacy, iterations=10, data={"sampler": "poisson"}))
    client = run.edge(OperatorPolicy(parameters={"epsilon": 0.25}))
    run.run()
    assert client.preparation is not None
    law = client.preparation.worker.mechanism.law
    assert getattr(law, "epsilon", None) == 0.25
    assert run.service.server.moment == pytest.approx(17 * 18 / 0.25**2)


def test_a_silent_edge_is_reported_gone_and_nothing_waits_for_it() -> None:
    scenario = small_scenario(iterations=50, evaluation={"every": 0}, testbed={"silent_after": 2.0})
    run = Talk(scenario)
    silent, lively = run.edge(), run.edge()
    run.until(lambda: run.service.server.updates >= 4)
    for client in (silent, lively):
        assert isinstance(client.connection.channel, LossyChannel)
        client.retry.first = 1e9
        client.connection.channel.mute = True
    run.until(lambda: not run.service.server.edges[silent.edge_id].present)
    assert isinstance(lively.connection.channel, LossyChannel)
    lively.connection.channel.mute = False
    lively.on_connected()
    run.run()
    assert run.service.server.updates == 50
    assert {fact.edge_id for fact in run.applied[-20:]} == {lively.edge_id}


def test_a_seeded_run_over_the_wire_gives_the_gradients_of_the_simulator() -> None:
    scenario = talk(edges=1, iterations=20, seed=3)
    run = Talk(scenario)
    run.edge()
    run.run()
    simulated = simulate(World.on(scenario, small_dataset()))
    np.testing.assert_array_equal(run.service.server.model, simulated.x)


def test_a_last_model_that_is_not_finite_is_no_finished_run() -> None:
    run = Talk(talk(iterations=4))
    run.edge()
    run.until(lambda: run.service.server.updates >= 3)
    run.service.server.model[0] = np.inf  # its copy is at the edges already: only x_T+1 has it
    run.run()
    assert run.service.halted == Halt("diverged", 4, run.service.server.incarnation)

"""Whatever comes late, twice, out of order or from an earlier life of cloud, edge or run does no harm.

Each seed is a schedule: how many edges, which faults, and when processes and connections die. QoS 1 is delivered
at least once and QoS 0 perhaps, in any order, and any old message may be delivered again at any time.
"""

from __future__ import annotations

import os
import random
from collections import Counter
from dataclasses import dataclass, field
from functools import lru_cache, partial
from typing import Any

import pytest

from common.messages import Halt
from common.quantities import RunId
from common.records.recorder import Recorder
from common.scenario.scenario import Scenario
from common.transport.channel import Will
from common.wire.codec import decode_gradient, encode
from common.wire.topics import halt_topic, parse_edge_topic, presence_topic
from edge.client import EdgeClient
from edge.ledger import Ledger
from edge.session import Ending
from mapa.simulation.simulator import World
from tests.cloud_support import AppliedTally, AtOnce, edge_on, service_on
from tests.core_support import small_dataset, small_scenario
from tests.memory_broker import Faults, MemoryBroker, MemoryChannel

RUN = RunId("late")
SCHEDULES = int(os.environ.get("MAPA_SCHEDULES", "600"))
PARTS = 6  # so that two workers share them
EVENTS = 30_000  # deliveries and timers of one schedule, at most: a run that hangs ends here
LONG = 1500.0  # seconds: whatever was held is delivered, and whoever asks has asked often


@lru_cache(maxsize=8)
def world(edges: int, iterations: int) -> World:
    scenario = small_scenario(
        edges=edges,
        iterations=iterations,
        seed=None,
        evaluation={"every": 0},
        model={"name": "lr", "regularization": 0.01},
        privacy={"noise": "gaussian", "noise_multiplier": 1.0},
        testbed={"silent_after": 60.0, "resend_after": 2.0},
    )
    return World.on(scenario, small_dataset())


class Cloud:
    """One process of the cloud; its will says that it is away."""

    def __init__(self, world: World, broker: MemoryBroker, said: list[str]) -> None:
        self.tally = AppliedTally()
        self.channel = MemoryChannel(broker, on_connected=self._announce)
        self.service = service_on(self.channel, broker, world, RUN, said, records=Recorder(tally=self.tally))
        self.service.evaluations.executor = AtOnce()
        away = self.service.presence._encoded(online=False)
        self.channel.will = Will(presence_topic(RUN), away, retain=True)
        self.started = False
        self.channel.connect()
        self.service.start()
        self.started = True

    def _announce(self) -> None:
        if self.started:
            self.service.presence.announce()

    @property
    def incarnation(self) -> int:
        return self.service.server.incarnation


@dataclass
class Schedule:
    """One run of the name, through all lives of its cloud and edges."""

    seed: int
    said: list[str] = field(default_factory=list)
    clouds: list[Cloud] = field(default_factory=list)
    clients: list[EdgeClient] = field(default_factory=list)  # that live, or have ended by themselves
    ledgers: list[Ledger] = field(default_factory=list)
    counts: Counter[str] = field(default_factory=Counter)

    def __post_init__(self) -> None:
        self.luck = luck = random.Random(f"schedule {self.seed}")
        self.faults = Faults(
            self.seed,
            lost=luck.choice([0.0, 0.05, 0.3]),
            late=luck.choice([0.0, 0.1, 0.4]),
            replayed=luck.choice([0.02, 0.1, 0.3]),
            longest=luck.choice([1.0, 30.0, 300.0]),
            most=300,
        )
        self.broker = MemoryBroker(self.faults)
        self.edges = luck.randint(1, 3)
        self.world = world(self.edges, luck.choice([8, 25]))
        self.clouds.append(Cloud(self.world, self.broker, self.said))
        for _ in range(self.edges):
            self.ledgers.append(Ledger())
            self.edge(self.ledgers[-1])

    @property
    def scenario(self) -> Scenario:
        return self.world.scenario

    @property
    def cloud(self) -> Cloud:
        return self.clouds[-1]

    def edge(self, ledger: Ledger) -> None:
        self.clients.append(edge_on(self.broker, RUN, self.said, ledger=ledger))

    # -- what happens -------------------------------------------------------------------------------------

    def something(self) -> None:
        """Let a process or a connection die, or somebody forge a halt."""
        if self.cloud.service.halted is not None:
            return
        event = self.luck.choice(["edge-cut", "edge-killed", "cloud-cut", "cloud-killed", "forged-halt"])
        alive = [client for client in self.clients if client.exit_code is None]
        if event.startswith("edge") and not alive:
            return
        if event == "edge-cut":
            self._cut(self.luck.choice(alive).connection.channel)
        elif event == "edge-killed":
            self._kill(self.luck.choice(alive))
        elif event == "cloud-cut":
            self._cut(self.cloud.channel)
        elif event == "cloud-killed":
            # a shard that was dealt to an edge which never heard of it may go to another one in the next life
            if len(self.clouds) == 3 or any(ledger.account(RUN) is None for ledger in self.ledgers):
                return
            self.cloud.service.presence.halt = Halt("killed", 0)  # its timers end with it
            if self.cloud.channel.connected:
                self.cloud.channel.lose()
            self.cloud.channel.closed = True
            self.clouds.append(Cloud(self.world, self.broker, self.said))
        else:
            halt = Halt("finished", 5, self.luck.choice([self.cloud.incarnation, 1]))
            self.broker.route(halt_topic(RUN), encode(halt), retain=True)
        self.counts[event] += 1

    def _cut(self, channel: Any) -> None:
        if channel.connected:
            channel.lose()
            self.broker.call_later(self.luck.choice([0.0, 1.0, 100.0]), partial(_restore, channel))

    def _kill(self, client: EdgeClient) -> None:
        """End a process as SIGKILL does; another one begins with its ledger."""
        channel = client.connection.channel
        assert isinstance(channel, MemoryChannel)
        client.session.receive(Ending(0, "left", "killed"))  # nothing of it is performed
        client.retry.end()
        if channel.connected:
            channel.lose()
        channel.closed = True
        self.clients.remove(client)
        ledger = client.ledger
        assert isinstance(ledger, Ledger)
        self.broker.call_later(self.luck.choice([0.0, 5.0, 200.0]), lambda: self.edge(ledger))

    def run(self) -> None:
        for _ in range(self.luck.randint(0, 6)):
            self.broker.call_later(self.luck.uniform(0.0, 8.0), self.something)
        events = 0
        while self.cloud.service.halted is None:
            assert events < EVENTS, f"seed {self.seed}: no end at t = {self.cloud.service.server.t}"
            assert self.broker.step(), f"seed {self.seed}: nothing is under way, and T is not reached"
            events += 1
        self.broker.advance(LONG)
        for cloud in self.clouds:
            cloud.service.records.write()

    # -- what must be true --------------------------------------------------------------------------------

    def check(self) -> None:
        where = f"seed {self.seed}: {self.said[-4:]}"
        halted = self.cloud.service.halted
        assert halted == Halt("finished", self.scenario.iterations, self.cloud.incarnation), where
        assert [client.exit_code for client in self.clients] == [0] * self.edges, where
        bytes_of: dict[tuple[str, int], bytes] = {}
        for topic, payload in self.broker.published:
            if topic.endswith("/gradient"):
                edge_id = parse_edge_topic(topic).edge_id
                sequence = decode_gradient(edge_id, payload, self.world.model.dimension).sequence
                known = bytes_of.setdefault((edge_id, sequence), payload)
                assert known == payload, f"{where}: a sequence with other bytes"
        made = Counter(edge_id for edge_id, _ in bytes_of)
        assert len(self.ledgers) == len({ledger.edge_id for ledger in self.ledgers})
        for ledger in self.ledgers:
            assert made[ledger.edge_id] <= ledger.last_sequence(RUN), f"{where}: more released than debited"
        for cloud in self.clouds:
            applied = cloud.tally.applied
            assert [fact.t for fact in applied] == list(range(1, len(applied) + 1)), where
            keys = Counter((fact.edge_id, fact.sequence) for fact in applied)
            assert not keys or max(keys.values()) == 1, f"{where}: applied twice"
            for edge_id, sequence in keys:
                named = decode_gradient(edge_id, bytes_of[edge_id, sequence], self.world.model.dimension)
                assert named.incarnation == cloud.incarnation, f"{where}: of another life"
            assert set(cloud.tally.refused) <= {
                "duplicate",
                "stranger",
                "incarnation",
                "after-halt",
                "sequence",
            }
        self.counts["applied"] += sum(len(cloud.tally.applied) for cloud in self.clouds)
        self.counts["lives"] += len(self.clouds)


def _restore(channel: MemoryChannel) -> None:
    if not channel.connected and not channel.closed:
        channel.restore()


@pytest.mark.slow
@pytest.mark.parametrize("part", range(PARTS))
def test_late_doubled_and_old_messages_end_nobody_and_lose_or_double_nothing(part: int) -> None:
    counts: Counter[str] = Counter()
    for seed in range(part, SCHEDULES, PARTS):
        schedule = Schedule(seed)
        schedule.run()
        schedule.check()
        counts += schedule.counts
    print(dict(counts))
    assert counts["applied"] > SCHEDULES

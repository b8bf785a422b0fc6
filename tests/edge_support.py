"""Edges for tests: a stage on which a test speaks for the cloud, welcomes, accounts and what is spent of them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from common.accounting.releases import Budget, ReleaseKind, Spent
from common.datasets.dataset import Dataset
from common.datasets.source import Source
from common.mechanism.mechanism import Mechanism
from common.messages import Hello, Presence, SendModel, Welcome
from common.noise.gaussian import Gaussian
from common.quantities import EdgeId, RunId
from common.scenario.scenario import Scenario
from common.transport.link import LinkProfile
from common.wire.codec import decode_hello, decode_leave, encode, encode_model
from common.wire.topics import EdgeTopic, edge_topic, presence_topic
from edge.client import EdgeClient, at_once
from edge.joining import Membership, Preparation
from edge.ledger import Account, Ledger, ShardIdentity
from edge.own_data import OwnData
from edge.policy import OperatorPolicy
from tests.core_support import small_dataset, small_scenario
from tests.memory_broker import MemoryBroker, MemoryChannel

EDGE = EdgeId("edge-a")
SHARD = ShardIdentity("sha256:1", "iid K=5 seed=0", 0)
RUN = RunId("hostile")
HOUR = 3600.0
LIFE = 99  # the run's incarnation
CLOUD = "c" * 16  # the nonce of its process


def private_scenario(**changes: Any) -> Scenario:
    return small_scenario(**{"privacy": {"noise": "gaussian", "noise_multiplier": 1.0}, **changes})


def plenty(budget: Budget, kind: ReleaseKind, spent: tuple[Spent, ...]) -> int:  # noqa: ARG001
    """Stand in for the accountant where the budget is never spent."""
    return 500


def welcome_of(scenario: Scenario | Mapping[str, Any], index: int = 0, **changes: Any) -> Welcome:
    """Return the welcome of a cloud that serves this scenario, or what is told of one."""
    told = scenario.for_edge(index) if isinstance(scenario, Scenario) else dict(scenario)
    edges = scenario.workers if isinstance(scenario, Scenario) else told["edges"]
    seed = scenario.seed if isinstance(scenario, Scenario) else None
    fields = {
        "edges": edges,
        "scenario": told,
        "seed": seed,
        "nonce": "0" * 16,
        "last_sequence": 0,
        **changes,
    }
    return Welcome(edge_id=EDGE, index=index, **fields)


def prepared(
    welcome: Welcome,
    ledger: Ledger | None = None,
    policy: OperatorPolicy | None = None,
    *,
    load: Callable[[Source], Dataset] = lambda _: small_dataset(),
    own: OwnData | None = None,
    run: str = "r",
) -> Preparation:
    """Have an edge follow a welcome."""
    ledger = Ledger(EDGE) if ledger is None else ledger
    return Membership(RunId(run), policy or OperatorPolicy(), ledger, load, own).prepare(welcome)


def account(run: str = "r", **changes: Any) -> Account:
    kind = ReleaseKind(Mechanism(Gaussian(1.0), 12), 1200)
    return replace(Account(run=RunId(run), shard=SHARD, kind=kind), **changes)


def spend(ledger: Ledger, count: int, run: str = "r") -> None:
    """Debit the next releases."""
    for _ in range(count):
        sequence = ledger.last_sequence(RunId(run)) + 1
        ledger.debit(RunId(run), sequence, b"g%d" % sequence)


@dataclass
class Stage:
    """An edge that is connected; the cloud's lines are the test's."""

    scenario: Scenario = field(default_factory=private_scenario)
    ledger: Ledger = field(default_factory=Ledger)
    policy: OperatorPolicy = field(default_factory=OperatorPolicy)
    run: RunId = RUN
    renewable: bool = True
    broker: MemoryBroker = field(default_factory=MemoryBroker)
    said: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    channels: list[MemoryChannel] = field(default_factory=list)
    failure: BaseException | None = None  # what loading the data set ends with
    started: bool = True
    stops: list[int] = field(default_factory=list)
    background: Callable[..., None] = at_once

    def __post_init__(self) -> None:
        membership = Membership(self.run, self.policy, self.ledger, self._load, renewable=self.renewable)
        self.edge = EdgeClient(
            membership,
            loop=self.broker,
            connect=self._connect,
            say=self.said.append,
            note=self.notes.append,
            on_stop=self.stops.append,
            background=self.background,
        )
        cloud = encode(Presence(True, CLOUD, LIFE))
        self.broker.route(presence_topic(self.run), cloud, retain=True)
        if self.started:
            self.edge.start()
            self.broker.settle()

    def _load(self, name: str) -> Dataset:  # noqa: ARG002
        if self.failure is not None:
            raise self.failure
        return small_dataset()

    def _connect(self, client: EdgeClient, link: LinkProfile | None) -> MemoryChannel:  # noqa: ARG002
        channel = MemoryChannel(self.broker, on_connected=client.on_connected, on_lost=client.on_lost)
        self.channels.append(channel)
        self.broker.post(channel.connect)
        return channel

    def admission(self, index: int = 0, last_sequence: int = 0, **changes: Any) -> Welcome:
        known = {"nonce": self.edge.nonce, "number": self.edge.session.hellos, "incarnation": LIFE}
        welcome = welcome_of(self.scenario, last_sequence=last_sequence, **known)
        return replace(welcome, **{"edge_id": self.edge.edge_id, "index": index, **changes})

    def welcome(self, index: int = 0, last_sequence: int = 0, **changes: Any) -> None:
        if self.edge.session.answered == self.edge.session.hellos:
            self.edge.on_connected()  # only a new hello has a new answer
        self.edge.on_answer("welcome", encode(self.admission(index, last_sequence, **changes)))
        self.broker.settle()

    def model(self, sensitivity: float = 0.4, acknowledged: int | None = None, value: float = 0.0) -> None:
        assert self.edge.preparation is not None
        x = np.full(self.edge.preparation.worker.model.dimension, value, np.float32)
        awaited = self.edge.session.awaited if acknowledged is None else acknowledged
        self.edge.on_model("m", encode_model(SendModel(self.edge.edge_id, 1, sensitivity, awaited, x, LIFE)))
        self.broker.settle()

    def published(self, leaf: EdgeTopic) -> list[bytes]:
        topic = edge_topic(self.run, self.edge.edge_id, leaf)
        return [payload for name, payload in self.broker.published if name == topic]

    @property
    def pushed(self) -> int:
        return len(self.published(EdgeTopic.GRADIENT))

    @property
    def hellos(self) -> list[Hello]:
        return [decode_hello(self.edge.edge_id, one) for one in self.published(EdgeTopic.HELLO)]

    @property
    def leaves(self) -> list[str]:
        return [decode_leave(self.edge.edge_id, one).reason for one in self.published(EdgeTopic.LEAVE)]

    def release(self, count: int) -> None:
        for _ in range(count):
            self.model()

"""A cloud and edges on the in-memory broker, and a pure server with the events that edges would cause."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Executor, Future
from dataclasses import dataclass, field, replace
from itertools import count
from typing import Any, TypeVar

import numpy as np

from cloud.admission import Terms
from cloud.assembly import server_for
from cloud.evaluation import Evaluator
from cloud.server import CloudServer
from cloud.service import CloudService
from common.messages import Effect, Fact, GradientApplied, GradientArrived, Hello, Leave, Refuse
from common.problem import Problem
from common.quantities import EdgeId, NoisyGradient, RunId
from common.randomness import new_incarnation, streams_for
from common.records.recorder import Recorder
from common.records.tally import Tally
from common.transport.channel import Will
from common.transport.link import LinkProfile
from common.wire.codec import encode
from common.wire.topics import EdgeTopic, edge_topic
from edge.client import EdgeClient
from edge.joining import Membership
from edge.ledger import Ledger
from edge.policy import OperatorPolicy
from mapa.simulation.simulator import World
from tests.algorithm_support import beginning
from tests.core_support import small_dataset
from tests.memory_broker import MemoryBroker, MemoryChannel

Found = TypeVar("Found")

# -- a service and its edges ------------------------------------------------------------------------------


class AtOnce(Executor):
    """Evaluates in the caller's thread: the twin's time is its own."""

    def submit(self, work: Callable[..., Any], /, *args: Any, **more: Any) -> Future[Any]:
        done: Future[Any] = Future()
        done.set_result(work(*args, **more))
        return done


@dataclass
class AppliedTally(Tally):
    """Remembers every update."""

    applied: list[GradientApplied] = field(default_factory=list)

    def observe(self, fact: Fact) -> None:
        super().observe(fact)
        if isinstance(fact, GradientApplied):
            self.applied.append(fact)


def service_on(
    channel: MemoryChannel,
    broker: MemoryBroker,
    world: World,
    run: RunId,
    said: list[str],
    *,
    records: Recorder | None = None,
    edges_at_least: int = 1,
    incarnation: int | None = None,
) -> CloudService:
    """Return the cloud of a world on a channel, not started."""
    life = new_incarnation() if incarnation is None else incarnation
    streams = streams_for(world.scenario.seed)
    return CloudService(
        run=run,
        scenario=world.scenario,
        server=server_for(
            world.scenario, world.model, streams, edges_at_least=edges_at_least, incarnation=life
        ),
        evaluator=Evaluator.of(world.model, world.dataset.test, 0.0),
        channel=channel,
        loop=broker,
        say=said.append,
        records=records or Recorder(tally=AppliedTally()),
    )


def edge_on(
    broker: MemoryBroker,
    run: RunId,
    said: list[str],
    *,
    policy: OperatorPolicy | None = None,
    ledger: Ledger | None = None,
    channel_of: Callable[..., MemoryChannel] = MemoryChannel,
) -> EdgeClient:
    """Start an edge; `channel_of` makes its channel."""

    def connect(client: EdgeClient, link: LinkProfile | None) -> MemoryChannel:
        assert link is None
        will = encode(Leave(client.edge_id, "lost", client.nonce))
        channel = channel_of(
            broker,
            will=Will(edge_topic(run, client.edge_id, EdgeTopic.WILL), will),
            on_connected=client.on_connected,
            on_lost=client.on_lost,
        )
        broker.post(channel.connect)
        return channel

    membership = Membership(
        run=run,
        policy=policy or OperatorPolicy(),
        ledger=ledger or Ledger(),
        load=lambda name: small_dataset(),  # noqa: ARG005
    )
    client = EdgeClient(
        membership,
        loop=broker,
        connect=connect,
        say=said.append,
        on_stop=lambda code: None,  # noqa: ARG005
    )
    client.start()
    return client


# -- a pure server ----------------------------------------------------------------------------------------

PROBLEM = Problem(
    batch_size=4, smoothness=1.0, sigma=1.0, tau_max=2, iterations=50, loss_gap=1.0, first_clip=2.0
)
TERMS = Terms(edges=3, iterations=50, private=True, noise="exponential-norm", parameters={"epsilon": (1.0,)})
NUMBERS = count(1)
_LIMITS = ("epsilon_floor", "noise_multiplier_ceiling")


def cloud(
    algorithm: str = "mapa",
    *,
    problem: Problem = PROBLEM,
    measure_tau: bool = False,
    incarnation: int = 0,
    **changes: Any,
) -> CloudServer:
    """Return a server at t = 1 with x₁ = 0 in three dimensions; `changes` are those of its terms."""
    limits = {key: changes.pop(key) for key in _LIMITS if key in changes}
    terms = replace(TERMS, **changes, limits=limits)
    begin = beginning(algorithm, replace(problem, measure_tau=measure_tau))
    return CloudServer(terms, np.zeros(3, np.float32), begin, incarnation=incarnation)


def hello(edge: str, **fields: Any) -> Hello:
    """Return a hello that is newer than all before, as a process says them."""
    parameters = {key: fields.pop(key) for key in ("epsilon", "noise_multiplier") if key in fields}
    return Hello(edge_id=EdgeId(edge), parameters=parameters, **{"number": next(NUMBERS), **fields})


def gradient(
    edge: str, sequence: int, version: int = 1, *, value: float = 1.0, sensitivity: float = 1.0, life: int = 0
) -> GradientArrived:
    g = NoisyGradient(np.full(3, value, np.float32))
    return GradientArrived(EdgeId(edge), sequence, version, sensitivity, g, life)


def kinds(effects: list[Effect]) -> list[str]:
    return [type(effect).__name__ for effect in effects]


def every(kind: type[Found], effects: list[Effect]) -> list[Found]:
    return [effect for effect in effects if isinstance(effect, kind)]


def only(kind: type[Found], effects: list[Effect]) -> Found:
    (found,) = every(kind, effects)
    return found


def joined(server: CloudServer, *edges: str) -> list[Effect]:
    return [effect for edge in edges for effect in server.receive(hello(edge))]


def running(*edges: str, algorithm: str = "mapa", **changes: Any) -> CloudServer:
    """Return a server that these edges have joined."""
    server = cloud(algorithm, **changes)
    joined(server, *edges)
    return server


def refusal_in(effects: list[Effect]) -> Refuse:
    """Return the refusal that is all the answer."""
    (refuse,) = effects
    assert isinstance(refuse, Refuse)
    return refuse

"""The quick way of an ordinary gradient changes nothing: state, log, records and messages are those of the pure one."""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from cloud import quick_way
from cloud.recovery_log import History
from cloud.resume import begin_history, service_state
from cloud.service import CloudService
from common.errors import RemoteProtocolError
from common.messages import GradientArrived, Hello, Leave
from common.quantities import EdgeId, NoisyGradient, RunId
from common.records.checkpoint import pack
from common.records.directory import RunDirectory
from common.records.gradient_log import LogReader
from common.records.recorder import Recorder
from common.wire import codec
from common.wire.topics import EdgeTopic, edge_topic
from mapa.simulation.simulator import World
from tests.cloud_support import AtOnce, service_on
from tests.core_support import small_dataset, small_scenario
from tests.memory_broker import MemoryBroker, MemoryChannel

RUN, LIFE = RunId("two-ways"), 9
PRIVATE = {"privacy": {"noise_multiplier": 2.0}}
HISTORIES: dict[str, dict[str, Any]] = {
    "stages": {"iterations": 400},
    "stages by measured staleness": {"iterations": 400, "algorithm": {"tau_max_from": "measured"}},
    "evaluations and an end": {"iterations": 60, "evaluation": {"every": 7}},
    "an average": {"algorithm": {"average": "ema"}, "evaluation": {"every": 5}},
    "a buffer": {"algorithm": {"name": "fedbuff", "rate": 0.1, "first_clip": 2.0}, **PRIVATE},
    "no privacy": {"algorithm": {"name": "asgd"}},
    "a regulariser": {"model": {"name": "lr", "regularization": 0.01}},
    "caps": {},
    "answers that wait for the disk": {"records": {"durability": "power"}},
    "a model that diverges": {"algorithm": {"name": "constant", "rate": 3e38, "first_clip": 1.0}, **PRIVATE},
}


def gradient(service: CloudService, edge: EdgeId, rng: random.Random, last: int) -> bytes:
    """Return a gradient that is right, or wrong in any way."""
    server = service.server
    assert server.schedule is not None
    n = server.model.size
    values = np.full(n, rng.uniform(-0.01, 0.01), np.float32)
    values[rng.randrange(n)] = rng.choice(
        [0.0] * 40 + [1e3, 3e19, 3e38]
    )  # the squares of the last leave float32
    arrived = GradientArrived(
        edge,
        max(1, last + rng.choice([1] * 12 + [0, 2])),
        max(0, server.t - rng.choice([0, 0, 1, 2, 5, -1])),
        server.schedule.sensitivity * rng.choice([1] * 20 + [2]),
        NoisyGradient(values),
        rng.choice([LIFE] * 20 + [LIFE + 1]),
    )
    payload = bytearray(codec.encode_gradient(arrived))
    if rng.random() < 0.03:
        payload[-4:] = rng.choice([b"\0\0\xc0\x7f", b"\0\0\x80\xff"])  # NaN, an infinity
    if rng.random() < 0.03:
        payload[rng.randrange(len(payload))] ^= 1 << rng.randrange(8)
    return bytes(payload[: rng.choice([None] * 30 + [-4, 40])])


def say(service: CloudService, channel: MemoryChannel, broker: MemoryBroker, rng: random.Random) -> None:
    """Let one of the edges say anything, or the connection break or come back."""
    broker.advance(rng.uniform(0.0, 0.1))
    edge = EdgeId(f"edge-{rng.randrange(4)}")
    account, kind = service.server.edges.get(edge), rng.random()
    last = 0 if account is None else account.last_sequence
    if account is None or kind < 0.04:
        nonce, number = rng.choice("ab") * 16, rng.randrange(1, 50)
        hello = Hello(edge_id=edge, nonce=nonce, number=number, last_sequence=last, incarnation=LIFE)
        service.on_hello(edge_topic(RUN, edge, EdgeTopic.HELLO), codec.encode(hello))
    elif kind < 0.07:
        leave = codec.encode(Leave(edge, rng.choice(["lost", "shutdown"]), rng.choice("ab") * 16))
        service.on_leave(edge_topic(RUN, edge, EdgeTopic.LEAVE), leave)
    elif kind < 0.09:
        channel.connected = not channel.connected
    elif service.server.schedule is not None:
        service.on_gradient(edge_topic(RUN, edge, EdgeTopic.GRADIENT), gradient(service, edge, rng, last))


def told(path: Path, case: str, seed: int, *, quick: bool) -> list[object]:
    """Return all that a cloud leaves behind a random history."""
    scenario = small_scenario(**{"edges": 3, "evaluation": {"every": 0}, **HISTORIES[case]})
    world, broker, said, rng = (
        World.on(scenario, small_dataset()),
        MemoryBroker(),
        list[str](),
        random.Random(seed),
    )
    broker.advance(1.0)
    channel, violations = MemoryChannel(broker), Counter[str]()
    published_by_syncs: list[int] = []

    class Watched(History):
        def sync(self) -> None:
            published_by_syncs.append(len(broker.published))
            super().sync()

    with RunDirectory(path) as directory:
        records = Recorder(directory.journal)
        service = service_on(
            channel, broker, world, RUN, said, records=records, edges_at_least=2, incarnation=LIFE
        )
        service.quick, service.evaluations.executor = quick, AtOnce()
        channel.connect()
        power = scenario.records.durability == "power"
        history = Watched(path, incarnation=LIFE, dimension=world.model.dimension, keep=True, power=power)
        begin_history(service, history, directory)
        service.start()
        with np.errstate(over="ignore"):
            for step in range(200):
                if step == 80 and case == "caps":
                    service.server.terms = replace(service.server.terms, caps=(20, 40))
                try:
                    say(service, channel, broker, rng)
                except RemoteProtocolError as error:
                    violations[str(error)] += 1
        broker.settle()
        history.close()
        peers = {edge: (peer.seen, peer.sent, peer.turnaround_sum) for edge, peer in service.peers.items()}
        state = pack(service_state(service, directory))
        entries = list(LogReader(path))
        lines = (path / "events.jsonl").read_bytes()
    told = [state, entries, lines, broker.published, published_by_syncs]
    return [*told, peers, said, violations, dict(service.dropped)]


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("case", HISTORIES)
def test_both_ways_leave_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, case: str, seed: int
) -> None:
    monkeypatch.setattr(codec, "new_nonce", lambda: "c" * 16)
    taken, take = Counter[bool](), quick_way.take

    def counted(*given: Any) -> bool:
        taken[done := take(*given)] += 1
        return done

    monkeypatch.setattr(quick_way, "take", counted)
    pure = told(tmp_path / "pure", case, seed, quick=False)
    assert not taken
    for ours, theirs in zip(told(tmp_path / "quick", case, seed, quick=True), pure, strict=True):
        assert ours == theirs
    assert taken[False] > 5
    assert taken[True] > 5 or case == "a model that diverges"

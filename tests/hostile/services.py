"""What has a state: a cloud, an edge, a connection, an enrolment. What they refuse must leave it as it is.

No broker keeps anyone out here: a mutant comes under the name of an edge with a shard, of another, or of a stranger.
"""

from __future__ import annotations

import io
import json
import math
import shutil
import socket
import weakref
from collections import deque
from collections.abc import Callable, Iterator
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import patch
from zlib import crc32

import numpy as np

from cloud.admission import EdgeAccount
from cloud.server import Judged
from cloud.service import CloudService
from cloud.snapshot import server_state
from common.errors import MapaError, RemoteProtocolError
from common.messages import GradientArrived, Halt, Hello, Leave, Presence, Refuse, SendModel
from common.quantities import EdgeId, NoisyGradient, RunId
from common.records.checkpoint import pack
from common.records.recorder import Recorder
from common.transport import mqtt
from common.transport.connection import BrokerAddress, MqttOptions
from common.transport.loop import SelectorLoop
from common.wire import codec
from common.wire.codings.registry import compress
from common.wire.guards import CloudGuard, EdgeGuard
from common.wire.topics import (
    EdgeTopic,
    HelperTopic,
    clouds_topic,
    edge_topic,
    halt_topic,
    helper_topic,
    presence_topic,
)
from edge.session import Phase
from mapa.authority import Authority, new_key, signing_request
from mapa.enrolment import EnrolmentServer
from mapa.simulation.simulator import World
from tests.cloud_support import service_on
from tests.core_support import small_dataset, small_scenario
from tests.edge_support import CLOUD, LIFE, Stage, private_scenario
from tests.guard_support import Members, Speaker, sealed
from tests.guard_support import model as a_model
from tests.hostile.decoding import Target, packets
from tests.hostile.mutation import Form
from tests.mapa.test_helper_service import NAMES
from tests.mapa.test_helper_service import Testbed as HelperTestbed
from tests.memory_broker import MemoryBroker, MemoryChannel
from tests.secure_support import RUN as SECURE_RUN

RUN = RunId("hostile")
HONEST, HOSTILE = EdgeId("honest"), EdgeId("hostile")
_LIFE = 2**40 + 1  # an incarnation
_NONCE = {HONEST: "a" * 16, HOSTILE: "b" * 16}
_HONEST_TURN = 16  # messages of which one is an honest gradient
_FORGET = 500  # messages after which what the twin of a broker has published is forgotten


# -- a cloud ------------------------------------------------------------------------------------------


class Noted:
    """Stands for a run's log and checkpoints; only tells how often it was given something."""

    power = False

    def __init__(self) -> None:
        self.noted = 0

    def event(self, server: Any, judged: Judged, payload: bytes, seconds: float) -> None:  # noqa: ARG002
        self.noted += judged.changes

    def append(self, *_: Any) -> None:
        self.noted += 1

    begins = halt = append

    def checkpoint_if_due(self) -> None:
        """Write none."""


class CloudBed:
    """A cloud that serves run after run: nothing that it refuses, or that no log has, changes its state."""

    def __init__(self, coding: str | None = None) -> None:
        compression = {"compression": {"gradients": coding, "models": coding}} if coding else {}
        scenario = small_scenario(
            seed=None,
            edges=3,
            iterations=40,
            evaluation={"every": 0},
            model={"name": "lr", "regularization": 0.01},
            privacy={"noise": "gaussian", "noise_multiplier": 1.0},
            **compression,
        )
        self.coding = coding
        self.world = World.on(scenario, small_dataset())
        self.rng = np.random.default_rng(1)
        self.said: Any = deque(maxlen=20)
        self.messages = self.runs = 0
        self.fresh()

    def fresh(self) -> None:
        """Begin a run with an honest edge and one that turns hostile."""
        self.broker, self.log = MemoryBroker(), Noted()
        self.channel = MemoryChannel(self.broker)
        self.service: CloudService = service_on(
            self.channel, self.broker, self.world, RUN, self.said, records=Recorder(), incarnation=_LIFE
        )
        self.channel.on_violation = self.service.on_violation
        self.service.history = self.log  # type: ignore[assignment]
        self.channel.connect()
        self.service.start()
        for edge in (HONEST, HOSTILE):
            self.deliver(edge, EdgeTopic.HELLO, codec.encode(self._hello(edge)))

    def deliver(self, edge: EdgeId, leaf: EdgeTopic, payload: bytes) -> None:
        self.channel.take(edge_topic(RUN, edge, leaf), payload)
        self.broker.advance(0.1)

    @property
    def state(self) -> tuple[bytes, bytes]:
        """What a checkpoint of it would be, byte by byte."""
        schedule = self.service.server.schedule
        return pack(server_state(self.service.server, type(schedule)))

    def _hello(self, edge: EdgeId, number: int = 1) -> Hello:
        account = self.service.server.edges.get(edge)
        last = 0 if account is None else account.last_sequence
        return Hello(
            edge_id=edge, nonce=_NONCE[edge], number=number, incarnation=_LIFE, last_sequence=last, noise="gaussian",
            parameters={"noise_multiplier": 1.0},
        )  # fmt: skip

    def next_gradient(self, edge: EdgeId, scale: float = 1e-3) -> bytes:
        """Return what an honest edge would send now."""
        server = self.service.server
        account = server.edges.get(edge)
        openings = account.sent_models.plain()[1] if isinstance(account, EdgeAccount) else []
        last, sensitivity = (account.last_sequence, openings[-1][2]) if account and openings else (0, 1.0)
        values = NoisyGradient(self.rng.normal(0, scale, server.model.size).astype(np.float32))
        plain = codec.encode_gradient(GradientArrived(edge, last + 1, server.t, sensitivity, values, _LIFE))
        return compress(plain, self.coding, self.rng) if self.coding else plain

    def gradients(self) -> list[bytes]:
        return [self.next_gradient(HOSTILE)]

    def hellos(self) -> list[bytes]:
        return [codec.encode(self._hello(edge, 2 + self.messages)) for edge in (HONEST, HOSTILE)]

    def leaves(self) -> list[bytes]:
        return [
            codec.encode(Leave(edge, why, _NONCE[edge]))
            for edge, why in ((HONEST, "budget"), (HOSTILE, "lost"))
        ]

    def take(self, leaf: EdgeTopic, payload: bytes) -> bool:
        """Deliver a mutant; tell whether it was read."""
        self.messages += 1
        if self.service.halted is not None:
            self.runs += 1
            self.fresh()
        if self.messages % _FORGET == 0:
            self.broker.published.clear()
        if self.messages % _HONEST_TURN == 0:
            self.deliver(HONEST, EdgeTopic.GRADIENT, self.next_gradient(HONEST))
        luck = crc32(payload)
        edge = (HOSTILE, HOSTILE, HOSTILE, HONEST, EdgeId(f"stranger-{luck >> 8 & 7}"))[luck % 5]
        before, noted, refused = self.state, self.log.noted, self.channel.violations
        self.channel.take(edge_topic(RUN, edge, leaf), payload)
        read, logged = self.channel.violations == refused, self.log.noted > noted
        assert read or not logged, "what was refused is in the log"
        assert logged or self.state == before, "the state has changed by a message that no log has"
        self.broker.advance(0.1)
        return read

    def targets(self) -> Iterator[Target]:
        name = f"cloud, {self.coding}" if self.coding else "cloud"
        for leaf, form, corpus in (
            (EdgeTopic.GRADIENT, Form.HOT, self.gradients),
            (EdgeTopic.HELLO, Form.MAP, self.hellos),
            (EdgeTopic.LEAVE, Form.MAP, self.leaves),
            (EdgeTopic.WILL, Form.MAP, self.leaves),
        ):
            yield Target(
                f"{name}: {leaf.value}", form, corpus, lambda payload, leaf=leaf: self.take(leaf, payload)
            )


# -- an edge ------------------------------------------------------------------------------------------


class EdgeBed:
    """One edge after the other, each with a ledger: nothing that is refused changes conversation or ledger."""

    def __init__(self) -> None:
        self.scenario = private_scenario()
        self.edges = self.messages = 0
        self.fresh()

    def fresh(self) -> None:
        self.edges += 1
        few: Any = deque(maxlen=20)
        broker = MemoryBroker()  # what follows a welcome comes back to the loop later, as from a thread
        self.stage = Stage(
            self.scenario,
            broker=broker,
            said=few,
            notes=few,
            started=False,
            background=lambda work, then: broker.post(lambda: then(work())),
        )
        self.stage.edge.nonce = f"{self.edges:016x}"
        self.stage.edge.start()
        self.stage.broker.settle()

    @property
    def state(self) -> tuple[object, ...]:
        edge = self.stage.edge
        return (
            repr(edge.session),
            edge.ledger.last_sequence(edge.run),
            edge.ledger.pending(edge.run),
            edge.exit_code,
        )

    def answers(self) -> list[bytes]:
        stage = self.stage
        if stage.edge.session.answered == stage.edge.session.hellos:
            stage.edge.on_connected()
            stage.broker.settle()
        nonce, number = stage.edge.nonce, stage.edge.session.hellos
        return [
            *[codec.encode(stage.admission())] * 4,
            codec.encode(Refuse(stage.edge.edge_id, "incarnation", "another", nonce, number, LIFE)),
            codec.encode(Refuse(stage.edge.edge_id, "ledger-lost", "why", nonce, number, LIFE, 3)),
            codec.encode(Refuse(stage.edge.edge_id, "stranger", "say hello", None, None, LIFE)),
        ]

    def models(self) -> list[bytes]:
        edge = self.stage.edge
        if edge.session.phase is Phase.GREETING:
            self.stage.welcome(last_sequence=edge.session.last_sequence)
        size = 1 if edge.preparation is None else edge.preparation.worker.model.dimension
        x = np.full(size, 0.01, np.float32)
        return [codec.encode_model(SendModel(edge.edge_id, 3, 0.4, edge.session.awaited, x, LIFE))]

    def halts(self) -> list[bytes]:
        return [codec.encode(Halt("finished", 60, LIFE))]

    def presences(self) -> list[bytes]:
        shapes = ((True, False), (False, False), (False, True))
        return [codec.encode(Presence(online, CLOUD, LIFE, over)) for online, over in shapes]

    def take(self, deliver: str, payload: bytes) -> bool:
        self.messages += 1
        if self.stage.edge.exit_code is not None or self.messages % 400 == 0:
            self.fresh()
        edge = self.stage.edge
        if self.messages % _FORGET == 0:
            self.stage.broker.published.clear()
        before = self.state
        try:
            getattr(edge, deliver)("topic", payload)
        except RemoteProtocolError:
            assert self.state == before, "the edge has changed by a message that it refuses"
            return False
        self.stage.broker.settle()
        assert edge.session.phase is not Phase.DONE or edge.exit_code is not None
        return True

    def targets(self) -> Iterator[Target]:
        for deliver, form, corpus in (
            ("on_answer", Form.MAP, self.answers),
            ("on_model", Form.HOT, self.models),
            ("on_halt", Form.MAP, self.halts),
            ("on_presence", Form.MAP, self.presences),
        ):
            yield Target(
                f"edge: {deliver[3:]}",
                form,
                corpus,
                lambda payload, deliver=deliver: self.take(deliver, payload),
            )


# -- helpers of secure sums, and the cloud's link to them ---------------------------------------------


class HelperBed:
    """Helpers and a cloud's link to them: what is refused changes neither, and every sum that is opened is right."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.beds, self.messages = folder / "helpers", 0, 0
        self.fresh()

    def fresh(self) -> None:
        """Begin a run in which a set was opened, and the next is on its way."""
        self.beds += 1
        self.bed = bed = HelperTestbed(self.folder / str(self.beds))
        bed.broker.settle()
        for edge in (0, 1, 2, 0, 1):
            bed.release(edge)
            bed.broker.settle()
        self.heard = {leaf: self._heard(leaf) for leaf in HelperTopic}

    def _heard(self, leaf: HelperTopic) -> list[bytes]:
        topic = helper_topic(SECURE_RUN, NAMES[0], leaf)
        return [payload for name, payload in self.bed.broker.published if name == topic]

    @property
    def state(self) -> object:
        service, link = self.bed.services[0][0], self.bed.link
        helper, sums = service.helper, link.sums
        assert helper is not None
        assert sums is not None
        kept = [path.read_bytes() for path in (self.bed.folder / NAMES[0]).iterdir()]
        there = (helper.terms, dict(helper.signed), set(helper._edges), helper.finished, kept)
        return *there, dict(link.names), sums.here.copy(), len(self.bed.opened)

    def take(self, leaf: HelperTopic, payload: bytes) -> bool:
        self.messages += 1
        if self.messages % _FORGET == 0 or self.bed.codes:
            for service, _ in self.bed.services.values():
                service.close()
            shutil.rmtree(self.bed.folder)
            self.fresh()
        service, link = self.bed.services[0][0], self.bed.link
        deliver = {HelperTopic.ASK: service.on_ask, HelperTopic.HELLO: link.on_hello}.get(leaf, link.on_reply)
        before = self.state
        try:
            deliver(helper_topic(SECURE_RUN, NAMES[0], leaf), payload)
        except RemoteProtocolError:
            assert self.state == before, "helper or cloud has changed by a message that was refused"
            return False
        self.bed.broker.settle()
        self.bed.check()
        return True

    def targets(self) -> Iterator[Target]:
        for leaf in HelperTopic:
            yield Target(
                f"helpers: {leaf.value}",
                Form.MAP,
                lambda leaf=leaf: self.heard[leaf],
                partial(self.take, leaf),
            )


# -- the guards between a service and its channel -------------------------------------------------------


class GuardBed:
    """A cloud and an edge that believe what is proven alone, and what another edge says to lend parts of it."""

    def __init__(self, folder: Path) -> None:
        members = Members(Authority.create(folder / "members", ["localhost"]))
        self.cloud, self.edge, self.other = members.cloud(), members.edge("e1"), members.edge("e2")
        self.edge.join(self.cloud)
        self.other.join(self.cloud)
        self.true = b""  # what the mutants at hand were made of

    def says(self, leaf: EdgeTopic | None, topic: str) -> list[bytes]:
        """Return what its sender says on a topic now, and what another edge would hear or say there."""
        if leaf is None:
            body = self._of_cloud(topic)
            self.true, other = (
                sealed(self.cloud, topic, body),
                sealed(self.cloud, clouds_topic(RunId("r")), body),
            )
            return [self.true, self.true, other]
        self.true, other = (self._said(speaker, leaf) for speaker in (self.edge, self.other))
        return [self.true, self.true, other]

    def _said(self, speaker: Speaker, leaf: EdgeTopic) -> bytes:
        topic = speaker.topic(leaf)
        match leaf:
            case EdgeTopic.HELLO:
                return speaker.hello()
            case EdgeTopic.GRADIENT:
                return speaker.gradient()
            case EdgeTopic.MODEL:
                return sealed(self.cloud, topic, a_model())
            case EdgeTopic.WELCOME:
                return sealed(self.cloud, topic, speaker.welcome())
            case _:
                leave = codec.encode(Leave(EdgeId(speaker.name), "lost", speaker.nonce))
                return sealed(speaker.guard, topic, leave)

    @staticmethod
    def _of_cloud(topic: str) -> bytes:
        if topic.endswith("halt"):
            return codec.encode(Halt("finished", 9, LIFE))
        return codec.encode(Presence(False, CLOUD, LIFE, over=True))

    def take(self, guard: CloudGuard | EdgeGuard, topic: str, payload: bytes) -> bool:
        """Tell whether a mutant is believed, which only what was said may be; the true message must then still be."""
        try:
            body = guard.open(topic, payload)
        except RemoteProtocolError:
            assert guard.open(topic, self.true), "the true message is no longer believed"
            return False
        assert payload == self.true or not body, "what nobody said is believed"
        return True

    def targets(self) -> Iterator[Target]:
        run = RunId("r")
        for leaf in EdgeTopic:
            to_edge = leaf in (EdgeTopic.MODEL, EdgeTopic.WELCOME)
            yield self._target(self.edge.guard if to_edge else self.cloud, leaf, self.edge.topic(leaf))
        for topic in (halt_topic(run), presence_topic(run)):
            yield self._target(self.edge.guard, None, topic)

    def _target(self, guard: CloudGuard | EdgeGuard, leaf: EdgeTopic | None, topic: str) -> Target:
        name = f"proof: {topic.rpartition('/')[2]}"
        return Target(
            name, Form.OCTETS, lambda: self.says(leaf, topic), lambda one: self.take(guard, topic, one)
        )


# -- a connection -------------------------------------------------------------------------------------


class ChannelBed:
    """A client of ours whose broker sends what it likes, through paho, and then hangs up."""

    def __init__(self) -> None:
        self.loop = SelectorLoop()
        weakref.finalize(self, self.loop.close)
        self.options = MqttOptions(
            address=BrokerAddress("127.0.0.1", 1), client_id="c", min_backoff=math.inf, max_backoff=math.inf
        )

    def take(self, payload: bytes) -> bool:
        ours, theirs = socket.socketpair()
        ours.setblocking(False)
        lost: list[str] = []
        channel = mqtt.MqttChannel(self.options, self.loop, on_lost=lost.append)
        channel.subscribe("mapa/v1/#", lambda topic, payload: None)  # noqa: ARG005
        with theirs, patch.object(mqtt, "open_socket", lambda _: ours):
            theirs.sendall(b"\x20\x02\0\0" + payload[:60_000])
            theirs.shutdown(socket.SHUT_WR)
            try:
                channel.open()
                ended = self.loop.serve(lambda: bool(lost) or channel.failed, until=self.loop.now() + 20)
                assert ended, "the end of the connection is not seen"
            except MapaError:
                return False
            finally:
                channel.abort()
        return True

    def targets(self) -> Iterator[Target]:
        yield Target("MQTT through paho", Form.OCTETS, packets, self.take)


# -- an enrolment -------------------------------------------------------------------------------------


class Answering:
    """A connection as http.server sees it, without TLS."""

    def __init__(self, content: bytes) -> None:
        self.content, self.answer = content, bytearray()

    def makefile(self, *_: Any) -> Any:
        return io.BytesIO(self.content)

    def sendall(self, content: bytes) -> None:
        self.answer += content

    def settimeout(self, seconds: float) -> None:
        """Everything is here."""

    def setsockopt(self, *_: Any) -> None:
        """There is no TCP."""


class EnrolmentBed:
    """An authority with a token out: what it refuses leaves its register as it is, and nobody is enrolled."""

    def __init__(self, folder: Path) -> None:
        self.authority = Authority.create(folder / "authority", ["localhost"])
        self.authority.invite("north", 0, timedelta(hours=1))
        self.enrolled: list[str] = []
        self.server = EnrolmentServer(
            self.authority, "localhost", ("127.0.0.1", 0), self.enrolled.append, lambda _: None
        )
        weakref.finalize(self, self.server._server.server_close)
        request = signing_request(new_key(), "north").decode()
        wrong = {"name": "north", "secret": "x" * 32, "request": request}
        # the right secret is in none: whatever a mutant is, it must be refused
        self.bodies = [json.dumps(wrong).encode(), json.dumps({**wrong, "name": "south"}).encode()]

    def requests(self) -> list[bytes]:
        return [*map(self._request, self.bodies), b"GET /authority HTTP/1.1\r\nHost: a\r\n\r\n"]

    @staticmethod
    def _request(body: bytes) -> bytes:
        return b"POST /enrol HTTP/1.1\r\nHost: a\r\nContent-Length: %d\r\n\r\n%b" % (len(body), body)

    def take(self, content: bytes) -> bool:
        """Serve one connection; tell whether something was granted."""
        register = self.authority._register_file
        before, connection = register.read_bytes(), Answering(content)
        handler: Callable[..., object] = self.server._server.RequestHandlerClass
        handler(connection, ("192.0.2.1", 1), self.server._server)
        granted = b" 200 " in connection.answer[:20]
        assert self.enrolled == []
        assert register.read_bytes() == before
        return granted

    def targets(self) -> Iterator[Target]:
        yield Target("enrolment: request", Form.OCTETS, self.requests, self.take)
        yield Target(
            "enrolment: body", Form.JSON, lambda: self.bodies, lambda body: self.take(self._request(body))
        )

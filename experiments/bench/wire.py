"""Speed of the testbed on a real Mosquitto: against a bare paho echo, the authors' way, and with many edges.

Each cloud serves runs in this process, on a core of its own; broker and edges are programs on the others.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import pickle
import socket
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import paho.mqtt.client as paho
import torch
from paho.mqtt.enums import CallbackAPIVersion
from rich.console import Console

from common.accounting.releases import ReleaseKind
from common.datasets.dataset import Dataset, Samples
from common.errors import BrokerUnavailableError
from common.messages import GradientArrived, Halt, Presence, SendModel, Welcome
from common.models.linear import LogisticRegression
from common.noise.registry import noise_law
from common.quantities import EdgeId, NoisyGradient, RunId
from common.records.directory import RunDirectory
from common.scenario.scenario import Scenario, parse_scenario
from common.telemetry.server import metrics_listener
from common.transport.connection import BrokerAddress, Credentials
from common.wire import codec
from common.wire.topics import EdgeTopic, edge_topic, every_edge, halt_topic, parse_edge_topic, presence_topic
from edge.ledger import Account, ShardIdentity
from edge.sqlite_ledger import SqliteLedger
from experiments.bench.bed import Fleet, cores, lean_fleet, on_cores, program
from experiments.bench.edges import AUTHORS_QOS, PATIENCE, EdgeTask, authors_client
from experiments.bench.ratios import Pace, Race, Ratio, compare
from mapa.brokers import Broker, find_mosquitto, free_port, private_mosquitto
from mapa.cloud_run import Setting, open_cloud
from mapa.run_view import view_for
from mapa.simulation.simulator import World

_EDGES = (5, 20)  # K
_DIMENSIONS = (785, 7_850, 21_840)  # N
_N = 7_850  # where only one is measured
_PROCESSES = 2  # that carry the edges


@dataclass(frozen=True, slots=True)
class Segment:
    """What one cloud is asked to do: T updates of N numbers with K edges."""

    run: RunId
    edges: int  # K
    dimension: int  # N
    updates: int  # T


@dataclass(frozen=True, slots=True)
class Rig:
    """A broker, edges that wait for a cloud, and a folder."""

    broker: Broker
    fleet: Fleet
    directory: Path
    numbers: Iterator[int] = field(default_factory=itertools.count)  # no two segments share a run's name

    def race(
        self, serve: Callable[..., Pace], edges: int, updates: int, dimension: int = _N, **how: Any
    ) -> Race:
        """Return a segment that can be run again and again."""

        def race() -> Pace:
            segment = Segment(RunId(f"bench-{next(self.numbers)}"), edges, dimension, updates)
            return serve(self, segment, **how)

        return race

    def begin(self, segment: Segment, *, authors: bool = False) -> None:
        broker, dimension = str(self.broker.address), segment.dimension
        task = EdgeTask(broker=broker, run=segment.run, dimension=dimension, authors=authors)
        self.fleet.begin(task, segment.edges)


@contextlib.contextmanager
def bench_rig() -> Iterator[Rig]:
    with (
        tempfile.TemporaryDirectory() as directory,
        private_mosquitto(Path(directory) / "tuned") as broker,
        lean_fleet(_PROCESSES) as fleet,
    ):
        yield Rig(broker, fleet, Path(directory))


@contextlib.contextmanager
def core_of_its_own(rig: Rig) -> Iterator[None]:
    """Give the cloud, ours or another, a core, and broker and edges the rest.

    Left to themselves they move about, and the rate of one and the same cloud varies fivefold.
    """
    first, *others = cores()
    if not others:
        yield
        return
    for pid in (rig.broker.pid, *(child.pid for child in rig.fleet.children)):
        os.sched_setaffinity(pid, others)
    with on_cores([first]):
        yield


def wire_ratios() -> Iterator[Ratio]:
    with bench_rig() as rig:
        with core_of_its_own(rig):
            for edges, dimension in itertools.product(_EDGES, _DIMENSIONS):
                updates = 500 if dimension > 10_000 else 1000
                ours, echo = (
                    rig.race(serve, edges, updates, dimension) for serve in (serve_ours, serve_echo)
                )
                yield compare(
                    f"K = {edges}, N = {dimension:,}: ours / bare paho echo", 0.9, ours, echo, "echo"
                )
            hundred, twenty = (rig.race(serve_ours, edges, 2000) for edges in (100, 20))
            yield compare(f"N = {_N:,}: K = 100 / K = 20, virtual", 0.8, hundred, twenty, "K = 20")
            scraped, plain = (rig.race(serve_ours, 20, 4000, scraped=asked) for asked in (True, False))
            name = f"K = 20, N = {_N:,}: metrics scraped five times a second / none"
            yield compare(name, 0.9, scraped, plain, "none")
        with default_mosquitto(rig.directory / "default") as broker:
            theirs = Rig(broker, rig.fleet, rig.directory, rig.numbers)
            with core_of_its_own(theirs):
                name = f"K = 5, N = {_N:,}: ours / the authors' way"
                ours, authors = rig.race(serve_ours, 5, 1000), theirs.race(serve_authors, 5, 80)
                yield compare(name, 30, ours, authors, "authors", rounds=5)


def log_ratios() -> Iterator[Ratio]:
    """What it costs that a cloud can be resumed: after the end of its process, and after a power failure too."""
    with bench_rig() as rig, core_of_its_own(rig):
        process, without = (rig.race(serve_ours, 5, 2000, durability=kept) for kept in ("process", None))
        name = f'K = 5, N = {_N:,}: gradient log, durability = "process" / without'
        yield compare(name, 0.9, process, without, "without")
        for edges in _EDGES:
            power, process = (
                rig.race(serve_ours, edges, 400, durability=kept) for kept in ("power", "process")
            )
            name = f'K = {edges}, N = {_N:,}: durability = "power" / "process"'
            yield compare(
                name, 0.0, power, process, "process", rounds=5
            )  # no bar: a sync is the disk's matter


# -- our cloud --------------------------------------------------------------------------------------------------------


def bench_scenario(edges: int, updates: int, durability: str | None = "process") -> Scenario:
    """Return MAPA with Gaussian noise, records on, no evaluation on the way."""
    return parse_scenario(
        {
            "edges": edges,
            "iterations": updates,
            "batch_size": 12,
            "data": {"set": "mnist-5k"},
            "model": {"name": "lr"},
            "algorithm": {"name": "mapa", "first_clip": 6.0},
            "privacy": {"noise_multiplier": 2.0},
            "evaluation": {"every": 0},
            "records": {"durability": durability or "process"},
        }
    )


def serve_ours(
    rig: Rig, segment: Segment, *, durability: str | None = "process", scraped: bool = False
) -> Pace:
    """Serve a run to its end; its time ends when its last record is in the file. No durability: no gradient log.

    `scraped`: it serves metrics, and a program of its own asks for them five times a second.
    """
    listener = metrics_listener("127.0.0.1", 0) if scraped else None
    scenario = bench_scenario(segment.edges, segment.updates, durability)
    one = Samples(np.zeros((1, segment.dimension - 1), np.float32), np.zeros(1, np.int64))
    dataset = Dataset("none", (segment.dimension - 1,), 2, one, one, "none")
    model = LogisticRegression(shape=dataset.shape, classes=2)  # the edges never ask it for a gradient
    with (
        RunDirectory(rig.directory / segment.run) as records,
        open_cloud(
            Setting(scenario, dataset, model, [np.arange(12)] * segment.edges),
            run=segment.run,
            broker=rig.broker.address,
            credentials=Credentials(),
            directory=records,
            view=view_for(scenario, Console(quiet=True), quiet=True),
            edges_at_least=segment.edges,
            remembers=durability is not None,
            metrics=listener,
        ) as cloud,
        _scraper(listener),
    ):
        rig.begin(segment)
        cloud.loop.call_later(PATIENCE, cloud.loop.stop)
        began = time.process_time()
        cloud.serve()
        records.events.flush()
        ended, spent = cloud.loop.now(), time.process_time() - began
        first, done = cloud.service.first_update, cloud.service.server.updates
        if done != segment.updates or first is None:
            raise BrokerUnavailableError(f"{segment}: {done} updates in {PATIENCE:g} s")
    rig.fleet.end()
    return Pace((segment.updates - 1) / (ended - first), spent / segment.updates)


_SCRAPER = """
import sys, time, urllib.request
while True:
    try:
        urllib.request.urlopen(sys.argv[1], timeout=5).read()
    except OSError:
        pass
    time.sleep(0.2)
"""


def _scraper(listener: socket.socket | None) -> contextlib.AbstractContextManager[object]:
    """Ask for the metrics again and again, as Prometheus does every few seconds."""
    if listener is None:
        return contextlib.nullcontext()
    return program("-c", _SCRAPER, f"http://127.0.0.1:{listener.getsockname()[1]}/metrics")


# -- other clouds -----------------------------------------------------------------------------------------------------


class BareCloud:
    """A client of paho's that answers gradients, from the first to the last, in its callback."""

    qos = 0
    retain = False  # its halt

    def __init__(self, segment: Segment, client: paho.Client) -> None:
        self.segment, self.client = segment, client
        self.answered = 0
        self.first = self.last = 0.0
        self._halt = 0  # its message id
        client.on_message = self._on_message
        client.on_publish = self._on_publish

    def answer(self, message: paho.MQTTMessage) -> tuple[str, bytes]:
        """Return the topic and payload of the model that a gradient is answered with."""
        raise NotImplementedError

    def halt(self) -> tuple[str, bytes]:
        raise NotImplementedError

    def _on_message(self, client: paho.Client, userdata: Any, message: paho.MQTTMessage) -> None:  # noqa: ARG002
        if self.answered == self.segment.updates:
            return
        topic, model = self.answer(message)
        self.answered += 1
        self.first = self.first or time.monotonic()
        if self.answered < self.segment.updates:
            client.publish(topic, model, self.qos)
        else:
            self.last = time.monotonic()
            self._halt = client.publish(*self.halt(), qos=max(1, self.qos), retain=self.retain).mid

    def _on_publish(self, client: paho.Client, userdata: Any, mid: int, *_: Any) -> None:  # noqa: ARG002
        if self._halt and mid == self._halt:  # the broker has it
            client.disconnect()

    def serve(self, rig: Rig) -> Pace:
        patience = threading.Timer(PATIENCE, self.client.disconnect)
        patience.start()
        began = time.process_time()
        self.client.loop_forever()
        spent = time.process_time() - began
        patience.cancel()
        if self.answered < self.segment.updates:
            raise BrokerUnavailableError(f"{self.segment}: {self.answered} updates in {PATIENCE:g} s")
        rig.fleet.end()
        return Pace((self.segment.updates - 1) / (self.last - self.first), spent / self.segment.updates)


class EchoCloud(BareCloud):
    """The yardstick, as fast as paho can: a prepared model, QoS 0, TCP_NODELAY; no decoding, no update, no records."""

    retain = True

    def __init__(self, segment: Segment, broker: BrokerAddress) -> None:
        super().__init__(segment, paho.Client(CallbackAPIVersion.VERSION2, client_id=f"{segment.run}::echo"))
        zeros = np.zeros(segment.dimension, np.float32)
        self.model = codec.encode_model(SendModel(EdgeId("any"), 1, 1.0, 0, zeros))
        self.scenario = bench_scenario(segment.edges, segment.updates)
        self.answers: dict[str, str] = {}  # gradient topic → model topic
        run, client = segment.run, self.client
        topics = [(every_edge(run, EdgeTopic.GRADIENT), 0), (every_edge(run, EdgeTopic.HELLO), 1)]
        presence = codec.encode(Presence(True, codec.new_nonce()))

        def announce(*_: Any) -> None:
            client.publish(presence_topic(run), presence, qos=1, retain=True)

        client.on_connect = lambda client, *_: client.subscribe(topics)
        client.on_subscribe = announce
        client.message_callback_add(every_edge(run, EdgeTopic.HELLO), self._on_hello)
        client.connect(broker.host, broker.port)
        sock: Any = client.socket()
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def answer(self, message: paho.MQTTMessage) -> tuple[str, bytes]:
        return self.answers[message.topic], self.model

    def halt(self) -> tuple[str, bytes]:
        return halt_topic(self.segment.run), codec.encode(Halt("finished", self.answered))

    def _on_hello(self, client: paho.Client, userdata: Any, message: paho.MQTTMessage) -> None:  # noqa: ARG002
        """Welcome; the models go out when all have come, as the real cloud does it."""
        run, edge_id = self.segment.run, parse_edge_topic(message.topic).edge_id
        index = len(self.answers)
        hello = codec.decode_hello(edge_id, bytes(message.payload))
        welcome = Welcome(
            edge_id=edge_id,
            index=index,
            last_sequence=0,
            edges=self.segment.edges,
            scenario=self.scenario.for_edge(index),
            seed=None,
            nonce=hello.nonce,
            number=hello.number,
        )
        client.publish(edge_topic(run, edge_id, EdgeTopic.WELCOME), codec.encode(welcome), qos=1)
        gradient_topic = edge_topic(run, edge_id, EdgeTopic.GRADIENT)
        self.answers[gradient_topic] = edge_topic(run, edge_id, EdgeTopic.MODEL)
        if len(self.answers) == self.segment.edges:
            for topic in self.answers.values():
                client.publish(topic, self.model)


def serve_echo(rig: Rig, segment: Segment) -> Pace:
    cloud = EchoCloud(segment, rig.broker.address)
    rig.begin(segment)
    return cloud.serve(rig)


class AuthorsCloud(BareCloud):
    """What NOT to do, measured: x ← x − γg̃ on pickled tensors, QoS 2 (four packets for one), sockets as they come."""

    qos = AUTHORS_QOS

    def __init__(self, segment: Segment, rig: Rig) -> None:
        super().__init__(segment, authors_client(str(rig.broker.address)))
        self.model = torch.zeros(segment.dimension)
        self.client.on_connect = lambda client, *_: client.subscribe(f"{segment.run}/+/gradient", self.qos)
        self.client.on_subscribe = lambda *_: rig.begin(segment, authors=True)

    def answer(self, message: paho.MQTTMessage) -> tuple[str, bytes]:
        self.model -= 1e-3 * pickle.loads(message.payload)
        return message.topic.replace("gradient", "model"), pickle.dumps(self.model)

    def halt(self) -> tuple[str, bytes]:
        return f"{self.segment.run}/halt", b""


def serve_authors(rig: Rig, segment: Segment) -> Pace:
    return AuthorsCloud(segment, rig).serve(rig)


@contextlib.contextmanager
def default_mosquitto(directory: Path) -> Iterator[Broker]:
    """Run a Mosquitto as it comes (Nagle's algorithm holds small packets back), but open to all."""
    directory.mkdir(parents=True)
    address, configuration = BrokerAddress("127.0.0.1", free_port()), directory / "mosquitto.conf"
    lines = [f"listener {address.port} {address.host}", "allow_anonymous true"]
    lines += ["user root"] if hasattr(os, "geteuid") and os.geteuid() == 0 else []
    configuration.write_text("\n".join([*lines, ""]))
    command = [str(find_mosquitto()), "-c", str(configuration)]  # there, or the tuned one had been refused
    broker = Broker(address=address, kind="mosquitto", command=command, log=directory / "mosquitto.log")
    broker.start()
    try:
        yield broker
    finally:
        broker.stop()


# -- what the lean edges leave out, timed apart -----------------------------------------------------------------------


def wire_costs(data_dir: Path) -> Iterator[tuple[str, float]]:
    """Yield what was done and the µs that one of it took, the median of batches."""
    worker = World.of(bench_scenario(5, 1), data_dir).workers()[0]
    n, b, edge = worker.model.dimension, worker.mechanism.batch_size, EdgeId("edge-0")
    sent = SendModel(edge, 1, 1.0, 0, np.zeros(n, np.float32))
    yield f"gradient, clip and noise (LR, N = {n}, b = {b})", _median(lambda: worker.receive(sent), 200)
    yield f"ledger debit with its sync to the disk ({4 * _N / 1000:.0f} kB)", _debit()
    vector = np.full(_N, 1e-3, np.float32)
    model, gradient = (
        SendModel(edge, 1, 1.0, 1, vector),
        GradientArrived(edge, 1, 1, 1.0, NoisyGradient(vector)),
    )
    model_bytes, gradient_bytes = codec.encode_model(model), codec.encode_gradient(gradient)
    steps: dict[str, Callable[[], object]] = {
        "encode a model": lambda: codec.encode_model(model),
        "decode a model": lambda: codec.decode_model(edge, model_bytes, _N),
        "encode a gradient": lambda: codec.encode_gradient(gradient),
        "decode a gradient": lambda: codec.decode_gradient(edge, gradient_bytes, _N),
    }
    for name, step in steps.items():
        yield f"{name} (N = {_N:,})", _median(step, 1000)


def _median(step: Callable[[], object], count: int, batches: int = 15) -> float:
    times = []
    for _ in range(batches):
        began = time.perf_counter()
        for _ in range(count):
            step()
        times.append((time.perf_counter() - began) / count)
    return float(np.median(times)) * 1e6


def _debit() -> float:
    run, payload = RunId("bench"), bytes(4 * _N)
    kind = ReleaseKind(bench_scenario(5, 1).mechanism(noise_law("gaussian", {"noise_multiplier": 2.0})), 1000)
    with tempfile.TemporaryDirectory() as directory, SqliteLedger(Path(directory)) as ledger:
        ledger.open(Account(run=run, shard=ShardIdentity("none", "iid", 0), kind=kind))

        def debit() -> None:
            sequence = ledger.last_sequence(run) + 1
            ledger.debit(run, sequence, payload)
            ledger.acknowledge(run, sequence)

        return _median(debit, 10)

"""One segment of the real cloud: its service, its records, its channel; only the model is a stub."""

from __future__ import annotations

import contextlib
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from rich.console import Console

from common.datasets.dataset import Dataset, Samples
from common.errors import BrokerUnavailableError, LocalProtocolError
from common.metrics import LOSS, Metric
from common.models.model import Features, Images, Labels, Targets, layout
from common.quantities import PerSampleGradients, RunId, Vector
from common.records.directory import RunDirectory
from common.scenario.scenario import Scenario, parse_scenario
from common.telemetry.server import metrics_listener
from common.transport.connection import BrokerAddress, Credentials
from experiments.bench.wire_edges import PATIENCE
from experiments.bench.wire_fleet import BenchFleet
from mapa.cloud_run import Setting, open_cloud
from mapa.run_view import view_for


@dataclass(frozen=True, slots=True)
class Segment:
    """What one cloud is asked to do: T updates of N numbers with K edges."""

    run: RunId
    edges: int  # K
    dimension: int  # N
    updates: int  # T


@dataclass(frozen=True, slots=True)
class Pace:
    """How a cloud did."""

    rate: float  # updates a second
    cpu: float  # seconds of the cloud's own processor time an update


class StubModel:
    """N parameters and no opinion: the bench edges never ask for a gradient."""

    name = "stub"

    def __init__(self, dimension: int) -> None:
        self.dimension = dimension
        self.layout = layout(x=(dimension,))
        self.first_layer = slice(0, dimension)
        self.metrics: tuple[Metric, ...] = (LOSS,)

    def initial(self, rng: np.random.Generator) -> Vector:  # noqa: ARG002
        return np.zeros(self.dimension, np.float32)

    def features(self, images: Images) -> Features:
        return images

    def targets(self, labels: Labels) -> Targets:
        return labels

    def gradients(self, x: Vector, features: Features, targets: Targets) -> PerSampleGradients:  # noqa: ARG002
        raise LocalProtocolError("a bench edge publishes prepared vectors")

    def evaluate(self, x: Vector, features: Features, targets: Targets) -> dict[str, float]:  # noqa: ARG002
        return {"loss": 0.0}


def bench_scenario(edges: int, updates: int, durability: str = "process") -> Scenario:
    """MAPA with Gaussian noise, records on, no evaluation on the way."""
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
            "records": {"durability": durability},
        }
    )


_SCRAPER = """
import sys, time, urllib.request
while True:
    try:
        urllib.request.urlopen(sys.argv[1], timeout=5).read()
    except OSError:
        pass
    time.sleep(0.2)
"""


@contextlib.contextmanager
def scraper(listener: socket.socket | None) -> Iterator[None]:
    """Ask for the metrics again and again, as Prometheus does every few seconds."""
    if listener is None:
        yield
        return
    address = f"http://127.0.0.1:{listener.getsockname()[1]}/metrics"
    program = subprocess.Popen([sys.executable, "-c", _SCRAPER, address])
    try:
        yield
    finally:
        program.kill()
        program.wait()


def serve_cloud(
    segment: Segment,
    broker: BrokerAddress,
    fleet: BenchFleet,
    directory: Path,
    durability: str | None = "process",
    *,
    scraped: bool = False,
) -> Pace:
    """Serve a run to its end; its time ends when its last record is in the file. No durability: no gradient log.

    `scraped`: it serves metrics, and a program of its own asks for them five times a second.
    """
    listener = metrics_listener("127.0.0.1", 0) if scraped else None
    scenario = bench_scenario(segment.edges, segment.updates, durability or "process")
    nothing = Samples(np.zeros((1, 1), np.float32), np.zeros(1, np.int64))
    dataset = Dataset("none", (1, 1), 1, nothing, nothing, "none")
    setting = Setting(scenario, dataset, StubModel(segment.dimension), [np.arange(12)] * segment.edges)
    with (
        RunDirectory(directory / segment.run) as records,
        open_cloud(
            setting,
            run=segment.run,
            broker=broker,
            credentials=Credentials(),
            directory=records,
            view=view_for(scenario, Console(quiet=True), quiet=True),
            edges_at_least=segment.edges,
            remembers=durability is not None,
            metrics=listener,
        ) as cloud,
        scraper(listener),
    ):
        fleet.begin(segment.run, segment.edges, segment.dimension)
        cloud.loop.call_later(PATIENCE, cloud.loop.stop)
        began = time.process_time()
        cloud.serve()
        records.flush()
        ended, spent = cloud.loop.now(), time.process_time() - began
        first = cloud.service.first_update
        if cloud.service.server.updates != segment.updates or first is None:
            raise BrokerUnavailableError(
                f"{segment}: {cloud.service.server.updates} updates in {PATIENCE:g} s"
            )
    fleet.end()
    return Pace((segment.updates - 1) / (ended - first), spent / segment.updates)

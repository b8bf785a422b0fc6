"""Speed of the testbed on a real Mosquitto: against a bare paho echo, the authors' way, and with many edges."""

from __future__ import annotations

import contextlib
import itertools
import os
import statistics
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from common.quantities import RunId
from experiments.bench.ratios import Ratio
from experiments.bench.wire_cloud import Pace, Segment, serve_cloud
from experiments.bench.wire_echo import serve_echo
from experiments.bench.wire_fleet import BenchFleet, bench_fleet
from experiments.bench.wire_pickled import default_mosquitto, serve_pickled
from mapa.brokers import Broker, private_mosquitto

_EDGES = (5, 20)  # K
_DIMENSIONS = (785, 7_850, 21_840)  # N
_PROCESSES = 2  # that carry the edges
_ROUNDS = 9

Race = Callable[[], Pace]


@dataclass(frozen=True, slots=True)
class Track:
    """A broker and edges that serve every cloud in turn."""

    serve: Callable[[Segment], Pace]
    names: Iterator[int]  # no two segments share a run's name on a broker

    def race(self, edges: int, dimension: int, updates: int) -> Race:
        """Return a segment that can be run again and again."""
        return lambda: self.serve(Segment(RunId(f"bench-{next(self.names)}"), edges, dimension, updates))


@contextlib.contextmanager
def bench_bed() -> Iterator[tuple[Broker, BenchFleet, Path]]:
    """Yield a broker, edges that wait for a cloud, and a directory; all of them go at the end."""
    with tempfile.TemporaryDirectory() as text:
        directory = Path(text)
        with (
            private_mosquitto(directory / "tuned") as broker,
            bench_fleet("experiments.bench.wire_edges", broker.address, _PROCESSES) as fleet,
        ):
            yield broker, fleet, directory


def wire_ratios() -> Iterator[Ratio]:
    with bench_bed() as (broker, fleet, directory):
        names = itertools.count()
        ours = Track(lambda s: serve_cloud(s, broker.address, fleet, directory), names)
        echo = Track(lambda s: serve_echo(s, broker.address, fleet), names)
        with core_of_its_own([broker.pid, *fleet.pids]):
            yield from against_echo(ours, echo)
            yield many_edges(ours)
            scraped = Track(lambda s: serve_cloud(s, broker.address, fleet, directory, scraped=True), names)
            yield with_metrics(scraped, ours)
        yield against_pickled(ours, directory)


def log_ratios() -> Iterator[Ratio]:
    """What it costs that a cloud can be resumed: after the end of its process, and after a power failure too."""
    with bench_bed() as (broker, fleet, directory), core_of_its_own([broker.pid, *fleet.pids]):
        names = itertools.count()
        without = Track(lambda s: serve_cloud(s, broker.address, fleet, directory, None), names)
        process = Track(lambda s: serve_cloud(s, broker.address, fleet, directory, "process"), names)
        power = Track(lambda s: serve_cloud(s, broker.address, fleet, directory, "power"), names)
        pairs = alternate(process.race(5, 7_850, 2000), without.race(5, 7_850, 2000))
        name = 'K = 5, N = 7,850: gradient log, durability = "process" / without'
        yield ratio_of(name, 0.9, pairs, "without")
        for edges in _EDGES:
            pairs = alternate(power.race(edges, 7_850, 400), process.race(edges, 7_850, 400), rounds=5)
            name = f'K = {edges}, N = 7,850: durability = "power" / "process"'
            yield ratio_of(name, 0.0, pairs, "process")  # no bar: what a disk takes to sync is not ours


@contextlib.contextmanager
def core_of_its_own(others: list[int]) -> Iterator[None]:
    """Give the cloud, ours or another, a core, and broker and edges the rest.

    Left to themselves they move about, and the rate of one and the same cloud varies fivefold.
    """
    cores = os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else set()
    if len(cores) < 2:
        yield
        return
    for pid in others:
        os.sched_setaffinity(pid, sorted(cores)[1:])
    os.sched_setaffinity(0, sorted(cores)[:1])
    try:
        yield
    finally:
        os.sched_setaffinity(0, cores)


def against_echo(ours: Track, echo: Track) -> Iterator[Ratio]:
    for edges, dimension in itertools.product(_EDGES, _DIMENSIONS):
        updates = 500 if dimension > 10_000 else 1000
        pairs = alternate(ours.race(edges, dimension, updates), echo.race(edges, dimension, updates))
        name = f"K = {edges}, N = {dimension:,}: ours / bare paho echo"
        yield ratio_of(name, 0.9, pairs, "echo")


def many_edges(ours: Track) -> Ratio:
    """Rate at K = 100 virtual edges over the rate at K = 20, in as many programs."""
    pairs = alternate(ours.race(100, 7_850, 2000), ours.race(20, 7_850, 2000))
    return ratio_of("N = 7,850: K = 100 / K = 20, virtual", 0.8, pairs, "K = 20")


def with_metrics(scraped: Track, ours: Track) -> Ratio:
    """Rate of a cloud whose metrics are scraped five times a second over that of one that serves none."""
    pairs = alternate(scraped.race(20, 7_850, 4000), ours.race(20, 7_850, 4000))
    return ratio_of("K = 20, N = 7,850: metrics scraped five times a second / none", 0.9, pairs, "none")


def against_pickled(ours: Track, directory: Path) -> Ratio:
    with (
        default_mosquitto(directory / "default") as broker,
        bench_fleet("experiments.bench.wire_pickled", broker.address, _PROCESSES) as fleet,
        core_of_its_own([broker.pid, *fleet.pids]),
    ):
        authors = Track(lambda s: serve_pickled(s, broker.address, fleet), ours.names)
        pairs = alternate(ours.race(5, 7_850, 1000), authors.race(5, 7_850, 80), rounds=5)
        return ratio_of("K = 5, N = 7,850: ours / the authors' way", 30, pairs, "authors")


def alternate(first: Race, second: Race, rounds: int = _ROUNDS) -> list[tuple[Pace, Pace]]:
    """Run both in turns, A B B A: what disturbs one disturbs its neighbour."""
    first(), second()  # warm
    pairs = []
    for number in range(rounds):
        if number % 2:
            b, a = second(), first()
        else:
            a, b = first(), second()
        pairs.append((a, b))
    return pairs


def ratio_of(name: str, bar: float, pairs: list[tuple[Pace, Pace]], other: str) -> Ratio:
    """Return the median of the ratios of rates, with the quartiles between which half of them lie."""
    ratios = [a.rate / b.rate for a, b in pairs]
    low, _, high = statistics.quantiles(ratios, n=4, method="inclusive")
    rates = [statistics.median(pace.rate for pace in paces) for paces in zip(*pairs, strict=True)]
    cpu = [statistics.median(pace.cpu for pace in paces) * 1e6 for paces in zip(*pairs, strict=True)]
    detail = (
        f"{rates[0]:,.0f}/s, {other} {rates[1]:,.0f}/s; quartiles {low:.2f} … {high:.2f}; "
        f"cloud's CPU {cpu[0]:.0f} and {cpu[1]:.0f} µs"
    )
    return Ratio(name, statistics.median(ratios), bar, False, detail)

"""Many edges for a long time: python -m experiments.bench soak --edges 1000 --minutes 15

The cloud is `mapa cloud` as a process of its own on a private Mosquitto; edges are lean, in a few processes. Sampled
every second from /proc: resident memory and open descriptors of cloud and broker, and what the run takes on disk. Exit
0 where none of them grows, 1 where growth cannot be excluded, 2 wrong configuration.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from cloud.recovery_log import EVERY_BYTES
from common.errors import ConfigurationError, MapaError
from experiments.bench.soak_slope import BLOCKS, Slope, fit_slope, last_part
from mapa.brokers import private_mosquitto
from mapa.process_run import edge_counts, one_thread_each
from mapa.processes import ends_with_parent

_RUN = "soak"
_DIMENSION = 785  # N of LR on mnist-5k
_PATIENCE = 180.0  # seconds for the beginning, and for the end
_MOST_DISK = 3 * EVERY_BYTES  # two segments that are needed, and one before it is removed
# an update: a leak keeps an object for each, and the smallest has 16 bytes; one descriptor in 10,000
BOUNDS = {"resident": 16.0, "descriptors": 1e-4}
SETTINGS = (
    "batch_size=4",
    "iterations=1000000000",
    "evaluation.every=0",
    "records.keep_gradients=false",
    "records.events=false",
)


@dataclass(slots=True)
class Samples:
    """What was seen of the processes, second by second."""

    times: list[float] = field(default_factory=list)
    values: dict[str, list[float]] = field(default_factory=dict)

    def take(self, cloud: int, broker: int, runs: Path) -> None:
        self.times.append(time.monotonic())
        seen = {
            "cloud resident": resident(cloud),
            "cloud descriptors": descriptors(cloud),
            "broker resident": resident(broker),
            "broker descriptors": descriptors(broker),
            "run disk": on_disk(runs),
        }
        for name, value in seen.items():
            self.values.setdefault(name, []).append(value)


def resident(pid: int) -> float:
    """Return the resident bytes of a process."""
    pages = int(Path(f"/proc/{pid}/statm").read_text(encoding="ascii").split()[1])
    return float(pages * os.sysconf("SC_PAGE_SIZE"))


def descriptors(pid: int) -> float:
    return float(sum(1 for _ in Path(f"/proc/{pid}/fd").iterdir()))


def on_disk(folder: Path) -> float:
    """Return the bytes of all files below; one that goes meanwhile has none."""
    total = 0
    for parent, _, names in os.walk(folder):  # unlike rglob it does not mind a folder that goes
        for name in names:
            with suppress(FileNotFoundError):
                total += (Path(parent) / name).stat().st_size
    return float(total)


@dataclass(frozen=True, slots=True)
class Verdict:
    """One quantity over the last two thirds; without a bound of its slope, by the most that it may ever be."""

    name: str
    mean: float
    largest: float
    slope: Slope  # an update
    bound: float | None = None
    most: float | None = None

    @property
    def flat(self) -> bool:
        if self.bound is None:
            return self.most is not None and self.largest <= self.most
        return self.slope.flat(self.bound)

    def as_dict(self) -> dict[str, Any]:
        interval = [self.slope.low, self.slope.high]
        return {
            "name": self.name,
            "mean": self.mean,
            "largest": self.largest,
            "slope_per_update": self.slope.value,
            "interval": interval,
            "bound": self.bound,
            "most": self.most,
            "flat": self.flat,
        }


def judge(samples: Samples, trips: np.ndarray[Any, np.dtype[np.float64]]) -> tuple[list[Verdict], float]:
    """Return whether each quantity is flat over the last two thirds, and the updates a second meanwhile."""
    part = last_part(samples.times)
    times = samples.times[part]
    answered = int(np.count_nonzero((trips[:, 0] >= times[0]) & (trips[:, 0] <= times[-1])))
    rate = answered / (times[-1] - times[0])
    found = []
    for name, values in samples.values.items():
        slope = fit_slope(times, values[part]).per(rate)
        mean, largest = float(np.mean(values[part])), max(values[part])
        bound = BOUNDS.get(name.split()[1])
        most = _MOST_DISK if bound is None else None  # the disk's use is a saw: it is recycled, or it is not
        found.append(Verdict(name, mean, largest, slope, bound, most))
    return found, rate


@dataclass(frozen=True, slots=True)
class Bed:
    """A cloud and its lean edges, as they run."""

    directory: Path
    broker: int  # its process
    cloud: subprocess.Popen[bytes]
    fleets: list[subprocess.Popen[bytes]]

    @property
    def runs(self) -> Path:
        return self.directory / "runs"

    def check(self) -> None:
        """Raise MapaError where a process has ended."""
        _alive([self.cloud, *self.fleets], self.directory / "cloud.log")

    def end(self) -> tuple[dict[str, Any], list[dict[str, Any]]]:
        """Interrupt the run; return its summary, and what each process of edges counted."""
        self.cloud.send_signal(signal.SIGINT)
        out, _ = self.cloud.communicate(timeout=10 * _PATIENCE)
        counted = [json.loads(child.communicate(timeout=_PATIENCE)[0]) for child in self.fleets]
        if self.cloud.returncode != 130 or not all(one["ended"] for one in counted):
            raise MapaError(f"the cloud ended with {self.cloud.returncode}, edges with {counted}")
        return json.loads(out), counted


@contextmanager
def running(
    edges: int, minutes: float, rate: float, processes: int, directory: Path, settings: Sequence[str]
) -> Iterator[Bed]:
    """Start `mapa cloud` and lean edges on a private Mosquitto, and wait for the first updates."""
    with private_mosquitto(directory / "broker") as broker, ExitStack() as stack:
        log = stack.enter_context((directory / "cloud.log").open("wb"))
        words = [sys.executable, "-P", "-m", "mapa.cli", "cloud", "quickstart", "--run", _RUN]
        words += ["--broker", str(broker.address), "--runs-dir", str(directory / "runs"), "--json"]
        words += ["--edges", str(edges), "--edges-at-least", str(edges), "--gather", "60"]
        for setting in settings:
            words += ["--set", setting]
        cloud = stack.enter_context(
            _child(subprocess.Popen(ends_with_parent(words), stdout=subprocess.PIPE, stderr=log, env=_env()))
        )
        fleets = []
        counts, first = edge_counts(edges, processes), 0
        for number, count in enumerate(counts):
            child = stack.enter_context(_child(_edges()))
            task = {
                "broker": str(broker.address),
                "run": _RUN,
                "ids": [f"edge-{k}" for k in range(first, first + count)],
                "dimension": _DIMENSION,
                "pause": edges / rate,
                "seed": number,
                "until": 60 * minutes + 3 * _PATIENCE,
                "out": str(directory / f"trips-{number}.npy"),
            }
            first += count
            assert child.stdin is not None
            child.stdin.write(json.dumps(task).encode() + b"\n")
            child.stdin.flush()
            fleets.append(child)
        _until_begun(directory / "runs", cloud, directory / "cloud.log")
        yield Bed(directory, broker.pid, cloud, fleets)


def soak(edges: int, minutes: float, rate: float, processes: int, directory: Path) -> dict[str, Any]:
    """Run it; return everything that was found."""
    samples = Samples()
    with running(edges, minutes, rate, processes, directory, SETTINGS) as bed:
        began = time.monotonic()
        load = [os.getloadavg()[0]]
        while time.monotonic() < began + 60 * minutes:
            bed.check()
            samples.take(bed.cloud.pid, bed.broker, bed.runs)
            load.append(os.getloadavg()[0])
            time.sleep(max(0.0, began + len(samples.times) - time.monotonic()))
        summary, counted = bed.end()
    trips = np.concatenate([np.load(directory / f"trips-{number}.npy") for number in range(len(counted))])
    verdicts, measured = judge(samples, trips)
    late = trips[trips[:, 0] >= samples.times[last_part(samples.times).start], 1]
    percentiles = {f"p{p:g}": float(np.percentile(late, p)) * 1e3 for p in (50, 90, 95, 99, 99.9)}
    refused = [one["refused"] for one in counted]
    return {
        "edges": edges,
        "minutes": minutes,
        "updates": summary["updates"],
        "updates_per_second": measured,
        "logged_bytes": summary["updates"] * 4 * _DIMENSION,
        "load": [min(load), float(np.median(load)), max(load)],
        "round_trip_ms": {**percentiles, "max": float(late.max()) * 1e3},
        "refused_at_edges": {key: sum(one.get(key, 0) for one in refused) for one in refused for key in one},
        "refused_by_cloud": summary["refused"],
        "sent_again": sum(one["resent"] for one in counted),
        "verdicts": [verdict.as_dict() for verdict in verdicts],
        "flat": all(verdict.flat for verdict in verdicts),
        "samples": {"time": [one - began for one in samples.times], **samples.values},
    }


def _env() -> dict[str, str]:
    return one_thread_each()


def _edges() -> subprocess.Popen[bytes]:
    words = [sys.executable, "-m", "experiments.bench.soak_edges"]
    return subprocess.Popen(
        ends_with_parent(words), stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=_env()
    )


class _child:
    """A process that ends with the block."""

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        self._process = process

    def __enter__(self) -> subprocess.Popen[bytes]:
        return self._process

    def __exit__(self, *_: object) -> None:
        if self._process.poll() is None:
            self._process.kill()
        self._process.wait()
        for stream in (self._process.stdin, self._process.stdout):
            if stream is not None:
                stream.close()


def _alive(children: Sequence[subprocess.Popen[bytes]], log: Path) -> None:
    for child in children:
        if child.poll() is not None:
            raise MapaError(f"soak: {child.args!r} ended with {child.returncode}: {log.read_text()[-800:]}")


def _until_begun(runs: Path, cloud: subprocess.Popen[bytes], log: Path) -> None:
    """Wait for the first records of gradients: the log grows beyond the hellos."""
    until = time.monotonic() + _PATIENCE
    while not any(path.stat().st_size > (1 << 20) for path in runs.glob("*/log/*.seg")):
        _alive([cloud], log)
        if time.monotonic() > until:
            raise MapaError(f"soak: no update within {_PATIENCE:g} s: {log.read_text()[-800:]}")
        time.sleep(0.2)


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m experiments.bench soak", description=(__doc__ or "").partition("\n")[0]
    )
    parser.add_argument("--edges", type=int, default=1000)
    parser.add_argument("--minutes", type=float, default=15.0)
    parser.add_argument("--rate", type=float, default=500.0, help="updates a second of all edges together")
    parser.add_argument("--processes", type=int, default=2, help="that carry the edges")
    parser.add_argument("--out", type=Path, help="file for every sample, as JSON")
    given = parser.parse_args(arguments)
    try:
        if not Path("/proc/self/statm").exists():
            raise ConfigurationError("soak: memory and descriptors are read from /proc: Linux alone")
        if not 1 <= given.edges <= 1250:  # shards of mnist-5k with four rows and more
            raise ConfigurationError(f"--edges {given.edges}: must be from 1 to 1,250")
        if not given.minutes * 60 * 2 / 3 >= 4 * BLOCKS:
            raise ConfigurationError(f"--minutes {given.minutes:g}: must be at least 1")
        if not given.rate > 0 or given.processes < 1:
            raise ConfigurationError("--rate and --processes: must be above 0")
        with tempfile.TemporaryDirectory() as folder:
            found = soak(given.edges, given.minutes, given.rate, given.processes, Path(folder))
    except ConfigurationError as error:
        print(f"configuration error: {error}", file=sys.stderr)
        return 2
    sampled = found.pop("samples")
    if given.out is not None:
        given.out.write_text(json.dumps(sampled) + "\n", encoding="utf-8")
    print(json.dumps(found, indent=2))
    return 0 if found["flat"] else 1

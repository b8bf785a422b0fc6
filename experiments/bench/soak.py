"""Many edges for a long time: python -m experiments.bench soak --edges 1000 --minutes 15

The cloud is `mapa cloud` as a process of its own on a private Mosquitto; edges are lean, in a few processes. Sampled
every second from /proc: resident memory and open descriptors of cloud and broker, and what the run takes on disk. Exit
0 where none of them grows, 1 where growth cannot be excluded, 2 wrong configuration.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from scipy.stats import t as student

from cloud.recovery_log import EVERY_BYTES
from common.errors import ConfigurationError
from experiments.bench.bed import DIMENSION, CloudBed, cloud_bed

BLOCKS = 10  # of a minute each in 15 minutes: memory moves in steps that last for several checkpoints
_MOST_DISK = 3 * EVERY_BYTES  # two segments that are needed, and one before it is removed
# an update: a leak keeps an object for each, and the smallest has 16 bytes; one descriptor in 10,000
_BOUNDS = {"resident": 16.0, "descriptors": 1e-4}
SETTINGS = (
    "batch_size=4",
    "iterations=1000000000",
    "evaluation.every=0",
    "records.keep_gradients=false",
    "records.events=false",
)


SampledValues = Sequence[float] | npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Slope:
    """Change a second, with the bounds of a 95 % confidence interval."""

    value: float
    low: float
    high: float

    def per(self, rate: float) -> Slope:
        """Return the slope per event where `rate` of them come a second."""
        if not rate > 0:
            raise ConfigurationError(f"soak: {rate:g} updates a second: nothing to divide by")
        return Slope(self.value / rate, self.low / rate, self.high / rate)

    def flat(self, bound: float) -> bool:
        """Tell whether growth above the bound is excluded; what shrinks is no leak."""
        return self.high < bound


def fit_slope(times: SampledValues, values: SampledValues, blocks: int = BLOCKS) -> Slope:
    """Fit a line to the means of blocks.

    One second's sample is nearly the last one's: a fit to all of them would take them for independent, and its
    interval for far too small. Means over blocks that are longer than what makes them alike (a checkpoint comes every
    30 s or more) are closer to it.
    """
    if len(times) != len(values) or len(times) < 2 * blocks:
        raise ConfigurationError(f"soak: {len(times)} samples: must be at least {2 * blocks}")
    x, y = (
        np.array([part.mean() for part in np.array_split(np.asarray(v, float), blocks)])
        for v in (times, values)
    )
    centred = x - x.mean()
    spread = float(centred @ centred)
    slope = float(centred @ y) / spread
    residuals = y - y.mean() - slope * centred
    error = math.sqrt(float(residuals @ residuals) / (blocks - 2) / spread)
    reach = float(student.ppf(0.975, blocks - 2)) * error
    return Slope(slope, slope - reach, slope + reach)


def last_part(times: Sequence[float], share: float = 2 / 3) -> slice:
    """Return where the last `share` of the time begins, as a slice of the samples."""
    begin = times[-1] - share * (times[-1] - times[0])
    return slice(int(np.searchsorted(np.asarray(times), begin)), len(times))


def look_at(bed: CloudBed) -> dict[str, float]:
    seen = {"run disk": _on_disk(bed.runs)}
    for name, pid in (("cloud", bed.cloud.pid), ("broker", bed.broker.pid)):
        pages = int(Path(f"/proc/{pid}/statm").read_text(encoding="ascii").split()[1])
        seen[f"{name} resident"] = float(pages * os.sysconf("SC_PAGE_SIZE"))
        seen[f"{name} descriptors"] = float(sum(1 for _ in Path(f"/proc/{pid}/fd").iterdir()))
    return seen


def _on_disk(folder: Path) -> float:
    """Return the bytes of all files below; one that goes meanwhile has none."""
    total = 0
    for parent, _, names in os.walk(folder):  # unlike rglob it does not mind a folder that goes
        for name in names:
            with suppress(FileNotFoundError):
                total += (Path(parent) / name).stat().st_size
    return float(total)


def judge(
    times: Sequence[float], samples: Sequence[Mapping[str, float]], answered: npt.NDArray[np.float64]
) -> tuple[list[dict[str, Any]], float]:
    """Return whether each quantity is flat over the last two thirds, and the updates a second meanwhile."""
    part = last_part(times)
    begin, end = times[part.start], times[-1]
    rate = int(np.count_nonzero((answered >= begin) & (answered <= end))) / (end - begin)
    found = []
    for name in samples[0]:
        values = [sample[name] for sample in samples[part]]
        slope, largest, bound = (
            fit_slope(times[part], values).per(rate),
            max(values),
            _BOUNDS.get(name.split()[1]),
        )
        found.append(
            {
                "name": name,
                "mean": float(np.mean(values)),
                "largest": largest,
                "slope_per_update": slope.value,
                "interval": [slope.low, slope.high],
                "bound": bound,
                "most": _MOST_DISK if bound is None else None,
                # the disk's use is a saw: it is recycled, or it is not
                "flat": largest <= _MOST_DISK if bound is None else slope.flat(bound),
            }
        )
    return found, rate


def soak(edges: int, minutes: float, rate: float, processes: int) -> dict[str, Any]:
    """Run it; return everything that was found."""
    times: list[float] = []
    samples: list[dict[str, float]] = []
    load = [os.getloadavg()[0]]
    with cloud_bed("quickstart", edges, SETTINGS) as bed:
        fleet = bed.lean_edges(edges, rate, 60 * minutes, processes)
        began = time.monotonic()
        while time.monotonic() < began + 60 * minutes:
            bed.check()
            times.append(time.monotonic())
            samples.append(look_at(bed))
            load.append(os.getloadavg()[0])
            time.sleep(max(0.0, began + len(times) - time.monotonic()))
        summary, counted = bed.end(), fleet.end()
        trips = np.concatenate([np.load(path) for path in bed.directory.glob("trips-*.npy")])
    verdicts, measured = judge(times, samples, trips[:, 0])
    late = trips[trips[:, 0] >= times[last_part(times).start], 1]
    percentiles = {f"p{p:g}": float(np.percentile(late, p)) * 1e3 for p in (50, 90, 95, 99, 99.9)}
    refused = [one["refused"] for one in counted]
    return {
        "edges": edges,
        "minutes": minutes,
        "updates": summary["updates"],
        "updates_per_second": measured,
        "logged_bytes": summary["updates"] * 4 * DIMENSION,
        "load": [min(load), float(np.median(load)), max(load)],
        "round_trip_ms": {**percentiles, "max": float(late.max()) * 1e3},
        "refused_at_edges": {key: sum(one.get(key, 0) for one in refused) for one in refused for key in one},
        "refused_by_cloud": summary["refused"],
        "sent_again": sum(one["resent"] for one in counted),
        "verdicts": verdicts,
        "flat": all(verdict["flat"] for verdict in verdicts),
        "samples": {
            "time": [when - began for when in times],
            **{name: [sample[name] for sample in samples] for name in samples[0]},
        },
    }


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
    checks = {
        "soak: memory and descriptors are read from /proc: Linux alone": Path("/proc/self/statm").exists(),
        f"--edges {given.edges}: must be from 1 to 1,250": 1
        <= given.edges
        <= 1250,  # four rows each, or more
        f"--minutes {given.minutes:g}: must be at least 1": 1 <= given.minutes < math.inf,
        "--rate and --processes: must be above 0": given.rate > 0 and given.processes > 0,
    }
    for said, holds in checks.items():
        if not holds:
            print(f"configuration error: {said}", file=sys.stderr)
            return 2
    try:
        found = soak(given.edges, given.minutes, given.rate, given.processes)
    except ConfigurationError as error:
        print(f"configuration error: {error}", file=sys.stderr)
        return 2
    sampled = found.pop("samples")
    if given.out is not None:
        given.out.write_text(json.dumps(sampled) + "\n", encoding="utf-8")
    print(json.dumps(found, indent=2))
    return 0 if found["flat"] else 1

"""Many edges for a long time: python -m experiments.bench soak --edges 1000 --minutes 15

The cloud is `mapa cloud` as a process of its own on a private Mosquitto; edges are lean, in a few processes. Sampled
every second from /proc: resident memory and open descriptors of cloud and broker, and what the run takes on disk. With
--strict the exit code is 1 where growth of one of them cannot be excluded.
"""

from __future__ import annotations

import functools
import json
import math
import os
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

import numpy as np
import numpy.typing as npt
from scipy.stats import t as student

from cloud.recovery_log import EVERY_BYTES
from common.errors import ConfigurationError, MapaError
from experiments.bench.bed import MEGA, CloudBed, cloud_bed
from experiments.bench.rounds import Case, Figures, Ratio

BLOCKS = 10  # of a minute each in 15 minutes: memory moves in steps that last for several checkpoints
_PROCESSES = 2  # that carry the edges
_MOST_DISK = 3 * EVERY_BYTES / MEGA  # two segments that are needed, and one before it is removed
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


def fit_slope(times: SampledValues, values: SampledValues, blocks: int = BLOCKS) -> npt.NDArray[np.float64]:
    """Fit a line to the means of blocks; return its slope and the bounds of a 95 % confidence interval.

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
    return np.array([slope, slope - reach, slope + reach])


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
) -> tuple[Figures, list[Ratio]]:
    """Return what was seen over the last two thirds, and the bars of it: upper ends of 95 % intervals, an update."""
    part = last_part(times)
    begin, end = times[part.start], times[-1]
    rate = int(np.count_nonzero((answered >= begin) & (answered <= end))) / (end - begin)
    if not rate > 0:
        raise MapaError("soak: no update in the last two thirds: nothing to divide by")
    figures, bars = {"rate": rate}, []
    for name in samples[0]:
        values = [sample[name] for sample in samples[part]]
        figures[f"{name}, mean"] = float(np.mean(values))
        bound = _BOUNDS.get(name.split()[1])
        if bound is None:  # the disk's use is a saw: it is recycled, or it is not
            figures[f"{name} MB, most"] = max(values) / MEGA
            bars.append(Ratio(f"{name} MB, most", "the run", at_most=_MOST_DISK))
            continue
        slopes = zip(("slope", "least", "most"), fit_slope(times[part], values) / rate, strict=True)
        figures |= {f"{name}, {which}": float(slope) for which, slope in slopes}
        bars.append(Ratio(f"{name}, most", "the run", at_most=bound))
    return figures, bars


def soak_cases(edges: int, minutes: float, rate: float, out: Path | None) -> Iterator[Case]:
    if not Path("/proc/self/statm").exists():
        raise ConfigurationError("soak: memory and descriptors are read from /proc: Linux alone")
    if not 1 <= edges <= 1250:  # four rows each, or more
        raise ConfigurationError(f"--edges {edges}: must be from 1 to 1,250")
    if not (1 <= minutes < math.inf and rate > 0):
        raise ConfigurationError(f"--minutes {minutes:g}, --rate {rate:g}: must be at least 1, and above 0")
    bars: list[Ratio] = []  # filled by the turn, which knows what was sampled
    turn = functools.partial(_soak, edges, minutes, rate, out, bars)
    yield Case(
        f"soak: K = {edges:,}, {minutes:g} min, {rate:g}/s asked for", {"the run": turn}, bars, rounds=1
    )


def _soak(edges: int, minutes: float, rate: float, out: Path | None, bars: list[Ratio]) -> Figures:
    times: list[float] = []
    samples: list[dict[str, float]] = []
    load = [os.getloadavg()[0]]
    with cloud_bed("quickstart", edges, SETTINGS) as bed:
        bed.lean_edges(edges, rate, 60 * minutes, _PROCESSES)
        began = time.monotonic()
        while time.monotonic() < began + 60 * minutes:
            bed.check()
            times.append(time.monotonic())
            samples.append(look_at(bed))
            load.append(os.getloadavg()[0])
            time.sleep(max(0.0, began + len(times) - time.monotonic()))
        summary, counted = bed.end()
        trips = np.concatenate([np.load(path) for path in bed.directory.glob("trips-*.npy")])
    figures, asked = judge(times, samples, trips[:, 0])
    bars += asked
    late = 1e3 * trips[trips[:, 0] >= times[last_part(times).start], 1]
    if out is not None:
        columns = {name: [sample[name] for sample in samples] for name in samples[0]}
        kept = {"time": [when - began for when in times], **columns}
        out.write_text(json.dumps(kept) + "\n", encoding="utf-8")
    return {
        **figures,
        **{f"round trip ms, {p:g} %": float(np.percentile(late, p)) for p in (50, 90, 95, 99, 99.9, 100)},
        "updates": summary["updates"],
        "load, median": float(np.median(load)),
        "load, most": max(load),
        "refused at edges": sum(sum(one["refused"].values()) for one in counted),
        "refused by cloud": sum(summary["refused"].values()),
        "sent again": sum(one["resent"] for one in counted),
    }

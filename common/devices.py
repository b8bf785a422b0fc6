"""Emulated devices: how much slower a gradient is, and when an edge is there (windows or churn, in seconds).

The scenario's tables (common/scenario/tables.py) check single numbers; here is what depends on several.
"""

from __future__ import annotations

import csv
import math
import stat
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from enum import Enum
from itertools import pairwise
from pathlib import Path

import numpy as np

from common.errors import ConfigurationError, nearest, require
from common.randomness import CounterStreams, Purpose

# A scenario, and with it a welcome, may say when an edge is there: these keep it from making an edge spin or vanish.
LEAST_SPAN = 0.1  # seconds, of being there and of being away
LONGEST_SPAN = 31_536_000.0  # seconds: a year
MOST_WINDOWS = 500  # of one edge: a welcome has room for them
MOST_ROWS = 200_000  # of a file
_MOST_BYTES = 16 << 20  # of a file
_TICK = 1e-6  # seconds: a moment computed as the beginning of a window lies in it, however it was rounded
_FAR_DRAW = 10.0  # times its mean that an exponential span almost never exceeds: once in 22,000

# A scenario, and with it a welcome, may name a device: these keep it from stopping an edge.
LARGEST_SLOWDOWN = 1000.0
LARGEST_JITTER = 2.0
LONGEST_REFERENCE_MS = 60_000.0
LONGEST_NAME = 64  # characters
_OWN = "custom"  # of a device without a name

Span = tuple[float, float]  # start, end


@dataclass(frozen=True, slots=True)
class Windows:
    """There within the windows, away outside; the whole repeats after `period` seconds."""

    windows: tuple[Span, ...]
    period: float

    def __post_init__(self) -> None:
        given = LEAST_SPAN <= self.period <= LONGEST_SPAN
        _require(given, "period", self.period, f"from {LEAST_SPAN:g} to {LONGEST_SPAN:.0f} seconds")
        allowed = f"[start, end] of at least {LEAST_SPAN:g} s within 0 to {self.period:g}, the period"
        for start, end in self.windows:
            within = start >= 0 and end - start >= LEAST_SPAN * 0.999 and end <= self.period
            _require(within, "windows", [start, end], allowed)
        for (_, end), (start, _) in pairwise(self.windows):
            allowed = f"in order, each {LEAST_SPAN:g} s or more behind the one before"
            _require(start - end >= LEAST_SPAN * 0.999, "windows", start, allowed)
        allowed = "shorter than the period: it leaves no time away"
        _require(self.longest_absence > 0, "windows", list(self.windows[0]), allowed)

    @classmethod
    def daily(cls, period: float, share: float, phase: float) -> Windows:
        """There for a share of every period, from the phase (a share of the period, too) on."""
        _require(0 < share < 1, "share", share, "above 0 and below 1")
        long = math.isfinite(period) and min(share, 1 - share) * period >= LEAST_SPAN
        _require(long, "period", period, f"so long that each part of it has {LEAST_SPAN:g} s or more")
        start, end = phase * period, (phase + share) * period
        if end <= period:
            return cls(((start, end),), period)
        parts = ((0.0, end - period), (start, period))
        return cls(tuple(part for part in parts if part[1] - part[0] >= LEAST_SPAN), period)

    @property
    def longest_absence(self) -> float:
        gaps = [start - end for (_, end), (start, _) in pairwise(self.windows)]
        return max([*gaps, self.windows[0][0] + self.period - self.windows[-1][1]])

    def at(self, seconds: float) -> tuple[bool, float]:
        position = (seconds + _TICK) % self.period
        begun = seconds + _TICK - position
        for start, end in self.windows:
            if position < start:
                return False, begun + start
            if position < end:
                return True, begun + end
        return False, begun + self.period + self.windows[0][0]


@dataclass(frozen=True, slots=True)
class Churn:
    """There and away in turn, each for an exponential time of this mean; there at first."""

    up: float
    down: float

    @property
    def longest_absence(self) -> float:
        return _FAR_DRAW * self.down


Availability = Windows | Churn


class Attendance:
    """The times of one edge; asked about moments that do not go back."""

    def __init__(self, availability: Availability, streams: CounterStreams, edge: int) -> None:
        self._availability = availability
        self._spans = _spans(availability, streams, edge) if isinstance(availability, Churn) else None
        self._here, self._until = (False, 0.0) if self._spans is None else next(self._spans)

    def at(self, seconds: float) -> tuple[bool, float]:
        """Tell whether the edge is there, and until when that stays so at least."""
        if isinstance(self._availability, Windows):
            return self._availability.at(seconds)
        assert self._spans is not None
        while self._until <= seconds + _TICK:
            self._here, self._until = next(self._spans)
        return self._here, self._until


def _spans(churn: Churn, streams: CounterStreams, edge: int) -> Iterator[tuple[bool, float]]:
    end, n, here = 0.0, 0, True
    while True:
        n += 1
        drawn = float(streams.at(edge, Purpose.AVAILABILITY, n).standard_exponential())
        end += max(LEAST_SPAN, (churn.up if here else churn.down) * drawn)
        yield here, end
        here = not here


def windows_from_csv(path: Path) -> dict[int, list[Span]]:
    """Read columns edge,start,end in seconds; an edge's rows in any order."""
    by_edge: dict[int, list[Span]] = {}
    try:
        about = path.stat()
        if not stat.S_ISREG(about.st_mode):
            raise ValueError("is no regular file")
        if about.st_size > _MOST_BYTES:
            raise ValueError(f"has more than {_MOST_BYTES >> 20} MiB")
        with path.open(newline="", encoding="utf-8") as stream:
            for number, row in enumerate(csv.DictReader(stream, skipinitialspace=True), start=2):
                if number - 1 > MOST_ROWS:
                    raise ValueError(f"has more than {MOST_ROWS} rows")
                if None in row:
                    raise ValueError(f"line {number}: has more values than columns")
                edge, start, end = int(row["edge"]), float(row["start"]), float(row["end"])
                if edge < 0 or not 0 <= start < end <= LONGEST_SPAN:
                    raise ValueError(
                        f"line {number}: edge = {edge}, start = {start:g}, end = {end:g}: an edge counts from 0, and"
                        f" 0 ≤ start < end ≤ {LONGEST_SPAN:.0f}"
                    )
                by_edge.setdefault(edge, []).append((start, end))
    except (OSError, ValueError, KeyError, TypeError, csv.Error) as error:
        reason = f"no column {error}" if isinstance(error, KeyError) else error
        raise ConfigurationError(
            f"devices.availability.file = {str(path)!r}: {reason}; needed is CSV with columns edge,start,end"
        ) from error
    if not by_edge:
        raise ConfigurationError(f"devices.availability.file = {str(path)!r}: holds no row")
    return {edge: _joined(windows) for edge, windows in sorted(by_edge.items())}


def _joined(windows: list[Span]) -> list[Span]:
    """Return windows in order; what overlaps, or leaves less than the least span between, is one."""
    joined: list[Span] = []
    for start, end in sorted(windows):
        if joined and start - joined[-1][1] < LEAST_SPAN:
            joined[-1] = (joined[-1][0], max(end, joined[-1][1]))
        else:
            joined.append((start, end))
    return joined


def _require(condition: bool, key: str, value: object, allowed: str) -> None:
    require(condition, f"availability.{key}", value, allowed)


class JitterLaw(Enum):
    """How the time of a gradient varies around its mean."""

    LOGNORMAL = "lognormal"  # jitter is the σ of the logarithm
    UNIFORM = "uniform"  # ± this share of the mean, at most 1


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceProfile:
    """A gradient takes slowdown × reference × a draw of mean 1."""

    name: str = _OWN
    slowdown: float = 1.0
    jitter: float = 0.0
    distribution: JitterLaw = JitterLaw.LOGNORMAL
    reference_ms: float | None = None  # of a gradient at slowdown 1; None: measured where the edge runs
    availability: Availability | None = None  # None: always there

    def __post_init__(self) -> None:
        if self.distribution is JitterLaw.UNIFORM and self.jitter > 1:
            raise ConfigurationError(
                f"device {self.name!r}: jitter = {self.jitter}: must be from 0 to 1 with 'uniform'"
            )

    @property
    def is_slow(self) -> bool:
        """Whether a gradient takes another time than it does on this machine."""
        return self.slowdown > 1 or self.jitter > 0 or self.reference_ms is not None

    def factor(self, generator: np.random.Generator) -> float:
        """Draw how many times the reference one gradient takes; its mean is the slowdown."""
        if not self.jitter:
            return self.slowdown
        if self.distribution is JitterLaw.UNIFORM:
            return self.slowdown * float(generator.uniform(1 - self.jitter, 1 + self.jitter))
        return self.slowdown * math.exp(self.jitter * float(generator.standard_normal()) - self.jitter**2 / 2)


# Slowdown and jitter: round figures for orientation, not measured: `mapa devices measure` makes measured ones.
_PRESETS = {
    "workstation": (1.0, 0.0),
    "laptop": (1.5, 0.1),
    "phone": (4, 0.3),
    "pi5": (4, 0.05),
    "pi4": (8, 0.05),
    "jetson-nano": (10, 0.05),
}
PRESETS: Mapping[str, DeviceProfile] = {
    name: DeviceProfile(name=name, slowdown=slowdown, jitter=jitter)
    for name, (slowdown, jitter) in _PRESETS.items()
}


def device_profile(fields: Mapping[str, object], index: int = 0) -> DeviceProfile:
    """Return a preset with the given fields in place of its own; `index` is the edge's, for its phase."""
    given = {key: value for key, value in fields.items() if value is not None}
    name = str(given.pop("name", _OWN))
    # A mistyped preset must not run at slowdown 1; a device without a name is one of its own.
    enough = given if name == _OWN else given.keys() & {"slowdown", "reference_ms", "availability"}
    if name not in PRESETS and not enough:
        raise ConfigurationError(
            f"device: name = {name!r}: allowed are {', '.join(PRESETS)}, or give slowdown, reference_ms or availability"
            f"{nearest(name, PRESETS)}"
        )
    if "distribution" in given:
        given["distribution"] = JitterLaw(given["distribution"])
    if "availability" in given:
        table = given["availability"]
        assert isinstance(table, Mapping)
        given["availability"] = availability_of(table, index)
    return replace(PRESETS.get(name, DeviceProfile(name=name)), **given)  # type: ignore[arg-type]


def availability_of(fields: Mapping[str, object], index: int = 0) -> Availability:
    """Return windows (windows, period), a daily pattern (period, share, phase) or churn (up, down)."""
    given = {key: value for key, value in fields.items() if value is not None}
    match sorted(given):
        case ["windows"] | ["period", "windows"]:
            windows = tuple((float(start), float(end)) for start, end in given["windows"])  # type: ignore[attr-defined]
            period = given.get("period", max((end for _, end in windows), default=0.0))
            return Windows(windows, float(period))  # type: ignore[arg-type]
        case ["period", "share"] | ["period", "phase", "share"]:
            phases = given.get("phase", [0.0])
            assert isinstance(phases, list)
            period, share = given["period"], given["share"]
            return Windows.daily(float(period), float(share), phases[index % len(phases)])  # type: ignore[arg-type]
        case ["down", "up"]:
            return Churn(float(given["up"]), float(given["down"]))  # type: ignore[arg-type]
        case keys:
            raise ConfigurationError(
                f"availability: has {', '.join(keys) or 'nothing'}; must be windows (and period), or period, share"
                " (and phase), or up and down, or in a scenario file: file (and period)"
            )

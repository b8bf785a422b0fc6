"""The link of one edge: delay, jitter, rate and partitions; pure. `common/transport/relay.py` applies it."""

from __future__ import annotations

import csv
import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import Enum
from pathlib import Path

import numpy as np

from common.errors import ConfigurationError, nearest

_PARETO_SHAPE = 3.0  # finite variance, heavy tail
_BLOCK = 256  # draws at a time

# A scenario, and with it a welcome, may name a link: these keep it from stopping an edge.
LONGEST_DELAY_MS = 60_000.0
LEAST_RATE_KBPS = 1.0
MOST_PARTITIONS = 1000  # each is looked at for every chunk
LONGEST_PARTITION = 86_400.0  # seconds
LATEST_PARTITION = 31_536_000.0  # seconds since the relay opened


class Distribution(Enum):
    """How the jitter falls. The last three add to the delay, with `jitter_ms` as their mean."""

    CONSTANT = "constant"  # no jitter
    UNIFORM = "uniform"  # delay ± jitter
    NORMAL = "normal"  # jitter is the standard deviation
    EXPONENTIAL = "exponential"
    LOGNORMAL = "lognormal"  # σ = 1 of the logarithm
    PARETO = "pareto"  # shape 3


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkProfile:
    """One way of a link; both ways are alike. No delay is ever below 0."""

    name: str = "custom"
    delay_ms: float = 0.0
    jitter_ms: float = 0.0
    distribution: Distribution = Distribution.CONSTANT
    rate_kbps: float | None = None  # 1,000 bits per second; None: no limit
    partitions: tuple[tuple[float, float], ...] = ()  # (start, duration) in seconds since the relay opened

    def __post_init__(self) -> None:
        if (fault := self._fault()) is not None:
            raise ConfigurationError(f"link {self.name!r}: {fault}")

    def _fault(self) -> str | None:
        for key, value in (("delay_ms", self.delay_ms), ("jitter_ms", self.jitter_ms)):
            if not 0 <= value <= LONGEST_DELAY_MS:
                return f"{key} = {value}: must be from 0 to {LONGEST_DELAY_MS:g}"
        if self.rate_kbps is not None and not LEAST_RATE_KBPS <= self.rate_kbps < math.inf:
            return f"rate_kbps = {self.rate_kbps}: must be {LEAST_RATE_KBPS:g} or more"
        if self.jitter_ms and self.distribution is Distribution.CONSTANT:
            laws = [law.value for law in Distribution][1:]
            return f"jitter_ms = {self.jitter_ms}: a constant link has no jitter; set distribution to one of {laws}"
        if len(self.partitions) > MOST_PARTITIONS:
            return f"{len(self.partitions)} partitions: must be at most {MOST_PARTITIONS}"
        for start, length in self.partitions:
            if not (0 <= start <= LATEST_PARTITION and 0 < length <= LONGEST_PARTITION):
                most = f"{LATEST_PARTITION:.0f} s and last above 0, at most {LONGEST_PARTITION:.0f} s"
                return f"partition ({start}, {length}): must start from 0 to {most}"
        return None

    @property
    def mean_delay_ms(self) -> float:
        """The one-way delay that is asked for, rate and partitions aside."""
        one_sided = (Distribution.EXPONENTIAL, Distribution.LOGNORMAL, Distribution.PARETO)
        return self.delay_ms + (self.jitter_ms if self.distribution in one_sided else 0.0)

    @property
    def is_free(self) -> bool:
        """Whether the link changes nothing, so that no relay is needed."""
        return not (self.delay_ms or self.jitter_ms or self.rate_kbps or self.partitions)


# One way, typical rather than best: half of the round trips that such links show under light load.
PRESETS: Mapping[str, LinkProfile] = {
    name: LinkProfile(name=name, delay_ms=delay, jitter_ms=jitter, distribution=law, rate_kbps=1000 * mbps)
    for name, delay, jitter, law, mbps in (
        ("lan", 0.3, 0.05, Distribution.UNIFORM, 1000),
        ("wifi", 2, 1.5, Distribution.EXPONENTIAL, 50),
        ("5g", 8, 3, Distribution.LOGNORMAL, 100),
        ("4g", 25, 10, Distribution.LOGNORMAL, 20),
        ("wan", 40, 4, Distribution.NORMAL, 100),
        ("satellite", 270, 15, Distribution.NORMAL, 10),  # geostationary
    )
}


class DelayDraws:
    """Delays of one way in seconds, drawn in blocks."""

    def __init__(self, profile: LinkProfile, generator: np.random.Generator) -> None:
        self._profile = profile
        self._generator = generator
        self._waiting: list[float] = []

    def next(self) -> float:
        """Return the delay of the next chunk."""
        if not self._waiting:
            self._waiting = (np.maximum(self._block(), 0.0) / 1000).tolist()
        return self._waiting.pop()

    def _block(self) -> np.typing.NDArray[np.float64]:
        delay, jitter, generator = self._profile.delay_ms, self._profile.jitter_ms, self._generator
        match self._profile.distribution:
            case Distribution.CONSTANT:
                return np.full(_BLOCK, delay)
            case Distribution.UNIFORM:
                return generator.uniform(delay - jitter, delay + jitter, _BLOCK)
            case Distribution.NORMAL:
                return generator.normal(delay, jitter, _BLOCK)
            case Distribution.EXPONENTIAL:
                return delay + generator.exponential(jitter, _BLOCK)
            case Distribution.LOGNORMAL:
                return delay + jitter * np.exp(generator.normal(-0.5, 1.0, _BLOCK))
            case Distribution.PARETO:
                return delay + jitter * (_PARETO_SHAPE - 1) * generator.pareto(_PARETO_SHAPE, _BLOCK)


class LinkClock:
    """Due times of one way: order is kept, the rate limits, a partition holds; pure but for its draws."""

    def __init__(self, profile: LinkProfile, generator: np.random.Generator, opened: float) -> None:
        self._delays = DelayDraws(profile, generator)
        self._rate = None if profile.rate_kbps is None else profile.rate_kbps * 125.0  # bytes per second
        self._holds = sorted(
            (opened + start, opened + start + length) for start, length in profile.partitions
        )
        self._line_free = self._last_due = opened

    def take(self, data: bytes | None, now: float) -> list[tuple[float, bytes | None]]:
        """Return what is sent on, and when."""
        return [(self.due(now, len(data or b"")), data)]

    def due(self, now: float, size: int) -> float:
        """Return when a chunk that comes now may go on.

        It waits for the line, takes size/rate to be put on it, then travels; jitter never reorders.
        What falls into a partition is held to its end, as TCP's retransmissions would deliver it.
        """
        delay = self._delays.next()
        sent = max(now, self._line_free)
        if self._rate is not None:
            sent += size / self._rate
        self._line_free = sent
        due = max(self._last_due, sent + delay)
        for start, end in self._holds:
            if start <= due < end:
                due = end
        self._last_due = due
        return due


def link_profile(fields: Mapping[str, object]) -> LinkProfile:
    """Return a preset by its name, with whatever numbers are given in place of its own."""
    given = {key: value for key, value in fields.items() if value not in (None, "", [], ())}
    allowed = ("name", "delay_ms", "jitter_ms", "distribution", "rate_kbps", "partitions")
    for key in given:
        if key not in allowed:
            raise ConfigurationError(
                f"link: {key!r}: allowed are {', '.join(allowed)}{nearest(key, allowed)}"
            )
    name = str(given.pop("name", "custom"))
    if name not in PRESETS and not given:
        allowed_names = f"{', '.join(PRESETS)}, or give delay_ms{nearest(name, PRESETS)}"
        raise ConfigurationError(f"link: name = {name!r}: allowed are {allowed_names}")
    profile = PRESETS.get(name, LinkProfile(name=name))
    changes: dict[str, object] = {key: _number(key, given[key]) for key in allowed[1:5] if key in given}
    if "partitions" in given:
        changes["partitions"] = _partitions(given["partitions"])
    if "distribution" not in changes and changes.get("jitter_ms") and not profile.jitter_ms:
        changes["distribution"] = Distribution.UNIFORM
    return replace(profile, **changes)  # type: ignore[arg-type]


def _number(key: str, value: object) -> float | Distribution:
    try:
        return Distribution(value) if key == "distribution" else float(value)  # type: ignore[arg-type]
    except (TypeError, ValueError) as error:
        allowed = [law.value for law in Distribution] if key == "distribution" else "a number"
        raise ConfigurationError(f"link: {key} = {value!r}: allowed is {allowed}") from error


def _partitions(value: object) -> tuple[tuple[float, float], ...]:
    """Read [[start, duration], …], or `start+duration;…` from a CSV."""
    try:
        rows = [part.split("+") for part in value.split(";")] if isinstance(value, str) else value
        return tuple((float(start), float(length)) for start, length in rows)  # type: ignore[attr-defined]
    except (TypeError, ValueError) as error:
        raise ConfigurationError(
            f"link: partitions = {value!r}: expected [start, duration] pairs in seconds (CSV: 10+5;60+30)"
        ) from error


def links_from_csv(path: Path) -> list[LinkProfile]:
    """Read one link a row; columns name, delay_ms, jitter_ms, distribution, rate_kbps, partitions."""
    try:
        with path.open(newline="", encoding="utf-8") as file:
            rows = list(csv.DictReader(file, skipinitialspace=True, restkey="beyond the last column"))
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise ConfigurationError(f"links = {str(path)!r}: {error}") from error
    if not rows:
        raise ConfigurationError(f"links = {str(path)!r}: no rows")
    profiles = []
    for number, row in enumerate(rows, start=2):
        try:
            profiles.append(link_profile(row))
        except ConfigurationError as error:
            raise ConfigurationError(f"{path}, line {number}: {error}") from error
    return profiles

"""The device that an edge runs on: how much slower its gradients are, and when it is there. Pure."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import Enum

import numpy as np

from common.availability import Availability, Churn, Windows
from common.errors import ConfigurationError

# A scenario, and with it a welcome, may name a device: these keep it from stopping an edge.
LARGEST_SLOWDOWN = 1000.0
LARGEST_JITTER = 2.0
LONGEST_REFERENCE_MS = 60_000.0
LONGEST_NAME = 64  # characters
_OWN = "custom"  # of a device without a name


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
        if not 1 <= self.slowdown <= LARGEST_SLOWDOWN:
            raise self._wrong("slowdown", self.slowdown, f"from 1 to {LARGEST_SLOWDOWN:g}")
        most = LARGEST_JITTER if self.distribution is JitterLaw.LOGNORMAL else 1.0
        if not 0 <= self.jitter <= most:
            raise self._wrong("jitter", self.jitter, f"from 0 to {most:g} with {self.distribution.value!r}")
        if self.reference_ms is not None and not 0 < self.reference_ms <= LONGEST_REFERENCE_MS:
            allowed = f"above 0, at most {LONGEST_REFERENCE_MS:g}"
            raise self._wrong("reference_ms", self.reference_ms, allowed)

    def _wrong(self, key: str, value: float, allowed: str) -> ConfigurationError:
        return ConfigurationError(f"device {self.name!r}: {key} = {value}: must be {allowed}")

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


# Round figures for orientation, nobody's measurement: `mapa devices measure` makes a measured one (docs/devices.md).
PRESETS: Mapping[str, DeviceProfile] = {
    device.name: device
    for device in (
        DeviceProfile(name="workstation"),
        DeviceProfile(name="laptop", slowdown=1.5, jitter=0.1),
        DeviceProfile(name="phone", slowdown=4, jitter=0.3),
        DeviceProfile(name="pi5", slowdown=4, jitter=0.05),
        DeviceProfile(name="pi4", slowdown=8, jitter=0.05),
        DeviceProfile(name="jetson-nano", slowdown=10, jitter=0.05),
    )
}

_KEYS = ("name", "slowdown", "jitter", "distribution", "reference_ms", "availability")


def device_profile(fields: Mapping[str, object], index: int = 0) -> DeviceProfile:
    """Return a preset by its name, with whatever is given in place of its own; `index` is the edge's, for its phase."""
    given = {key: value for key, value in fields.items() if value is not None}
    for key in given:
        if key not in _KEYS:
            raise ConfigurationError(f"device: {key!r}: allowed are {', '.join(_KEYS)}")
    name = str(given.pop("name", _OWN))
    # A mistyped preset must not run at slowdown 1; a device without a name is one of its own.
    enough = given if name == _OWN else given.keys() & {"slowdown", "reference_ms", "availability"}
    if name not in PRESETS and not enough:
        raise ConfigurationError(
            f"device: name = {name!r}: allowed are {', '.join(PRESETS)}, or give slowdown, reference_ms or availability"
        )
    if "distribution" in given:
        given["distribution"] = _law(given["distribution"])
    if "availability" in given:
        table = given["availability"]
        assert isinstance(table, Mapping)
        given["availability"] = availability_of(table, index)
    return replace(PRESETS.get(name, DeviceProfile(name=name)), **given)  # type: ignore[arg-type]


def _law(value: object) -> JitterLaw:
    try:
        return JitterLaw(value)
    except ValueError as error:
        allowed = ", ".join(law.value for law in JitterLaw)
        raise ConfigurationError(f"device: distribution = {value!r}: allowed are {allowed}") from error


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

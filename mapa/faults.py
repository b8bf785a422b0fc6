"""Fault injection: which fault, in which container, at which t, for how long. Pure."""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import Enum

from common.errors import ConfigurationError

_FAULT = re.compile(
    r"(?P<kind>kill|crash|pause|partition)\s+(?P<whom>broker|cloud|edge-\d+)\s+at\s+(?:t=)?(?P<t>\d+)"
    r"(?:\s+for\s+(?P<seconds>\d+(?:\.\d+)?)\s*s?)?"
)
_SCALE = re.compile(r"scale\s+(?P<edges>\d+)\s+at\s+(?:t=)?(?P<t>\d+)")


class FaultKind(Enum):
    KILL = "kill"  # SIGKILL by the engine, a person's word: comes back on the old volumes when it is started again
    CRASH = "crash"  # SIGKILL of the program inside its container: its restart policy brings it back
    PAUSE = "pause"  # frozen; comes back where it was
    PARTITION = "partition"  # runs, without a network


@dataclass(frozen=True, slots=True)
class Fault:
    """One fault of one container."""

    kind: FaultKind
    whom: str  # broker, cloud, edge-1, edge-2, …
    at: int  # after so many updates
    seconds: float | None = None  # None: for good


@dataclass(frozen=True, slots=True)
class Scale:
    """A change of the number of edges."""

    edges: int
    at: int


FaultEvent = Fault | Scale


def parse_fault_event(text: str) -> FaultEvent:
    """Read `kill edge-3 at t=500 for 2s`, `pause broker at t=800 for 5s` or `scale 20 at t=300`."""
    words = " ".join(text.split())
    if found := _FAULT.fullmatch(words):
        seconds = None if found["seconds"] is None else float(found["seconds"])
        if found["kind"] == "crash" and (found["whom"] == "broker" or seconds is not None):
            raise ConfigurationError(
                f"fault {text!r}: must be `crash cloud|edge-N at t=T`; a restart policy says when it comes back"
            )
        return Fault(FaultKind(found["kind"]), found["whom"], int(found["t"]), seconds)
    if found := _SCALE.fullmatch(words):
        return Scale(int(found["edges"]), int(found["t"]))
    raise ConfigurationError(
        f"fault {text!r}: expected `kill|pause|partition broker|cloud|edge-N at t=T [for Ss]`,"
        " `crash cloud|edge-N at t=T` or `scale N at t=T`"
    )

"""Faults of a run: kinds, text form, schedules from a seed, and when each begins and ends. Pure."""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from enum import Enum

from common.errors import ConfigurationError

CLOUD, BROKER, EDGES = "cloud", "broker", "edges"
MOST_FAULTS = 1000
_LONGEST = 60.0  # seconds of one fault
_FIRST, _LAST = 0.05, 0.85  # shares of T between which faults begin: the run must not end before they do
_EARLY = 0.15  # share of repeated kills that strike while the cloud starts again
_TEXT = re.compile(
    r"(?P<kind>[a-z]+) (?P<target>cloud|broker|edge-[1-9]\d{0,4}|\d{1,5})"
    r" at (?:t=)?(?P<t>\d{1,9})(?:\+(?P<after>\d{1,3}(?:\.\d{1,3})?)s)?"
    r"(?: for (?P<seconds>\d{1,5}(?:\.\d{1,3})?) ?s?)?"
)


class FaultKind(Enum):
    KILL = "kill"  # SIGKILL; the service comes back as a new process on the old files
    PAUSE = "pause"  # stopped, and continued where it was
    RESTART = "restart"  # a broker that is told to end, and started again on its port
    PARTITION = "partition"  # no byte passes, in either direction
    CUT = "cut"  # connections are reset, and new ones refused
    DISORDER = "disorder"  # messages come late, twice, and in another order
    FILL = "fill"  # its disk is full
    SLOW = "slow"  # every write of the process's log, checkpoints or ledger takes its time
    SCALE = "scale"  # only this many edges run
    CRASH = "crash"  # SIGKILL of the program inside its container: the restart policy brings it back


# A broker's disk is not used: it runs without persistence, as in the containers.
TARGETS: dict[FaultKind, tuple[str, ...]] = {
    FaultKind.KILL: (CLOUD, "edge", BROKER),
    FaultKind.PAUSE: (CLOUD, "edge", BROKER),
    FaultKind.RESTART: (BROKER,),
    FaultKind.PARTITION: (CLOUD, "edge"),
    FaultKind.CUT: (CLOUD, "edge"),
    FaultKind.DISORDER: (CLOUD, "edge"),
    FaultKind.FILL: (CLOUD, "edge"),
    FaultKind.SLOW: (CLOUD, "edge"),
    FaultKind.SCALE: (EDGES,),
}
# of `mapa containers --fault`; a kill there is by the engine, and no restart policy brings the container back
CONTAINER_KINDS = (FaultKind.KILL, FaultKind.CRASH, FaultKind.PAUSE, FaultKind.PARTITION, FaultKind.SCALE)


@dataclass(frozen=True, slots=True)
class Fault:
    """One fault: its kind, its target, the update after which it begins, and how long it lasts."""

    kind: FaultKind
    target: str  # cloud, broker, edge-1, edge-2, …; `edges` of a scale
    at: int  # number of updates
    seconds: float | None = None  # None: for good
    edges: int = 0  # of a scale alone: how many go on
    after: float = 0.0  # seconds between that update and the begin

    @property
    def place(self) -> tuple[str, bool]:
        """What can have one fault at a time: a service's process, or its connection to the broker."""
        return self.target, self.kind in (FaultKind.PARTITION, FaultKind.CUT, FaultKind.DISORDER)

    @property
    def edge(self) -> int:
        """The number of the edge that it is for; 0: it is for no edge alone."""
        return int(self.target[5:]) if self.target.startswith("edge-") else 0

    def __str__(self) -> str:
        target = str(self.edges) if self.kind is FaultKind.SCALE else self.target
        after = f"+{self.after:g}s" if self.after else ""
        lasting = "" if self.seconds is None else f" for {self.seconds:g}s"
        return f"{self.kind.value} {target} at t={self.at}{after}{lasting}"


# -- as text ------------------------------------------------------------------------------------------------


def _parse(text: str, kinds: Collection[FaultKind]) -> Fault | None:
    """Read a fault of one of these kinds, whatever its target; return None if the text has another form."""
    match = _TEXT.fullmatch(" ".join(text.split()))
    if match is None or match["kind"] not in {kind.value for kind in kinds}:
        return None
    kind, target = FaultKind(match["kind"]), match["target"]
    if (kind is FaultKind.SCALE) != target.isdecimal():
        return None
    seconds = None if match["seconds"] is None else float(match["seconds"])
    edges, target = (int(target), EDGES) if kind is FaultKind.SCALE else (0, target)
    return Fault(kind, target, int(match["t"]), seconds, edges, float(match["after"] or 0))


def parse_fault(text: str) -> Fault:
    """Read a fault of `mapa chaos` as it is printed; raise ConfigurationError if it is none."""
    fault = _parse(text, TARGETS)
    if fault is None or fault.seconds is None:
        kinds = "|".join(kind.value for kind in TARGETS if kind is not FaultKind.SCALE)
        raise ConfigurationError(
            f"fault {text!r}: expected `{kinds} cloud|broker|edge-N at t=T for Ss` or `scale N at t=T for Ss`"
        )
    if fault.target.partition("-")[0] not in TARGETS[fault.kind]:
        raise ConfigurationError(
            f"fault {text!r}: {fault.kind.value} is for {', '.join(TARGETS[fault.kind])}"
        )
    return fault


def parse_container_fault(text: str) -> Fault:
    """Read a fault of `mapa containers`: `kill edge-3 at t=500 for 2s`, `crash cloud at t=5`, `scale 20 at t=300`."""
    fault = _parse(text, CONTAINER_KINDS)
    if fault is None or fault.after or (fault.kind is FaultKind.SCALE and fault.seconds is not None):
        raise ConfigurationError(
            f"fault {text!r}: expected `kill|pause|partition broker|cloud|edge-N at t=T [for Ss]`,"
            " `crash cloud|edge-N at t=T` or `scale N at t=T`"
        )
    if fault.kind is FaultKind.CRASH and (fault.target == BROKER or fault.seconds is not None):
        raise ConfigurationError(
            f"fault {text!r}: must be `crash cloud|edge-N at t=T`; a restart policy says when it comes back"
        )
    return fault


# -- schedules ----------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Bounds:
    """What a schedule must fit."""

    iterations: int  # T
    edges: int  # K
    silent_after: float  # seconds after which the cloud takes an edge for gone

    def __post_init__(self) -> None:
        if self.iterations < 40:
            raise ConfigurationError(f"iterations = {self.iterations}: chaos needs at least 40 updates")

    def check(self, fault: Fault) -> None:
        if fault.edge > self.edges:
            raise ConfigurationError(f"fault {fault}: must name one of edge-1 … edge-{self.edges}")
        if fault.kind is FaultKind.SCALE and not 1 <= fault.edges < self.edges:
            raise ConfigurationError(f"fault {fault}: must scale to 1 … {self.edges - 1} edges")
        if not 1 <= fault.at <= _LAST * self.iterations:
            raise ConfigurationError(f"fault {fault}: t must be from 1 to {int(_LAST * self.iterations)}")
        if fault.seconds is None or not 0 < fault.seconds <= _LONGEST:
            raise ConfigurationError(f"fault {fault}: must last above 0, at most {_LONGEST:g} s")


def make_schedule(seed: int, bounds: Bounds, count: int) -> tuple[Fault, ...]:
    """Return `count` faults, in the order of their t; the same for the same arguments. One kills the cloud."""
    if not 0 <= count <= MOST_FAULTS:
        raise ConfigurationError(f"--count {count}: must be from 0 to {MOST_FAULTS}")
    rng = random.Random(f"chaos {seed}")
    first, last = max(1, int(_FIRST * bounds.iterations)), int(_LAST * bounds.iterations)
    kinds = [kind for kind in TARGETS if kind is not FaultKind.SCALE or bounds.edges > 1]
    chosen = [FaultKind.KILL, *(rng.choice(kinds) for _ in range(count - 1))][:count]
    targets = [CLOUD, *(_target(kind, bounds, rng) for kind in chosen[1:])][:count]
    moments = sorted(rng.randint(first, last) for _ in range(count))
    order = rng.sample(range(count), count)
    return tuple(
        Fault(
            chosen[place],
            targets[place],
            at,
            _seconds(chosen[place], bounds, rng),
            rng.randint(1, bounds.edges - 1) if chosen[place] is FaultKind.SCALE else 0,
        )
        for at, place in zip(moments, order, strict=True)
    )


def make_kills(seed: int, bounds: Bounds, count: int) -> tuple[Fault, ...]:
    """Return `count` kills of the cloud spread over the run, some of them while it starts after the one before."""
    if not 1 <= count <= MOST_FAULTS:
        raise ConfigurationError(f"--kills {count}: must be from 1 to {MOST_FAULTS}")
    rng = random.Random(f"kills {seed}")
    spacing = (_LAST * bounds.iterations - 1) / count
    faults: list[Fault] = []
    for number in range(count):
        at, after = 1 + int(spacing * (number + rng.random())), 0.0
        if faults and rng.random() < _EARLY:
            at, after = faults[-1].at, round(faults[-1].after + 0.1 + rng.uniform(0.1, 1.0), 1)
        faults.append(Fault(FaultKind.KILL, CLOUD, at, 0.1, after=after))
    return tuple(faults)


def _target(kind: FaultKind, bounds: Bounds, rng: random.Random) -> str:
    target = rng.choice(TARGETS[kind])
    return f"edge-{rng.randint(1, bounds.edges)}" if target == "edge" else target


def _seconds(kind: FaultKind, bounds: Bounds, rng: random.Random) -> float:
    """Return how long a fault lasts; what makes a service silent lasts shorter or longer than silent_after."""
    silent = min(bounds.silent_after, _LONGEST / 2)
    if kind in (FaultKind.PAUSE, FaultKind.PARTITION, FaultKind.CUT):
        low, high = rng.choice(((0.1, 0.8), (1.1, 1.6)))
        seconds = silent * rng.uniform(low, high)
    elif kind in (FaultKind.DISORDER, FaultKind.FILL, FaultKind.SLOW):
        seconds = rng.uniform(1.0, 5.0)  # long enough for many messages
    else:
        seconds = rng.uniform(0.1, 2.0)
    return max(0.1, round(seconds, 1))


def parse_schedule(text: str, bounds: Bounds) -> tuple[Fault, ...]:
    """Read one fault per line; empty lines and those that begin with # are ignored."""
    lines = [line.strip() for line in text.splitlines()]
    faults = [parse_fault(line) for line in lines if line and not line.startswith("#")]
    for fault in faults:
        bounds.check(fault)
    if len(faults) > MOST_FAULTS:
        raise ConfigurationError(f"--faults: {len(faults)} faults: must be at most {MOST_FAULTS}")
    return tuple(sorted(faults, key=lambda fault: fault.at))


def choose(faults: Sequence[Fault], numbers: str) -> tuple[Fault, ...]:
    """Return the faults with these numbers, which count from 1: `3,7`."""
    try:
        wanted = sorted({int(number) for number in numbers.split(",")})
    except ValueError:
        raise ConfigurationError(f"--only {numbers!r}: must be numbers of faults, as 3,7") from None
    for number in wanted:
        if not 1 <= number <= len(faults):
            raise ConfigurationError(f"--only {numbers}: faults have the numbers 1 … {len(faults)}")
    return tuple(faults[number - 1] for number in wanted)


def shrink(
    faults: Sequence[Fault], fails: Callable[[tuple[Fault, ...]], bool], tries: int
) -> tuple[tuple[Fault, ...], int]:
    """Return a part of the faults that still fails, and how often it was tried: delta debugging, at most `tries`.

    Parts are left out, first halves, then quarters, …: what still fails without a part does not need it.
    """
    left, pieces, tried = tuple(faults), 2, 0
    while len(left) >= 2 and tried < tries:
        size = -(-len(left) // pieces)
        for begin in range(0, len(left), size):
            rest = left[:begin] + left[begin + size :]
            if tried == tries:
                return left, tried
            tried += 1
            if fails(rest):
                left, pieces = rest, max(2, pieces - 1)
                break
        else:
            if pieces >= len(left):
                break
            pieces = min(len(left), 2 * pieces)
    return left, tried


# -- in a run -----------------------------------------------------------------------------------------------


class Injector:
    """Begins every fault at its t and ends it in its time. A place has one fault at a time; the next ones wait."""

    def __init__(
        self, faults: Sequence[Fault], begin: Callable[[Fault], bool], end: Callable[[Fault], bool]
    ) -> None:
        self._begin, self._end = begin, end  # begin: False if not applied; end: False if not yet possible
        self.waiting = sorted(faults, key=lambda fault: fault.at)
        self._reached: dict[int, float] = {}  # t of a fault → when it was reached
        self._active: dict[tuple[str, bool], tuple[Fault, float]] = {}  # place → fault, its end

    def holds(self, target: str) -> bool:
        return (target, False) in self._active

    def lasts(self, now: float) -> bool:
        return any(now < end for _, end in self._active.values())

    def end_due(self, now: float) -> None:
        """End the faults whose time is over; at infinity all of them."""
        for place, (fault, end) in list(self._active.items()):
            if now >= end and self._end(fault):
                del self._active[place]

    def begin_due(self, t: int, now: float) -> None:
        for fault in [one for one in self.waiting if one.at <= t]:
            reached = self._reached.setdefault(fault.at, now)
            if fault.place in self._active or now < reached + fault.after:
                continue
            self.waiting.remove(fault)
            if self._begin(fault) and fault.seconds is not None:
                self._active[fault.place] = (fault, now + fault.seconds)

    @property
    def idle(self) -> bool:
        return not self._active

"""Which faults a run gets, and when: a list of values that follows from a seed. Pure."""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Enum

from common.errors import ConfigurationError

CLOUD, BROKER, EDGES = "cloud", "broker", "edges"
_LONGEST = 60.0  # seconds of one fault
MOST_FAULTS = 1000
_FIRST, _LAST = 0.05, 0.85  # shares of T between which faults begin: the run must not end before they do
_FAULT = re.compile(
    r"(?P<kind>[a-z]+) (?P<target>cloud|broker|edge-[1-9]\d{0,4}) at (?:t=)?(?P<t>\d{1,9})"
    r" for (?P<seconds>\d{1,5}(?:\.\d{1,3})?) ?s?"
)
_SCALE = re.compile(
    r"scale (?P<edges>\d{1,5}) at (?:t=)?(?P<t>\d{1,9}) for (?P<seconds>\d{1,5}(?:\.\d{1,3})?) ?s?"
)


class Kind(Enum):
    KILL = "kill"  # SIGKILL; comes back as a new process on the old files
    PAUSE = "pause"  # SIGSTOP, SIGCONT: comes back where it was
    RESTART = "restart"  # a broker that is told to end, and started again on its port
    PARTITION = "partition"  # bytes wait in the relay, both ways
    CUT = "cut"  # connections are reset, and new ones refused
    DISORDER = "disorder"  # messages come late, twice, and in another order
    FILL = "fill"  # its disk is full
    SLOW = "slow"  # every write of the process's log, checkpoints or ledger takes its time
    SCALE = "scale"  # only so many edges run; the others leave and come back


# Who can have which fault. A broker's disk is not used: it runs without persistence, as in the containers.
TARGETS: dict[Kind, tuple[str, ...]] = {
    Kind.KILL: (CLOUD, "edge", BROKER),
    Kind.PAUSE: (CLOUD, "edge", BROKER),
    Kind.RESTART: (BROKER,),
    Kind.PARTITION: (CLOUD, "edge"),
    Kind.CUT: (CLOUD, "edge"),
    Kind.DISORDER: (CLOUD, "edge"),
    Kind.FILL: (CLOUD, "edge"),
    Kind.SLOW: (CLOUD, "edge"),
    Kind.SCALE: (EDGES,),
}


@dataclass(frozen=True, slots=True)
class Fault:
    """One fault: what, whom, after which update, for how long."""

    kind: Kind
    target: str  # cloud, broker, edge-1, edge-2, …; `edges` of a scale
    at: int  # after so many updates
    seconds: float
    edges: int = 0  # of a scale alone: how many go on

    @property
    def place(self) -> tuple[str, bool]:
        """What can have one fault at a time: a node's process, or its way to the broker."""
        return self.target, self.kind in (Kind.PARTITION, Kind.CUT, Kind.DISORDER)

    def __str__(self) -> str:
        whom = str(self.edges) if self.kind is Kind.SCALE else self.target
        return f"{self.kind.value} {whom} at t={self.at} for {self.seconds:g}s"


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
        """Raise ConfigurationError where the run cannot have this fault."""
        number = int(fault.target.removeprefix("edge-")) if fault.target.startswith("edge-") else 0
        if number > self.edges:
            raise ConfigurationError(f"fault {fault}: must name one of edge-1 … edge-{self.edges}")
        if fault.kind is Kind.SCALE and not 1 <= fault.edges < self.edges:
            raise ConfigurationError(f"fault {fault}: must scale to 1 … {self.edges - 1} edges")
        if not 1 <= fault.at <= _LAST * self.iterations:
            raise ConfigurationError(f"fault {fault}: t must be from 1 to {int(_LAST * self.iterations)}")
        if not 0 < fault.seconds <= _LONGEST:
            raise ConfigurationError(f"fault {fault}: must last above 0, at most {_LONGEST:g} s")


def make_schedule(seed: int, bounds: Bounds, count: int) -> tuple[Fault, ...]:
    """Return `count` faults, in the order of their t; the same for the same arguments. One kills the cloud."""
    if not 0 <= count <= MOST_FAULTS:
        raise ConfigurationError(f"--count {count}: must be from 0 to {MOST_FAULTS}")
    rng = random.Random(f"chaos {seed}")
    first, last = max(1, int(_FIRST * bounds.iterations)), int(_LAST * bounds.iterations)
    kinds = [kind for kind in Kind if kind is not Kind.SCALE or bounds.edges > 1]
    chosen = [Kind.KILL, *(rng.choice(kinds) for _ in range(count - 1))][:count]
    targets = [CLOUD, *(_target(kind, bounds, rng) for kind in chosen[1:])][:count]
    moments = sorted(rng.randint(first, last) for _ in range(count))
    order = rng.sample(range(count), count)
    return tuple(
        Fault(
            chosen[place],
            targets[place],
            at,
            _seconds(chosen[place], bounds, rng),
            rng.randint(1, bounds.edges - 1) if chosen[place] is Kind.SCALE else 0,
        )
        for at, place in zip(moments, order, strict=True)
    )


def _target(kind: Kind, bounds: Bounds, rng: random.Random) -> str:
    target = rng.choice(TARGETS[kind])
    return f"edge-{rng.randint(1, bounds.edges)}" if target == "edge" else target


def _seconds(kind: Kind, bounds: Bounds, rng: random.Random) -> float:
    """Return how long a fault lasts; what makes a node silent lasts shorter or longer than silent_after."""
    silent = min(bounds.silent_after, _LONGEST / 2)
    if kind in (Kind.PAUSE, Kind.PARTITION, Kind.CUT):
        low, high = rng.choice(((0.1, 0.8), (1.1, 1.6)))
        seconds = silent * rng.uniform(low, high)
    elif kind in (Kind.DISORDER, Kind.FILL, Kind.SLOW):
        seconds = rng.uniform(1.0, 5.0)  # long enough for many messages
    else:
        seconds = rng.uniform(0.1, 2.0)
    return max(0.1, round(seconds, 1))


def parse_fault(text: str) -> Fault:
    """Read a fault as it is printed; ConfigurationError where it is none."""
    words = " ".join(text.split())
    if found := _SCALE.fullmatch(words):
        return Fault(Kind.SCALE, EDGES, int(found["t"]), float(found["seconds"]), int(found["edges"]))
    found = _FAULT.fullmatch(words)
    kinds = {kind.value: kind for kind in Kind if kind is not Kind.SCALE}
    if found is None or found["kind"] not in kinds:
        raise ConfigurationError(
            f"fault {text!r}: expected `{'|'.join(kinds)} cloud|broker|edge-N at t=T for Ss`"
            " or `scale N at t=T for Ss`"
        )
    kind, target = kinds[found["kind"]], found["target"]
    if target.partition("-")[0] not in TARGETS[kind]:
        raise ConfigurationError(f"fault {text!r}: {kind.value} is for {', '.join(TARGETS[kind])}")
    return Fault(kind, target, int(found["t"]), float(found["seconds"]))


def parse_schedule(text: str, bounds: Bounds) -> tuple[Fault, ...]:
    """Read a fault a line; empty lines and those that begin with # say nothing."""
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

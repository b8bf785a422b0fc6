"""The device that an edge poses as: how long it waits before each gradient, and when it is there.

The time of a gradient at slowdown 1 is measured once, on made-up rows, before the first release. So no wait depends on
records, on a batch that was drawn, or on how long any real gradient took.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from time import perf_counter

import numpy as np

from common.availability import Attendance
from common.devices import DeviceProfile
from common.messages import ModelReceived
from common.randomness import CounterStreams, Purpose
from common.transport.channel import Loop, Timer
from edge.conversation import CameBack, WentAway
from edge.worker import EdgeWorker, Shard

LONGEST_WAIT = 3600.0  # seconds before a gradient, whatever a welcome and a draw say
_REPEATS = 5
_ENOUGH = 2.0  # seconds: a slow gradient is measured fewer times
_LONGEST_TIMER = 3600.0  # seconds until a long absence is looked at again


@dataclass(frozen=True, slots=True)
class EmulatedDevice:
    """A profile, and what this machine takes for itself."""

    profile: DeviceProfile
    own: float  # seconds of a message's gradients on this machine; 0 where nothing is emulated
    index: int  # k
    streams: CounterStreams
    steps: int = 1  # E: gradients of a message

    @property
    def reference(self) -> float:
        """Seconds of a message's gradients at slowdown 1."""
        asked = self.profile.reference_ms
        return self.own if asked is None else self.steps * asked / 1000

    def wait(self, sequence: int) -> float:
        """Return the seconds to wait before the gradient of this sequence is made; drawn from (seed, k, n) alone."""
        factor = self.profile.factor(self.streams.at(self.index, Purpose.DEVICE, sequence))
        return min(max(0.0, factor * self.reference - self.own), LONGEST_WAIT)

    def attendance(self) -> Attendance | None:
        """Return when it is there, from now on; None: always."""
        if self.profile.availability is None:
            return None
        return Attendance(self.profile.availability, self.streams, self.index)

    def __str__(self) -> str:
        took = f"{self.profile.slowdown:g} × {self.reference * 1e3:.3g} ms for a gradient"
        times = "" if self.profile.availability is None else ", not always there"
        return f"device {self.profile.name!r}: {took if self.profile.is_slow else 'as fast as it is'}{times}"


def emulated(
    profile: DeviceProfile, worker: EdgeWorker, clock: Callable[[], float] = perf_counter
) -> EmulatedDevice:
    """Measure this machine where the profile needs it."""
    own = gradient_seconds(worker, clock) if profile.is_slow else 0.0
    return EmulatedDevice(profile, own, worker.index, worker.streams, worker.mechanism.steps)


def gradient_seconds(worker: EdgeWorker, clock: Callable[[], float] = perf_counter) -> float:
    """Return what a gradient of b made-up rows takes: the least of a few, since other programs only lengthen it."""
    return min(gradient_times(worker, _REPEATS, _ENOUGH, clock))


def gradient_times(
    worker: EdgeWorker, repeats: int, enough: float, clock: Callable[[], float] = perf_counter
) -> list[float]:
    """Measure gradients on made-up rows, so many, or fewer once they have taken enough seconds."""
    made_up = replace(
        worker, shard=_made_up(worker), streams=CounterStreams.seeded(0), sequence=0, diagnose=None
    )
    taken: list[float] = []
    for seconds in timed_gradients(made_up, clock):
        taken.append(seconds)
        if len(taken) >= repeats or sum(taken) >= enough:
            break
    return taken


def timed_gradients(worker: EdgeWorker, clock: Callable[[], float] = perf_counter) -> Iterator[float]:
    """Yield the seconds of one message's gradients after another, for ever: of the worker's own rows, at x = 0."""
    x = np.zeros(worker.model.dimension, np.float32)
    received = ModelReceived(worker.edge_id, 1, 2 / worker.mechanism.batch_size, 0, x)
    worker.receive(received)  # the first one warms up
    while True:
        began = clock()
        worker.receive(received)
        yield clock() - began


def _made_up(worker: EdgeWorker) -> Shard:
    """Return b rows of the shape and kind that the model takes, which no declaration and no record has a part in."""
    size, features, targets = worker.mechanism.batch_size, worker.shard.features, worker.shard.targets
    rows = np.zeros((size, *features.shape[1:]), features.dtype)
    if np.issubdtype(features.dtype, np.floating):
        rows[...] = np.random.default_rng(0).random(rows.shape)
    return Shard(rows, np.zeros((size, *targets.shape[1:]), targets.dtype), np.arange(size, dtype=np.int64))


@dataclass(slots=True)
class Rota:
    """Tells the session when the device's time ends and begins again."""

    loop: Loop
    tell: Callable[[WentAway | CameBack], None]
    attendance: Attendance | None = None
    _began: float = 0.0
    _here: bool = True
    _timer: Timer | None = None

    def start(self, attendance: Attendance | None) -> None:
        """Count from now on; a second start, by a later welcome, changes nothing."""
        if attendance is None or self.attendance is not None:
            return
        self.attendance, self._began = attendance, self.loop.now()
        self._look()

    def end(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = None

    def _look(self) -> None:
        assert self.attendance is not None
        now = self.loop.now() - self._began
        here, until = self.attendance.at(now)
        self._timer = self.loop.call_later(min(max(0.0, until - now), _LONGEST_TIMER), self._look)
        if here != self._here:
            self._here = here
            self.tell(CameBack() if here else WentAway())


@dataclass(slots=True)
class Slowness:
    """One wait at a time: a later one takes the place of the one before."""

    loop: Loop
    _timer: Timer | None = None

    def wait(self, seconds: float, then: Callable[[], None]) -> None:
        self.end()
        self._timer = self.loop.call_later(seconds, partial(self._over, then))

    def end(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = None

    def _over(self, then: Callable[[], None]) -> None:
        self._timer = None
        then()

"""The device that an edge emulates: how long it waits before each gradient, and when it is there.

The time of a gradient is measured on made-up rows, before the first release. So no wait and no pace depends on records,
on a batch that was drawn, or on how long any real gradient took.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from time import perf_counter

import numpy as np

from common.datasets.catalogue import describe
from common.devices import Attendance, DeviceProfile
from common.errors import ConfigurationError
from common.messages import ModelReceived
from common.quantities import EdgeId
from common.randomness import CounterStreams, Purpose
from common.scenario.parts import model_for
from common.scenario.scenario import Scenario
from common.transport.channel import Loop, Timer
from edge.session import Signal
from edge.worker import EdgeWorker, Shard, worker_for

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
    """Return the seconds of a gradient of b made-up rows: the least of a few, since other programs only lengthen it."""
    return min(gradient_times(worker, _REPEATS, _ENOUGH, clock))


def gradient_times(
    worker: EdgeWorker, repeats: int, enough: float, clock: Callable[[], float] = perf_counter
) -> list[float]:
    """Return the seconds of `repeats` gradients on made-up rows, of fewer once they have taken `enough` in all."""
    streams = CounterStreams.seeded(0)
    made_up = replace(worker, shard=_made_up(worker), streams=streams, sequence=0, diagnose=None)
    return _timed(made_up, enough, clock, repeats)


def _timed(
    worker: EdgeWorker, enough: float, clock: Callable[[], float], most: float = math.inf
) -> list[float]:
    """Return the seconds of one message's gradients after another, at x = 0, until `enough` have passed in all."""
    x = np.zeros(worker.model.dimension, np.float32)
    received = ModelReceived(worker.edge_id, 1, 2 / worker.mechanism.batch_size, 0, x)
    worker.receive(received)  # the first one warms up
    taken: list[float] = []
    while len(taken) < most and sum(taken) < enough:
        began = clock()
        worker.receive(received)
        taken.append(clock() - began)
    return taken


def _made_up(worker: EdgeWorker) -> Shard:
    """Return b rows of the shape and kind that the model takes, which no declaration and no record has a part in."""
    size, features, targets = worker.mechanism.batch_size, worker.shard.features, worker.shard.targets
    rows = np.zeros((size, *features.shape[1:]), features.dtype)
    if np.issubdtype(features.dtype, np.floating):
        rows[...] = np.random.default_rng(0).random(rows.shape)
    return Shard(rows, np.zeros((size, *targets.shape[1:]), targets.dtype), np.arange(size, dtype=np.int64))


@dataclass(slots=True)
class DeviceTimers:
    """Tells the session when the device goes away and comes back; and waits, one wait at a time."""

    loop: Loop
    tell: Callable[[Signal], None]
    _attendance: Attendance | None = None
    _began: float = 0.0
    _here: bool = True
    _next_look: Timer | None = None
    _waiting: Timer | None = None

    def start(self, attendance: Attendance | None) -> None:
        """Count the device's times from now on; a second start, by a later welcome, changes nothing."""
        if attendance is None or self._attendance is not None:
            return
        self._attendance, self._began = attendance, self.loop.now()
        self._look()

    def wait(self, seconds: float, then: Callable[[], None]) -> None:
        """Call `then` after these seconds, in place of an earlier wait."""
        if self._waiting is not None:
            self._waiting.cancel()
        self._waiting = self.loop.call_later(seconds, then)

    def end(self) -> None:
        for timer in (self._next_look, self._waiting):
            if timer is not None:
                timer.cancel()

    def _look(self) -> None:
        assert self._attendance is not None
        now = self.loop.now() - self._began
        here, until = self._attendance.at(now)
        self._next_look = self.loop.call_later(min(max(0.0, until - now), _LONGEST_TIMER), self._look)
        if here != self._here:
            self._here = here
            self.tell(Signal.CAME_BACK if here else Signal.WENT_AWAY)


def gradients_per_second(
    scenario: Scenario, data_dir: Path, *, seconds: float = 3.0, clock: Callable[[], float] = perf_counter
) -> float:
    """Return how many messages, of E noised gradients each, an edge makes here in a second."""
    taken = _timed(made_up_worker(scenario, data_dir), seconds, clock)
    return len(taken) / sum(taken)


def made_up_worker(scenario: Scenario, data_dir: Path) -> EdgeWorker:
    """Return an edge whose b rows are random numbers of the shape that the scenario's data have."""
    shape, classes, target_range = _data_shape(scenario, data_dir)
    model = model_for(scenario, shape, classes, target_range, data_dir)
    rng, rows = np.random.default_rng(0), scenario.batch_size
    images = rng.random((rows, math.prod(shape)), dtype=np.float32)
    low, high = target_range or (0.0, 1.0)
    labels = (
        rng.integers(0, classes, rows, dtype=np.int64)
        if classes
        else (low + (high - low) * rng.random(rows, dtype=np.float32)).astype(np.float32)
    )
    shard = Shard(model.features(images), model.targets(labels), np.arange(rows, dtype=np.int64))
    law = None
    if (
        scenario.private
    ):  # any of the scenario's kind: what a draw costs does not depend on how much noise it is
        described = scenario.privacy.described
        given = {key: values[0] for key, values in scenario.privacy.given.items()}
        law = described.make({key: given.get(key, 1.0) for key in described.names})
    streams = CounterStreams.seeded(0)
    edge_id = EdgeId("edge-made-up")
    return worker_for(scenario, model, law, edge_id=edge_id, index=0, shard=shard, streams=streams)


def _data_shape(
    scenario: Scenario, data_dir: Path
) -> tuple[tuple[int, ...], int, tuple[float, float] | None]:
    table = scenario.data.declared
    if table is not None:
        return table.declared.shape, table.declared.classes, table.declared.target_range
    for known in describe(data_dir):
        if known.name == scenario.data.set:
            return known.shape, known.classes, None
    raise ConfigurationError(
        f"data.set = {scenario.data.set!r}: the shape of its samples is not known without reading records, and a pace"
        " must not depend on them; declare a schema, or give privacy.paces"
    )

"""Replay a run's gradient log from its first state, and check the log by it.

Needs no data set. Records are untrusted: the code that they name is imported only where `only_code` allows it.
"""

from __future__ import annotations

import math
from collections import Counter, deque
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from types import SimpleNamespace
from typing import Annotated, Any, cast

import numpy as np
from pydantic import BaseModel, Field, ValidationError

from cloud.admission import Restarts
from cloud.assembly import begin, first_model, terms_for
from cloud.recovery_log import take_again
from cloud.server import CloudServer
from common.errors import ConfigurationError
from common.messages import Effect, Event, Fact, GradientApplied
from common.models.model import Model
from common.own_code import code_named_by, is_allowed
from common.quantities import Vector, is_finite
from common.randomness import CounterStreams, streams_for
from common.records.checkpoint import unpack
from common.records.gradient_log import Entry, Kind, LogDamagedError
from common.records.regular import MOST_JSON, MOST_MODEL, table
from common.records.tally import Tally
from common.scenario.parts import model_for
from common.scenario.scenario import Scenario, parse_scenario
from mapa.simulation.simulator import quiet_overflow
from mapa.verification import untrusted_files as untrusted
from mapa.verification.check import Check, NotCheckedError, UnreadableError, judged, passed
from mapa.verification.untrusted_files import MANIFEST, START, RunFiles

_Count = Annotated[int, Field(gt=0, le=1 << 31)]


class _Samples(BaseModel, strict=True):
    """The form of a run's samples, as its manifest states it."""

    shape: Annotated[list[_Count], Field(min_length=1, max_length=8)]
    classes: int = Field(ge=0, le=1 << 31)


def scenario_of(manifest: Mapping[str, Any]) -> Scenario:
    """Return a run's scenario; raise UnreadableError if its manifest has none that this version can read."""
    values = manifest.get("scenario")
    if not isinstance(values, dict):
        raise UnreadableError(MANIFEST, "no scenario")
    try:
        return parse_scenario(values)
    except ConfigurationError as error:
        if all(is_allowed(path) for _, path in code_named_by(values)):
            raise UnreadableError(MANIFEST, f"scenario: {error}") from error
        raise NotCheckedError(str(error)) from error


def model_of(scenario: Scenario, manifest: Mapping[str, Any]) -> Model:
    """Return the run's model without its data; raise NotCheckedError if it cannot be made here."""
    try:
        form = _Samples.model_validate(manifest.get("samples"))
    except ValidationError as error:
        stated = manifest.get("samples")
        raise UnreadableError(
            MANIFEST, f"samples = {stated!r:.200}: must have a shape and classes"
        ) from error
    try:
        return model_for(scenario, tuple(form.shape), form.classes)
    except ConfigurationError as error:
        raise NotCheckedError(str(error)) from error


# -- the first state -----------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class RunStart:
    """A run at t = 1."""

    scenario: Scenario
    incarnation: int
    x: Vector  # x₁
    edges_at_least: int
    model: Model | None  # None: it cannot be made here, and need not be
    derived: bool  # x₁ follows from the scenario; else it is as recorded

    def server(self) -> CloudServer:
        """Return the cloud as it was then."""
        sized = self.model or cast(Model, SimpleNamespace(dimension=len(self.x)))  # all that its terms need
        return CloudServer(
            terms=terms_for(self.scenario, sized, edges_at_least=self.edges_at_least),
            model=self.x,
            begin=partial(begin, self.scenario),
            incarnation=self.incarnation,
        )


def start_of(files: RunFiles, scenario: Scenario) -> RunStart:
    """Return where the run began; raise NotCheckedError if neither records nor scenario say it here."""
    head = files.head()
    parts = (*START[1:], untrusted.MODEL, *files.segments)
    held = sum(len(files.contents[name]) for name in parts if name in files)
    if 4 * head.dimension > min(held, MOST_MODEL):  # before anything of that size is made
        raise UnreadableError(
            untrusted.START_OF_LOG, f"N = {head.dimension}: more numbers than the run's files hold"
        )
    recorded, model, reason, lost = None, None, "", ""
    try:
        recorded = first_state(files)
    except UnreadableError as error:
        lost = str(error)
    try:
        model = model_of(scenario, files.manifest)
    except NotCheckedError as error:
        reason = str(error)
    if scenario.privacy.scope == "first-conv" and scenario.private and model is None:
        raise NotCheckedError(reason)
    if model is not None and model.dimension != head.dimension:
        raise UnreadableError(
            untrusted.START_OF_LOG, f"N = {head.dimension}; the scenario's model has {model.dimension}"
        )
    derived = None if model is None else _derived(model, scenario.seed)
    if recorded is not None:
        x, edges_at_least = _checked(recorded, head.incarnation, head.dimension)
        if derived is not None and derived.tobytes() != x.tobytes():
            raise UnreadableError(START[1], "x₁ is not the one that follows from the scenario")
    elif derived is not None:
        x, edges_at_least = derived, scenario.testbed.edges_at_least
    else:
        raise NotCheckedError(f"{reason}; x₁ does not follow from the scenario, and {lost}".lstrip("; "))
    return RunStart(scenario, head.incarnation, x, edges_at_least, model, derived is not None)


def _derived(model: Model, seed: int | None) -> Vector | None:
    """Return x₁ where the scenario decides it: by a seed, or since the model draws nothing for it."""
    if seed is not None:
        return first_model(model, streams_for(seed))
    drawn, again = (first_model(model, CounterStreams.seeded(number)) for number in (1, 2))
    return drawn if drawn.tobytes() == again.tobytes() else None


def first_state(files: RunFiles) -> dict[str, Any]:
    """Return the state of the first checkpoint; raise UnreadableError naming the missing or damaged file."""
    content, packed = (
        bytes(files.content(name, most)) for name, most in zip(START, (MOST_JSON, MOST_MODEL), strict=True)
    )
    try:
        untrusted.strict_object(content, MOST_JSON)
        return unpack(content, packed)
    except (ValueError, KeyError, TypeError, AttributeError, ConfigurationError) as error:
        of_arrays = isinstance(error, KeyError) or str(error).startswith("arrays: ")
        raise UnreadableError(START[of_arrays], error) from error


def _checked(state: Mapping[str, Any], incarnation: int, dimension: int) -> tuple[Vector, int]:
    server = table(state, "server")
    x, edges_at_least = server.get("model"), server.get("edges_at_least")
    if (server.get("t"), server.get("edges"), server.get("halted")) != (1, [], None):
        raise UnreadableError(START[0], "not the state of a cloud before its first event")
    if server.get("incarnation") != incarnation:
        raise UnreadableError(START[0], "of another run than the log")
    if not isinstance(x, np.ndarray) or x.dtype != np.float32 or x.shape != (dimension,) or not is_finite(x):
        raise UnreadableError(START[1], f"x₁ must be {dimension} finite numbers in float32")
    if type(edges_at_least) is not int or not 0 < edges_at_least <= 1 << 31:
        raise UnreadableError(START[0], f"edges_at_least = {edges_at_least!r:.40}")
    return x, edges_at_least


# -- the replay ----------------------------------------------------------------------------------------------


@dataclass(slots=True)
class LogReplay:
    """What the log amounts to, once the same pure CloudServer has taken it again."""

    server: CloudServer
    tally: Tally = field(default_factory=Tally)
    facts: list[Fact] = field(default_factory=list)  # in order
    received: int = 0  # gradients in the log, each once
    times: list[float] = field(default_factory=list)  # of the first and of the last update, in seconds

    @property
    def restarts(self) -> Restarts:
        return self.server.restarts

    @classmethod
    def of(cls, files: RunFiles, start: RunStart) -> LogReplay:
        """Take the whole log; raise UnreadableError naming the segment of a record that no cloud can have taken."""
        replay = cls(start.server())
        deque(replay.steps(files), maxlen=0)
        return replay

    @property
    def applied(self) -> list[GradientApplied]:
        return [fact for fact in self.facts if isinstance(fact, GradientApplied)]

    def steps(self, files: RunFiles) -> Iterator[tuple[Event | None, list[Effect]]]:
        """Take the log record by record; yield the event of each, if it is of one, and its effects."""
        with quiet_overflow():
            for segment, entry in files.entries():
                try:
                    event, effects = take_again(entry, self.server)
                except LogDamagedError as error:
                    raise UnreadableError(segment, error) from error
                self._count(entry, [effect for effect in effects if isinstance(effect, Fact)])
                yield event, effects

    def _count(self, entry: Entry, facts: list[Fact]) -> None:
        for fact in facts:
            self.tally.observe(fact)
            if isinstance(fact, GradientApplied):
                self.times = [*self.times[:1], entry.time]
        self.received += entry.kind is Kind.GRADIENT
        self.facts += facts


def log_in_order(files: RunFiles) -> Iterator[Check]:
    """Check that the records of the log are whole and in order, as far as that can be told without the algorithm."""
    t, seconds, kinds = 1, 0.0, Counter[Kind]()
    for segment, entry in files.entries():
        if not seconds <= entry.time < math.inf:
            raise UnreadableError(
                segment, f"a record of {entry.time:g} s follows one of {seconds:g} s: time never goes back"
            )
        if not t <= entry.t <= t + 1:
            raise UnreadableError(segment, f"a record of t = {entry.t} follows one of t = {t}")
        t, seconds = entry.t, entry.time
        kinds[entry.kind] += 1
    counted = ", ".join(f"{kinds[kind]} {kind.name.lower()}" for kind in Kind if kinds[kind]) or "empty"
    segments = len(files.segments)
    yield passed("log", "log", f"{segments} segments, checksums right, t and times in order: {counted}")


def continuity(replay: LogReplay) -> Iterator[Check]:
    """Check t = 1, 2, … and that each (edge, sequence) was applied once, in rising order."""
    applied, last = replay.applied, dict[str, int]()
    gaps = [f"update {place} is missing or doubled" for place, one in enumerate(applied, 1) if one.t != place]
    yield from judged("continuity", "log", gaps[:1], f"t = 1 … {len(applied)} without gap or double")
    again = []
    for fact in applied:
        if fact.sequence <= last.get(fact.edge_id, 0):
            again.append(f"{fact.edge_id}: sequence {fact.sequence} was applied again")
        last[fact.edge_id] = fact.sequence
    counts = f"received {replay.received} ≥ applied {len(applied)}"
    if replay.received < len(applied):
        again.append(f"{counts} does not hold")
    rising = f"{counts} = distinct; sequences rise on each of {len(last)} edges"
    yield from judged("exactly once", "log", again[:1], rising)

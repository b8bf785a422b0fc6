"""Replay a run's gradient log from its first state, and check the log and the final model by it.

Needs no data set. Records are untrusted: code that they name is imported only where the operator allows it.
"""

from __future__ import annotations

import math
from collections import Counter, deque
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, cast

import numpy as np

from cloud.assembly import begin, first_model, terms_for
from cloud.peers import Restarts
from cloud.recovery_log import Replayer
from cloud.server import CloudServer
from common.datasets.catalogue import describe
from common.errors import ConfigurationError
from common.messages import Effect, Event, Fact, GradientApplied, GradientRefused
from common.models.model import Block, Model
from common.own_code import code_named_by, is_dotted
from common.quantities import Vector, is_finite
from common.randomness import CounterStreams, streams_for
from common.records.checkpoint import unpack
from common.records.gradient_log import Entry, Kind, LogDamagedError
from common.records.regular import MOST_JSON, MOST_MODEL
from common.records.tally import Tally
from common.scenario.parts import model_for
from common.scenario.scenario import Scenario, parse_scenario
from mapa.simulation.simulator import quiet_overflow
from mapa.verification.check import Check, claimed, failed, passed
from mapa.verification.untrusted_files import (
    MANIFEST,
    MODEL,
    START,
    START_OF_LOG,
    SUMMARY,
    NotCheckedError,
    RunFiles,
    UnreadableError,
    strict_object,
)

_CODE = ("algorithm.name", "privacy.noise")  # what a scenario imports when it is parsed


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
        sized = self.model or cast(Model, _Sized(len(self.x)))
        return CloudServer(
            terms=terms_for(self.scenario, sized, edges_at_least=self.edges_at_least),
            model=self.x,
            begin=partial(begin, self.scenario),
            incarnation=self.incarnation,
        )


@dataclass(frozen=True, slots=True)
class _Sized:
    """As much of a model as the cloud's terms ask for, unless the noise covers its first layer alone."""

    dimension: int


def allow(name: object, key: str, allowed: Collection[str]) -> None:
    """Raise NotCheckedError if records name code that is not allowed."""
    if isinstance(name, str) and is_dotted(name) and name not in allowed:
        raise NotCheckedError(f"{key} = {name!r} is code of the run's own; allow it with --allow {name}")


def scenario_of(manifest: Mapping[str, Any], allowed: Collection[str]) -> Scenario:
    """Return a run's scenario; raise UnreadableError if its manifest has none that this version can read."""
    values = manifest.get("scenario")
    if not isinstance(values, dict):
        raise UnreadableError(MANIFEST, "no scenario")
    for key, path in code_named_by(values):
        if key in _CODE:
            allow(path, key, allowed)
    try:
        return parse_scenario(values)
    except ConfigurationError as error:
        raise UnreadableError(MANIFEST, f"scenario: {error}") from error


def model_of(scenario: Scenario, manifest: Mapping[str, Any], allowed: Collection[str]) -> Model:
    """Return the run's model without its data; raise NotCheckedError if it cannot be made here."""
    allow(scenario.model.name, "model.name", allowed)
    shape, classes = _sample_form(scenario, manifest)
    try:
        return model_for(scenario, shape, classes)
    except ConfigurationError as error:
        raise NotCheckedError(str(error)) from error


def _sample_form(scenario: Scenario, manifest: Mapping[str, Any]) -> tuple[tuple[int, ...], int]:
    form = manifest.get("samples")
    if isinstance(form, dict):
        shape, classes = form.get("shape"), form.get("classes")
        shaped = isinstance(shape, list) and 0 < len(shape) <= 8 and all(map(_is_count, shape))
        if shaped and (classes == 0 or _is_count(classes)):
            return tuple(cast(list[int], shape)), cast(int, classes)
        raise UnreadableError(MANIFEST, f"samples = {form!r:.200}: must have a shape and classes")
    for known in describe(Path()):
        if known.name == scenario.data.set:
            return known.shape, known.classes
    raise NotCheckedError(f"the manifest does not say the shape of the samples of {scenario.data.set!r}")


def _is_count(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 < value <= 1 << 31


def start_of(files: RunFiles, scenario: Scenario, allowed: Collection[str]) -> RunStart:
    """Return where the run began; raise NotCheckedError if neither records nor scenario say it here."""
    head, manifest = files.head(), files.json(MANIFEST)
    held = sum(len(files.contents[name]) for name in (*START[1:], MODEL, *files.segments) if name in files)
    if 4 * head.dimension > min(held, MOST_MODEL):  # before anything of that size is made
        raise UnreadableError(START_OF_LOG, f"N = {head.dimension}: more numbers than the run's files hold")
    recorded: dict[str, Any] | None = None
    model, reason, lost = None, "", ""
    try:
        recorded = first_state(files)
    except UnreadableError as error:
        lost = str(error)
    try:
        model = model_of(scenario, manifest, allowed)
    except NotCheckedError as error:
        reason = str(error)
    if scenario.privacy.scope == "first-conv" and scenario.private and model is None:
        raise NotCheckedError(reason)
    if model is not None and model.dimension != head.dimension:
        raise UnreadableError(
            START_OF_LOG, f"N = {head.dimension}; the scenario's model has {model.dimension}"
        )
    derived = None if model is None else _derived(model, scenario.seed)
    if recorded is not None:
        x, edges_at_least = _checked(recorded, head.incarnation, head.dimension)
        if derived is not None and derived.tobytes() != x.tobytes():
            raise UnreadableError(START[1], "x₁ is not the one that follows from the scenario")
    elif derived is not None:
        x, edges_at_least = derived, scenario.testbed.edges_at_least
    else:
        raise NotCheckedError(
            "; ".join(filter(None, (reason, f"x₁ does not follow from the scenario, and {lost}")))
        )
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
        strict_object(content, MOST_JSON)
        return unpack(content, packed)
    except (ValueError, KeyError, TypeError, AttributeError, ConfigurationError) as error:
        of_arrays = isinstance(error, KeyError) or str(error).startswith("arrays: ")
        raise UnreadableError(START[of_arrays], error) from error


def _checked(state: Mapping[str, Any], incarnation: int, dimension: int) -> tuple[Vector, int]:
    server = state.get("server")
    if not isinstance(server, dict):
        raise UnreadableError(START[0], "no server")
    x, edges_at_least = server.get("model"), server.get("edges_at_least")
    if (server.get("t"), server.get("edges"), server.get("halted")) != (1, [], None):
        raise UnreadableError(START[0], "not the state of a cloud before its first event")
    if server.get("incarnation") != incarnation:
        raise UnreadableError(START[0], "of another run than the log")
    if not isinstance(x, np.ndarray) or x.dtype != np.float32 or x.shape != (dimension,) or not is_finite(x):
        raise UnreadableError(START[1], f"x₁ must be {dimension} finite numbers in float32")
    if not _is_count(edges_at_least):
        raise UnreadableError(START[0], f"edges_at_least = {edges_at_least!r:.40}")
    return x, cast(int, edges_at_least)


# -- the replay ----------------------------------------------------------------------------------------------


@dataclass(slots=True)
class LogReplay:
    """What the log amounts to, once the same pure CloudServer has taken it again."""

    server: CloudServer
    tally: Tally = field(default_factory=Tally)
    restarts: Restarts = field(default_factory=Restarts)
    facts: list[Fact] = field(default_factory=list)  # in order
    received: int = 0  # gradients in the log, each once
    times: list[float] = field(default_factory=list)  # of the first and of the last update, in seconds

    @classmethod
    def of(cls, files: RunFiles, start: RunStart) -> LogReplay:
        """Take the whole log; raise UnreadableError naming the segment of a record that no cloud can have taken."""
        replay = cls(start.server())
        deque(replay.steps(files), maxlen=0)
        return replay

    def steps(self, files: RunFiles) -> Iterator[tuple[Event | None, list[Effect]]]:
        """Take the log record by record; yield the event of each, if it is of one, and its effects."""
        replayer = Replayer(self.server, self.restarts)
        with quiet_overflow():
            for segment, entry in files.entries():
                try:
                    event, effects = replayer.take(entry)
                except LogDamagedError as error:
                    raise UnreadableError(segment, error) from error
                self._count(entry, effects)
                yield event, effects

    def _count(self, entry: Entry, effects: list[Effect]) -> None:
        facts = [effect for effect in effects if isinstance(effect, Fact)]
        for fact in facts:
            self.tally.observe(fact)
            if isinstance(fact, GradientApplied):
                self.times = [*self.times[:1], entry.time]
        full = any(isinstance(fact, GradientRefused) and fact.reason == "full" for fact in facts)
        self.received += entry.kind is Kind.GRADIENT and not full
        self.facts += facts


# -- checks of the log and of the model ----------------------------------------------------------------------


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
    counted = ", ".join(f"{kinds[kind]} {kind.name.lower()}" for kind in Kind if kinds[kind])
    yield passed(
        "log",
        "log",
        f"{len(files.segments)} segments, checksums right, t and times in order: {counted or 'empty'}",
    )


def continuity(replay: LogReplay) -> Iterator[Check]:
    """Check t = 1, 2, … and that each (edge, sequence) was applied once, in rising order."""
    applied = [fact for fact in replay.facts if isinstance(fact, GradientApplied)]
    gaps = [place for place, fact in enumerate(applied, start=1) if fact.t != place]
    if gaps:
        yield failed("continuity", "log", f"update {gaps[0]} is missing or doubled")
    else:
        yield passed("continuity", "log", f"t = 1 … {len(applied)} without gap or double")
    last: dict[str, int] = {}
    for fact in applied:
        if fact.sequence <= last.get(fact.edge_id, 0):
            yield failed("exactly once", "log", f"{fact.edge_id}: sequence {fact.sequence} was applied again")
            return
        last[fact.edge_id] = fact.sequence
    if replay.received < len(applied):
        yield failed("exactly once", "log", f"received {replay.received}, applied {len(applied)}")
        return
    yield passed(
        "exactly once",
        "log",
        f"received {replay.received} ≥ applied {len(applied)} = distinct; sequences rise on each of {len(last)} edges",
    )


def model_of_run(
    files: RunFiles, replay: LogReplay | None, scenario: Scenario, layout: Sequence[Block] | None
) -> Iterator[Check]:
    """Check that model.safetensors is what the log gives; without one, that it has the form of the run's."""
    tensors, metadata = files.model()
    summary = files.json(SUMMARY)
    x, wrong = tensors.pop("x"), []
    if replay is not None and (unequal := difference(x, replay.server.result)):
        wrong.append(f"is not the replayed one: {unequal}")
    if replay is None and summary.get("reason") != "diverged" and not is_finite(x):
        wrong.append("numbers that are not finite")
    updates = summary.get("updates") if replay is None else replay.server.updates
    expected = {"scenario_sha256": scenario.digest, "updates": str(updates)}
    if metadata != expected:
        wrong.append(f"metadata {metadata!r:.200}; by the run {expected}")
    if summary.get("parameters") != x.size:
        wrong.append(f"{x.size} numbers; summary.json has parameters = {summary.get('parameters')!r:.40}")
    if layout is not None and (
        tensors.keys() != {block.name for block in layout}
        or any(tensors[block.name].tobytes() != x[block.slice].tobytes() for block in layout)
    ):
        wrong.append("its blocks are not the vector x")
    yield from (failed("model", MODEL, detail) for detail in wrong)
    if layout is None:
        yield claimed("blocks", MODEL, "names of the model's blocks: the run's model cannot be made here")
    if replay is None:
        yield claimed("model", MODEL, "every number of the final model: without a log nothing is replayed")
    elif not wrong:
        yield passed("model", MODEL, f"the same {x.size} numbers as the replay's, bit for bit")


def difference(x: Vector, replayed: Vector) -> str:
    """Say how two models differ; '' where every bit is the same."""
    if x.shape != replayed.shape:
        return f"{x.size} numbers, the replay has {replayed.size}"
    unequal = np.flatnonzero(x.view(np.uint32) != np.ascontiguousarray(replayed, np.float32).view(np.uint32))
    if not len(unequal):
        return ""
    with np.errstate(over="ignore", invalid="ignore"):
        largest = float(np.abs(x.astype(np.float64) - replayed).max())
    return f"{len(unequal)} of {x.size} numbers differ, the largest difference is {largest:g}"

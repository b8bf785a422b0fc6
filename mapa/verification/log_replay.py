"""Where a run began, from its records alone: scenario, x₁ and what the cloud waited for. Without the data set.

Records are somebody's word: code that they name is imported only where the operator allows it by its dotted path.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, cast

import numpy as np
from safetensors import SafetensorError
from safetensors.numpy import load

from cloud.assembly import begin, first_model, terms_for
from cloud.lives import Lives
from cloud.server import CloudServer
from common.datasets.catalogue import describe
from common.dotted import is_dotted
from common.errors import ConfigurationError, RemoteProtocolError
from common.messages import (
    EdgeGone,
    EdgeJoined,
    Effect,
    Fact,
    GradientApplied,
    GradientArrived,
    GradientRefused,
    SendModel,
    StageOpened,
)
from common.models.model import Block, Model
from common.own_code import code_named_by
from common.quantities import Vector, is_finite
from common.randomness import CounterStreams, streams_for
from common.records.checkpoint import unpack
from common.records.log_format import Entry, Kind
from common.records.regular import MOST_JSON, MOST_MODEL
from common.records.tally import Tally
from common.scenario.parts import model_for
from common.scenario.scenario import Scenario, parse_scenario
from common.wire.codec import decode_hello, decode_leave
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


@dataclass(frozen=True, slots=True)
class Start:
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
    """Raise NotCheckedError where records name code that nobody here has allowed."""
    if isinstance(name, str) and is_dotted(name) and name not in allowed:
        raise NotCheckedError(f"{key} = {name!r} is code of the run's own; allow it with --allow {name}")


def scenario_of(manifest: Mapping[str, Any], allowed: Collection[str]) -> Scenario:
    """Return a run's scenario; UnreadableError where its manifest has none that this version can read."""
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
    """Return the run's model without its data; NotCheckedError where that cannot be made here."""
    allow(scenario.model.name, "model.name", allowed)
    shape, classes = _form(scenario, manifest)
    try:
        return model_for(scenario, shape, classes)
    except ConfigurationError as error:
        raise NotCheckedError(str(error)) from error


def _form(scenario: Scenario, manifest: Mapping[str, Any]) -> tuple[tuple[int, ...], int]:
    form = manifest.get("samples")
    if isinstance(form, dict):
        shape, classes = form.get("shape"), form.get("classes")
        shaped = isinstance(shape, list) and 0 < len(shape) <= 8 and all(_count(one) for one in shape)
        if shaped and (classes == 0 or _count(classes)):
            return tuple(cast(list[int], shape)), cast(int, classes)
        raise UnreadableError(MANIFEST, f"samples = {form!r:.200}: must have a shape and classes")
    for known in describe(Path()):
        if known.name == scenario.data.set:
            return known.shape, known.classes
    raise NotCheckedError(f"the manifest does not say the shape of the samples of {scenario.data.set!r}")


def _count(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 < value <= 1 << 31


def start_of(files: RunFiles, scenario: Scenario, allowed: Collection[str]) -> Start:
    """Return where the run began; NotCheckedError where the records do not say it and this machine cannot tell."""
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
    if recorded is None and derived is None:
        raise NotCheckedError(
            "; ".join(filter(None, (reason, f"x₁ does not follow from the scenario, and {lost}")))
        )
    edges_at_least = scenario.testbed.edges_at_least
    x = derived
    if recorded is not None:
        x, edges_at_least = _checked(recorded, head.incarnation, head.dimension)
        if derived is not None and derived.tobytes() != x.tobytes():
            raise UnreadableError(START[1], "x₁ is not the one that follows from the scenario")
    assert x is not None
    return Start(scenario, head.incarnation, x, edges_at_least, model, derived is not None)


def _derived(model: Model, seed: int | None) -> Vector | None:
    """Return x₁ where the scenario decides it: by a seed, or since the model draws nothing for it."""
    if seed is not None:
        return first_model(model, streams_for(seed))
    one, other = (first_model(model, CounterStreams.seeded(number)) for number in (1, 2))
    return one if one.tobytes() == other.tobytes() else None


def first_state(files: RunFiles) -> dict[str, Any]:
    """Return the state of the first checkpoint; UnreadableError names the file that is missing or damaged."""
    for name, most in zip(START, (MOST_JSON, MOST_MODEL), strict=True):
        if name not in files:
            raise UnreadableError(name, "missing")
        if (size := len(files.contents[name])) > most:
            raise UnreadableError(name, f"{size} bytes, at most {most}")
    content, packed = (bytes(files.contents[name]) for name in START)
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
    if not _count(edges_at_least):
        raise UnreadableError(START[0], f"edges_at_least = {edges_at_least!r:.40}")
    return x, cast(int, edges_at_least)


_REASON = 64  # bytes of a halt's reason, at most
USED_UP = (
    "cap",
    "future",
    "no-such-model",
    "sensitivity",
    "norm",
)  # refusals that use up a sequence: all in the log


@dataclass(slots=True)
class Rerun:
    """What the log amounts to, once it is taken."""

    server: CloudServer
    tally: Tally = field(default_factory=Tally)
    lives: Lives = field(default_factory=Lives)
    facts: list[Fact] = field(
        default_factory=list
    )  # in order; refusals of what changed nothing are not in a log
    received: dict[str, int] = field(default_factory=dict)  # edge id → gradients in the log, each once
    times: list[float] = field(default_factory=list)  # of the first and of the last update, in seconds
    on_applied: Callable[[GradientArrived, GradientApplied], None] | None = None
    on_sent: Callable[[SendModel], None] | None = None

    @classmethod
    def of(cls, files: RunFiles, start: Start) -> Rerun:
        """Take the whole log; UnreadableError names the segment of a record that no cloud can have taken."""
        run = cls(start.server())
        for _ in run.steps(files):
            pass
        return run

    def steps(self, files: RunFiles) -> Iterator[Entry]:
        """Take the log record by record."""
        with quiet_overflow():
            for segment, entry in files.entries():
                updates = self.tally.updates
                try:
                    self._take(entry)
                except (RemoteProtocolError, ValueError) as error:
                    raise UnreadableError(segment, f"record of t = {entry.t}: {error}") from error
                if self.tally.updates > updates:
                    self.times = [*self.times[:1], entry.time]
                yield entry

    def _take(self, entry: Entry) -> None:
        server = self.server
        if entry.t != server.t:
            raise ValueError(f"the cloud was at t = {server.t}: a record is missing, doubled or out of place")
        match entry.kind:
            case Kind.GRADIENT:
                arrived = entry.arrived
                if arrived.gradient.size != server.model.size:
                    raise ValueError(f"{arrived.gradient.size} numbers, N = {server.model.size}")
                self._gradient(arrived)
            case Kind.REPEAT:
                arrived = entry.arrived
                if arrived.gradient.size or server.is_new(arrived):
                    raise ValueError(
                        f"gradient {arrived.sequence} of {arrived.edge_id} was never taken before"
                    )
                self._observe(server.receive(arrived))
            case Kind.HELLO:
                hello = decode_hello(entry.edge_id, entry.body)
                effects = server.receive(hello)
                self._observe(effects)
                account = server.edges.get(entry.edge_id)
                if account is None or account.nonce != hello.nonce or account.number != hello.number:
                    raise ValueError(f"a hello of {entry.edge_id} that no cloud would have welcomed")
                self.lives.welcomed(entry.edge_id, hello.nonce, hello.last_sequence)
            case Kind.LEAVE:
                effects = server.receive(decode_leave(entry.edge_id, entry.body))
                if not effects:
                    raise ValueError(f"a leave of {entry.edge_id}, who was not there")
                self._observe(effects)
            case Kind.BEGIN:
                if entry.body or server.schedule is not None:
                    raise ValueError("a beginning after the beginning")
                self._observe(server.begin_with_those_here())
            case Kind.HALT:
                if server.halted is not None or not 0 < len(entry.body) <= _REASON:
                    raise ValueError("a halt after the halt, or without a reason")
                self._observe(server.halt(entry.body.decode("ascii")))

    def _gradient(self, arrived: GradientArrived) -> None:
        effects = self.server.receive(arrived)
        refused = [one.reason for one in effects if isinstance(one, GradientRefused)]
        if refused and refused[0] not in (*USED_UP, "full"):
            raise ValueError(
                f"gradient {arrived.sequence} of {arrived.edge_id}: the cloud would have refused it ({refused[0]})"
            )
        if refused != ["full"]:
            self.received[arrived.edge_id] = self.received.get(arrived.edge_id, 0) + 1
        if self.on_applied is not None:
            for effect in effects:
                if isinstance(effect, GradientApplied):
                    self.on_applied(arrived, effect)
        self._observe(effects)

    def _observe(self, effects: list[Effect]) -> None:
        for effect in effects:
            if isinstance(effect, GradientApplied | StageOpened | EdgeJoined | EdgeGone | GradientRefused):
                self.tally.observe(effect)
                self.facts.append(effect)
            elif isinstance(effect, SendModel) and self.on_sent is not None:
                self.on_sent(effect)


_HEADER = 1 << 24  # bytes


def final_model(files: RunFiles) -> tuple[dict[str, Vector], dict[str, object]]:
    """Return the tensors of model.safetensors, `x` among them, and its metadata; UnreadableError for anything else."""
    content = files.contents.get(MODEL)
    if content is None:
        raise UnreadableError(MODEL, "missing")
    try:
        if len(content) > MOST_MODEL:
            raise ValueError(f"{len(content)} bytes, at most {MOST_MODEL}")
        size = int.from_bytes(content[:8], "little")
        header = strict_object(content[8 : 8 + min(size, _HEADER + 1)], _HEADER)
        tensors = load(bytes(content))
    except (SafetensorError, ValueError, KeyError, TypeError) as error:
        raise UnreadableError(MODEL, f"not a model: {error}") from error
    x = tensors.get("x")
    if x is None or x.ndim != 1 or x.dtype != np.float32:
        raise UnreadableError(MODEL, "no flat vector x in float32")
    metadata = header.get("__metadata__")
    return tensors, metadata if isinstance(metadata, dict) else {}


def model_of_run(
    files: RunFiles, rerun: Rerun | None, scenario: Scenario, layout: Sequence[Block] | None
) -> Iterator[Check]:
    """Check that model.safetensors is what the log gives; without one, that it has the form of the run's."""
    tensors, metadata = final_model(files)
    summary = files.json(SUMMARY)
    x, wrong = tensors.pop("x"), []
    if rerun is not None and (words := difference(x, rerun.server.result)):
        wrong.append(f"is not the replayed one: {words}")
    if rerun is None and summary.get("reason") != "diverged" and not is_finite(x):
        wrong.append("numbers that are not finite")
    updates = summary.get("updates") if rerun is None else rerun.server.updates
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
    for words in wrong:
        yield failed("model", MODEL, words)
    if layout is None:
        yield claimed("blocks", MODEL, "names of the model's blocks: the run's model cannot be made here")
    if rerun is None:
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

"""Replay a run's gradient log from its first state: for `mapa verify`, and for the questions of `mapa replay`.

Records are untrusted: the code that they name is imported only where `only_code` allows it.
"""

from __future__ import annotations

import functools
import math
from collections import Counter, defaultdict, deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Annotated, Any, cast

import numpy as np
from pydantic import BaseModel, Field, ValidationError

from cloud.admission import Restarts
from cloud.algorithm import Algorithm, Update
from cloud.assembly import begin, first_model, settled, terms_for
from cloud.recovery_log import take_again
from cloud.server import CloudServer
from common.errors import ConfigurationError, DataUnavailableError
from common.messages import Effect, Event, Fact, GradientApplied, GradientArrived, SendModel
from common.models.model import Model
from common.noise.law import NoiseLaw
from common.own_code import code_named_by, is_allowed
from common.quantities import EdgeId, NoisyGradient, Vector, is_finite
from common.randomness import CounterStreams, streams_for
from common.records.checkpoint import unpack
from common.records.directory import machine_type
from common.records.gradient_log import Kind, LogDamagedError
from common.records.regular import MOST_JSON, MOST_MODEL, table
from common.records.tally import Tally
from common.scenario.parts import model_for
from common.scenario.scenario import Scenario, parse_scenario
from edge.worker import EdgeWorker, Shard, worker_for
from mapa.recording import ENGINES
from mapa.scenario_files import changed_by
from mapa.simulation.simulator import World, quiet_overflow
from mapa.verification.check import Check, NotCheckedError, UnreadableError, judged, passed
from mapa.verification.untrusted_files import (
    MANIFEST,
    MODEL,
    START,
    START_OF_LOG,
    RunFiles,
    of_directory,
    strict_object,
)

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
    server: CloudServer  # with x₁
    model: Model | None  # None: it cannot be made here, and need not be
    derived: bool  # x₁ follows from the scenario; else it is as recorded


def start_of(files: RunFiles, scenario: Scenario) -> RunStart:
    """Return where the run began; raise NotCheckedError if neither records nor scenario say it here."""
    head = files.head()
    parts = (*START[1:], MODEL, *files.segments)
    held = sum(len(files.contents[name]) for name in parts if name in files)
    if 4 * head.dimension > min(held, MOST_MODEL):  # before anything of that size is made
        raise UnreadableError(START_OF_LOG, f"N = {head.dimension}: more numbers than the run's files hold")
    recorded = model = None
    reason = lost = ""
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
        raise NotCheckedError(f"{reason}; x₁ does not follow from the scenario, and {lost}".lstrip("; "))
    sized = model or cast(Model, SimpleNamespace(dimension=len(x)))  # all that its terms need
    terms = terms_for(scenario, sized, edges_at_least=edges_at_least)
    server = CloudServer(terms=terms, model=x, begin=partial(begin, scenario), incarnation=head.incarnation)
    return RunStart(server, model, derived is not None)


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
    """What the log amounts to, once a server has taken it again."""

    server: CloudServer
    tally: Tally = field(default_factory=Tally)
    facts: list[Fact] = field(default_factory=list)  # in order
    received: int = 0  # gradients in the log, each once
    times: list[float] = field(default_factory=list)  # of the first and of the last update, in seconds

    @classmethod
    def of(cls, files: RunFiles, start: RunStart) -> LogReplay:
        """Take the whole log; raise UnreadableError as `steps` does."""
        replay = cls(start.server)
        deque(replay.steps(files), maxlen=0)
        return replay

    @property
    def restarts(self) -> Restarts:
        return self.server.restarts

    @property
    def applied(self) -> list[GradientApplied]:
        return [fact for fact in self.facts if isinstance(fact, GradientApplied)]

    def steps(self, files: RunFiles) -> Iterator[tuple[Event | None, list[Effect]]]:
        """Take the log record by record; yield the event of each, if it is of one, and its effects.

        Raise UnreadableError naming the segment of a record that no cloud can have taken.
        """
        with quiet_overflow():
            for segment, entry in files.entries():
                try:
                    event, effects = take_again(entry, self.server)
                except LogDamagedError as error:
                    raise UnreadableError(segment, error) from error
                self.received += entry.kind is Kind.GRADIENT
                for fact in (effect for effect in effects if isinstance(effect, Fact)):
                    self.facts.append(fact)
                    self.tally.observe(fact)
                    if isinstance(fact, GradientApplied):
                        self.times = [*self.times[:1], entry.time]
                yield event, effects


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
    counts = f"received {replay.received} ≥ applied {len(applied)} = distinct"
    yield from judged(
        "exactly once", "log", again[:1], f"{counts}; sequences rise on each of {len(last)} edges"
    )


# -- `mapa replay` --------------------------------------------------------------------------------------------

TOLERANCE = 1e-4  # of the largest coordinate: float32 sums in another order differ by less
_LOCAL = (*ENGINES, "processes")  # engines whose edges run on the cloud's machine
AS_LOGGED = (
    "Gradients as logged: each was made on the run's own x, and clipped and noised with the ΔS that the run's own"
    " algorithm chose; neither would have been the same under the other algorithm. What transfers is who arrived"
    " when, and how stale. It is post-processing of what was released: it costs no privacy beyond the run's own."
)
REMADE = (
    "Gradients made again at the other model's x, with the other algorithm's ΔS; who arrived when, on which version,"
    " is the run's own. These are new releases of the same records, and seeded: they are not private."
)
MakesGradients = Callable[[int, NoiseLaw | None, Vector, float, int], NoisyGradient]


def gradients_of(world: World) -> MakesGradients:
    """Return what makes any gradient of a seeded run again: g̃ of edge k under a law, at x, with ΔS, of batch n."""

    @functools.cache
    def worker(k: int, law: NoiseLaw | None) -> EdgeWorker:
        shard = Shard(world.features, world.targets, world.rows[k])
        edge_id = EdgeId(f"edge-{k}")
        return worker_for(
            world.scenario, world.model, law, edge_id=edge_id, index=k, shard=shard, streams=world.streams
        )

    return lambda k, law, x, sensitivity, n: worker(k, law).gradient(x, sensitivity, n)


@dataclass(slots=True)
class GradientComparison:
    """Compares gradients of the log with those made again; `every` n-th of them."""

    make: MakesGradients
    server: CloudServer
    every: int
    counts: Counter[str] = field(default_factory=Counter)
    first_other: str = ""
    seen: int = 0
    _sent: dict[EdgeId, dict[int, Vector]] = field(default_factory=lambda: defaultdict(dict))

    def sent(self, sent: SendModel) -> None:
        """Keep a model until its edge has answered a newer one."""
        self._sent[sent.edge_id][sent.version] = sent.model

    def applied(self, arrived: GradientArrived, applied: GradientApplied) -> None:
        """Make the gradient again, and compare."""
        models = self._sent[arrived.edge_id]
        for version in [version for version in models if version < arrived.version]:
            del models[version]
        self.seen += 1
        if (self.seen - 1) % self.every:
            return
        law, x = self.server.edges[arrived.edge_id].law, models[arrived.version]
        again = self.make(applied.edge, law, x, arrived.sensitivity, arrived.sequence)
        if again.tobytes() == arrived.gradient.tobytes():
            self.counts["same"] += 1
            return
        off = float(np.abs(again.astype(np.float64) - arrived.gradient).max())
        near = off <= TOLERANCE * float(np.abs(again).max())
        self.counts["within_tolerance" if near else "other"] += 1
        if not near:
            told = f"t = {applied.t}: gradient {arrived.sequence} of {arrived.edge_id} differs by {off:g}"
            self.first_other = self.first_other or told


def other_scenario(scenario: Scenario, algorithm: str, changes: Sequence[str]) -> Scenario:
    """Return the run's scenario with another algorithm: the shared keys stay, the old one's own options go."""
    values = scenario.canonical()
    own = {*scenario.algorithm.options, "rate", "rate_decay"}
    values["algorithm"] = {key: value for key, value in values["algorithm"].items() if key not in own}
    values["algorithm"]["name"] = algorithm
    other = parse_scenario(changed_by(values, changes))
    if other.centralised != scenario.centralised:
        raise ConfigurationError(
            f"--algorithm {algorithm}: one of the two is centralised, with one worker on all data; arrivals of"
            f" {scenario.workers} edges mean nothing to it"
        )
    if other.private and not scenario.private:
        raise ConfigurationError(
            f"--algorithm {algorithm}: asks edges to clip and noise; the gradients of this run are neither"
        )
    fixed = ("iterations", "edges", "batch_size", "data", "model", "seed", "privacy")
    if any(getattr(other, key) != getattr(scenario, key) for key in fixed):
        raise ConfigurationError(f"--set: only keys of [algorithm] can differ, not {', '.join(fixed)}")
    return other


@dataclass
class Counterfactual:
    """The other algorithm, fed update by update while the log is taken again."""

    scenario: Scenario  # with the other algorithm
    server: CloudServer  # of the run itself
    x: Vector
    make: MakesGradients | None = None  # None: gradients as logged
    last_use: Mapping[int, int] = field(default_factory=dict)  # version → t of the last gradient made on it
    algorithm: Algorithm | None = None
    moment: float = 0.0

    def __post_init__(self) -> None:
        self.x = np.array(self.x, dtype=np.float32)
        self._models: dict[int, tuple[Vector, Algorithm]] = {}

    def applied(self, arrived: GradientArrived, applied: GradientApplied) -> None:
        """Apply what the run applied."""
        server, t = self.server, applied.t
        if self.algorithm is None:
            self.algorithm, self.moment = begin(self.scenario, server.moment), server.moment
            self._models[t] = self.x, self.algorithm
        elif server.moment > self.moment:
            self.algorithm, self.moment = self.algorithm.with_moment(server.moment, t), server.moment
        account = server.edges[arrived.edge_id]
        law = account.law if self.scenario.private else None
        gradient, sensitivity, stage = NoisyGradient(arrived.gradient), arrived.sensitivity, applied.stage
        if self.make is not None:
            x, then = self._models[arrived.version]
            sensitivity, stage = then.sensitivity_for(arrived.version, account.index, law), then.stage
            gradient = self.make(account.index, law, x, sensitivity, arrived.sequence)
        of_edge = (applied.staleness, account.index, law, account.moment)
        update = Update(gradient, t, arrived.version, *of_edge, stage, sensitivity)
        moved, self.algorithm = self.algorithm.apply(self.x, update)
        self.x = np.asarray(moved, np.float32)
        if t + 1 in self.last_use:
            self._models[t + 1] = self.x, self.algorithm
        for version in [known for known in self._models if self.last_use.get(known, 0) <= t]:
            del self._models[version]

    @property
    def result(self) -> Vector:
        return self.x if self.algorithm is None else self.algorithm.result(self.x)


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplayQuestion:
    gradients: bool = True  # make a seeded run's gradients again
    every: int = 1
    algorithm: str | None = None
    changes: Sequence[str] = ()
    remake: bool = False


def replay(path: Path, data_dir: Path, question: ReplayQuestion) -> ReplayReport:
    """Replay a run; raise ConfigurationError if that cannot be done."""
    files = of_directory(path)
    try:
        return _replay(files, data_dir, question)
    except (UnreadableError, NotCheckedError) as error:
        raise ConfigurationError(f"{path}: cannot be replayed: {error}") from error


def _replay(files: RunFiles, data_dir: Path, question: ReplayQuestion) -> ReplayReport:
    if not files.segments:
        raise NotCheckedError("this run did not keep its gradients (records.keep_gradients)")
    scenario = scenario_of(files.manifest)
    start = start_of(files, scenario)
    other = _other(scenario, start, question)
    world, missing = _world(scenario, files.manifest, data_dir)
    if question.remake and world is None:
        raise ConfigurationError(f"--remake: {missing}")
    log = LogReplay(start.server)
    gradients = counterfactual = None
    if scenario.seed is not None and question.gradients and world is not None:
        gradients = GradientComparison(gradients_of(world), log.server, question.every)
    if other is not None:
        counterfactual = Counterfactual(other, log.server, start.server.model)
        if question.remake and world is not None:
            logged = (entry for _, entry in files.entries() if entry.kind is Kind.GRADIENT)
            last_use = {entry.arrived.version: entry.t for entry in logged}  # refused ones count, too
            counterfactual.make, counterfactual.last_use = gradients_of(world), last_use
    takers = [taker for taker in (gradients, counterfactual) if taker is not None]
    for event, effects in log.steps(files):
        for effect in effects:
            if isinstance(effect, GradientApplied) and isinstance(event, GradientArrived):
                for taker in takers:
                    taker.applied(event, effect)
            elif isinstance(effect, SendModel) and gradients is not None:
                gradients.sent(effect)
    report = ReplayReport(files, scenario, log.server, world, missing)
    report.of_model()
    report.of_data()
    if gradients is not None:
        report.of_gradients(gradients)
    elif scenario.seed is not None:
        why = missing if question.gradients else "not asked for"
        report.words.append(f"Gradients were not made again: {why}.")
    if counterfactual is not None:
        report.words.append(REMADE if question.remake else AS_LOGGED)
        report.of_both(counterfactual)
    return report


def _other(scenario: Scenario, start: RunStart, question: ReplayQuestion) -> Scenario | None:
    """Return the scenario with the other algorithm that is asked for; None if none is."""
    if question.algorithm is None:
        if question.changes or question.remake:
            raise ConfigurationError("--set and --remake: only with --algorithm")
        return None
    other = other_scenario(scenario, question.algorithm, question.changes)
    if question.remake and scenario.seed is None:
        raise ConfigurationError("--remake: only in a seeded run can gradients be made again")
    return other if start.model is None else settled(other, start.model)


def _world(scenario: Scenario, manifest: dict[str, Any], data_dir: Path) -> tuple[World | None, str]:
    """Return the run's world with its data; None, and why, if they are not here."""
    try:
        world = World.of(scenario, data_dir)
    except (DataUnavailableError, ConfigurationError) as error:
        return None, f"the data set is needed: {error}"
    if {scenario.data.set: world.dataset.checksum} != manifest.get("data"):
        return None, f"data.set = {scenario.data.set!r} here has another checksum than the run's"
    return world, ""


@dataclass(slots=True)
class ReplayReport:
    """The answer, for a person and as figures."""

    files: RunFiles
    scenario: Scenario
    server: CloudServer  # that has taken the log
    world: World | None  # None: the data set is missing
    missing: str
    words: list[str] = field(default_factory=list)
    figures: dict[str, Any] = field(default_factory=dict)
    wrong: bool = False  # another model, a gradient that is not the seed's, or a figure not that of the data

    def of_model(self) -> None:
        tensors, _ = self.files.model()
        unequal, updates = difference(tensors["x"], self.server.result), self.server.updates
        self.wrong |= bool(unequal)
        self.figures |= {"updates": updates, "same_model": not unequal}
        same = "the same model as model.safetensors, bit for bit"
        other = f"another model than model.safetensors: {unequal}"
        self.words.append(f"{updates} updates replayed: {other if unequal else same}.")

    def of_data(self) -> None:
        """Compare n_k and the final metrics with what the data set gives."""
        if self.world is None:
            self.words.append(f"Shard sizes and metrics were not checked: {self.missing}.")
            return
        summary, sizes = self.files.summary, self.files.manifest.get("shard_sizes")
        wrong = [
            f"final_{name} = {summary.get(f'final_{name}')}, and not {value}"
            for name, value in self._metrics(self.server.result).items()
            if not _is_near(summary.get(f"final_{name}"), value)
        ]
        if sizes != self.world.shard_sizes:
            wrong.append(f"shard_sizes = {sizes!r:.100}, and not {self.world.shard_sizes!r:.100}")
        self.figures["agrees_with_data"] = not wrong
        self.wrong |= bool(wrong)
        agree = "Shard sizes and final metrics are those that the data set gives."
        self.words.append(f"By the data set the records are wrong: {'; '.join(wrong)}." if wrong else agree)

    def of_gradients(self, gradients: GradientComparison) -> None:
        counts, manifest = gradients.counts, self.files.manifest
        local = (
            manifest.get("engine") in _LOCAL
        )  # on this type of machine, with this BLAS, every bit is the same
        bits = local and manifest.get("machine") == machine_type()
        compared = {key: counts[key] for key in ("same", "within_tolerance", "other")}
        made = {"made": counts.total(), "of": gradients.seen}
        self.figures["gradients"] = {**made, **compared, "tolerance": TOLERANCE, "bits_meant": bits}
        self.wrong |= bool(compared["other"] or (bits and compared["within_tolerance"]))
        demand = f"another machine type or BLAS: equal to {TOLERANCE:g} of the largest coordinate"
        if bits:
            demand = "every bit must be the same on this machine type"
        self.words.append(
            f"{made['made']} of {made['of']} gradients made again from the seed ({demand}): {compared['same']} the"
            f" same bit for bit, {compared['within_tolerance']} within the tolerance, {compared['other']} others."
        )
        if gradients.first_other:
            self.words.append(f"First: {gradients.first_other}.")

    def of_both(self, counterfactual: Counterfactual) -> None:
        """Say what the two models are worth, and how far apart they are."""
        own, other = self.server.result, counterfactual.result
        name = counterfactual.scenario.algorithm.name
        self.figures |= {"diverged": not is_finite(other), "distance": None}
        if not is_finite(other):
            self.words.append(f"{name}: diverged: its model is not finite, and nothing is compared.")
            return
        distance = float(np.linalg.norm(own.astype(np.float64) - other))
        self.figures["distance"], told = distance, f"‖x − x'‖ = {distance:.6g}."
        if not self._metrics(own):
            why = self.missing if self.world is None else "the run has no test data"
            self.words.append(f"Not evaluated: {why}. {told}")
            return
        self.figures["metrics"] = []
        for algorithm, x in ((self.scenario.algorithm.name, own), (name, other)):
            metrics = self._metrics(x)
            self.figures["metrics"].append({"algorithm": algorithm, **metrics})
            shown = (f"{key} {'–' if one is None else format(one, '.4g')}" for key, one in metrics.items())
            self.words.append(f"{algorithm}: {', '.join(shown)}")
        self.words.append(told)

    def _metrics(self, x: Vector) -> dict[str, float | None]:
        """Return the metrics of a model on the test set; none if that is not here."""
        if self.world is None or self.world.evaluator is None:
            return {}
        return self.world.evaluator.evaluate(x, self.server.updates, self.server.stage).named()


def _is_near(stated: object, again: float | None) -> bool:
    if stated is None or again is None:
        return stated is again
    return isinstance(stated, float | int) and math.isclose(stated, again, rel_tol=1e-5, abs_tol=1e-9)


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

"""`mapa replay`: the final model from the log, a seeded run's gradients from the seed, another algorithm's model."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from cloud.algorithm import Algorithm, Update
from cloud.assembly import begin, settled
from cloud.server import CloudServer
from common.errors import ConfigurationError, DataUnavailableError
from common.messages import GradientApplied, GradientArrived, SendModel
from common.noise.law import NoiseLaw
from common.quantities import EdgeId, NoisyGradient, Vector, is_finite
from common.records.directory import machine_type
from common.records.gradient_log import Kind
from common.scenario.scenario import Scenario, parse_scenario
from edge.worker import EdgeWorker, Shard, worker_for
from mapa.recording import ENGINES
from mapa.scenario_files import changed_by
from mapa.simulation.simulator import World
from mapa.verification.check import NotCheckedError, UnreadableError
from mapa.verification.checks_records import difference
from mapa.verification.log_replay import LogReplay, RunStart, scenario_of, start_of
from mapa.verification.untrusted_files import RunFiles, of_directory

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


# -- gradients made again, and another algorithm ----------------------------------------------------------------


def bits_are_meant(manifest: Mapping[str, Any]) -> bool:
    """Tell whether every bit must be the same: the edges ran on a machine of this type, with this BLAS."""
    return manifest.get("engine") in _LOCAL and manifest.get("machine") == machine_type()


@dataclass(slots=True)
class GradientMakers:
    """The edges of a seeded run, able to make any of their gradients again."""

    world: World
    _workers: dict[tuple[int, NoiseLaw | None], EdgeWorker] = field(default_factory=dict)

    def gradient(self, k: int, law: NoiseLaw | None, x: Vector, sensitivity: float, n: int) -> NoisyGradient:
        """Return g̃ of edge k's batch n at x."""
        worker = self._workers.get((k, law))
        if worker is None:
            world = self.world
            worker = self._workers[k, law] = worker_for(
                world.scenario,
                world.model,
                law,
                edge_id=EdgeId(f"edge-{k}"),
                index=k,
                shard=Shard(world.features, world.targets, world.rows[k]),
                streams=world.streams,
            )
        return worker.gradient(x, sensitivity, n)


@dataclass(slots=True)
class GradientComparison:
    """Compares gradients of the log with those made again; `every` n-th of them."""

    makers: GradientMakers
    server: CloudServer
    every: int = 1
    same: int = 0  # bit for bit
    near: int = 0  # within TOLERANCE
    other: int = 0
    first_other: str = ""
    seen: int = 0
    _sent: dict[EdgeId, dict[int, Vector]] = field(default_factory=lambda: defaultdict(dict))

    @property
    def made(self) -> int:
        return self.same + self.near + self.other

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
        law = self.server.edges[arrived.edge_id].law
        x = models[arrived.version]
        again = self.makers.gradient(applied.edge, law, x, arrived.sensitivity, arrived.sequence)
        if again.tobytes() == arrived.gradient.tobytes():
            self.same += 1
            return
        difference = float(np.abs(again.astype(np.float64) - arrived.gradient).max())
        if difference <= TOLERANCE * float(np.abs(again).max()):
            self.near += 1
            return
        self.other += 1
        self.first_other = self.first_other or (
            f"t = {applied.t}: gradient {arrived.sequence} of {arrived.edge_id} differs by {difference:g}"
        )


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
    makers: GradientMakers | None = None  # None: gradients as logged
    last_use: dict[int, int] | None = None  # version → t of the last gradient made on it, to remake gradients
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
        gradient, sensitivity, stage = arrived.gradient, arrived.sensitivity, applied.stage
        if self.makers is not None:
            x, then = self._models[arrived.version]
            sensitivity, stage = then.sensitivity_for(arrived.version, account.index, law), then.stage
            gradient = self.makers.gradient(account.index, law, x, sensitivity, arrived.sequence)
        update = Update(
            NoisyGradient(gradient),
            t,
            arrived.version,
            applied.staleness,
            account.index,
            law,
            account.moment,
            stage,
            sensitivity,
        )
        moved, self.algorithm = self.algorithm.apply(self.x, update)
        self.x = np.asarray(moved, np.float32)
        if self.last_use is not None:
            if t + 1 in self.last_use:
                self._models[t + 1] = self.x, self.algorithm
            for version in [known for known in self._models if self.last_use.get(known, 0) <= t]:
                del self._models[version]

    @property
    def result(self) -> Vector:
        return self.x if self.algorithm is None else self.algorithm.result(self.x)


# -- the question and its answer ------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplayQuestion:
    """What a replay is asked."""

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
    log = LogReplay(start.server())
    gradients = counterfactual = None
    if scenario.seed is not None and question.gradients and world is not None:
        gradients = GradientComparison(GradientMakers(world), log.server, question.every)
    if other is not None:
        counterfactual = Counterfactual(other, log.server, start.x)
        if question.remake and world is not None:
            counterfactual.makers, counterfactual.last_use = GradientMakers(world), _last_use(files)
    for event, effects in log.steps(files):
        for effect in effects:
            if isinstance(effect, GradientApplied) and isinstance(event, GradientArrived):
                if gradients is not None:
                    gradients.applied(event, effect)
                if counterfactual is not None:
                    counterfactual.applied(event, effect)
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


def _last_use(files: RunFiles) -> dict[int, int]:
    """Return, for each version, the t of the last gradient made on it; refused ones count, too."""
    gradients = (entry for _, entry in files.entries() if entry.kind is Kind.GRADIENT)
    return {entry.arrived.version: entry.t for entry in gradients}


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
    exit_code: int = (
        0  # 1: another model, a gradient that is not the seed's, or a figure not that of the data
    )

    def of_model(self) -> None:
        tensors, _ = self.files.model()
        unequal, updates = difference(tensors["x"], self.server.result), self.server.updates
        self.exit_code |= bool(unequal)
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
        self.exit_code |= bool(wrong)
        if wrong:
            self.words.append(f"By the data set the records are wrong: {'; '.join(wrong)}.")
        else:
            self.words.append("Shard sizes and final metrics are those that the data set gives.")

    def of_gradients(self, gradients: GradientComparison) -> None:
        bits = bits_are_meant(self.files.manifest)
        self.figures["gradients"] = {
            "made": gradients.made,
            "of": gradients.seen,
            "same": gradients.same,
            "within_tolerance": gradients.near,
            "other": gradients.other,
            "tolerance": TOLERANCE,
            "bits_meant": bits,
        }
        self.exit_code |= bool(gradients.other or (bits and gradients.near))
        demand = f"another machine type or BLAS: equal to {TOLERANCE:g} of the largest coordinate"
        if bits:
            demand = "every bit must be the same on this machine type"
        self.words.append(
            f"{gradients.made} of {gradients.seen} gradients made again from the seed ({demand}): {gradients.same} the"
            f" same bit for bit, {gradients.near} within the tolerance, {gradients.other} others."
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
        evaluator = None if self.world is None else self.world.evaluator
        return (
            {} if evaluator is None else evaluator.evaluate(x, self.server.updates, self.server.stage).named()
        )


def _is_near(stated: object, again: float | None) -> bool:
    if stated is None or again is None:
        return stated is again
    return isinstance(stated, float | int) and math.isclose(stated, again, rel_tol=1e-5, abs_tol=1e-9)

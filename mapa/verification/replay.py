"""`mapa replay`: the final model from the log, a seeded run's gradients from the seed, another algorithm's model."""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from cloud.assembly import settled
from common.errors import ConfigurationError, DataUnavailableError
from common.messages import GradientApplied, GradientArrived, SendModel
from common.quantities import Vector, is_finite
from common.records.gradient_log import Kind
from common.scenario.scenario import Scenario
from mapa.simulation.world import World
from mapa.verification.counterfactual import (
    TOLERANCE,
    Counterfactual,
    GradientComparison,
    GradientMakers,
    bits_are_meant,
    other_scenario,
)
from mapa.verification.log_replay import LogReplay, RunStart, allow, difference, scenario_of, start_of
from mapa.verification.untrusted_files import (
    MANIFEST,
    SUMMARY,
    NotCheckedError,
    RunFiles,
    UnreadableError,
    of_directory,
)

AS_LOGGED = (
    "Gradients as logged: each was made on the run's own x, and clipped and noised with the ΔS that the run's own"
    " algorithm chose; neither would have been the same under the other algorithm. What transfers is who arrived"
    " when, and how stale. It is post-processing of what was released: it costs no privacy beyond the run's own."
)
REMADE = (
    "Gradients made again at the other model's x, with the other algorithm's ΔS; who arrived when, on which version,"
    " is the run's own. These are new releases of the same records, and seeded: they are not private."
)


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplayQuestion:
    """What a replay is asked."""

    gradients: bool = True  # make a seeded run's gradients again
    every: int = 1
    algorithm: str | None = None
    changes: Sequence[str] = ()
    remake: bool = False
    allowed: Collection[str] = ()


@dataclass(slots=True)
class ReplayReport:
    """The answer."""

    words: list[str] = field(default_factory=list)
    figures: dict[str, Any] = field(default_factory=dict)
    wrong: bool = False  # another model, a gradient that is not the seed's, or a figure not that of the data

    @property
    def exit_code(self) -> int:
        return int(self.wrong)


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
    manifest = files.json(MANIFEST)
    scenario = scenario_of(manifest, question.allowed)
    start = start_of(files, scenario, question.allowed)
    other = _other(scenario, start, question)
    world, missing = _world(scenario, manifest, data_dir, question)
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
    report = ReplayReport()
    _report_model(report, files, log)
    _report_data(report, files, log, world, missing)
    if gradients is not None:
        _report_gradients(report, gradients, bits=bits_are_meant(manifest))
    elif scenario.seed is not None:
        why = missing if question.gradients else "not asked for"
        report.words.append(f"Gradients were not made again: {why}.")
    if counterfactual is not None:
        report.words.append(REMADE if question.remake else AS_LOGGED)
        _report_both(report, log, counterfactual, world, missing, scenario)
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


def _world(
    scenario: Scenario, manifest: dict[str, Any], data_dir: Path, question: ReplayQuestion
) -> tuple[World | None, str]:
    """Return the run's world with its data; None, and why, if they are not here."""
    try:
        allow(scenario.data.set, "data.set", question.allowed)
        allow(scenario.model.name, "model.name", question.allowed)
        world = World.of(scenario, data_dir)
    except (DataUnavailableError, ConfigurationError, NotCheckedError) as error:
        return None, f"the data set is needed: {error}"
    if {scenario.data.set: world.dataset.checksum} != manifest.get("data"):
        return None, f"data.set = {scenario.data.set!r} here has another checksum than the run's"
    return world, ""


def _last_use(files: RunFiles) -> dict[int, int]:
    """Return, for each version, the t of the last gradient made on it; refused ones count, too."""
    gradients = (entry for _, entry in files.entries() if entry.kind is Kind.GRADIENT)
    return {entry.arrived.version: entry.t for entry in gradients}


def _report_model(report: ReplayReport, files: RunFiles, log: LogReplay) -> None:
    tensors, _ = files.model()
    unequal, updates = difference(tensors["x"], log.server.result), log.server.updates
    report.wrong |= bool(unequal)
    report.figures |= {"updates": updates, "same_model": not unequal}
    same = "the same model as model.safetensors, bit for bit"
    report.words.append(
        f"{updates} updates replayed: {f'another model than model.safetensors: {unequal}' if unequal else same}."
    )


def _metrics(world: World | None, log: LogReplay, x: Vector) -> dict[str, float | None]:
    """Return the metrics of a model on the test set; none if that is not here."""
    evaluator = None if world is None else world.evaluator
    if evaluator is None:
        return {}
    return evaluator.evaluate(x, log.server.updates, log.server.stage).named()


def _report_data(
    report: ReplayReport, files: RunFiles, log: LogReplay, world: World | None, missing: str
) -> None:
    """Compare n_k and the final metrics with what the data set gives."""
    if world is None:
        report.words.append(f"Shard sizes and metrics were not checked: {missing}.")
        return
    summary, sizes = files.json(SUMMARY), files.json(MANIFEST).get("shard_sizes")
    wrong = [
        f"final_{name} = {summary.get(f'final_{name}')}, and not {value}"
        for name, value in _metrics(world, log, log.server.result).items()
        if not _is_near(summary.get(f"final_{name}"), value)
    ]
    if sizes != world.shard_sizes:
        wrong.append(f"shard_sizes = {sizes!r:.100}, and not {world.shard_sizes!r:.100}")
    report.figures["agrees_with_data"] = not wrong
    report.wrong |= bool(wrong)
    if wrong:
        report.words.append(f"By the data set the records are wrong: {'; '.join(wrong)}.")
    else:
        report.words.append("Shard sizes and final metrics are those that the data set gives.")


def _is_near(stated: object, again: float | None) -> bool:
    if stated is None or again is None:
        return stated is again
    return isinstance(stated, float | int) and math.isclose(stated, again, rel_tol=1e-5, abs_tol=1e-9)


def _report_gradients(report: ReplayReport, gradients: GradientComparison, *, bits: bool) -> None:
    report.figures["gradients"] = {
        "made": gradients.made,
        "of": gradients.seen,
        "same": gradients.same,
        "within_tolerance": gradients.near,
        "other": gradients.other,
        "tolerance": TOLERANCE,
        "bits_meant": bits,
    }
    report.wrong |= bool(gradients.other or (bits and gradients.near))
    demand = (
        "every bit must be the same on this machine type"
        if bits
        else f"another machine type or BLAS: equal to {TOLERANCE:g} of the largest coordinate"
    )
    report.words.append(
        f"{gradients.made} of {gradients.seen} gradients made again from the seed ({demand}): {gradients.same} the"
        f" same bit for bit, {gradients.near} within the tolerance, {gradients.other} others."
    )
    if gradients.first_other:
        report.words.append(f"First: {gradients.first_other}.")


def _report_both(
    report: ReplayReport,
    log: LogReplay,
    counterfactual: Counterfactual,
    world: World | None,
    missing: str,
    scenario: Scenario,
) -> None:
    """Say what the two models are worth, and how far apart they are."""
    own, other = log.server.result, counterfactual.result
    names = (scenario.algorithm.name, counterfactual.scenario.algorithm.name)
    report.figures |= {"diverged": not is_finite(other), "distance": None}
    if not is_finite(other):
        report.words.append(f"{names[1]}: diverged: its model is not finite, and nothing is compared.")
        return
    distance = float(np.linalg.norm(own.astype(np.float64) - other))
    report.figures["distance"] = distance
    both = [_metrics(world, log, x) for x in (own, other)]
    if not both[0]:
        why = missing if world is None else "the run has no test data"
        report.words.append(f"Not evaluated: {why}. ‖x − x'‖ = {distance:.6g}.")
        return
    report.figures["metrics"] = [
        {"algorithm": name, **of_model} for name, of_model in zip(names, both, strict=True)
    ]
    for name, of_model in zip(names, both, strict=True):
        values = (
            f"{key} {'–' if value is None else format(value, '.4g')}" for key, value in of_model.items()
        )
        report.words.append(f"{name}: {', '.join(values)}")
    report.words.append(f"‖x − x'‖ = {distance:.6g}.")

"""The final model from the log, a seeded run's gradients from the seed, another algorithm on the same arrivals."""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from cloud.assembly import settled
from common.errors import ConfigurationError, DataUnavailableError
from common.messages import GradientApplied, GradientArrived
from common.quantities import Vector, is_finite
from common.records.log_format import Kind
from common.scenario.scenario import Scenario
from mapa.simulation.world import World
from mapa.verification.counterfactual import (
    TOLERANCE,
    GradientsAgain,
    Makers,
    Otherwise,
    bits_are_meant,
    other_scenario,
)
from mapa.verification.log_replay import (
    Rerun,
    Start,
    allow,
    difference,
    final_model,
    scenario_of,
    start_of,
)
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


@dataclass(slots=True)
class Replay:
    """What came of a replay."""

    same: bool  # bit for bit
    words: list[str]
    figures: dict[str, Any] = field(default_factory=dict)
    wrong: bool = False  # a gradient is not the seed's, or a figure not that of the data

    @property
    def exit_code(self) -> int:
        return 0 if self.same and not self.wrong else 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """What a replay is asked."""

    gradients: bool = True  # make a seeded run's gradients again
    every: int = 1
    algorithm: str | None = None
    changes: Sequence[str] = ()
    remake: bool = False
    allowed: Collection[str] = ()


def replay(path: Path, data_dir: Path, question: Question) -> Replay:
    """Replay a run; ConfigurationError where that cannot be done."""
    files = of_directory(path)
    try:
        return _replay(files, data_dir, question)
    except (UnreadableError, NotCheckedError) as error:
        raise ConfigurationError(f"{path}: cannot be replayed: {error}") from error


def _replay(files: RunFiles, data_dir: Path, question: Question) -> Replay:
    if not files.segments:
        raise NotCheckedError("this run did not keep its gradients (records.keep_gradients)")
    manifest = files.json(MANIFEST)
    scenario = scenario_of(manifest, question.allowed)
    start = start_of(files, scenario, question.allowed)
    other = None
    if question.algorithm is not None:
        other = other_scenario(scenario, question.algorithm, question.changes)
        other = other if start.model is None else settled(other, start.model)
    elif question.changes or question.remake:
        raise ConfigurationError("--set and --remake: only with --algorithm")
    if question.remake and scenario.seed is None:
        raise ConfigurationError("--remake: only in a seeded run can gradients be made again")
    world, missing = _world(scenario, manifest, data_dir, question)
    if question.remake and world is None:
        raise ConfigurationError(f"--remake: {missing}")
    rerun = Rerun(start.server())
    again = None
    if scenario.seed is not None and question.gradients and world is not None:
        again = GradientsAgain(Makers(world), rerun.server, question.every)
    otherwise = (
        None if other is None else _otherwise(other, files, start, rerun, world if question.remake else None)
    )

    def applied(arrived: GradientArrived, fact: GradientApplied) -> None:
        if again is not None:
            again.applied(arrived, fact)
        if otherwise is not None:
            otherwise.applied(arrived, fact)

    rerun.on_applied = applied
    rerun.on_sent = None if again is None else again.sent
    for _ in rerun.steps(files):
        pass
    result = _of_model(files, rerun)
    _of_data(result, files, rerun, world, missing)
    if scenario.seed is not None:
        _of_gradients(result, again, question, missing, bits=bits_are_meant(manifest))
    if otherwise is not None:
        result.words.append(REMADE if question.remake else AS_LOGGED)
        _of_both(result, rerun, otherwise, world, missing, scenario)
    return result


def _world(
    scenario: Scenario, manifest: dict[str, Any], data_dir: Path, question: Question
) -> tuple[World | None, str]:
    """Return the run's world with its data; None, and why, where they are not here."""
    try:
        allow(scenario.data.set, "data.set", question.allowed)
        allow(scenario.model.name, "model.name", question.allowed)
        world = World.of(scenario, data_dir)
    except (DataUnavailableError, ConfigurationError, NotCheckedError) as error:
        return None, f"the data set is needed: {error}"
    if {scenario.data.set: world.dataset.checksum} != manifest.get("data"):
        return None, f"data.set = {scenario.data.set!r} here has another checksum than the run's"
    return world, ""


def _otherwise(
    other: Scenario, files: RunFiles, start: Start, rerun: Rerun, world: World | None
) -> Otherwise:
    if world is None:
        return Otherwise(other, rerun.server, start.x)
    last_use: dict[int, int] = {}
    for _, entry in files.entries():  # those refused are counted too: a model is kept a little longer
        if entry.kind is Kind.GRADIENT:
            last_use[entry.arrived.version] = entry.t
    return Otherwise(other, rerun.server, start.x, Makers(world), last_use)


def _of_model(files: RunFiles, rerun: Rerun) -> Replay:
    tensors, _ = final_model(files)
    words = difference(tensors["x"], rerun.server.result)
    updates = rerun.server.updates
    figures = {"updates": updates, "same_model": not words}
    if words:
        return Replay(
            False, [f"{updates} updates replayed: another model than model.safetensors: {words}."], figures
        )
    return Replay(
        True, [f"{updates} updates replayed: the same model as model.safetensors, bit for bit."], figures
    )


def _of_data(result: Replay, files: RunFiles, rerun: Rerun, world: World | None, missing: str) -> None:
    """Compare n_k and the final metrics with what the data set gives."""
    if world is None:
        result.words.append(f"Shard sizes and metrics were not checked: {missing}.")
        return
    manifest, summary = files.json(MANIFEST), files.json(SUMMARY)
    server, stated = rerun.server, manifest.get("shard_sizes")
    evaluator = world.evaluator
    found = (
        {} if evaluator is None else evaluator.evaluate(server.result, server.updates, server.stage).named()
    )
    metrics = {name: (summary.get(f"final_{name}"), value) for name, value in found.items()}
    others = [
        f"final_{name} = {one}, and not {two}" for name, (one, two) in metrics.items() if not _near(one, two)
    ]
    if stated != world.shard_sizes:
        others.append(f"shard_sizes = {stated!r:.100}, and not {world.shard_sizes!r:.100}")
    result.figures["agrees_with_data"] = not others
    if others:
        result.wrong = True
        result.words.append(f"By the data set the records are wrong: {'; '.join(others)}.")
    else:
        result.words.append("Shard sizes and final metrics are those that the data set gives.")


def _near(stated: object, again: float | None) -> bool:
    if stated is None or again is None:
        return stated is again
    return isinstance(stated, float | int) and math.isclose(stated, again, rel_tol=1e-5, abs_tol=1e-9)


def _of_gradients(
    result: Replay, again: GradientsAgain | None, question: Question, missing: str, *, bits: bool
) -> None:
    if again is None:
        why = "not asked for" if not question.gradients else missing
        result.words.append(f"Gradients were not made again: {why}.")
        return
    result.figures["gradients"] = {
        "made": again.made,
        "of": again.seen,
        "same": again.same,
        "within_tolerance": again.near,
        "other": again.other,
        "tolerance": TOLERANCE,
        "bits_meant": bits,
    }
    result.wrong |= bool(again.other or (bits and again.near))
    demand = (
        "every bit must be the same on this machine type"
        if bits
        else f"another machine type or BLAS: equal to {TOLERANCE:g} of the largest coordinate"
    )
    result.words.append(
        f"{again.made} of {again.seen} gradients made again from the seed ({demand}): {again.same} the same bit for"
        f" bit, {again.near} within the tolerance, {again.other} others."
    )
    if again.first_other:
        result.words.append(f"First: {again.first_other}.")


def _of_both(
    result: Replay,
    rerun: Rerun,
    otherwise: Otherwise,
    world: World | None,
    missing: str,
    scenario: Scenario,
) -> None:
    """Say what the two models are worth, and how far apart they are."""
    server = rerun.server
    names = (scenario.algorithm.name, otherwise.scenario.algorithm.name)
    result.figures["diverged"] = not is_finite(otherwise.result)
    if result.figures["diverged"]:
        result.figures["distance"] = None
        result.words.append(f"{names[1]}: diverged: its model is not finite, and nothing is compared.")
        return
    distance = float(np.linalg.norm(server.result.astype(np.float64) - otherwise.result))
    result.figures["distance"] = distance
    evaluator = None if world is None else world.evaluator
    if evaluator is None:
        why = missing if world is None else "the run has no test data"
        result.words.append(f"Not evaluated: {why}. ‖x − x'‖ = {distance:.6g}.")
        return

    def values(x: Vector) -> dict[str, float | None]:
        return evaluator.evaluate(x, server.updates, server.stage).named()

    found = [values(server.result), values(otherwise.result)]
    result.figures["metrics"] = [{"algorithm": name, **one} for name, one in zip(names, found, strict=True)]
    for name, one in zip(names, found, strict=True):
        told = ", ".join(
            f"{key} {'–' if value is None else format(value, '.4g')}" for key, value in one.items()
        )
        result.words.append(f"{name}: {told}")
    result.words.append(f"‖x − x'‖ = {distance:.6g}.")

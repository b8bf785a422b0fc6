"""What a cyclic run will do, known before it starts: γ_t, and ΔS and stage of every model version."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from cloud.algorithm import StepSchedule
from cloud.assembly import algorithm_for, begun, check_own_edges, first_model
from cloud.server import edge_joined, stage_opened
from common.errors import ConfigurationError
from common.messages import EdgeJoined, StageOpened
from common.noise.law import NoiseLaw
from common.quantities import EdgeId, Vector
from common.scenario.scenario import Scenario
from mapa.simulation.world import World


@dataclass(frozen=True, slots=True)
class Plan:
    first_model: Vector  # x₁
    rates: npt.NDArray[np.float32]  # γ_t at index t
    sensitivities: npt.NDArray[np.float64]  # ΔS sent with model version t
    stages: npt.NDArray[np.int64]  # s of model version t
    joins: list[EdgeJoined]
    openings: dict[int, StageOpened]  # by first update


def plan_for(world: World, laws: Sequence[NoiseLaw | None]) -> Plan:
    """Let the algorithm begin as the server would, then walk it to T."""
    scenario, model = world.scenario, world.model
    check_plannable(world)
    check_own_edges(scenario, model)
    schedule, last, workers = begun(scenario, model), scenario.iterations, scenario.workers
    assert isinstance(schedule, StepSchedule)
    rates = np.zeros(last + 1)
    sensitivities = np.zeros(last + 2)
    stages = np.ones(last + 2, np.int64)
    openings = {1: stage_opened(schedule, 1, reopened=False)}
    for t in range(1, last + 1):
        sensitivities[t], stages[t] = schedule.sensitivity, schedule.stage
        rates[t] = schedule.learning_rate(t)
        following = schedule.after(t, t - read_version(t, workers))
        if following.opened() is not schedule.opened() and t < last:
            openings[t + 1] = stage_opened(following, t + 1, reopened=False)
        schedule = following
    return Plan(
        first_model(model, world.streams),
        rates.astype(np.float32),
        sensitivities,
        stages,
        [edge_joined(k, EdgeId(f"edge-{k}"), 1, law, returned=False) for k, law in enumerate(laws)],
        {t: fact for t, fact in openings.items() if fact is not None},
    )


def read_version(t: int, workers: int) -> int:
    """Return the model version that the gradient of update t was made on, K edges taking turns."""
    return 1 if t <= workers else t - workers + 1


def check_plannable(world: World) -> None:
    """Raise ConfigurationError where the algorithm offers no step sizes that could be known beforehand."""
    check_plannable_scenario(world.scenario)


def check_plannable_scenario(scenario: Scenario, engine: str = "vectorised") -> None:
    """Refuse it by the scenario alone, before noise is computed for a run that cannot be."""
    algorithm, asked = algorithm_for(scenario), f"engine = {engine!r}"
    if scenario.private and not scenario.privacy.clipped.block_form:
        raise ConfigurationError(
            f"{asked}: privacy.clipping = {scenario.privacy.clipping!r} has no vectorised form;"
            " --engine events runs it"
        )
    if not (isinstance(algorithm, StepSchedule) and algorithm.can_be_planned):
        raise ConfigurationError(
            f"{asked}: algorithm {scenario.algorithm.name!r} has no vectorised form;"
            " --engine events runs any algorithm"
        )
    if scenario.weighted or scenario.privacy.pace == "own":
        raise ConfigurationError(
            f"{asked}: takes gradients of all edges alike, so neither privacy.pace = 'own' nor"
            " algorithm.weights = 'noise'; --engine events does"
        )
    if scenario.algorithm.average != "none":
        raise ConfigurationError(
            f"{asked}: keeps no average of models, and algorithm.average ="
            f" {scenario.algorithm.average!r}; --engine events does"
        )

"""The synchronous twin: the same edges, batches, noise and links, in rounds that wait for the slowest.

The K gradients of a round are averaged into one update, so its noise variance is Δ_b/K and nothing is
stale: the schedule is the algorithm's own with τ_max = 0, σ/√K and v/K. T counts gradients, as in the
asynchronous run, so both do the same work.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np

from cloud.assembly import noised_slice
from cloud.schedules import schedule_for
from common.errors import ConfigurationError
from common.messages import SendModel
from common.randomness import Purpose
from common.tally import Evaluation
from experiments.delays import drawn_trips
from experiments.world import World


@dataclass(slots=True)
class Rounds:
    """What came out; an evaluation's `updates` counts gradients."""

    evaluations: list[Evaluation]
    seconds: list[float]
    rounds: int


def simulate_synchronously(world: World) -> Rounds:
    """Run the scenario's T gradients in rounds of K."""
    scenario, model = world.scenario, world.model
    if scenario.delays.kind in ("cyclic", "recorded"):
        raise ConfigurationError(
            f"delays.kind = {scenario.delays.kind!r}: a synchronous round needs drawn times"
        )
    workers = world.workers()
    count = len(workers)
    start, stop, _ = noised_slice(scenario, model).indices(model.dimension)
    laws = [worker.recipe.law for worker in workers]
    moment = max((law.relative_second_moment(stop - start) for law in laws if law is not None), default=0.0)
    problem = replace(scenario.problem, tau_max=0, sigma=scenario.problem.sigma / math.sqrt(count))
    algorithm = scenario.algorithm.name if scenario.private else "csgd"
    schedule = schedule_for(algorithm, problem)(moment / count)
    trip = drawn_trips(scenario.delays, world.streams)
    x = model.initial(world.streams.at(0, Purpose.INITIAL_MODEL, 0))
    outcome = Rounds([], [], max(1, scenario.iterations // count))
    now, due = 0.0, scenario.evaluation.every or scenario.iterations
    for r in range(1, outcome.rounds + 1):
        total = np.zeros(model.dimension, np.float32)
        for worker in workers:
            sent = SendModel(worker.edge_id, r, schedule.stage, schedule.sensitivity, r - 1, x)
            total += worker.receive(sent).gradient
        now += max(sum(trip(k, r)) for k in range(count))
        x = x - np.float32(schedule.learning_rate(r) / count) * total
        if r * count >= due or r == outcome.rounds:
            outcome.evaluations.append(world.evaluator.evaluate(x, r * count, schedule.stage))
            outcome.seconds.append(now)
            due += scenario.evaluation.every or scenario.iterations
        schedule = schedule.after(r, 0)
    return outcome

"""The synchronous twin: the same edges, batches, noise and links, in rounds that wait for the slowest.

The K gradients of a round are averaged into one update, so its noise variance is Δ_b/K and nothing is
stale: the schedule is the algorithm's own with τ_max = 0, σ/√K and v/K. T counts gradients, as in the
asynchronous run, so both do the same work.
"""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np

from cloud.algorithm import Algorithm, StepSchedule, Update, descend
from cloud.assembly import begin, first_model, own_moment
from cloud.server import edge_joined
from common.errors import ConfigurationError
from common.messages import GradientApplied, SendModel
from common.quantities import Vector, is_finite
from common.records.recorder import Journal, Recorder
from common.scenario.scenario import Scenario
from common.wire.codings.registry import PLAIN
from edge.worker import EdgeWorker
from mapa.simulation.delays import trips_for
from mapa.simulation.simulator import Outcome, Progress, World, interrupt_between_events, quiet_overflow


def simulate_synchronously(
    world: World, journal: Journal | None = None, progress: Progress | None = None
) -> Outcome:
    """Run the scenario's T gradients in rounds of K; updates of the tally and of evaluations count gradients."""
    check_synchronous(world)
    scenario, model = world.scenario, world.model
    workers = world.workers()
    count, rounds = len(workers), _rounds(world)
    schedule = _schedule(world, count)
    trip = trips_for(scenario.delays, world.streams, scenario.work.releases(), scenario.profiles)
    x = first_model(model, world.streams)
    records, now = Recorder(journal), 0.0
    for worker in workers:
        law = worker.mechanism.law
        records.fact(edge_joined(worker.index, worker.edge_id, 1, law, returned=False), now)
    every = scenario.evaluate_every
    due = every or scenario.iterations
    r, reason, limit = 0, "finished", scenario.time_limit or math.inf
    with interrupt_between_events() as interrupted, quiet_overflow():
        if every:
            world.evaluate(records, schedule.result(x), 0, schedule.stage, now)
        while r < rounds and is_finite(x) and not interrupted():
            r += 1
            total = np.zeros(model.dimension, np.float32)
            for worker in workers:
                sent = SendModel(worker.edge_id, r, schedule.sensitivity, r - 1, x)
                total += worker.receive(sent).gradient
                if progress is not None:
                    progress(records.tally)
            ends = now + max(sum(trip(k, r)) for k in range(count))
            if ends > limit:  # its gradients were released all the same, and are counted
                r, now, reason = r - 1, limit, "time-limit"
                break
            now = ends
            _applied(records, workers, r, schedule, now)
            x, following = _update(schedule, x, total, r, count)
            if r * count >= due or r == rounds:
                world.evaluate(records, following.result(x), r * count, schedule.stage, now)
                due += every or scenario.iterations
            schedule = following
            if progress is not None:
                progress(records.tally)
        if not is_finite(x):
            reason = "diverged"
        elif r < rounds and reason == "finished":
            reason = "interrupted"
        releases = [worker.sequence for worker in workers]
        return world.ended(records, schedule.result(x), r * count, schedule.stage, reason, releases, now)


def check_synchronous(world: World) -> None:
    """Refuse what cannot be run in rounds, before anything is written."""
    check_synchronous_scenario(world.scenario)
    if any(cap is not None and cap < _rounds(world) for cap in world.caps):
        raise ConfigurationError(
            "engine = 'synchronous': an edge's budget ends before T; use the events engine"
        )


def check_synchronous_scenario(scenario: Scenario) -> None:
    """Refuse by the scenario alone, before noise is computed for a run that cannot be."""
    kind = scenario.delays.kind
    if kind in ("cyclic", "recorded"):
        raise ConfigurationError(f"delays.kind = {kind!r}: a synchronous round needs drawn times")
    if any(profile.availability is not None for profile in scenario.profiles):
        raise ConfigurationError(
            "devices.availability: a synchronous round waits for every edge; use the events engine"
        )
    if scenario.every_coding != {PLAIN}:
        codings = ", ".join(sorted(scenario.every_coding))
        raise ConfigurationError(
            f"engine = 'synchronous': codes no messages, and compression says {codings}; use the events engine"
        )
    if scenario.secure is not None:
        raise ConfigurationError(
            "secure: not with engine = 'synchronous', whose rounds wait for all edges anyway; use the events engine"
        )
    if scenario.weighted or scenario.privacy.pace == "own":
        raise ConfigurationError(
            "engine = 'synchronous': in a round every edge takes part once, so neither privacy.pace = 'own' nor"
            " algorithm.weights = 'noise'; use the events engine"
        )


def _rounds(world: World) -> int:
    return max(1, world.scenario.iterations // world.scenario.workers)


def _update(schedule: Algorithm, x: Vector, total: Vector, r: int, count: int) -> tuple[Vector, Algorithm]:
    """Change x by the mean of a round's gradients, none of them stale."""
    if isinstance(schedule, StepSchedule) and schedule.can_be_planned:
        return descend(x, total, schedule.learning_rate(r) / count), schedule.after(r, 0)
    mean = total / np.float32(count)
    made = (schedule.stage, schedule.sensitivity)
    changed, following = schedule.apply(x, Update(mean, r, r, 0, 0, None, 0.0, *made))
    return np.asarray(changed, np.float32), following


def _schedule(world: World, count: int) -> Algorithm:
    scenario = world.scenario
    sigma = scenario.problem.sigma / math.sqrt(count)
    problem = replace(scenario.problem, tau_max=0, sigma=sigma, iterations=_rounds(world))
    return begin(scenario, own_moment(scenario, world.model) / count, problem)


def _applied(records: Recorder, workers: list[EdgeWorker], r: int, schedule: Algorithm, now: float) -> None:
    """Record the K gradients of round r, none of them stale."""
    for k, worker in enumerate(workers):
        t = (r - 1) * len(workers) + k + 1
        made = (schedule.stage, schedule.sensitivity)
        records.fact(GradientApplied(worker.index, worker.edge_id, worker.sequence, r, t, 0, *made), now)

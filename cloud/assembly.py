"""A scenario turned into the cloud's own parts."""

from __future__ import annotations

import math
from functools import partial

import numpy as np

from cloud.algorithm import Algorithm
from cloud.averaging import averaged
from cloud.server import CloudServer
from cloud.terms import BelowFloorError, Terms
from common.errors import ConfigurationError
from common.models.model import Model
from common.noise.law import TAIL_NATS, NoiseLaw
from common.noise.mechanism import Sampling
from common.problem import Problem
from common.quantities import Vector
from common.randomness import CounterStreams, Purpose
from common.scenario.parts import noised_dimension
from common.scenario.scenario import Scenario

_WAITING_GRADIENTS = 1 << 28  # bytes; before the first update an edge may send any number of them


def fifo_capacity(workers: int, dimension: int) -> int:
    """Return how many gradients may wait: one of every edge, and more as far as memory allows."""
    return max(workers, min(max(1024, 2 * workers), _WAITING_GRADIENTS // (4 * dimension)))


def terms_for(scenario: Scenario, model: Model, *, edges_at_least: int) -> Terms:
    privacy = scenario.privacy
    return Terms(
        edges=scenario.workers,
        iterations=scenario.iterations,
        private=scenario.private,
        noise=privacy.noise,
        parameters=privacy.given,
        noised_dimension=noised_dimension(scenario, model),
        limits=privacy.limits,
        edges_at_least=edges_at_least,
        evaluate_every=scenario.evaluation.every,
        fifo_capacity=fifo_capacity(scenario.workers, model.dimension),
        most_samples=most_samples(Sampling(scenario.data.sampler), scenario.batch_size),
        regularization=scenario.model.regularization,
        devices=[device.name or "custom" for device in scenario.devices],
    )


def most_samples(sampling: Sampling, batch_size: int) -> float:
    """Return how many samples a batch holds: b, and of Poisson's more with a probability below 1e-12 only."""
    if sampling is not Sampling.POISSON:
        return batch_size
    # Bernstein: a binomial of mean b exceeds b + x with probability exp(−x²/(2b + 2x/3)) at most
    third = TAIL_NATS / 3
    return batch_size + third + math.sqrt(third * third + 2 * batch_size * TAIL_NATS)


def algorithm_for(scenario: Scenario) -> Algorithm:
    """Return the scenario's algorithm with its options, before it begins; an average comes with `begin`."""
    made: Algorithm = scenario.described.make(scenario.algorithm.options)
    return made


def begin(scenario: Scenario, moment: float, problem: Problem | None = None) -> Algorithm:
    """Let the algorithm begin; a private one must ask for a bound that noise can follow."""
    table = scenario.algorithm
    made = averaged(algorithm_for(scenario), table.average, table.average_decay, table.average_from)
    begun = made.begin(problem or scenario.problem, moment)
    if scenario.private and not begun.sensitivity > 0:
        raise ConfigurationError(
            f"algorithm.name = {scenario.algorithm.name!r}: is private, so ΔS = {begun.sensitivity} must be"
            " greater than 0"
        )
    return begun


def begun(scenario: Scenario, model: Model) -> Algorithm:
    """Return the algorithm at t = 1 with the scenario's own edges; ConfigurationError where it cannot begin."""
    return begin(scenario, own_moment(scenario, model))


def own_moment(scenario: Scenario, model: Model) -> float:
    """Return v, the largest v_k of the scenario's own edges."""
    laws = {scenario.law(k) for k in range(scenario.workers)}
    dimension = noised_dimension(scenario, model)
    return max((law.relative_second_moment(dimension) for law in laws if law is not None), default=0.0)


def check_own_edges(scenario: Scenario, model: Model) -> None:
    """Raise ConfigurationError where a limit of the run refuses one of the scenario's own edges."""
    terms = terms_for(scenario, model, edges_at_least=1)
    borne: set[NoiseLaw] = set()
    for k in range(scenario.workers):
        law = scenario.law(k)
        if law is None or law in borne:
            continue
        try:
            terms.moment(law)
        except BelowFloorError as error:
            raise ConfigurationError(f"edge-{k} is refused (epsilon-floor): {error}") from error
        borne.add(law)


def first_model(model: Model, streams: CounterStreams) -> Vector:
    """Return x₁."""
    return np.array(model.initial(streams.at(0, Purpose.INITIAL_MODEL, 0)), dtype=np.float32)


def server_for(
    scenario: Scenario,
    model: Model,
    streams: CounterStreams,
    *,
    edges_at_least: int,
    incarnation: int = 0,
) -> CloudServer:
    """Return a cloud at t = 1 that waits for hellos; on a wire it needs an incarnation, new or the run's own."""
    return CloudServer(
        terms=terms_for(scenario, model, edges_at_least=edges_at_least),
        model=first_model(model, streams),
        begin=partial(begin, scenario),
        incarnation=incarnation,
    )

"""A scenario turned into the cloud's own parts."""

from __future__ import annotations

import math
from functools import partial

from cloud.algorithm import Algorithm
from cloud.server import CloudServer
from cloud.terms import Terms
from common.errors import ConfigurationError
from common.models.model import Model
from common.noise.law import TAIL_NATS
from common.noise.mechanism import Sampling
from common.randomness import CounterStreams, Purpose
from common.scenario.scenario import Scenario

_WAITING_GRADIENTS = 1 << 28  # bytes; before the first update an edge may send any number of them


def noised_slice(scenario: Scenario, model: Model) -> slice:
    """Return the coordinates that η covers."""
    return model.first_layer if scenario.privacy.scope == "first-conv" else slice(0, model.dimension)


def fifo_capacity(workers: int, dimension: int) -> int:
    """Return how many gradients may wait: one of every edge, and more as far as memory allows."""
    return max(workers, min(max(1024, 2 * workers), _WAITING_GRADIENTS // (4 * dimension)))


def terms_for(scenario: Scenario, model: Model, *, edges_at_least: int) -> Terms:
    privacy = scenario.privacy
    start, stop, _ = noised_slice(scenario, model).indices(model.dimension)
    return Terms(
        edges=scenario.workers,
        iterations=scenario.iterations,
        private=scenario.private,
        noise=privacy.noise,
        parameters=privacy.given,
        noised_dimension=stop - start,
        limits=privacy.limits,
        edges_at_least=edges_at_least,
        evaluate_every=scenario.evaluation.every,
        fifo_capacity=fifo_capacity(scenario.workers, model.dimension),
        most_samples=most_samples(Sampling(scenario.data.sampler), scenario.batch_size),
        regularization=scenario.model.regularization,
    )


def most_samples(sampling: Sampling, batch_size: int) -> float:
    """Return how many samples a batch holds: b, and of Poisson's more with a probability below 1e-12 only."""
    if sampling is not Sampling.POISSON:
        return batch_size
    # Bernstein: a binomial of mean b exceeds b + x with probability exp(−x²/(2b + 2x/3)) at most
    third = TAIL_NATS / 3
    return batch_size + third + math.sqrt(third * third + 2 * batch_size * TAIL_NATS)


def algorithm_for(scenario: Scenario) -> Algorithm:
    """Return the scenario's algorithm with its options, before it begins."""
    made: Algorithm = scenario.described.make(scenario.algorithm.options)
    return made


def _begin(scenario: Scenario, moment: float) -> Algorithm:
    """Let the algorithm begin; a private one must ask for a bound that noise can follow."""
    begun = algorithm_for(scenario).begin(scenario.problem, moment)
    if scenario.private and not begun.sensitivity > 0:
        raise ConfigurationError(
            f"algorithm.name = {scenario.algorithm.name!r}: is private, so ΔS = {begun.sensitivity} must be"
            " greater than 0"
        )
    return begun


def check_algorithm(scenario: Scenario, model: Model) -> None:
    """Raise ConfigurationError where the algorithm cannot begin with the scenario's own noise."""
    start, stop, _ = noised_slice(scenario, model).indices(model.dimension)
    laws = {scenario.law(k) for k in range(scenario.workers)}
    moments = [law.relative_second_moment(stop - start) for law in laws if law is not None]
    _begin(scenario, max(moments, default=0.0))


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
        model=model.initial(streams.at(0, Purpose.INITIAL_MODEL, 0)),
        begin=partial(_begin, scenario),
        incarnation=incarnation,
    )

"""A scenario turned into the cloud's own parts."""

from __future__ import annotations

import math
from functools import lru_cache, partial

import numpy as np

from cloud.admission import BelowFloorError, Terms
from cloud.algorithm import (
    Algorithm,
    PublicNumbers,
    WithWeights,
    averaged,
    effective_multiplier,
    noise_weights,
)
from cloud.server import CloudServer
from cloud.sums import summed
from common.errors import ConfigurationError
from common.mechanism.grid import fitting
from common.mechanism.mechanism import Mechanism
from common.models.model import Model, feature_length
from common.noise.law import TAIL_NATS
from common.noise.registry import noise_law
from common.problem import Problem
from common.quantities import Vector
from common.randomness import CounterStreams, Purpose
from common.scenario.parts import noised_dimension
from common.scenario.scenario import Scenario
from common.wire.codings.registry import CODINGS, PLAIN


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
        evaluate_every=scenario.evaluate_every,
        most_samples=most_samples(scenario.mechanism(None)),
        regularization=scenario.model.regularization,
        batch_size=scenario.batch_size,
        steps=scenario.work.releases(),
        local_rate=scenario.work.local_rate,
        devices=[device.name or "custom" for device in scenario.devices],
        caps=tuple(privacy.release_caps or ()),
        stretch=max((CODINGS[name].stretch for name in scenario.every_coding if name != PLAIN), default=1.0),
    )


def most_samples(mechanism: Mechanism) -> float:
    """Return how many samples of norm C are as long as each batch of a message at most; ∞: that is not known.

    But with a probability below 1e-12, by which a batch may have more rows.
    """
    b, nats = mechanism.batch_size, TAIL_NATS + math.log(mechanism.steps)
    return b * mechanism.clipping.length_over_clip(mechanism.sampler.most_rows(b, nats), b)


def algorithm_for(scenario: Scenario) -> Algorithm:
    """Return the scenario's algorithm with its options, before it begins; an average comes with `begin`."""
    made: Algorithm = scenario.described.make(scenario.algorithm.options)
    return made


def settled(scenario: Scenario, model: Model) -> Scenario:
    """Return the scenario with the algorithm's open options filled in, once its noise is known.

    They are part of the scenario from then on, so records, a cloud that is brought back and a replay have them.
    """
    made = algorithm_for(scenario)
    settle = getattr(made, "settled", None)  # a user's class need not have it
    if settle is None or not scenario.private:
        return scenario
    filled = settle(public_numbers(scenario, model))
    if filled is made:
        return scenario
    table = scenario.algorithm
    options = {option.name: getattr(filled, option.name) for option in scenario.described.options}
    checked = scenario.described.resolve(options)
    values = {**table.model_dump(exclude=set(table.options)), **checked}
    return scenario.model_copy(update={"algorithm": type(table).model_validate(values)})


def explained(scenario: Scenario, model: Model) -> str:
    """Return which rate is in force where it follows from public numbers; '' where it does not."""
    explain = getattr(algorithm_for(scenario), "explained", None)
    return "" if explain is None or not scenario.private else str(explain(public_numbers(scenario, model)))


def public_numbers(scenario: Scenario, model: Model) -> PublicNumbers:
    """Return what is public of the run. z of a law is that of Gaussian noise of the same second moment.

    An update is the mean of E noised gradients, so its z is smaller by √E.
    """
    dimension = noised_dimension(scenario, model)
    laws = scenario.laws()
    moments = [law.relative_second_moment(dimension) for law in laws if law is not None]
    multipliers = [2 * math.sqrt(moment / dimension / scenario.work.releases()) for moment in moments]
    releases = _shares(scenario)
    weights = weights_of(scenario)[0] if scenario.weighted else (1.0,) * len(releases)
    z = effective_multiplier(multipliers, weights, releases)
    m = members_of(scenario)
    updates, delay = max(1, scenario.updates // m), -(-scenario.workers // m) - 1
    length = feature_length(model)
    return PublicNumbers(scenario.batch_size, updates, z / m, length, scenario.model.name, delay)


def members_of(scenario: Scenario) -> int:
    """Return m, how many releases an update of x is the mean of; 1 without secure sums."""
    return 1 if scenario.secure is None else scenario.secure.at_least


def with_grid(scenario: Scenario, model: Model) -> Scenario:
    """Return the scenario with the terms of its sums filled in: C, the grid and its modulus; once z is known."""
    table, privacy = scenario.secure, scenario.privacy
    if table is None or None not in (table.clip, table.modulus_bits, privacy.grid):
        return scenario
    rows = most_samples(scenario.mechanism(None))
    z = max(privacy.given["noise_multiplier"])
    fit = fitting(table.at_least, rows, z, model.dimension, wanted=privacy.grid)
    bound = begun(scenario, model).sensitivity * scenario.batch_size / 2
    filled = table.model_copy(update={"clip": bound, "modulus_bits": fit.modulus_bits})
    noised = privacy.model_copy(update={"grid": fit.bits})
    return scenario.model_copy(update={"secure": filled, "privacy": noised})


def _shares(scenario: Scenario) -> tuple[int, ...]:
    """Return R_k of every edge, or 1 for each where all have an equal share of the updates."""
    return tuple(scenario.privacy.cap(k) or 1 for k in range(scenario.workers))


def weights_of(scenario: Scenario) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Return w_k and v_k of every edge. Only ratios of v_k count, so those of one coordinate will do."""
    given = tuple((key, tuple(values)) for key, values in scenario.privacy.given.items())
    variances = _variances(scenario.privacy.noise, given, scenario.workers)
    return noise_weights(variances, _shares(scenario)), variances


@lru_cache(maxsize=16)  # every hello asks
def _variances(
    noise: str, given: tuple[tuple[str, tuple[float, ...]], ...], workers: int
) -> tuple[float, ...]:
    laws = ({key: values[k % len(values)] for key, values in given} for k in range(workers))
    return tuple(noise_law(noise, parameters).relative_second_moment(1) for parameters in laws)


def begin(
    scenario: Scenario, moment: float, problem: Problem | None = None, *, sealed: bool = False
) -> Algorithm:
    """Let the algorithm begin; a private one must ask for a bound that noise can follow.

    `sealed`: with secure sums releases come masked, and helpers open their sets.
    """
    table = scenario.algorithm
    made = algorithm_for(scenario)
    if scenario.weighted:
        made = WithWeights(made, *weights_of(scenario))
    made = summed(made, members_of(scenario), sealed=sealed)
    made = averaged(made, table.average, table.average_decay, table.average_from)
    begun = made.begin(problem or scenario.problem, moment)
    if scenario.private and not begun.sensitivity > 0:
        raise ConfigurationError(
            f"algorithm.name = {table.name!r}: is private, so ΔS = {begun.sensitivity} must be greater than 0"
        )
    return begun


def begun(scenario: Scenario, model: Model) -> Algorithm:
    """Return the algorithm at t = 1 with the scenario's own edges; ConfigurationError where it cannot begin."""
    return begin(scenario, own_moment(scenario, model))


def own_moment(scenario: Scenario, model: Model) -> float:
    """Return v, the largest v_k of the scenario's own edges; the mean of E releases has v/E."""
    laws = set(scenario.laws())
    dimension = noised_dimension(scenario, model)
    moments = (law.relative_second_moment(dimension) for law in laws if law is not None)
    return max(moments, default=0.0) / scenario.work.releases()


def check_own_edges(scenario: Scenario, model: Model) -> None:
    """Raise ConfigurationError where a limit of the run refuses one of the scenario's own edges."""
    terms = terms_for(scenario, model, edges_at_least=1)
    first = {law: k for k, law in reversed([*enumerate(scenario.laws())])}  # edge with this law
    for law, k in sorted(first.items(), key=lambda item: item[1]):
        try:
            if law is not None:
                terms.moment(law)
        except BelowFloorError as error:
            raise ConfigurationError(f"edge-{k} is refused (epsilon-floor): {error}") from error


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
    sealed: bool = False,
) -> CloudServer:
    """Return a cloud at t = 1 that waits for hellos; on a wire it needs an incarnation, new or the run's own."""
    return CloudServer(
        terms=terms_for(scenario, model, edges_at_least=edges_at_least),
        model=first_model(model, streams),
        begin=partial(begin, scenario, sealed=sealed),
        incarnation=incarnation,
    )

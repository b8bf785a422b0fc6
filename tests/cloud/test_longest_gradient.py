"""What no honest edge sends is refused, and what one sends is not: exact tails, and every combination of parts."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import pytest
from scipy import stats

from cloud.assembly import most_samples, terms_for
from common.errors import ConfigurationError
from common.mechanism.clipping import CLIPPINGS, Clipping
from common.mechanism.guarantee import MOST_STEPS, Adjacency, Norm
from common.mechanism.mechanism import Mechanism
from common.mechanism.sampler import SAMPLERS
from common.noise.law import TAIL_NATS, NoiseLaw
from common.noise.registry import law_names, noise_law
from common.quantities import ClippedGradient, PerSampleGradients
from common.wire.codings.registry import CODINGS
from mapa.simulation.simulator import simulate
from tests.core_support import small_world

RARE = math.exp(-TAIL_NATS)
STRENGTH = {"gaussian": {"noise_multiplier": 0.7}}
# P(‖η‖ > r) in units of ΔS = 1, exactly; for laplace a bound by ‖η‖ ≤ ‖η‖₁, which is exact for one coordinate
TAILS: dict[str, Callable[[float, int, int], float]] = {
    "gaussian": lambda r, n, steps: stats.chi2.sf(steps * (2 * r / 0.7) ** 2, n),
    "gamma-norm": lambda r, n, steps: (
        steps * stats.gamma.sf(r * 0.7, n)
    ),  # a mean is no longer than its longest
    "exponential-norm": lambda r, n, steps: steps * stats.expon.sf(r * 0.7),  # noqa: ARG005
    "laplace": lambda r, n, steps: steps * laplace_tail(r * 0.7, n),
}


def law_of(name: str) -> NoiseLaw:
    return noise_law(name, STRENGTH.get(name, {"epsilon": 0.7}))


def laplace_tail(r: float, n: int) -> float:
    """Bound P(Σ η_i² > r²), η_i of scale 1, by the best of the L1 norm and Chernoff's of squares cut at m²."""
    bounds = [float(stats.gamma.sf(r, n))]
    for m in np.linspace(32, 60, 15):
        for rate in np.geomspace(1e-4, 1.5, 60) / m:
            grid = np.linspace(0, m, 4000)
            moment = np.trapezoid(np.exp(rate * grid**2 - grid), grid) + math.exp(-m)
            exponent = n * math.log(moment) - rate * r * r
            bounds.append(n * math.exp(-m) + (math.exp(exponent) if exponent < 0 else 1.0))
    return min(bounds)


@pytest.mark.parametrize("steps", [1, 4, MOST_STEPS])
@pytest.mark.parametrize("dimension", [1, 2, 30, 785, 7850])
@pytest.mark.parametrize("name", law_names())
def test_the_tail_of_each_law_is_as_rare_as_it_says(name: str, dimension: int, steps: int) -> None:
    longest = law_of(name).relative_tail_of_mean(dimension, steps)
    slack = 8 if name == "laplace" else 1  # of a bound, not of the law
    assert TAILS[name](longest, dimension, steps) <= slack * steps * RARE * (1 + 1e-6)


@pytest.mark.parametrize("records", [12, 20, 300, 60_000])
@pytest.mark.parametrize("name", SAMPLERS.names)
def test_a_batch_has_more_rows_than_counted_on_as_rarely_as_it_says(name: str, records: int) -> None:
    batch = 12
    options = {"largest_batch": 40} if name == "truncated-poisson" else {}
    sampler = SAMPLERS.make(name, options)
    most = sampler.most_rows(batch, TAIL_NATS)
    if sampler.amplification().sampled:
        rows = 40 if name == "truncated-poisson" else math.inf
        assert rows <= most or stats.binom.sf(math.floor(most), records, batch / records) <= RARE
    else:
        assert most == batch


def test_all_that_may_happen_to_one_message_is_rarer_than_one_in_a_billion() -> None:
    """Its E draws of noise, and its E batches."""
    assert 2 * MOST_STEPS * RARE < 1e-9


COMBINATIONS = [
    *itertools.product(law_names(), SAMPLERS.names, CLIPPINGS.names, [1, 3], [None, *CODINGS]),
]


def world_of(law: str, sampler: str, clipping: str, steps: int, coding: str | None) -> Any:
    changes: dict[str, Any] = {
        "iterations": 12,
        "batch_size": 12,
        "evaluation": {"every": 0},
        "model": {"name": "softmax", "regularization": 0.5},
        "algorithm": {
            "name": "quantile" if clipping == "quantile" else "constant",
            "rate": 2.0,
            "first_clip": 0.01,
        },
        "privacy": {"noise": law, "clipping": clipping, **STRENGTH.get(law, {"epsilon": 0.7})},
        "data": {"sampler": sampler, **({"largest_batch": 30} if sampler == "truncated-poisson" else {})},
    }
    if steps > 1:
        changes["local"] = {"steps": steps, "rate": 0.5}
    if coding is not None:
        changes["compression"] = {"gradients": coding, "models": coding}
    return small_world(**changes)


@pytest.mark.slow
@pytest.mark.parametrize("law", law_names())
def test_no_combination_of_parts_makes_an_honest_edges_gradient_too_long(law: str) -> None:
    """Every sample is cut to C, and λx is there too."""
    tried = 0
    for parts in COMBINATIONS:
        if parts[0] != law:
            continue
        try:
            world = world_of(*parts)
        except (ConfigurationError, ValueError):
            continue  # which the scenario refuses
        terms = terms_for(world.scenario, world.model, edges_at_least=1)
        assert terms.reach(world.scenario.law(0)) < math.inf, parts
        outcome = simulate(world)
        assert (outcome.reason, dict(outcome.tally.refused)) == ("finished", {}), parts
        tried += 1
    assert tried >= 60


@dataclass(frozen=True, slots=True)
class Doubled(Clipping):
    """One of a user's own, twice as long as ours: it bounds what a record moves, and says nothing of the length."""

    name: ClassVar[str] = "own:Doubled"

    def clip(
        self, gradients: PerSampleGradients, bound: float, batch_size: int, norm: Norm
    ) -> ClippedGradient:
        return ClippedGradient(2 * CLIPPINGS.make("per-sample", {}).clip(gradients, bound, batch_size, norm))

    def sensitivity_over_clip(self, adjacency: Adjacency, places: int, batch_size: int) -> float:
        return 2 * CLIPPINGS.make("per-sample", {}).sensitivity_over_clip(adjacency, places, batch_size)


def test_a_clipping_that_does_not_say_how_long_its_mean_is_has_no_bound() -> None:
    """A bound that were wrong would refuse honest edges."""
    law = law_of("gaussian")
    assert most_samples(Mechanism(law, 12, clipping=Doubled())) == math.inf
    assert most_samples(Mechanism(law, 12, clipping=CLIPPINGS.make("batch-mean", {}))) == 12

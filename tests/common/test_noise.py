"""What one release guarantees, law by clipping by sampler by scope, and which parameters a law takes."""

from __future__ import annotations

import math

import numpy as np
import pytest

from common.accounting.releases import ReleaseKind
from common.errors import ConfigurationError
from common.mechanism.clipping import CLIPPINGS, Clipping
from common.mechanism.guarantee import Adjacency, Scope
from common.mechanism.mechanism import Mechanism
from common.mechanism.sampler import SAMPLERS, Sampler
from common.noise.exponential_norm import ExponentialNorm
from common.noise.gamma_norm import GammaNorm
from common.noise.gaussian import Gaussian
from common.noise.laplace import Laplace
from common.noise.law import NoiseLaw
from common.noise.registry import describe_law, law_names, noise_law
from tests.mechanism_support import (
    BATCH_MEAN,
    NORMALISED,
    PER_SAMPLE,
    POISSON,
    QUANTILE,
    SHUFFLED,
    WITH_REPLACEMENT,
    every_sampler,
    truncated,
)

B = 8
ZERO_OUT, REPLACE_ONE = Adjacency.ZERO_OUT, Adjacency.REPLACE_ONE
WITH, TRUNCATED = WITH_REPLACEMENT, truncated(B + 3)

# (clipping, sampling, adjacency) -> true sensitivity in units of C, ε of gamma-norm per ε, z of gaussian per z
TABLE = {
    (PER_SAMPLE, POISSON, ZERO_OUT): (1 / B, 1 / 2, 1),
    (PER_SAMPLE, POISSON, REPLACE_ONE): (2 / B, 1, 1 / 2),
    (PER_SAMPLE, SHUFFLED, ZERO_OUT): (1 / B, 1 / 2, 1),
    (PER_SAMPLE, SHUFFLED, REPLACE_ONE): (2 / B, 1, 1 / 2),
    (PER_SAMPLE, WITH, ZERO_OUT): (1, B / 2, 1 / B),
    (PER_SAMPLE, WITH, REPLACE_ONE): (2, B, 1 / (2 * B)),
    (BATCH_MEAN, POISSON, ZERO_OUT): (2, B, 1 / (2 * B)),
    (BATCH_MEAN, POISSON, REPLACE_ONE): (2, B, 1 / (2 * B)),
    (BATCH_MEAN, SHUFFLED, ZERO_OUT): (2, B, 1 / (2 * B)),
    (BATCH_MEAN, SHUFFLED, REPLACE_ONE): (2, B, 1 / (2 * B)),
    (BATCH_MEAN, WITH, ZERO_OUT): (2, B, 1 / (2 * B)),
    (BATCH_MEAN, WITH, REPLACE_ONE): (2, B, 1 / (2 * B)),
}
# before amplification, the batches of truncated-poisson are those of poisson: a record fills one place
TABLE |= {(case[0], TRUNCATED, case[2]): row for case, row in TABLE.items() if case[1] == POISSON}
# a normalised sample has length C, one with its count C at most: they guarantee what clipping a sample to C does
TABLE |= {
    (like, *case[1:]): row
    for like in (NORMALISED, QUANTILE)
    for case, row in TABLE.items()
    if case[0] == PER_SAMPLE
}


def test_the_table_is_whole() -> None:
    assert len(TABLE) == len(CLIPPINGS.names) * len(SAMPLERS.names) * len(Adjacency)


@pytest.mark.parametrize(("case", "wanted"), TABLE.items(), ids=lambda case: str(case))
def test_a_release_guarantees_what_its_true_sensitivity_allows(
    case: tuple[Clipping, Sampler, Adjacency], wanted: tuple[float, float, float]
) -> None:
    clipping, sampling, adjacency = case
    mechanism = Mechanism(None, B, sampling, clipping)
    sensitivity, per_epsilon, per_z = wanted
    assert mechanism.sensitivity_over_clip(adjacency) == pytest.approx(sensitivity)
    gamma = GammaNorm(0.3).guarantee(mechanism, adjacency)
    assert (gamma.epsilon, gamma.noise_multiplier) == (pytest.approx(0.3 * per_epsilon), None)
    gaussian = Gaussian(1.7).guarantee(mechanism, adjacency)
    assert (gaussian.epsilon, gaussian.noise_multiplier) == (None, pytest.approx(1.7 * per_z))
    assert gamma.is_private
    assert gaussian.is_private
    assert gamma.adjacency is gaussian.adjacency is adjacency


@pytest.mark.parametrize("case", TABLE, ids=lambda case: str(case))
@pytest.mark.parametrize("scope", list(Scope))
def test_the_exponential_norm_guarantees_nothing_and_says_why(
    case: tuple[Clipping, Sampler, Adjacency], scope: Scope
) -> None:
    clipping, sampling, adjacency = case
    guarantee = ExponentialNorm(0.3).guarantee(Mechanism(None, B, sampling, clipping, scope=scope), adjacency)
    assert not guarantee.is_private
    assert "singular" in guarantee.reason


@pytest.mark.parametrize("case", TABLE, ids=lambda case: str(case))
def test_noise_on_the_first_convolution_alone_guarantees_nothing(
    case: tuple[Clipping, Sampler, Adjacency],
) -> None:
    clipping, _, adjacency = case
    for law in (GammaNorm(0.3), Gaussian(1.7)):
        guarantee = Mechanism(law, B, SHUFFLED, clipping, scope=Scope.FIRST_CONV).guarantee(adjacency)
        assert not guarantee.is_private
        assert "in the clear" in guarantee.reason


@pytest.mark.parametrize("sampling", every_sampler(B + 3))
def test_only_poisson_sampling_amplifies(sampling: Sampler) -> None:
    kind = ReleaseKind(Mechanism(None, B, sampling), 100)
    assert (kind.sampling_rate < 1) is (sampling == POISSON)


def test_laws_by_name() -> None:
    assert noise_law("gaussian", {"noise_multiplier": 2.0}) == Gaussian(2.0)
    assert noise_law("gamma-norm", {"epsilon": 0.1}) == GammaNorm(0.1)
    assert noise_law("exponential-norm", {"epsilon": 0.1}) == ExponentialNorm(0.1)
    assert noise_law("laplace", {"epsilon": 1}) == Laplace(1.0)
    assert law_names() == ("exponential-norm", "gamma-norm", "gaussian", "laplace")
    assert all(describe_law(name).made.name == name for name in law_names())


@pytest.mark.parametrize(
    ("name", "parameters", "words"),
    [
        (
            "cauchy",
            {"epsilon": 1.0},
            "noise = 'cauchy': allowed are 'exponential-norm', 'gamma-norm', 'gaussian'",
        ),
        ("law", {}, "noise = 'law': allowed are"),
        ("gaussian", {"epsilon": 1.0}, "takes noise_multiplier, not epsilon"),
        ("gaussian", {"epsilon": 1.0, "noise_multiplier": 1.0}, "takes noise_multiplier, not epsilon"),
        ("gaussian", {}, "takes noise_multiplier"),
        ("gamma-norm", {"noise_multiplier": 1.0}, "takes epsilon, not noise_multiplier"),
        ("exponential-norm", {}, "takes epsilon"),
        ("gamma-norm", {"epsilon": 0.0}, r"epsilon = 0.0: must be a number, ≥ 1e-09 and ≤ 1e\+09"),
        ("laplace", {"epsilon": True}, "epsilon = True"),
        ("gamma-norm", {"epsilon": math.nan}, "epsilon = nan"),
        ("gaussian", {"noise_multiplier": math.inf}, "noise_multiplier = inf"),
        ("gaussian", {"noise_multiplier": -1.0}, "noise_multiplier = -1.0"),
        ("gaussian", {"noise_multiplier": 1e-170}, r"noise_multiplier = 1e-170: must be a number, ≥ 1e-09"),
        ("gamma-norm", {"epsilon": 1e300}, r"epsilon = 1e\+300: must be"),
    ],
)
def test_a_wrong_law_or_parameter_is_refused_by_name(
    name: str, parameters: dict[str, float], words: str
) -> None:
    with pytest.raises(ConfigurationError, match=words):
        noise_law(name, parameters)


@pytest.mark.parametrize("value", [1e-300, 1e-160, 1e160, 1e300])
def test_a_parameter_at_the_end_of_float64_raises_nothing(value: float) -> None:
    for law in (GammaNorm(value), ExponentialNorm(value), Gaussian(value), Laplace(value)):
        moment = law.relative_second_moment(785)
        assert moment >= 0


@pytest.mark.parametrize("dimension", [1, 3, 100])
@pytest.mark.parametrize("law", [Gaussian(2.0), GammaNorm(0.5), ExponentialNorm(0.5), Laplace(0.5)])
def test_no_draw_is_longer_than_the_tail_of_its_law_and_the_tail_is_not_far(
    law: NoiseLaw, dimension: int
) -> None:
    rng = np.random.default_rng(8)
    norms = [float(np.linalg.norm(law.draw(0.3, dimension, rng))) / 0.3 for _ in range(5000)]
    assert max(norms) <= law.relative_tail(dimension) < 40 * np.sqrt(law.relative_second_moment(dimension))

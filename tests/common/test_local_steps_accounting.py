"""What E noised steps cost, and what a single noised delta over E batches would."""

from __future__ import annotations

from dataclasses import replace

import pytest

from common.accounting.budget import calibrate, max_charges, max_messages
from common.accounting.gaussian import GaussianReleases, pld
from common.accounting.releases import Budget, ReleaseKind, Spent
from common.accounting.total import total
from common.errors import ConfigurationError
from common.mechanism.guarantee import MOST_STEPS, Adjacency
from common.mechanism.mechanism import Mechanism
from common.mechanism.sampler import Sampler
from common.noise.gaussian import Gaussian
from common.scenario.scenario import parse_scenario, parse_welcome
from mapa.budget import calibrated, release_caps
from tests.core_support import small_scenario
from tests.mechanism_support import SHUFFLED, WITH_REPLACEMENT, work_of

DELTA, BATCH, SHARD = 1e-5, 1024, 12_000


@pytest.mark.slow
def test_one_noised_delta_over_four_batches_is_not_what_a_naive_charge_says() -> None:
    """It moves by 2C, and a record has four chances to be in it: 1 − (1−q)⁴. Four noised steps cost ε = 3.0."""
    rate, releases = BATCH / SHARD, 75
    naive = pld(GaussianReleases(2.25, rate, releases), DELTA, Adjacency.ZERO_OUT)
    true = pld(GaussianReleases(2.25 / 2, 1 - (1 - rate) ** 4, releases), DELTA, Adjacency.ZERO_OUT)
    assert (round(naive, 2), round(true, 1)) == (1.45, 15.7)
    steps = Mechanism(None, BATCH, work=work_of(4))
    kind = ReleaseKind(replace(steps, law=Gaussian(2.25)), SHARD)
    charged = total([Spent(kind, kind.charges(releases))], DELTA, replace_one=False)
    assert kind.charges(releases) == 300
    assert charged.epsilon == pytest.approx(2.996, abs=1e-3)


def local(steps: int, **privacy: object) -> dict[str, object]:
    table = {"steps": steps, "rate": 0.5} if steps > 1 else {"steps": 1}
    return {
        "edges": 2,
        "iterations": 50,
        "batch_size": 10,
        "data": {"sampler": "poisson"},
        "model": {"name": "softmax"},
        "algorithm": {"name": "constant", "rate": 0.5},
        "local": table,
        "privacy": {"noise": "gaussian", "noise_multiplier": 4.0} | privacy,
    }


@pytest.mark.slow
@pytest.mark.parametrize("releases", [None, 41])
def test_z_of_a_budget_covers_every_step_that_an_edge_makes(releases: int | None) -> None:
    given = {} if releases is None else {"releases": releases}
    values = local(3) | {"privacy": {"noise": "gaussian", "total_epsilon": 2.0, **given}}
    scenario = calibrated(small_scenario(**values), [80, 90])
    [z] = scenario.privacy.noise_multiplier or []
    planned = releases or 3 * (25 + 1)
    kind = ReleaseKind(scenario.mechanism(scenario.law(0)), 80)
    assert z == calibrate(Budget(2.0, DELTA), Mechanism(None, 10), releases=planned, shard_size=80)
    assert 1.99 < total([Spent(kind, planned)], DELTA, replace_one=False).epsilon <= 2.0
    cap, more = release_caps(scenario, [80, 90])
    assert cap is not None
    assert more is not None
    assert cap == planned // 3 <= more  # whole messages
    assert total([Spent(kind, kind.charges(cap))], DELTA, replace_one=False).epsilon <= 2.0


@pytest.mark.parametrize("sampling", [SHUFFLED, WITH_REPLACEMENT])
def test_whole_messages_are_what_a_budget_permits(sampling: Sampler) -> None:
    budget = Budget(3.0, DELTA)
    mechanism = Mechanism(None, 10, sampling, work=work_of(4))
    kind = ReleaseKind(replace(mechanism, law=Gaussian(90.0 if sampling == WITH_REPLACEMENT else 9.0)), 30)
    messages = max_messages(budget, kind)
    assert kind.charges(messages) <= max_charges(budget, kind) < kind.charges(messages + 1)


def test_a_scenario_without_local_steps_is_written_as_ever() -> None:
    plain = small_scenario()
    assert plain.digest == small_scenario(local={"steps": 1}).digest
    assert "local" not in plain.canonical()
    assert "local" not in plain.for_edge(0)
    stepping = small_scenario(**local(4))
    assert stepping.canonical()["local"] == {"steps": 4, "rate": 0.5}
    assert parse_scenario(stepping.canonical()) == stepping
    assert parse_welcome({**stepping.for_edge(1), "seed": None}).work == stepping.work


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"local": {"steps": 2}}, "local.rate: needed with local.steps = 2"),
        ({"local": {"rate": 0.1}}, "local.rate = 0.1: means nothing with local.steps = 1"),
        ({"local": {"steps": MOST_STEPS + 1, "rate": 0.1}}, "local.steps = 101"),
        ({"local": {"steps": 0}}, "local.steps = 0"),
        (
            {"local": {"steps": 2, "rate": 0.1}, "algorithm": {"name": "asgd"}},
            "local.steps = 2: needs an algorithm whose edges clip and noise",
        ),
    ],
)
def test_local_steps_that_mean_nothing_are_refused(changes: dict[str, object], words: str) -> None:
    with pytest.raises(ConfigurationError) as refused:
        small_scenario(**changes)
    assert words in str(refused.value)

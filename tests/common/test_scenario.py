"""The scenario schema: what it resolves to, its hash, and errors that name key, value and what is allowed."""

from __future__ import annotations

import json
import tomllib
from enum import Enum
from typing import Any, get_args

import pytest
from pydantic import ValidationError

from common.errors import ConfigurationError
from common.mechanism.guarantee import Scope
from common.noise.exponential_norm import ExponentialNorm
from common.noise.gamma_norm import GammaNorm
from common.noise.gaussian import Gaussian
from common.problem import SensitivityRule
from common.scenario.algorithm_table import AlgorithmTable
from common.scenario.privacy_table import PrivacyTable
from common.scenario.scenario import Scenario, parse_scenario
from common.scenario.tables import LinkTable, Table
from common.transport.link import Distribution
from tests.mechanism_support import BATCH_MEAN, WITH_REPLACEMENT

ISSUE_EXAMPLE = """
edges = 5
iterations = 15000
batch_size = 12
seed = 0
[data]
set = "usps"
partition = "iid"
sampler = "with-replacement"
[model]
name = "lr"
regularization = 1e-4
[algorithm]
name = "mapa"
theta = 0.5
smoothness = 7.0
sigma = 3.7
delta = 1e-3
tau_max = 5
loss_gap = 0.6931
radius = 6.3
first_clip = 12.56
[privacy]
epsilon = 0.1
noise = "exponential-norm"
clipping = "batch-mean"
scope = "all"
[delays]
kind = "cyclic"
[evaluation]
every = 500
"""


def example(**changes: Any) -> dict[str, Any]:
    """Return the example with `table__key` (or `key`) set; None removes it."""
    values = tomllib.loads(ISSUE_EXAMPLE)
    for path, value in changes.items():
        *tables, key = path.split("__")
        table = values
        for name in tables:
            table = table.setdefault(name, {})
        if value is None:
            table.pop(key)
        else:
            table[key] = value
    return values


def parsed(**changes: Any) -> Scenario:
    return parse_scenario(example(**changes))


def test_the_documented_example_means_what_it_says() -> None:
    scenario = parsed()
    problem = scenario.problem
    assert (problem.batch_size, problem.smoothness, problem.sigma, problem.tau_max) == (12, 7.0, 3.7, 5)
    assert (problem.theta, problem.delta, problem.loss_gap, problem.radius) == (0.5, 1e-3, 0.6931, 6.3)
    assert (problem.first_clip, problem.iterations, problem.rule) == (12.56, 15000, SensitivityRule.THETA)
    assert scenario.law(3) == ExponentialNorm(0.1)
    mechanism = scenario.mechanism(scenario.law(3))
    assert (mechanism.clipping, mechanism.scope) == (BATCH_MEAN, Scope.ALL)
    assert (mechanism.sampler, mechanism.batch_size) == (WITH_REPLACEMENT, 12)


def test_the_shortest_scenario_has_the_sound_settings() -> None:
    scenario = parse_scenario({"iterations": 10})
    assert (scenario.data.set, scenario.data.sampler) == ("mnist-5k", "poisson")
    privacy = scenario.privacy
    assert (privacy.noise, privacy.clipping, privacy.scope) == ("gaussian", "per-sample", "all")
    assert scenario.seed is None
    assert scenario.model.regularization == 1e-4


@pytest.mark.parametrize(
    ("model", "data", "smoothness", "sigma"),
    [("lr", "usps", 1.725, 3.7), ("lr", "mnist-5k", 2.45, 4.7), ("svm", "mnist", 7.5, 12.3)],
)
def test_known_constants_fill_what_is_left_open(
    model: str, data: str, smoothness: float, sigma: float
) -> None:
    scenario = parse_scenario({"iterations": 10, "edges": 7, "model": {"name": model}, "data": {"set": data}})
    problem = scenario.problem
    assert (problem.smoothness, problem.sigma, problem.tau_max) == (smoothness, sigma, 7)
    assert scenario.algorithm.smoothness == smoothness  # resolved in what is recorded, too


def test_constants_that_nobody_knows_are_asked_for_by_name() -> None:
    with pytest.raises(ConfigurationError, match=r"algorithm\.smoothness: needed.*'my\.own:Model'"):
        parse_scenario({"iterations": 10, "model": {"name": "my.own:Model"}})


@pytest.mark.parametrize(
    ("name", "workers", "private"),
    [("csgd", 1, False), ("asgd", 5, False), ("audp", 5, True), ("mapa", 5, True), ("constant", 5, True)],
)
def test_csgd_is_one_worker_and_only_it_and_asgd_are_not_private(
    name: str, workers: int, private: bool
) -> None:
    rate = {"algorithm__rate": 1.0, "algorithm__first_clip": 1.0} if name == "constant" else {}
    scenario = parsed(algorithm__name=name, **rate)
    assert (scenario.workers, scenario.private) == (workers, private)
    assert (scenario.law(0) is None) is not private


def test_a_list_of_parameters_is_cycled_over_edges() -> None:
    scenario = parsed(privacy__epsilon=[0.1, 0.5])
    assert [scenario.law(k) for k in range(3)] == [ExponentialNorm(e) for e in (0.1, 0.5, 0.1)]
    assert scenario.laws() == [scenario.law(k) for k in range(5)]
    gaussian = parsed(privacy__epsilon=None, privacy__noise="gaussian", privacy__noise_multiplier=[1, 2.5])
    assert [gaussian.law(k) for k in range(3)] == [Gaussian(1.0), Gaussian(2.5), Gaussian(1.0)]
    assert parsed(privacy__noise="gamma-norm").law(9) == GammaNorm(0.1)


CONSTANT = {"algorithm__name": "constant"}
WITHOUT_EPSILON = {"privacy__noise": "gaussian", "privacy__epsilon": None}
GAUSSIAN = {**WITHOUT_EPSILON, "privacy__noise_multiplier": 1.0}


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"edges": 0}, ["edges = 0", "≥ 1", "≤ 100000"]),
        ({"edges": 2.5}, ["edges = 2.5", "integer"]),
        ({"edges": True}, ["edges = True", "integer"]),
        ({"edges": "5"}, ["edges = '5'", "integer"]),
        ({"edge": 5}, ["edge = 5", "unknown key", "edges", "iterations"]),
        ({"iterations": -1}, ["iterations = -1", "≥ 1"]),
        ({"seed": -1}, ["seed = -1", "≥ 0"]),
        ({"seed": 2**63}, [f"seed = {2**63}", f"< {2**63}"]),
        ({"batch_size": 0}, ["batch_size = 0", "≥ 1"]),
        (
            {"data__sampler": "epoch"},
            ["data.sampler = 'epoch'", "'poisson'", "'shuffled'", "'with-replacement'"],
        ),
        (
            {"data__partition": "random"},
            ["data.partition = 'random'", "'iid'", "'dirichlet'", "'label'", "'shared'"],
        ),
        ({"data__alpha": 0}, ["data.alpha = 0", "≥ 0.0001"]),
        ({"data__colour": 1}, ["data.colour = 1", "unknown key", "partition"]),
        ({"model__regularization": -1.0}, ["model.regularization = -1.0", "≥ 0"]),
        ({"algorithm__name": "fedavg"}, ["algorithm.name = 'fedavg'", "'csgd'", "'mapa'"]),
        (CONSTANT, ["algorithm.rate", "'constant'"]),
        (
            {**CONSTANT, "algorithm__rate": 1.0, "algorithm__first_clip": None},
            ["algorithm.first_clip", "'constant'"],
        ),
        ({"algorithm__rate": 1.0}, ["algorithm.rate = 1.0: unknown key", "'mapa'", "tau_quantile"]),
        ({"algorithm__rate_decay": "linear"}, ["algorithm.rate_decay = 'linear': unknown key", "'mapa'"]),
        ({**CONSTANT, "algorithm__rate": 0}, ["algorithm.rate = 0", "> 0"]),
        ({"data__holdout": -1}, ["data.holdout = -1", "≥ 0"]),
        ({"algorithm__theta": 1.0}, ["algorithm.theta = 1.0", "< 1"]),
        ({"algorithm__theta": float("nan")}, ["algorithm.theta = nan"]),
        ({"algorithm__delta": 0.0}, ["algorithm.delta = 0.0", "> 0"]),
        ({"algorithm__smoothness": float("inf")}, ["algorithm.smoothness = inf", "finite"]),
        ({"algorithm__tau_max": -1}, ["algorithm.tau_max = -1", "≥ 0"]),
        ({"algorithm__first_clip": 0}, ["algorithm.first_clip = 0", "≥ 1e-09"]),
        ({"algorithm__first_clip": None, "algorithm__sigma": 0}, ["algorithm.sigma = 0", "greater than 0"]),
        ({"privacy__epsilon": 0}, ["privacy.epsilon.0 = 0", "≥ 1e-09"]),
        ({"privacy__epsilon": [0.1, -2]}, ["privacy.epsilon.1 = -2", "≥ 1e-09"]),
        ({"privacy__epsilon": 1e300}, ["privacy.epsilon.0 = 1e+300", "≤ 1000000000.0"]),
        ({"links": [{"name": "lan"}, {"name": "nowhere"}]}, ["links.1", "name = 'nowhere'", "lan, wifi, 5g"]),
        ({"links": [{"jitter_ms": 5.0, "distribution": "constant"}]}, ["links.0", "jitter_ms = 5.0"]),
        ({"privacy__epsilon": "much"}, ["privacy.epsilon.0 = 'much'", "number"]),
        ({"privacy__epsilon": None}, ["privacy.noise = 'exponential-norm': needs privacy.epsilon"]),
        (
            {"privacy__noise": "gaussian"},
            ["privacy.epsilon = [0.1]: requires", "'gamma-norm'", "'gaussian'"],
        ),
        ({"privacy__noise_multiplier": 1.0}, ["privacy.noise_multiplier = [1.0]: requires", "'gaussian'"]),
        (
            {"privacy__noise_multiplier_ceiling": 2.0},
            ["privacy.noise_multiplier_ceiling = 2.0: requires", "'gaussian'", "'exponential-norm'"],
        ),
        (
            {**GAUSSIAN, "privacy__epsilon_floor": 5.0},
            ["privacy.epsilon_floor = 5.0: requires", "'gamma-norm' or 'laplace', not 'gaussian'"],
        ),
        (
            WITHOUT_EPSILON,
            ["privacy.noise = 'gaussian': needs privacy.noise_multiplier or privacy.total_epsilon"],
        ),
        ({**GAUSSIAN, "privacy__releases": 9}, ["privacy.releases = 9: requires privacy.total_epsilon"]),
        ({"privacy__clipping": "none"}, ["privacy.clipping = 'none'", "'per-sample'", "'batch-mean'"]),
        ({"privacy__total_delta": 1.0}, ["privacy.total_delta = 1.0", "< 1"]),
        ({"delays__kind": "recorded"}, ["delays.file: needed with delays.kind = 'recorded'"]),
        ({"delays__file": "x.csv"}, ["delays.file = 'x.csv': requires", "'recorded'", "'cyclic'"]),
        ({"delays__kind": "uniform", "delays__spread": 1.5}, ["delays.spread = 1.5", "at most 1"]),
        ({"delays__speeds": []}, ["delays.speeds = []"]),
        ({"evaluation__every": -1}, ["evaluation.every = -1", "≥ 0"]),
        ({"testbed__edges_at_least": 6}, ["testbed.edges_at_least = 6", "at most 5"]),
        ({"links": [{"delay_ms": -1}]}, ["links.0.delay_ms = -1", "≥ 0"]),
        ({"links": [{"delay": 1}]}, ["links.0.delay = 1", "unknown key", "delay_ms"]),
        ({"data": 5}, ["data = 5"]),
        ({"data__set": ""}, ["data.set = ''"]),
        *(
            ({"data__set": "foo", "algorithm__smoothness": known}, ["data.set = 'foo': allowed are", "usps"])
            for known in (None, 7.0)
        ),
        (
            {"model__name": "foo", "algorithm__smoothness": None},
            ["model.name = 'foo': allowed are", "cnn", "package.module:Class"],
        ),
    ],
    ids=str,
)
def test_a_wrong_scenario_is_refused_with_key_value_and_what_is_allowed(
    changes: dict[str, Any], words: list[str]
) -> None:
    with pytest.raises(ConfigurationError) as caught:
        parsed(**changes)
    for word in words:
        assert word in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_missing_key_is_named() -> None:
    with pytest.raises(ConfigurationError, match=r"^iterations: missing$"):
        parsed(iterations=None)


def test_several_errors_are_told_at_once_a_line_each() -> None:
    with pytest.raises(ConfigurationError) as caught:
        parsed(edges=0, data__sampler="x")
    assert [line.split(" ")[0] for line in str(caught.value).splitlines()] == ["edges", "data.sampler"]


def test_a_scenario_is_a_value_that_nobody_changes() -> None:
    scenario = parsed()
    with pytest.raises(ValidationError, match="frozen"):
        scenario.edges = 3
    assert scenario == parsed()


def test_a_scenario_survives_its_own_record() -> None:
    for scenario in (parsed(), parse_scenario({"iterations": 10}), parsed(links=[{"partitions": [[1, 2]]}])):
        recorded = json.loads(json.dumps(scenario.canonical()))
        assert parse_scenario(recorded) == scenario
        assert parse_scenario(recorded).digest == scenario.digest


def test_the_hash_is_that_of_the_resolved_values_and_stable() -> None:
    scenario = parsed()
    assert len(scenario.digest) == 64
    reordered = dict(reversed(example().items()))
    reordered["algorithm"] = dict(reversed(reordered["algorithm"].items()))
    assert parse_scenario(reordered).digest == scenario.digest
    assert parsed(algorithm__smoothness=7).digest == scenario.digest  # 7 is 7.0
    assert parsed(privacy__epsilon=[0.1]).digest == scenario.digest
    assert parsed(evaluation__every=500).digest == scenario.digest
    others: list[dict[str, Any]] = [{"seed": 1}, {"edges": 6}, {"algorithm__theta": 0.25}]
    others += [{"privacy__epsilon": 0.2}, {"privacy__epsilon": [0.1, 0.1]}]
    others += [{"data__sampler": "poisson"}, {"records__events": False}]
    for changes in others:
        assert parsed(**changes).digest != scenario.digest


@pytest.mark.parametrize(
    ("table", "key", "values"),
    [
        (PrivacyTable, "scope", Scope),
        (AlgorithmTable, "rule", SensitivityRule),
        (LinkTable, "distribution", Distribution),
    ],
)
def test_a_key_allows_exactly_the_values_that_its_enum_has(
    table: type[Table], key: str, values: type[Enum]
) -> None:
    """A type checker and the schema need the values spelt out in the table; the enum is what the code follows."""
    spelt = table.model_fields[key].annotation
    allowed = [name for part in (spelt, *get_args(spelt)) for name in get_args(part) if isinstance(name, str)]
    assert sorted(allowed) == sorted(one.value for one in values)

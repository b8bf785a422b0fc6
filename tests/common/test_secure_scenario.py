"""What a scenario says of secure sums, and what does not go together with them."""

from __future__ import annotations

from typing import Any

import pytest

from cloud.assembly import members_of
from common.errors import ConfigurationError
from common.mechanism.grid import Grid
from common.mechanism.guarantee import Adjacency
from common.scenario.scenario import Scenario, parse_scenario, parse_welcome

BASE: dict[str, Any] = {
    "edges": 6,
    "iterations": 60,
    "batch_size": 16,
    "model": {"name": "softmax"},
    "algorithm": {"name": "constant", "first_clip": 1.0, "rate": 0.5},
    "privacy": {"noise_multiplier": 2.0},
    "secure": {"at_least": 4},
}


def merged(values: dict[str, Any], changes: dict[str, Any]) -> dict[str, Any]:
    """Return a table with changes; those of an inner table leave its other keys."""
    tables = {key: {**values.get(key, {}), **new} for key, new in changes.items() if isinstance(new, dict)}
    return {**values, **changes, **tables}


def scenario(**changes: Any) -> Scenario:
    return parse_scenario(merged(BASE, changes))


def test_a_scenario_says_how_many_edges_a_sum_has_and_what_helpers_may_do() -> None:
    mechanism = scenario(privacy={"colluding": 1}).mechanism(scenario().law(0))
    assert mechanism.grid == Grid(0, members=4, colluding=1, helpers=4, away=1)
    alone = mechanism.guarantee(Adjacency.ZERO_OUT).noise_multiplier
    summed = mechanism.in_sums().guarantee(Adjacency.ZERO_OUT).noise_multiplier
    assert alone == pytest.approx(2.0 / 2)
    assert summed == pytest.approx(2.0 * (3 / 4) ** 0.5)


def test_without_the_table_nothing_is_recorded_of_it() -> None:
    plain = parse_scenario({key: value for key, value in BASE.items() if key != "secure"})
    assert not {"secure"} & plain.canonical().keys()
    assert not {"grid", "colluding"} & plain.canonical()["privacy"].keys()
    assert "grid" not in plain.mechanism(plain.law(0)).fields()
    assert members_of(plain) == 1


def test_an_edge_is_told_the_terms_of_its_sums() -> None:
    told = scenario(secure={"clip": 1.0, "modulus_bits": 32}, privacy={"grid": 16}).for_edge(2)
    grid = parse_welcome(told).mechanism(parse_welcome(told).law(0)).grid
    assert grid == Grid(16, members=4, helpers=4, away=1, clip=1.0)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"secure": {"at_least": 1}}, "secure.at_least = 1"),
        ({"secure": {"at_least": 7}}, "secure.at_least = 7: must be at most 6, the number of edges"),
        ({"secure": {"helpers": 8}}, "secure.helpers = 8"),
        ({"secure": {"helpers": 2}}, "secure.away = 1: must be from 0 to 0: more than twice as many helpers"),
        ({"privacy": {"colluding": 4}}, "privacy.colluding = 4: must be from 0 to 3"),
        ({"local": {"steps": 2, "rate": 0.1}}, "a local step depends on the edge's own release"),
        (
            {"privacy": {"noise": "laplace", "noise_multiplier": None, "epsilon": 1.0}},
            "has no form in integers",
        ),
        ({"data": {"partition": "shared"}}, "moves one sum several times"),
        ({"privacy": {"noise_multiplier": [2.0, 3.0]}}, "equal shares"),
        ({"algorithm": {"weights": "noise"}}, "weights by noise or staleness"),
        ({"algorithm": {"name": "fedasync"}}, "weighs single releases, or changes C"),
        (
            {"algorithm": {"name": "fedbuff", "buffer": 2, "staleness_scaling": True}},
            "weights by noise or staleness",
        ),
        ({"algorithm": {"name": "quantile"}, "privacy": {"clipping": "quantile"}}, "changes C"),
        ({"compression": {"gradients": "int8"}}, "int8 upwards"),
        ({"compression": {"offered": ["float16"]}}, "float16 upwards"),
        ({"links": [{"name": "lan", "gradients": "float16"}]}, "float16 upwards"),
        ({"algorithm": {"name": "asgd", "rate": None}}, "edges do not noise"),
    ],
)
def test_what_sums_cannot_have_is_refused_with_its_reason(changes: dict[str, Any], words: str) -> None:
    values = merged(BASE, changes)
    for table in ("privacy", "algorithm"):
        values[table] = {key: value for key, value in values[table].items() if value is not None}
    with pytest.raises(ConfigurationError) as refused:
        parse_scenario(values)
    assert words in str(refused.value)


def test_edges_that_collude_are_no_word_of_a_run_without_sums() -> None:
    values = {key: value for key, value in BASE.items() if key != "secure"}
    with pytest.raises(ConfigurationError, match=r"privacy\.colluding = 1: only with \[secure\]"):
        parse_scenario(merged(values, {"privacy": {"colluding": 1}}))


@pytest.mark.parametrize(
    ("privacy", "words"),
    [
        ({"noise": "laplace", "epsilon": 1.0, "grid": 16}, "has no form in integers"),
        ({"noise_multiplier": 1.0, "grid": 41}, "privacy.grid = 41"),
        ({"noise_multiplier": 1.0, "grid": 16, "scope": "first-conv"}, "privacy.grid = 16: not with"),
    ],
)
def test_a_grid_needs_a_law_whose_integers_are_accounted(privacy: dict[str, Any], words: str) -> None:
    values = {key: value for key, value in BASE.items() if key not in ("secure", "privacy")}
    with pytest.raises(ConfigurationError) as refused:
        parse_scenario({**values, "privacy": privacy})
    assert words in str(refused.value)

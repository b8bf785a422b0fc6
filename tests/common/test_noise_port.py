"""What a law of one's own must say, and that nobody else need know it: scenario, records, ledger, cloud."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import pytest

from cloud.assembly import terms_for
from cloud.server import edge_joined
from common.accounting.releases import ReleaseKind
from common.errors import ConfigurationError
from common.mechanism.guarantee import Adjacency, Guarantee, Norm
from common.mechanism.mechanism import Mechanism
from common.messages import Hello
from common.models.registry import make_model
from common.noise.gaussian import Gaussian
from common.noise.law import Noise, NoiseLaw, parameter
from common.noise.registry import LAWS, describe_law, implied_law, noise_law
from common.quantities import EdgeId
from common.scenario.scenario import Scenario, parse_welcome
from tests.core_support import small_scenario

OWN = "tests.common.test_noise_port:Mixed"


@dataclass(frozen=True, slots=True)
class Mixed(NoiseLaw):
    """Normal noise of its own scale, cut to a share of it: two parameters, and no guarantee."""

    norm: ClassVar[Norm] = Norm.L2
    scale: float = parameter("standard deviation over ΔS", symbol="s", larger_is_noisier=True)
    share: float = parameter("kept share", symbol="q", larger_is_noisier=False, above=0.0, at_most=1.0)

    def draw(self, sensitivity: float, dimension: int, rng: np.random.Generator) -> Noise:
        return rng.standard_normal(dimension) * self.scale * sensitivity / self.share

    def relative_second_moment(self, dimension: int) -> float:
        return dimension * (self.scale / self.share) ** 2

    def relative_tail(self, dimension: int) -> float:
        return self.scale / self.share * (math.sqrt(dimension) + 8)

    def guarantee(self, mechanism: Mechanism, adjacency: Adjacency) -> Guarantee:  # noqa: ARG002
        return Guarantee(adjacency, reason="nobody has proved anything")


def own(**changes: Any) -> Scenario:
    return small_scenario(privacy={"noise": OWN, "scale": [1.0, 2.0], "share": 0.5, **changes})


def test_a_law_of_ones_own_is_found_by_its_path_and_named_by_it() -> None:
    law = noise_law(OWN, {"scale": 2.0, "share": 0.5})
    assert law == Mixed(2.0, 0.5)
    assert (law.name, law.parameters) == (OWN, {"scale": 2.0, "share": 0.5})
    assert law.strength == "s = 2, q = 0.5"
    assert describe_law(OWN).limits == ("scale_ceiling", "share_floor")


def test_its_parameters_are_keys_of_the_scenario_cycled_over_edges() -> None:
    scenario = own()
    assert [scenario.law(k) for k in range(3)] == [Mixed(1.0, 0.5), Mixed(2.0, 0.5), Mixed(1.0, 0.5)]
    sent = scenario.for_edge(1)
    assert (sent["privacy"]["scale"], sent["privacy"]["share"]) == ([2.0], [0.5])
    assert parse_welcome(sent, allowed=[OWN]).law(0) == Mixed(2.0, 0.5)


def test_an_edge_imports_no_law_of_a_welcome_unless_allowed() -> None:
    sent = own().for_edge(0)
    sent["privacy"]["noise"] = "surely.no.such.module:Law"
    with pytest.raises(ConfigurationError, match=r"allow it with --allow surely\.no\.such\.module:Law"):
        parse_welcome(sent)  # refused before it is looked for
    with pytest.raises(ConfigurationError, match="cannot import"):
        parse_welcome(sent, allowed=["surely.no.such.module:Law"])


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"scale": None}, r"privacy.scale = None"),
        ({"scale": 0}, r"privacy.scale = 0: must be a number, ≥ 1e-09"),
        ({"share": [0.5, 2]}, r"privacy.share = 2: must be a number, > 0 and ≤ 1"),
        ({"share": "much"}, r"privacy.share = 'much'"),
        ({"share": []}, r"privacy.share: 0 values"),
        ({"epsilon": 1.0}, r"privacy.epsilon = \[1.0\]: requires privacy.noise = 'exponential-norm' or"),
        ({"colour": 0}, r"privacy.colour = 0: unknown key; allowed with noise = .* scale, share"),
        ({"scale_floor": 1.0}, r"privacy.scale_floor = 1.0: unknown key"),
        ({"share_floor": 0}, r"privacy.share_floor = 0: must be a number, > 0"),
        ({"total_epsilon": 1.0, "noise": "laplace"}, r"privacy.scale = \[1.0, 2.0\]: unknown key"),
    ],
)
def test_a_wrong_parameter_is_refused_with_key_value_and_what_is_allowed(
    changes: dict[str, Any], words: str
) -> None:
    with pytest.raises(ConfigurationError, match=words):
        own(**changes)


def test_a_missing_parameter_is_named() -> None:
    with pytest.raises(ConfigurationError, match=r"needs privacy.share"):
        small_scenario(privacy={"noise": OWN, "scale": 1.0})


def test_the_runs_limits_hold_for_each_of_its_parameters() -> None:
    scenario = own(scale_ceiling=2.0, share_floor=0.25)
    terms = terms_for(scenario, make_model("lr", shape=(2, 2), classes=10, options={}), edges_at_least=1)
    assert terms.limits == {"scale_ceiling": 2.0, "share_floor": 0.25}
    assert terms.moment_limit == Mixed(2.0, 0.25).relative_second_moment(5)
    assert terms.law(Hello(edge_id=EdgeId("a")), 1) == Mixed(2.0, 0.5)
    with pytest.raises(
        ConfigurationError, match=r"scale = 3.0: must be at most 2.0, .*privacy.scale_ceiling"
    ):
        terms.moment(Mixed(3.0, 1.0))
    with pytest.raises(ConfigurationError, match=r"share = 0.1: must be at least 0.25"):
        terms.moment(Mixed(1.0, 0.1))
    with pytest.raises(ConfigurationError, match=r"'gaussian': has .* privacy.scale_ceiling and share_floor"):
        terms.moment(Gaussian(1000.0))


def test_records_and_ledgers_keep_it() -> None:
    law = Mixed(2.0, 0.5)
    joined = edge_joined(0, EdgeId("a"), 1, law, returned=False)
    assert (joined.noise, joined.epsilon, joined.noise_multiplier) == (OWN, None, None)
    assert joined.parameters == law.parameters
    kind = ReleaseKind(own().mechanism(law), 100)
    assert ReleaseKind.of_fields(kind.fields()) == kind


def test_a_law_without_a_block_draw_or_a_score_has_ordinary_ones() -> None:
    laws, sensitivities = [Mixed(1.0, 1.0), Mixed(2.0, 1.0)], np.array([0.5, 0.25])
    block = Mixed.draw_block(laws, sensitivities, 4, np.random.default_rng(1), np.random.default_rng(2))
    rng = np.random.default_rng(1)
    alone = [law.draw(s, 4, rng) for law, s in zip(laws, sensitivities, strict=True)]
    np.testing.assert_array_equal(block, np.array(alone))
    there = np.array([0.0, 2.0])
    ranked = laws[0].log_ratio(1.0, np.array([[0.0, 0.0], [9.0, 1.0], [0.0, 2.0]]), np.zeros(2), there)
    assert list(ranked) == sorted(ranked)


def test_a_parameter_alone_means_the_law_that_says_so() -> None:
    assert implied_law(["epsilon"]) == "gamma-norm"
    assert implied_law(["noise_multiplier"]) == "gaussian"
    with pytest.raises(ConfigurationError, match="no law is meant"):
        implied_law(["epsilon", "noise_multiplier"])


def declared(**body: Any) -> type:
    """Return a frozen law with these members in the place of Mixed's."""
    members = {
        key: getattr(Mixed, key) for key in ("draw", "relative_second_moment", "relative_tail", "guarantee")
    }
    members |= {"name": "own", "norm": Norm.L2, "__annotations__": {}, **body}
    kept = {key: value for key, value in members.items() if value is not None}
    return dataclass(frozen=True)(type("Own", (NoiseLaw,), kept))


def one(name: str, kind: str = "float") -> dict[str, Any]:
    return {name: parameter("", symbol="p", larger_is_noisier=True), "__annotations__": {name: kind}}


@pytest.mark.parametrize(
    ("made", "words"),
    [
        (object, "must be a subclass of common.noise.law:NoiseLaw"),
        (NoiseLaw, "must be a frozen dataclass"),
        (declared(norm=None), "does not say which norm must be clipped"),
        (declared(guarantee=None), "does not state guarantee"),
        (declared(name="other"), "its own name is 'other'"),
        (declared(**one("clipping")), "option 'clipping': the name is taken"),
        (declared(**one("scale_floor")), "parameter 'scale_floor': not a name for one"),
        (declared(**one("Scale")), "parameter 'Scale': not a name for one"),
        (declared(**one("scale", "int")), "parameter 'scale' must be a float"),
        (declared(calibrated="z", **one("scale")), "`calibrated` must name its only parameter"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_law_that_says_too_little_is_refused(made: type, words: str) -> None:
    with pytest.raises(ConfigurationError, match=words):
        LAWS.description_of("own", made, "noise")
    LAWS.description_of("own", declared(**one("scale")), "noise")  # so it is that alone which is missing

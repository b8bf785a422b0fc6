"""The algorithm port: what a class must say, how its options are checked, and that its fields are its state."""

from __future__ import annotations

import pickle
from dataclasses import dataclass, fields
from typing import Any, ClassVar

import numpy as np
import pytest

from cloud.algorithm import Algorithm, StepSchedule, Update, descend, option
from common.algorithms import algorithm_names, describe, description_of
from common.errors import ConfigurationError
from common.options import Range, options_of
from common.problem import Problem
from common.quantities import Vector
from tests.algorithms.fedasync import FedAsync
from tests.algorithms.fedbuff import FedBuff

PROBLEM = Problem(batch_size=4, smoothness=1.0, sigma=1.0, tau_max=2, iterations=50, first_clip=2.0)
HERE = "tests.cloud.test_algorithm_port"


@dataclass(frozen=True)
class Unstated(Algorithm):
    """Says nothing about privacy."""

    def apply(self, x: Vector, update: Update) -> tuple[Vector, Unstated]:
        return descend(x, update.gradient, 0.1), self


@dataclass(frozen=True)
class Boundless(Unstated):
    """Private, and asks for no clipping bound."""

    private: ClassVar[bool] = True


@dataclass(frozen=True)
class HalfStated(Unstated):
    private: ClassVar[Any] = "yes"


@dataclass
class Changeable(Algorithm):
    private: ClassVar[bool] = False


@dataclass(frozen=True)
class Stateful(Unstated):
    private: ClassVar[bool] = False
    memory: int


class NoAlgorithm:
    private = False


@dataclass(frozen=True)
class Odd(Unstated):
    private: ClassVar[bool] = False
    weights: list[float] = option("not of a kind that TOML and the port share", ())  # noqa: RUF009


def update(value: float = 1.0, *, t: int = 1, staleness: int = 0) -> Update:
    gradient = np.full(3, value, np.float32)
    return Update(gradient, t, t - staleness, staleness, 0, None, 0.0, 1, 1.0)


# -- what a class must say ----------------------------------------------------------------------------------


def test_every_file_is_an_algorithm_and_says_whether_it_is_private() -> None:
    found = {name: describe(name) for name in algorithm_names()}
    bare = {"asgd", "csgd"}
    protected = {
        "adam",
        "audp",
        "constant",
        "delay-adaptive",
        "fedasync",
        "fedbuff",
        "krum",
        "mapa",
        "momentum",
        "norm-cap",
        "quantile",
        "trimmed-mean",
        "tuning-free",
    }
    assert {name: one.private for name, one in found.items()} == {
        **dict.fromkeys(bare, False),
        **dict.fromkeys(protected, True),
    }
    assert [name for name, one in found.items() if one.centralised] == ["csgd"]
    assert all(one.about.endswith(".") for one in found.values())


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("Unstated", "does not say whether its edges clip and noise"),
        ("HalfStated", "does not say whether its edges clip and noise"),
        ("Changeable", "must be a frozen dataclass"),
        ("Stateful", "field 'memory' is no option, so it needs a default"),
        ("NoAlgorithm", "the class lacks begin, apply"),
        ("Odd", "option 'weights' must be one of float, int, str, bool"),
        ("PROBLEM", "not a class"),
        ("Nobody", "has no 'Nobody'"),
    ],
)
def test_a_class_that_says_too_little_is_refused_by_name(name: str, words: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        describe(f"{HERE}:{name}")
    assert f"algorithm.name = '{HERE}:{name}': " in str(caught.value)
    assert words in str(caught.value)


def test_an_unknown_name_is_an_error_that_lists_the_known_ones() -> None:
    with pytest.raises(ConfigurationError, match=r"algorithm\.name = 'mapaa': allowed are 'adam', .*'mapa'"):
        describe("mapaa")


@pytest.mark.parametrize("name", ["__init__", "../server", "cloud.algorithms.mapa", ""])
def test_a_name_is_no_path(name: str) -> None:
    with pytest.raises(ConfigurationError, match=r"algorithm\.name = "):
        describe(name)


def test_privacy_that_a_parent_states_is_stated() -> None:
    @dataclass(frozen=True)
    class Careful(FedAsync):
        """A child of one that is private."""

    assert description_of("own:Careful", Careful).private is True


# -- options ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({}, ["algorithm.rate: needed with", "a number, > 0"]),
        ({"rate": 0}, ["algorithm.rate = 0: must be a number, > 0"]),
        ({"rate": True}, ["algorithm.rate = True: must be a number"]),
        ({"rate": float("nan")}, ["algorithm.rate = nan"]),
        ({"rate": float("inf")}, ["algorithm.rate = inf"]),
        ({"rate": "1"}, ["algorithm.rate = '1'"]),
        ({"rate": 1, "size": 2.5}, ["algorithm.size = 2.5: must be an integer, ≥ 1 and ≤ 10000"]),
        ({"rate": 1, "size": 10_001}, ["algorithm.size = 10001"]),
        ({"rate": 1, "sise": 3}, ["algorithm.sise = 3: unknown key", "rate, size"]),
        ({"rate": 1, "held": 3}, ["algorithm.held = 3: unknown key"]),  # state is no option
    ],
)
def test_a_wrong_option_is_refused_with_key_value_and_what_is_allowed(
    given: dict[str, Any], words: list[str]
) -> None:
    with pytest.raises(ConfigurationError) as caught:
        describe("tests.algorithms.fedbuff:FedBuff").resolve(given)
    for word in words:
        assert word in str(caught.value)


def test_options_are_told_apart_from_state() -> None:
    names = [one.name for one in options_of(FedBuff, "x")]
    assert names == ["rate", "size"]
    assert {field.name for field in fields(FedBuff)} - set(names) == {"bound", "held", "total"}


def test_a_range_says_itself_in_words() -> None:
    assert Range(about="", at_least=0, below=1).words == "≥ 0 and < 1"
    assert Range(about="", choices=("a", "b")).words == "one of 'a', 'b'"


# -- updates ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", [*algorithm_names(), "tests.algorithms.fedbuff:FedBuff"])
def test_the_fields_are_all_that_a_run_needs_to_go_on(name: str) -> None:
    """Stop after any update, keep x and the fields, and go on: the same bytes."""
    described = describe(name)
    options = {"rate": 0.5} if any(one.name == "rate" for one in described.options) else {}
    problem = Problem(
        batch_size=4,
        smoothness=1.0,
        sigma=1.0,
        tau_max=2,
        iterations=50,
        first_clip=2.0,
        loss_gap=1e-3,
        measure_tau=True,
    )
    algorithm = described.make(described.resolve(options)).begin(problem, 2.0)
    rng = np.random.default_rng(3)
    updates = [
        Update(
            rng.standard_normal(5).astype(np.float32), t, max(1, t - 3), min(t - 1, 3), t % 5, None, 2.0, 1, 1
        )
        for t in range(1, 31)
    ]

    def go(x: Vector, value: Algorithm, some: list[Update]) -> tuple[Vector, Algorithm]:
        for one in some:
            x, value = value.apply(x, one)
        return x, value

    whole, last = go(np.zeros(5, np.float32), algorithm, updates)
    for cut in (1, 7, 30):
        x, value = go(np.zeros(5, np.float32), algorithm, updates[:cut])
        kept = {field.name: getattr(value, field.name) for field in fields(value)}  # type: ignore[arg-type]
        again = type(value)(**pickle.loads(pickle.dumps(kept)))
        x, value = go(x, again, updates[cut:])
        assert x.tobytes() == whole.tobytes()
        assert value.stage == last.stage
    assert whole.any()


def test_a_schedule_that_changes_x_in_its_own_way_is_not_planned() -> None:
    @dataclass(frozen=True)
    class Plain(StepSchedule):
        private: ClassVar[bool] = False

    @dataclass(frozen=True)
    class Own(Plain):
        def result(self, x: Vector) -> Vector:
            return x / 2

    assert Plain().can_be_planned
    assert not Own().can_be_planned

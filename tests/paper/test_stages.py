"""algorithm:MAPA, lines 1-8 and 15-16: ΔS₁, Δ_b, P, γ, T_s against the formulas in sixty decimal digits."""

from __future__ import annotations

import math
from dataclasses import replace
from decimal import ROUND_CEILING, Decimal, localcontext

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from cloud.stages import (
    Stage,
    first_stage,
    initial_sensitivity,
    next_stage,
    open_stage,
    planned_stages,
    reopen_stage,
)
from common.errors import ConfigurationError
from common.problem import Problem, SensitivityRule

PAPER = Problem(
    batch_size=12,
    smoothness=10,
    sigma=30,
    tau_max=5,
    iterations=25_000,
    delta=1e-3,
    theta=0.5,
    loss_gap=2.302585,
)
PAPER_MOMENT = 2 / 0.1**2  # v = 2/ε²


def magnitudes(least: float, most: float) -> st.SearchStrategy[float]:
    """Spread over orders of magnitude."""
    return st.floats(math.log10(least), math.log10(most)).map(lambda power: 10.0**power)


problems = st.builds(
    Problem,
    batch_size=st.integers(1, 4096),
    smoothness=magnitudes(1e-3, 1e4),
    sigma=magnitudes(1e-3, 1e3),
    tau_max=st.integers(0, 10_000),
    iterations=st.just(25_000),
    theta=st.floats(0.01, 0.99),
    delta=st.one_of(magnitudes(1e-15, 0.5), st.floats(0.5, 0.999)),
    loss_gap=magnitudes(1e-4, 1e3),
    first_clip=st.one_of(st.none(), magnitudes(1e-3, 1e3)),
    rule=st.sampled_from(SensitivityRule),
)
moments = magnitudes(1e-6, 1e8)


def expected(problem: Problem, moment: float, count: int) -> list[dict[str, Decimal]]:
    """Return the first stages by hand, straight from the conventions."""
    with localcontext() as context:
        context.prec = 60
        b, level, sigma = Decimal(problem.batch_size), Decimal(problem.smoothness), Decimal(problem.sigma)
        delays, theta, gap = Decimal(problem.tau_max + 1), Decimal(problem.theta), Decimal(problem.loss_gap)
        if problem.first_clip is not None:
            sensitivity = 2 * Decimal(problem.first_clip) / b
        else:
            sensitivity = 2 * sigma / (b * (1 - (1 - Decimal(problem.delta)).sqrt()).sqrt())
        stages = []
        for _ in range(count):
            variance = sigma**2 / b + sensitivity**2 * Decimal(moment)
            p_raw = 8 * variance / (delays * b**2 * sensitivity**2 * theta**2)
            p = max(p_raw, Decimal(1))
            stages.append(
                {
                    "sensitivity": sensitivity,
                    "clip": b * sensitivity / 2,
                    "variance": variance,
                    "p_raw": p_raw,
                    "p": p,
                    "learning_rate": 1 / (2 * p * level * delays),
                    "length_raw": 4 * p**2 * level * delays**2 * gap / variance,
                }
            )
            if problem.rule is SensitivityRule.THETA:
                sensitivity = theta * sensitivity
            else:
                sensitivity = 2 * (2 * variance / (p * delays)).sqrt() / b
        return stages


def assert_equal(stage: Stage, wanted: dict[str, Decimal]) -> None:
    for key, value in wanted.items():
        assert getattr(stage, key) == pytest.approx(float(value), rel=1e-9), key
    whole = wanted["length_raw"].to_integral_value(ROUND_CEILING)
    distance = abs(wanted["length_raw"] - wanted["length_raw"].to_integral_value())
    if (
        distance > Decimal("1e-9") * wanted["length_raw"]
    ):  # else rounding decides which side of the whole number
        assert stage.length == max(1, int(whole))
    else:
        assert stage.length == pytest.approx(max(1, int(whole)), abs=1, rel=1e-9)


@given(problems, moments)
def test_every_stage_is_what_the_formulas_say_to_nine_digits(problem: Problem, moment: float) -> None:
    stage = first_stage(moment, problem, problem.tau_max)
    for index, wanted in enumerate(expected(problem, moment, 6), start=1):
        assert stage.index == index
        assert stage.tau_max == problem.tau_max
        assert stage.length >= 1
        assert_equal(stage, wanted)
        stage = next_stage(stage, moment, problem, problem.tau_max)


@pytest.mark.parametrize("delta", [1e-15, 1e-12, 1e-9, 1e-6, 1e-3, 0.5, 1 - 1e-12])
def test_a_tiny_delta_loses_no_digits(delta: float) -> None:
    """1 − √(1−δ) computed as written has no digit left at δ = 1e-16."""
    problem = replace(PAPER, delta=delta)
    with localcontext() as context:
        context.prec = 60
        root = 1 - (1 - Decimal(delta)).sqrt()
        wanted = 2 * Decimal(30) / (12 * root.sqrt())
    assert initial_sensitivity(problem) == pytest.approx(float(wanted), rel=1e-14)


def test_initial_sensitivity_meets_the_inequality_of_theorem_3_with_equality() -> None:
    least = initial_sensitivity(PAPER)
    assert (1 - 4 * 30**2 / (12 * least) ** 2) ** 2 == pytest.approx(1 - 1e-3, rel=1e-12)


def test_a_first_clipping_bound_replaces_theorem_3() -> None:
    problem = replace(PAPER, first_clip=12.56)
    assert initial_sensitivity(problem) == 2 * 12.56 / 12
    assert first_stage(PAPER_MOMENT, problem, 5).clip == pytest.approx(12.56, rel=1e-15)


def test_p_is_clamped_at_one_and_only_then_the_two_rules_differ() -> None:
    clamped = replace(PAPER, sigma=1e-3, first_clip=500.0, tau_max=500)
    first = first_stage(1e-4, clamped, 500)
    assert first.p_raw < 1
    assert first.p == 1
    by_table = next_stage(first, 1e-4, replace(clamped, rule=SensitivityRule.TABLE), 500)
    by_theta = next_stage(first, 1e-4, clamped, 500)
    assert by_theta.sensitivity == 0.5 * first.sensitivity
    assert by_table.sensitivity == pytest.approx(by_theta.sensitivity * math.sqrt(first.p_raw), rel=1e-12)
    assert by_table.sensitivity < by_theta.sensitivity


@given(problems, moments)
def test_the_tables_rule_is_thetas_rule_while_p_raw_is_at_least_one(problem: Problem, moment: float) -> None:
    stage = first_stage(moment, problem, problem.tau_max)
    assume(stage.p_raw >= 1)
    by_table = next_stage(stage, moment, replace(problem, rule=SensitivityRule.TABLE), problem.tau_max)
    assert by_table.sensitivity == pytest.approx(problem.theta * stage.sensitivity, rel=1e-12)


def test_a_stage_lasts_at_least_one_update() -> None:
    stage = open_stage(1, 1e6, 1e6, replace(PAPER, loss_gap=1e-9), 0)
    assert stage.length_raw < 1
    assert stage.length == 1


@given(problems, moments, st.floats(1.001, 1e6))
def test_reopening_keeps_number_and_sensitivity_and_computes_the_rest_anew(
    problem: Problem, moment: float, growth: float
) -> None:
    stage = next_stage(first_stage(moment, problem, 3), moment, problem, 3)
    again = reopen_stage(stage, moment * growth, problem, 3)
    assert (again.index, again.sensitivity, again.clip) == (stage.index, stage.sensitivity, stage.clip)
    assert again == open_stage(2, stage.sensitivity, moment * growth, problem, 3)
    assert again.variance > stage.variance
    assert again.learning_rate <= stage.learning_rate


@given(problems, moments, st.integers(1, 5000))
def test_the_plan_covers_all_updates_without_a_gap(problem: Problem, moment: float, iterations: int) -> None:
    problem = replace(problem, iterations=iterations)
    due = 1
    for start, stage in planned_stages(moment, problem):
        assert start == due <= iterations
        due += stage.length
    assert due > iterations


@pytest.mark.parametrize(
    "change",
    [
        {"sigma": 1e200},
        {"first_clip": 1e200},
        {"first_clip": 1e-200},
        {"delta": 1e-320},
        {"theta": 1e-200},
        {"smoothness": 5e-324},
    ],
)
def test_what_leaves_float64_is_refused_in_words(change: dict[str, float]) -> None:
    with pytest.raises(ConfigurationError, match="float64"):
        first_stage(PAPER_MOMENT, replace(PAPER, **change), 5)  # type: ignore[arg-type]


@pytest.mark.parametrize("moment", [math.inf, 1e308])
def test_a_noise_beyond_float64_is_refused_in_words(moment: float) -> None:
    with pytest.raises(ConfigurationError, match="float64"):
        first_stage(moment, PAPER, 5)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("batch_size", 0),
        ("iterations", 0),
        ("tau_max", -1),
        ("theta", 0.0),
        ("theta", 1.0),
        ("theta", math.nan),
        ("delta", 0.0),
        ("delta", 1.0),
        ("sigma", -1.0),
        ("sigma", math.inf),
        ("sigma", 0.0),
        ("smoothness", 0.0),
        ("smoothness", math.nan),
        ("loss_gap", -1.0),
        ("radius", 0.0),
        ("first_clip", 0.0),
        ("first_clip", math.inf),
    ],
)
def test_a_constant_out_of_range_is_named_with_its_value(key: str, value: float) -> None:
    with pytest.raises(ConfigurationError, match=rf"^{key} = {value}: must be "):
        replace(PAPER, **{key: value})  # type: ignore[arg-type]

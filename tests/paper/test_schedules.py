"""table: key parameters: γ_t of MAPA, AUDP, ASGD and CSGD, and when MAPA's stages change."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cloud.algorithm import StepSchedule
from cloud.algorithms.mapa import Mapa
from cloud.stages import first_stage, next_stage, open_stage
from common.errors import ConfigurationError
from common.mechanism.guarantee import LEAST_BOUND
from common.problem import Problem
from tests import algorithm_support

PROBLEM = Problem(
    batch_size=12,
    smoothness=2.45,
    sigma=4.7,
    tau_max=5,
    iterations=15_000,
    loss_gap=0.6931,
    radius=4.9,
    first_clip=17.2,
)
MOMENT = 2 / 0.1**2

problems = st.builds(
    Problem,
    batch_size=st.integers(1, 1000),
    smoothness=st.floats(1e-2, 1e3),
    sigma=st.floats(1e-2, 1e3),
    tau_max=st.integers(0, 1000),
    iterations=st.just(1000),
    radius=st.floats(1e-2, 1e3),
    first_clip=st.floats(1e-2, 1e3),
)


def begun(name: str, problem: Problem, moment: float = MOMENT, **options: Any) -> StepSchedule:
    return algorithm_support.begun(name, problem, moment, **options)


@given(problems, st.integers(1, 10**7), st.floats(1e-2, 1e4))
def test_audp_has_the_rate_of_its_convergence_theorem(problem: Problem, t: int, moment: float) -> None:
    schedule = begun("audp", problem, moment)
    assert problem.first_clip is not None
    sensitivity = 2 * problem.first_clip / problem.batch_size
    variance = problem.sigma**2 / problem.batch_size + sensitivity**2 * moment
    inverse = problem.smoothness * (problem.tau_max + 1) + math.sqrt(variance + 1) * math.sqrt(t)
    assert schedule.sensitivity == sensitivity
    assert 1 / schedule.learning_rate(t) == pytest.approx(inverse, rel=1e-12)


@given(problems, st.integers(1, 10**7))
def test_asgd_has_the_square_of_the_delay_and_csgd_none(problem: Problem, t: int) -> None:
    growth = math.sqrt(t + 1) * problem.sigma / (problem.radius * math.sqrt(problem.batch_size))
    asgd = problem.smoothness * (problem.tau_max + 1) ** 2 + growth
    csgd = problem.smoothness + growth
    assert 1 / begun("asgd", problem).learning_rate(t) == pytest.approx(asgd, rel=1e-12)
    assert 1 / begun("csgd", problem).learning_rate(t) == pytest.approx(csgd, rel=1e-12)


@pytest.mark.parametrize("name", ["asgd", "csgd", "constant"])
def test_schedules_without_stages_mind_neither_staleness_nor_an_edge_that_joins(name: str) -> None:
    schedule = begun(name, PROBLEM, **({"rate": 0.5} if name == "constant" else {}))
    assert (schedule.stage, schedule.opened()) == (1, None)
    assert (schedule.sensitivity == 0.0) is (name != "constant")
    assert schedule.after(7, 100) is schedule
    assert schedule.with_moment(1e9, 3) is schedule


def test_audp_keeps_its_sensitivity_and_slows_down_for_a_larger_moment() -> None:
    schedule = begun("audp", PROBLEM)
    slower = schedule.with_moment(4 * MOMENT, 100)
    assert slower.sensitivity == schedule.sensitivity
    assert slower.learning_rate(100) == pytest.approx(begun("audp", PROBLEM, 4 * MOMENT).learning_rate(100))
    assert slower.learning_rate(100) < schedule.learning_rate(100)
    assert schedule.after(7, 100) is schedule


def test_without_a_first_bound_audp_and_mapa_begin_where_theorem_3_does() -> None:
    problem = replace(PROBLEM, first_clip=None)
    least = 2 * 4.7 / (12 * math.sqrt(1 - math.sqrt(1 - 1e-3)))
    for name in ("audp", "mapa"):
        assert begun(name, problem).sensitivity == pytest.approx(least, rel=1e-9)


@given(problems, st.floats(1e-3, 1e3), st.integers(1, 1000), st.floats(1e-2, 1e4))
def test_constant_steps_by_the_rate_over_the_bound_whatever_the_noise(
    problem: Problem, rate: float, t: int, moment: float
) -> None:
    assert problem.first_clip is not None
    schedule = begun("constant", problem, moment, rate=rate)
    assert schedule.sensitivity == 2 * problem.first_clip / problem.batch_size
    assert schedule.learning_rate(t) == rate / problem.first_clip
    falling = begun("constant", problem, moment, rate=rate, rate_decay="linear")
    left = (problem.iterations + 1 - t) / problem.iterations
    assert falling.learning_rate(t) == pytest.approx(left * rate / problem.first_clip, rel=1e-9)
    assert falling.learning_rate(t) > 0


def test_constant_needs_its_rate_and_its_bound() -> None:
    with pytest.raises(ConfigurationError, match=r"algorithm\.rate: needed with algorithm.name = 'constant'"):
        begun("constant", PROBLEM)
    with pytest.raises(ConfigurationError, match=r"algorithm\.first_clip: needed"):
        begun("constant", replace(PROBLEM, first_clip=None), rate=0.5)


def test_a_stage_lasts_exactly_its_length_and_the_next_aims_at_theta_of_it() -> None:
    schedule = begun("mapa", PROBLEM)
    stage = first_stage(MOMENT, PROBLEM, PROBLEM.tau_max)
    seen: list[tuple[int, int]] = []
    for t in range(1, stage.length + 1):
        assert schedule.opened() == stage
        assert schedule.learning_rate(t) == stage.learning_rate
        seen.append((t, schedule.stage))
        schedule = schedule.after(t, 10**6)
    assert len(seen) == stage.length > 1
    following = next_stage(stage, MOMENT, PROBLEM, PROBLEM.tau_max)
    assert schedule.opened() == following
    assert schedule.sensitivity == 0.5 * stage.sensitivity
    t = stage.length + following.length
    assert schedule.after(t - 1, 0) is schedule
    assert schedule.after(t, 0).stage == 3


def test_a_measured_delay_counts_only_when_the_next_stage_opens_and_never_lowers_the_configured_one() -> None:
    short = replace(PROBLEM, loss_gap=1e-6)  # T_s = 1
    schedule = begun("mapa", replace(short, measure_tau=True))
    stage = schedule.opened()
    assert stage is not None
    assert (stage.length, stage.tau_max) == (1, 5)
    low = schedule.after(1, 3).opened()
    high = schedule.after(1, 40).opened()
    assert low is not None
    assert high is not None
    assert (low.tau_max, high.tau_max) == (5, 40)
    assert high == open_stage(2, 0.5 * stage.sensitivity, MOMENT, short, 40)
    configured = begun("mapa", short).after(1, 40).opened()
    assert configured == low


def test_one_straggler_does_not_make_the_next_stages_longer() -> None:
    """One gradient 99 updates late, among gradients that are 5 late: T_s of what follows is that of τ_max = 5."""
    problem = replace(PROBLEM, first_clip=1e4, measure_tau=True)  # P = 1, where T_s grows with (τ_max + 1)²
    calm, late = begun("mapa", problem, 1e-6), begun("mapa", problem, 1e-6)
    first = calm.opened()
    assert first is not None
    assert (first.p, first.length > 10) == (1, True)
    for t in range(1, first.length + 1):
        calm, late = calm.after(t, 5), late.after(t, 99 if t == first.length // 2 else 5)
    assert late.stage == 2
    assert late.opened() == calm.opened()


def test_a_delay_that_lasts_is_followed_and_forgotten_again() -> None:
    schedule = begun("mapa", replace(PROBLEM, measure_tau=True), tau_window=10)
    seen = []
    for t, staleness in enumerate([5, 5, *[40] * 10, *[5] * 10], start=1):
        schedule = schedule.after(t, staleness)
        assert isinstance(schedule, Mapa)
        assert len(schedule.seen) <= 10
        seen.append(schedule.tau_max)
    assert seen[:3] == [5, 5, 5]
    assert seen[11] == 40
    assert seen[-1] == 5


def test_the_largest_of_the_window_is_the_quantile_1() -> None:
    problem = replace(PROBLEM, loss_gap=1e-9, measure_tau=True)
    stage = begun("mapa", problem, tau_quantile=1.0).after(1, 5).after(2, 99).opened()
    assert stage is not None
    assert stage.tau_max == 99


def test_the_bound_never_shrinks_below_what_an_edge_accepts() -> None:
    schedule = begun("mapa", replace(PROBLEM, loss_gap=1e-200))
    for t in range(1, 201):
        schedule = schedule.after(t, 0)
    last = schedule.opened()
    assert last is not None
    assert LEAST_BOUND <= last.clip < 2 * LEAST_BOUND
    assert schedule.after(201, 0) is schedule


def test_a_reopened_stage_counts_its_updates_from_one_again() -> None:
    schedule = begun("mapa", PROBLEM)
    first = schedule.opened()
    assert first is not None
    assert first.length > 2
    joined = first.length  # its last update, had nobody joined
    again = schedule.with_moment(2 * MOMENT, joined)
    stage = again.opened()
    assert stage is not None
    assert (stage.index, stage.sensitivity) == (1, first.sensitivity)
    assert stage.learning_rate < first.learning_rate
    assert again.after(joined + stage.length - 2, 0).stage == 1
    assert again.after(joined + stage.length - 1, 0).stage == 2
    second = again.after(joined + stage.length - 1, 0).opened()
    assert second == next_stage(stage, 2 * MOMENT, PROBLEM, 5)

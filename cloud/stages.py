"""The stage controller of algorithm:MAPA: ΔS₁, Δ_b, P, γ and T_s. Pure, in float64."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

from common.errors import ConfigurationError
from common.problem import Problem, SensitivityRule


@dataclass(frozen=True, slots=True)
class Stage:
    """One stage: γ and ΔS stay constant for T_s updates."""

    index: int  # s, from 1
    sensitivity: float  # ΔS
    clip: float  # C = bΔS/2
    variance: float  # Δ_b
    p_raw: float  # the right side of eq:multi_stage_P
    p: float  # P = max(P_raw, 1)
    learning_rate: float  # γ
    length_raw: float  # the right side of eq:multi_stage_T0
    length: int  # T_s
    tau_max: int  # τ_max it was computed with


def initial_sensitivity(problem: Problem) -> float:
    """Return ΔS₁: 2C₁/b of a given first bound, else the least ΔS that eq:global_sensitivity_cheb allows.

    (1 − 4σ²/(b²ΔS²))² ≥ 1 − δ. 1 − √(1−δ) is written so that a tiny δ loses no digits.
    """
    if problem.first_clip is not None:
        return 2 * problem.first_clip / problem.batch_size
    one_minus_root = -math.expm1(0.5 * math.log1p(-problem.delta))
    return 2 * problem.sigma / (problem.batch_size * math.sqrt(one_minus_root))


def noise_variance(sensitivity: float, relative_moment: float, problem: Problem) -> float:
    """Return Δ_b = σ²/b + ΔS²·v, v being the largest E‖η‖²/ΔS² over edges (2/ε₀² in the paper; D-01)."""
    # products, not **: what leaves float64 must become inf, which open_stage refuses by name
    return problem.sigma * problem.sigma / problem.batch_size + sensitivity * sensitivity * relative_moment


def open_stage(
    index: int, sensitivity: float, relative_moment: float, problem: Problem, tau_max: int
) -> Stage:
    """Lines 6-8 of algorithm:MAPA, cloud side."""
    b, delays = problem.batch_size, tau_max + 1
    variance = noise_variance(sensitivity, relative_moment, problem)
    target = b * sensitivity * problem.theta
    if not (0 < target * target < math.inf and 0 < variance < math.inf):
        raise ConfigurationError(
            f"ΔS = {sensitivity} of stage {index} leaves float64; begin with another first_clip"
        )
    p_raw = 8 * variance / (delays * (target * target))
    p = max(p_raw, 1.0)
    rate = 1 / (2 * p * problem.smoothness * delays)
    length_raw = 4 * (p * p) * problem.smoothness * delays**2 * problem.loss_gap / variance
    if not (math.isfinite(length_raw) and 0 < rate < math.inf):
        raise ConfigurationError(
            f"γ or T_s of stage {index} leaves float64 (P = {p}); begin with another first_clip"
        )
    return Stage(
        index=index,
        sensitivity=sensitivity,
        clip=b * sensitivity / 2,
        variance=variance,
        p_raw=p_raw,
        p=p,
        learning_rate=rate,
        length_raw=length_raw,
        length=max(1, math.ceil(length_raw)),
        tau_max=tau_max,
    )


def first_stage(relative_moment: float, problem: Problem, tau_max: int) -> Stage:
    """Lines 1-8. The algorithm uses Δ_b before line 16 sets it; it follows from ΔS₁ (D-05)."""
    return open_stage(1, initial_sensitivity(problem), relative_moment, problem, tau_max)


def next_stage(stage: Stage, relative_moment: float, problem: Problem, tau_max: int) -> Stage:
    """Lines 15-16, then 6-8 of the stage that follows."""
    if problem.rule is SensitivityRule.THETA:
        sensitivity = problem.theta * stage.sensitivity
    else:
        sensitivity = 2 * math.sqrt(2 * stage.variance / (stage.p * (stage.tau_max + 1))) / problem.batch_size
    return open_stage(stage.index + 1, sensitivity, relative_moment, problem, tau_max)


def reopen_stage(stage: Stage, relative_moment: float, problem: Problem, tau_max: int) -> Stage:
    """Same number and ΔS, everything else computed again: an edge joined with a smaller ε_k."""
    return open_stage(stage.index, stage.sensitivity, relative_moment, problem, tau_max)


def planned_stages(relative_moment: float, problem: Problem) -> Iterator[tuple[int, Stage]]:
    """Yield (first update, stage) for every stage that begins within T updates."""
    start, stage = 1, first_stage(relative_moment, problem, problem.tau_max)
    while start <= problem.iterations:
        yield start, stage
        start += stage.length
        if start <= problem.iterations:
            stage = next_stage(stage, relative_moment, problem, problem.tau_max)

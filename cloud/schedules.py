"""γ_t and ΔS of every algorithm behind one Schedule; values, so a step returns the next one."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Protocol, Self

from cloud.stages import Stage, first_stage, initial_sensitivity, next_stage, noise_variance, reopen_stage
from common.errors import ConfigurationError
from common.noise import LEAST_BOUND
from common.problem import Problem, RateDecay


class Schedule(Protocol):
    """What the cloud needs to know of an algorithm (table: key parameters)."""

    @property
    def stage(self) -> int:
        """s; 1 for the algorithms without stages."""

    @property
    def sensitivity(self) -> float:
        """ΔS to send with a model; 0 where nothing is clipped."""

    def learning_rate(self, t: int) -> float:
        """γ_t."""

    def after(self, t: int, tau_seen: int) -> Self:
        """Return the schedule once update t is done, `tau_seen` being the largest staleness so far."""

    def with_moment(self, relative_moment: float, t: int) -> Self:
        """Return the schedule for a larger v, from update t on."""

    def opened(self) -> Stage | None:
        """Return the stage in force, where the algorithm has stages."""


@dataclass(frozen=True, slots=True)
class Mapa:
    """algorithm:MAPA."""

    problem: Problem
    moment: float  # v
    current: Stage
    start: int = 1  # the update at which t_s = 1
    measure_tau: bool = False

    @classmethod
    def begin(cls, problem: Problem, moment: float, *, measure_tau: bool = False) -> Self:
        return cls(problem, moment, first_stage(moment, problem, problem.tau_max), measure_tau=measure_tau)

    @property
    def stage(self) -> int:
        return self.current.index

    @property
    def sensitivity(self) -> float:
        return self.current.sensitivity

    def learning_rate(self, t: int) -> float:  # noqa: ARG002 - constant within a stage
        return self.current.learning_rate

    def after(self, t: int, tau_seen: int) -> Self:
        if t - self.start + 1 < self.current.length:
            return self
        tau_max = max(self.problem.tau_max, tau_seen) if self.measure_tau else self.problem.tau_max
        following = next_stage(self.current, self.moment, self.problem, tau_max)
        if following.clip < LEAST_BOUND:  # no edge would work with it, so this stage is the last (D-22)
            return self
        return replace(self, current=following, start=t + 1)

    def with_moment(self, relative_moment: float, t: int) -> Self:
        stage = reopen_stage(self.current, relative_moment, self.problem, self.current.tau_max)
        return replace(self, moment=relative_moment, current=stage, start=t)

    def opened(self) -> Stage | None:
        return self.current


class Unstaged:
    """What the algorithms without stages have in common; those whose rate knows no v say nothing of it."""

    __slots__ = ()

    @property
    def stage(self) -> int:
        return 1

    def after(self, t: int, tau_seen: int) -> Self:  # noqa: ARG002
        return self

    def with_moment(self, relative_moment: float, t: int) -> Self:  # noqa: ARG002
        return self

    def opened(self) -> Stage | None:
        return None


@dataclass(frozen=True, slots=True)
class Audp(Unstaged):
    """γ_t⁻¹ = L(τ_max+1) + √(Δ_b+1)·√t (eq:convex_errorbound_varingrate); ΔS is one constant."""

    problem: Problem
    sensitivity: float  # ΔS
    variance: float  # Δ_b

    @classmethod
    def begin(cls, problem: Problem, moment: float) -> Self:
        sensitivity = initial_sensitivity(problem)
        return cls(problem, sensitivity, cls._variance(sensitivity, moment, problem))

    @staticmethod
    def _variance(sensitivity: float, moment: float, problem: Problem) -> float:
        variance = noise_variance(sensitivity, moment, problem)
        if not variance < math.inf:  # γ would be 0 for ever
            raise ConfigurationError(
                f"Δ_b = {variance} with v = {moment} leaves float64: less noise is needed"
            )
        return variance

    def learning_rate(self, t: int) -> float:
        steady = self.problem.smoothness * (self.problem.tau_max + 1)
        return 1 / (steady + math.sqrt(self.variance + 1) * math.sqrt(t))

    def with_moment(self, relative_moment: float, t: int) -> Self:  # noqa: ARG002
        return replace(self, variance=self._variance(self.sensitivity, relative_moment, self.problem))


@dataclass(frozen=True, slots=True)
class Constant(Unstaged):
    """γ_t = ρ/C, or ρ/C·(1 − (t−1)/T) where it falls linearly; ΔS is one constant (D-21).

    A clipped gradient is at most C long, so ρ bounds what a sample can move x in one update, whatever C is.
    """

    first_rate: float  # ρ/C
    sensitivity: float  # ΔS
    fall: float  # share of ρ/C that an update takes off: 1/T or 0

    @classmethod
    def begin(cls, problem: Problem, moment: float) -> Self:  # noqa: ARG003 - v enters nowhere
        if problem.rate is None or problem.first_clip is None:
            raise ConfigurationError(
                "algorithm.rate and algorithm.first_clip: the schedule 'constant' needs both"
            )
        fall = 1 / problem.iterations if problem.rate_decay is RateDecay.LINEAR else 0.0
        return cls(problem.rate / problem.first_clip, initial_sensitivity(problem), fall)

    def learning_rate(self, t: int) -> float:
        return self.first_rate * (1 - (t - 1) * self.fall)


@dataclass(frozen=True, slots=True)
class Plain(Unstaged):
    """ASGD: γ_t⁻¹ = L(τ_max+1)² + √(t+1)·σ/(R√b). CSGD is the same with τ_max = 0. Neither clips nor noises."""

    problem: Problem
    steady: float  # L(τ_max+1)²
    growth: float  # σ/(R√b)

    @classmethod
    def begin(cls, problem: Problem, moment: float) -> Self:  # noqa: ARG003 - no noise, no v
        growth = problem.sigma / (problem.radius * math.sqrt(problem.batch_size))
        return cls(problem, problem.smoothness * (problem.tau_max + 1) ** 2, growth)

    @property
    def sensitivity(self) -> float:
        return 0.0

    def learning_rate(self, t: int) -> float:
        return 1 / (self.steady + math.sqrt(t + 1) * self.growth)


def schedule_for(
    algorithm: str, problem: Problem, *, measure_tau: bool = False
) -> Callable[[float], Schedule]:
    """Return what begins the named algorithm's schedule once v is known."""
    if algorithm == "mapa":
        return lambda moment: Mapa.begin(problem, moment, measure_tau=measure_tau)
    if algorithm == "audp":
        return lambda moment: Audp.begin(problem, moment)
    if algorithm == "constant":
        return lambda moment: Constant.begin(problem, moment)
    if algorithm == "csgd":
        centralised = replace(problem, tau_max=0)
        return lambda moment: Plain.begin(centralised, moment)
    return lambda moment: Plain.begin(problem, moment)

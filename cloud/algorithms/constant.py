"""A constant rate, or one that falls linearly (D-21)."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar, Self

from cloud.algorithm import StepSchedule, option
from cloud.stages import initial_sensitivity
from common.errors import ConfigurationError
from common.problem import Problem


@dataclass(frozen=True, slots=True)
class Constant(StepSchedule):
    """One clipping bound C and γ_t = ρ/C, or ρ/C·(1 − (t−1)/T) where it falls linearly (D-21).

    A clipped gradient is at most C long, so ρ bounds what a sample can move x in one update, whatever C is.
    """

    private: ClassVar[bool] = True
    needs_constants: ClassVar[bool] = False
    requires: ClassVar[tuple[str, ...]] = ("first_clip",)
    takes_sums: ClassVar[bool] = True

    rate: float = option("ρ: γ_t = ρ/C with C = first_clip", above=0)
    rate_decay: str = option("linear: ρ falls to 0 over T updates", "none", choices=("none", "linear"))

    first_rate: float = 0.0  # ρ/C
    bound: float = 0.0  # ΔS
    fall: float = 0.0  # share of ρ/C that an update takes off: 1/T or 0

    def begin(self, problem: Problem, moment: float) -> Self:  # noqa: ARG002 - v enters nowhere
        if problem.first_clip is None:
            raise ConfigurationError("algorithm.first_clip: needed with algorithm.name = 'constant'")
        fall = 1 / problem.iterations if self.rate_decay == "linear" else 0.0
        rate = self.rate / problem.first_clip
        return replace(self, first_rate=rate, bound=initial_sensitivity(problem), fall=fall)

    @property
    def sensitivity(self) -> float:
        return self.bound

    def learning_rate(self, t: int) -> float:
        return self.first_rate * (1 - (t - 1) * self.fall)


ALGORITHM = Constant

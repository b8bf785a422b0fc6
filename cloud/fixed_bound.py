"""What the algorithms with one clipping bound for the whole run share: ρ, C and ΔS."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar, Self

from cloud.algorithm import Algorithm, option
from cloud.stages import initial_sensitivity
from common.errors import ConfigurationError
from common.problem import Problem


@dataclass(frozen=True, slots=True, eq=False)
class FixedBound(Algorithm):
    """C = first_clip throughout; a clipped gradient is at most C long, so rates are given as ρ = γC."""

    private: ClassVar[bool] = True
    needs_constants: ClassVar[bool] = False
    requires: ClassVar[tuple[str, ...]] = ("first_clip",)

    rate: float = option("ρ: γ = ρ/C with C = first_clip", above=0)

    clip: float = 1.0  # C
    bound: float = 0.0  # ΔS

    def begin(self, problem: Problem, moment: float) -> Self:  # noqa: ARG002 - v enters nowhere
        if problem.first_clip is None:
            raise ConfigurationError("algorithm.first_clip: needed, since γ = ρ/C with C = first_clip")
        return replace(self, clip=problem.first_clip, bound=initial_sensitivity(problem))

    @property
    def gamma(self) -> float:
        """γ = ρ/C."""
        return self.rate / self.clip

    @property
    def sensitivity(self) -> float:
        return self.bound

"""An algorithm around another: all as the inner one has it, but for what a subclass says itself."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Self

from cloud.algorithm import Algorithm
from cloud.stages import Stage
from common.noise.law import NoiseLaw
from common.problem import Problem
from common.quantities import Vector


@dataclass(frozen=True, slots=True, eq=False)
class Wrapping(Algorithm):
    """What averages and weights share. `apply` is the subclass's own."""

    inner: Algorithm

    def begin(self, problem: Problem, moment: float) -> Self:
        return replace(self, inner=self.inner.begin(problem, moment))

    @property
    def stage(self) -> int:
        return self.inner.stage

    @property
    def sensitivity(self) -> float:
        return self.inner.sensitivity

    def sensitivity_for(self, t: int, edge: int, law: NoiseLaw | None) -> float:
        return self.inner.sensitivity_for(t, edge, law)

    def with_moment(self, moment: float, t: int) -> Self:
        return replace(self, inner=self.inner.with_moment(moment, t))

    def opened(self) -> Stage | None:
        return self.inner.opened()

    def result(self, x: Vector) -> Vector:
        return self.inner.result(x)

"""CSGD: SGD on all data in one place."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar, Self

from cloud.algorithms.asgd import Asgd
from common.problem import Problem


@dataclass(frozen=True, slots=True)
class Csgd(Asgd):
    """SGD by one worker on all data, neither clipped nor noised: ASGD with τ_max = 0."""

    private: ClassVar[bool] = False
    centralised: ClassVar[bool] = True

    def begin(self, problem: Problem, moment: float) -> Self:
        return Asgd.begin(self, replace(problem, tau_max=0), moment)


ALGORITHM = Csgd

"""Algorithms at their beginning, for tests that need no scenario."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from cloud.algorithm import StepSchedule
from common.algorithms import describe
from common.problem import Problem


def beginning(name: str, problem: Problem, **options: Any) -> Callable[[float], StepSchedule]:
    """Return what begins the named algorithm once v is known."""
    described = describe(name)
    return partial(described.make(described.resolve(options)).begin, problem)


def begun(name: str, problem: Problem, moment: float, **options: Any) -> StepSchedule:
    return beginning(name, problem, **options)(moment)

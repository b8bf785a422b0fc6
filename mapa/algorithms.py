"""For an algorithm of your own: the port, its options and the problem it is given."""
# ruff: noqa: F401
# mypy: implicit-reexport

from __future__ import annotations

from cloud.algorithm import Algorithm, StepSchedule, Update, descend, option
from cloud.stages import initial_sensitivity
from common.problem import Problem
from common.quantities import Vector

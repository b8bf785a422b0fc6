"""FedAsync: the weight of a gradient falls with its staleness."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Self

import numpy as np

from cloud.algorithm import FixedBound, Update, descend, option
from common.errors import ConfigurationError
from common.problem import Problem
from common.quantities import Vector


@dataclass(frozen=True, slots=True, eq=False)
class FedAsync(FixedBound):
    """FedAsync with one local step: a stale gradient, or the model that it makes, weighs α·s(τ).

    The published update is x ← (1 − α_τ)x + α_τ(x_v − γg̃), where x_v is the model that the edge had (`mix = model`).
    `mix = step` leaves out the pull back to x_v: x ← x − α_τγg̃. They are the same for a gradient that is not stale.
    """

    mixing: float = option("α, the weight of a gradient that is not stale", 1.0, above=0, at_most=1)
    weight: str = option(
        "s(τ): 1; 1/(a(τ−b)+1) beyond b; (1+τ)^−a", "polynomial", choices=("constant", "hinge", "polynomial")
    )
    power: float = option(
        "a of the polynomial weight", 0.5, at_least=0, at_most=100, only=("weight", "polynomial")
    )
    slope: float = option("a of the hinge weight", 10.0, at_least=0, at_most=1e6, only=("weight", "hinge"))
    grace: int = option(
        "b of the hinge weight: staleness that costs nothing",
        4,
        at_least=0,
        at_most=1_000_000,
        only=("weight", "hinge"),
    )
    mix: str = option("step: gradients change x; model: as published", "step", choices=("step", "model"))
    window: int = option(
        "mix = model: how many of the last models are kept; a gradient on an older one is left out",
        64,
        at_least=1,
        at_most=10_000,
        only=("mix", "model"),
    )

    models: tuple[Vector, ...] = ()  # with mix = model: x_v for the last v, this one last

    def begin(self, problem: Problem, moment: float) -> Self:
        if self.mix == "model" and problem.tau_max >= self.window:
            raise ConfigurationError(
                f"algorithm.window = {self.window}: must be greater than algorithm.tau_max = {problem.tau_max},"
                " or gradients of ordinary staleness would be left out"
            )
        return FixedBound.begin(self, problem, moment)

    def apply(self, x: Vector, update: Update) -> tuple[Vector, Self]:
        weight = self.mixing * self.staleness_weight(update.staleness)
        if self.mix == "step":
            return descend(x, update.gradient, weight * self.gamma), self
        models = (*self.models, x)[-self.window :]
        following = replace(self, models=models)
        if update.staleness >= len(models):
            return x, following
        local = descend(models[-1 - update.staleness], update.gradient, self.gamma)
        local -= x
        local *= np.float32(weight)
        local += x
        return local, following

    def staleness_weight(self, staleness: int) -> float:
        """Return s(τ)."""
        if self.weight == "constant":
            return 1.0
        if self.weight == "hinge":
            return 1 / (self.slope * max(0, staleness - self.grace) + 1)
        return float((1 + staleness) ** -self.power)


ALGORITHM = FedAsync

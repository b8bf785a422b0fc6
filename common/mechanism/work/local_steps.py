"""local-steps: a message is the mean of E releases, each made where the one before has led."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar, Self

import numpy as np

from common.mechanism.guarantee import MOST_STEPS
from common.mechanism.local_work import LocalWork, Release
from common.options import option
from common.quantities import NoisyGradient, Vector, is_finite


@dataclass(frozen=True, slots=True)
class LocalSteps(LocalWork):
    """(x⁽⁰⁾ − x⁽ᴱ⁾)/(E·γ_local), where each step is x⁽ᵉ⁾ = x⁽ᵉ⁻¹⁾ − γ_local·g̃_e: the mean of the g̃_e."""

    name: ClassVar[str] = "local-steps"
    steps: int = option("E; each is charged as a release", 1, at_least=1, at_most=MOST_STEPS)
    rate: float = option(
        "ρ_local: a local step is ρ_local/C times a noised gradient",
        0.0,
        at_least=0,
        at_most=1e6,
        neutral=True,
    )

    def releases(self) -> int:
        return self.steps

    @property
    def local_rate(self) -> float:
        return self.rate

    def audited(self) -> Self:
        return replace(self, rate=1e-3)

    def message(self, x: Vector, release: Release, bound: float, regularization: float) -> NoisyGradient:
        """Return the mean, computed as such.

        A step that would leave float32 is not taken: an edge that ended there would tell of releases that it was not
        charged for.
        """
        rate = np.float32(self.rate / bound)
        released = release(x)
        if not is_finite(released):
            return released  # by λx alone
        total = released.astype(np.float64)
        for _ in range(self.steps - 1):
            there = x - rate * released
            if is_finite(there) and is_finite(np.float32(regularization) * there):
                x = there
            released = release(x)
            total += released
        total /= self.steps
        return NoisyGradient(total.astype(np.float32))


PART = LocalSteps

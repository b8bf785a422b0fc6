"""single-step: a message is one release at the model that was received."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from common.mechanism.local_work import LocalWork, Release
from common.quantities import NoisyGradient, Vector


@dataclass(frozen=True, slots=True)
class SingleStep(LocalWork):
    """One release at the model that was received."""

    name: ClassVar[str] = "single-step"

    def releases(self) -> int:
        return 1

    def message(self, x: Vector, release: Release, bound: float, regularization: float) -> NoisyGradient:  # noqa: ARG002
        return release(x)


PART = SingleStep

"""A rate that needs no tuning: from the batch, the noise, the number of updates and the length of features."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import ClassVar, Self

from cloud.algorithm import PublicNumbers, StepSchedule, option
from common.errors import ConfigurationError
from common.problem import Problem

DEVIATIONS = 1.5  # of the noise that a run adds to the score of one feature vector
# ρ·ℓ·(τ + 1) at most: how far a score may move before what it does is seen. Read off held-out records of three sets.
MOST_MOVED = 300.0
_RULE = "1.5·b/(ℓ·z·√T)"
_CAP = "300/(ℓ·(τ + 1))"


@dataclass(frozen=True, slots=True)
class TuningFree(StepSchedule):
    """Normalised gradients and γ = ρ/C with ρ = 1.5·b/(ℓ·z·√T): public numbers alone, so nothing is tuned on records.

    An update adds ρz/b of noise to every coordinate, T of them ρz√T/b, so a score of a feature vector of length ℓ gets
    1.5 standard deviations in all. C only sets units: 1 unless first_clip says otherwise. With little noise and a delay
    of τ updates that would be more than the delay bears, so ρ is at most 300/(ℓ·(τ + 1)).
    """

    private: ClassVar[bool] = True
    needs_constants: ClassVar[bool] = False
    clipping: ClassVar[str | None] = "normalised"
    takes_sums: ClassVar[bool] = True

    rate: float = option(
        "ρ; 0: 1.5·b/(ℓ·z·√T) with ℓ the model's fixed feature length, which not every model has",
        0.0,
        at_least=0,
    )

    gamma: float = 0.0  # ρ/C
    bound: float = 0.0  # ΔS

    def settled(self, numbers: PublicNumbers) -> Self:
        return self if self.rate else replace(self, rate=_by_the_rule(numbers))

    def explained(self, numbers: PublicNumbers) -> str:
        if numbers.feature_length is None or self.rate != _by_the_rule(numbers):
            return f"ρ = {self.rate:.6g}, as algorithm.rate says"
        if self.rate < _uncapped(numbers, numbers.feature_length):
            return f"ρ = {self.rate:.6g} = {_CAP} with ℓ = {numbers.feature_length:.6g}, τ = {numbers.delay}"
        return (
            f"ρ = {self.rate:.6g} = {_RULE} with b = {numbers.batch_size}, ℓ = {numbers.feature_length:.6g},"
            f" z = {numbers.noise_multiplier:.6g}, T = {numbers.iterations}"
        )

    def begin(self, problem: Problem, moment: float) -> Self:  # noqa: ARG002 - the rate is settled before
        if not self.rate:
            raise ConfigurationError("algorithm.rate: needed here, where no model says its feature length")
        clip = 1.0 if problem.first_clip is None else problem.first_clip
        return replace(self, gamma=self.rate / clip, bound=2 * clip / problem.batch_size)

    @property
    def sensitivity(self) -> float:
        return self.bound

    def learning_rate(self, t: int) -> float:  # noqa: ARG002 - constant
        return self.gamma


def _by_the_rule(numbers: PublicNumbers) -> float:
    """Return ρ; ConfigurationError where the model has no fixed feature length."""
    if numbers.feature_length is None:
        raise ConfigurationError(
            f"algorithm.rate: needed with algorithm.name = 'tuning-free', since model {numbers.model!r} has no fixed"
            f" feature length ℓ, and ρ = {_RULE} needs one; give a rate, or a model with Model.feature_length"
        )
    cap = MOST_MOVED / (numbers.feature_length * (numbers.delay + 1))
    return min(_uncapped(numbers, numbers.feature_length), cap)


def _uncapped(numbers: PublicNumbers, length: float) -> float:
    return (
        DEVIATIONS * numbers.batch_size / (length * numbers.noise_multiplier * math.sqrt(numbers.iterations))
    )


ALGORITHM = TuningFree

"""The algorithm port: what the cloud asks of an algorithm. A value with pure functions; one algorithm, one file.

Its fields are its options (made by `option`) and its state (all other fields, each with a default), so the
fields are all that a checkpoint needs. What edges do follows from `private` and `centralised`, and travels
to them as data: an edge never runs an algorithm's code.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar, NamedTuple, Self

import numpy as np

from cloud.stages import Stage, initial_sensitivity
from common.errors import ConfigurationError
from common.noise.law import NoiseLaw
from common.options import option
from common.problem import Problem
from common.quantities import Vector

__all__ = ["Algorithm", "PublicNumbers", "StepSchedule", "Update", "descend", "option"]


class Update(NamedTuple):
    """A gradient that is to change x. A tuple: one is made for every update."""

    gradient: Vector  # g̃; not to be changed
    t: int  # this update
    version: int  # of the model that it was made on
    staleness: int  # t − version
    edge: int  # k
    law: NoiseLaw | None  # how edge k noises; None: not at all
    moment: float  # v_k, relative noise variance E‖η‖²/ΔS² of that law
    stage: int  # that the gradient was made in
    sensitivity: float  # ΔS that it was made with


class PublicNumbers(NamedTuple):
    """What is public of a run before its first release: options that follow from these cost no privacy."""

    batch_size: int  # b
    iterations: int  # T
    noise_multiplier: float  # z of an update: RMS over the updates that are planned
    feature_length: float | None  # ℓ of the model; None: it has none
    model: str  # its name


def descend(x: Vector, gradient: Vector, rate: float) -> Vector:
    """Return x − γg̃ in the memory of the step; x itself never changes."""
    step: Vector = np.multiply(gradient, rate, dtype=np.float32)
    return np.subtract(x, step, out=step)


class Algorithm:
    """What every algorithm has. A subclass is a frozen dataclass and must set `private`.

    `apply` must give the same bytes for the same x, update and fields: use elementwise operations, or sums in
    a fixed order. It must not change x, which has been handed out.
    """

    __slots__ = ()

    private: ClassVar[bool]  # whether its edges clip and noise; there is no default
    centralised: ClassVar[bool] = False  # one worker holds all data
    needs_constants: ClassVar[bool] = True  # L, σ, R and f₀; without them it runs on any model and data set
    requires: ClassVar[tuple[str, ...]] = ()  # keys of [algorithm] that must be given
    clipping: ClassVar[str | None] = None  # the only privacy.clipping that it takes; None: any but quantile

    def settled(self, numbers: PublicNumbers) -> Self:  # noqa: ARG002
        """Return the algorithm with options that were left open filled in, before the first release."""
        return self

    def explained(self, numbers: PublicNumbers) -> str:  # noqa: ARG002
        """Return which rate is in force and how it was found; '' where the scenario says all of it."""
        return ""

    def begin(self, problem: Problem, moment: float) -> Self:  # noqa: ARG002
        """Return the algorithm at t = 1; `moment` is v, the largest relative noise variance of the edges."""
        return self

    @property
    def stage(self) -> int:
        """s; 1 for the algorithms without stages."""
        return 1

    @property
    def sensitivity(self) -> float:
        """ΔS = 2C/b to send with a model; 0 where nothing is clipped."""
        return 0.0

    def sensitivity_for(self, t: int, edge: int, law: NoiseLaw | None) -> float:  # noqa: ARG002
        """Return ΔS for edge k; the same for all unless an algorithm says otherwise."""
        return self.sensitivity

    def apply(self, x: Vector, update: Update) -> tuple[Vector, Self]:
        """Return the next x, as a new array, and the algorithm after this update."""
        raise NotImplementedError

    def with_moment(self, moment: float, t: int) -> Self:  # noqa: ARG002
        """Return the algorithm for a larger v, from update t on."""
        return self

    def opened(self) -> Stage | None:
        """Return the stage in force, where the algorithm has stages."""
        return None

    def result(self, x: Vector) -> Vector:
        """Return the model that is evaluated and kept: x itself, or for example an average of iterates."""
        return x


class StepSchedule(Algorithm):
    """x ← x − γ_t g̃ with γ_t known from t and the staleness seen: the form that the vectorised engine can plan."""

    __slots__ = ()

    def learning_rate(self, t: int) -> float:
        """Return γ_t."""
        raise NotImplementedError

    def after(self, t: int, staleness: int) -> Self:  # noqa: ARG002
        """Return the schedule after update t, whose gradient had this staleness."""
        return self

    def apply(self, x: Vector, update: Update) -> tuple[Vector, Self]:
        t = update.t
        return descend(x, update.gradient, self.learning_rate(t)), self.after(t, update.staleness)

    @property
    def can_be_planned(self) -> bool:
        """Whether γ_t and ΔS say all: False where a subclass changes x, ΔS or the result in its own way."""
        own, plain = type(self), StepSchedule
        return (
            own.apply is plain.apply
            and own.sensitivity_for is plain.sensitivity_for
            and own.result is plain.result
        )


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

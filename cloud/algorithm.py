"""The algorithm port: what the cloud asks of an algorithm. A value with pure functions; one algorithm, one file.

Its fields are its options (made by `option`) and its state (all other fields, each with a default), so the
fields are all that a checkpoint needs. What edges do follows from `private` and `centralised`, and travels
to them as data: an edge never runs an algorithm's code.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import ClassVar, NamedTuple, Self

import numpy as np
import numpy.typing as npt

from cloud.stages import Stage, initial_sensitivity
from common.errors import ConfigurationError
from common.noise.law import NoiseLaw
from common.options import option
from common.problem import Problem
from common.quantities import Vector

Vectors = npt.NDArray[np.float32]  # one a row

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
    delay: int = 0  # updates of x between a gradient's model and the gradient, where edges take turns


def descend(x: Vector, gradient: Vector, rate: float) -> Vector:
    """Return x − γg̃ in the memory of the step; x itself never changes."""
    step: Vector = np.multiply(gradient, float(rate))  # of float32, as the gradient is
    return np.subtract(x, step, step)


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
    takes_sums: ClassVar[bool] = False  # its C never changes, and the mean of a set of releases will do
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


@dataclass(frozen=True, slots=True, eq=False)
class EdgeBuffer(FixedBound):
    """x stays until m edges have been heard, then moves by ρ/C times what a rule makes of each edge's mean gradient.

    An edge has one place, whatever its pace: a fast one would fill a buffer of gradients by itself.
    """

    buffer: int = option("m, edges that x waits for", 5, at_least=1, at_most=1000)

    held: tuple[tuple[int, int, Vector], ...] = ()  # of each edge heard: k, its gradients, their sum

    def begin(self, problem: Problem, moment: float) -> Self:
        least = self.least_edges
        if self.buffer < least:
            raise ConfigurationError(
                f"algorithm.buffer = {self.buffer}: must be at least {least} with the other options"
            )
        if problem.edges is not None and self.buffer > problem.edges:
            raise ConfigurationError(
                f"algorithm.buffer = {self.buffer}: must be at most {problem.edges}, the edges of this run, or x would"
                " never move"
            )
        return FixedBound.begin(self, problem, moment)

    def apply(self, x: Vector, update: Update) -> tuple[Vector, Self]:
        edge, count, total = update.edge, 1, update.gradient
        held = list(self.held)
        place = next((place for place, (known, _, _) in enumerate(held) if known == edge), len(held))
        if place < len(held):
            _, earlier, others = held.pop(place)
            count, total = earlier + 1, others + total
        held.insert(place, (edge, count, total))
        if len(held) < self.buffer:
            return x, replace(self, held=tuple(held))
        means = np.stack([total / np.float32(count) for _, count, total in held])
        return descend(x, self.combined(means), self.gamma), replace(self, held=())

    @property
    def least_edges(self) -> int:
        """The smallest m for which the rule means anything."""
        raise NotImplementedError

    def combined(self, means: Vectors) -> Vector:
        """Return what x moves by, of m × N means in the order in which their edges were first heard."""
        raise NotImplementedError


def square_length(vector: Vector) -> float:
    """Return ‖v‖², the same bytes on any machine, which a rule that compares lengths needs."""
    return float(np.square(vector, dtype=np.float64).sum())


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


DECAY = 0.99  # β where the scenario gives none
FROM = 0.5  # share of T where the scenario gives none


@dataclass(frozen=True, slots=True, eq=False)
class WithAverage(Wrapping):
    """Another algorithm, unchanged, beside an average of the models that it made; the average is the result.

    ema: x̄ ← β_t x̄ + (1 − β_t)x with β_t = min(β, (1+t)/(10+t)), so that x₁ is soon forgotten.
    tail: x̄ is the mean of the models after update first − 1; before that, the result is x.
    The average is kept in float64, each coordinate by itself.
    """

    decay: float | None = None  # β; None: the mean of the tail
    share: float = FROM  # of T, that the tail leaves out

    first: int = 1  # the update whose model is the first of the average
    count: int = 0  # models in the average
    mean: npt.NDArray[np.float64] | None = None

    def begin(self, problem: Problem, moment: float) -> Self:
        first = 1 if self.decay is not None else first_of_tail(self.share, problem.iterations)
        return replace(self, inner=self.inner.begin(problem, moment), first=first)

    def apply(self, x: Vector, update: Update) -> tuple[Vector, Self]:
        moved, inner = self.inner.apply(x, update)
        if update.t < self.first:
            return moved, replace(self, inner=inner)
        count = self.count + 1
        if self.mean is None:
            mean = moved.astype(np.float64)
        else:
            mean = np.subtract(moved, self.mean, dtype=np.float64)
            mean *= 1 / count if self.decay is None else 1 - min(self.decay, (1 + count) / (10 + count))
            mean += self.mean
        return moved, replace(self, inner=inner, count=count, mean=mean)

    def result(self, x: Vector) -> Vector:
        return self.inner.result(x) if self.mean is None else self.mean.astype(np.float32)


def first_of_tail(share: float | None, last: int) -> int:
    """Return the update whose model is the first of the tail, where `last` updates can be made."""
    return min(last, math.floor((FROM if share is None else share) * last) + 1)


def averaged(algorithm: Algorithm, kind: str, decay: float | None, share: float | None) -> Algorithm:
    """Return the algorithm with the average that a scenario asks for: none, ema or tail."""
    if kind == "none":
        return algorithm
    if kind == "ema":
        return WithAverage(algorithm, decay=DECAY if decay is None else decay)
    return WithAverage(algorithm, share=FROM if share is None else share)


LARGEST = 5.0  # times the mean: a bound on what one edge can gain by a false word about its noise


@dataclass(frozen=True, slots=True, eq=False)
class WithWeights(Wrapping):
    """Another algorithm that is given w_k·g̃ instead of g̃; the weights' mean over all planned updates is 1.

    They follow from the plan. An edge that noises more than planned weighs less, and none can weigh more.
    """

    weights: tuple[float, ...] = ()  # w_k
    variances: tuple[float, ...] = ()  # v_k that w_k was computed for, in one dimension

    def apply(self, x: Vector, update: Update) -> tuple[Vector, Self]:
        weight = self.weight(update.edge, update.law)
        gradient = np.multiply(update.gradient, weight, dtype=np.float32)
        moved, inner = self.inner.apply(x, update._replace(gradient=gradient))
        return moved, self if inner is self.inner else replace(self, inner=inner)

    def weight(self, edge: int, law: NoiseLaw | None) -> float:
        """Return w_k, less where the edge said that it noises more than planned."""
        weight, planned = self.weights[edge], self.variances[edge]
        said = planned if law is None else law.relative_second_moment(1)
        return weight if said <= planned else weight * planned / said


@functools.lru_cache(maxsize=16)
def noise_weights(
    variances: tuple[float, ...], releases: tuple[int, ...], largest: float = LARGEST
) -> tuple[float, ...]:
    """Return w_k ∝ 1/v_k with Σ R_k·w_k = Σ R_k and no w_k above `largest`; what a cap takes the others get."""
    total = float(sum(releases))
    capped: set[int] = set()
    while True:
        free = [k for k in range(len(variances)) if k not in capped]
        left = total - largest * sum(releases[k] for k in capped)
        scale = left / sum(releases[k] / variances[k] for k in free)
        above = {k for k in free if scale / variances[k] > largest}
        if not above:
            return tuple(largest if k in capped else scale / v for k, v in enumerate(variances))
        capped |= above


def effective_multiplier(
    multipliers: Sequence[float], weights: Sequence[float], releases: Sequence[int]
) -> float:
    """Return the root mean square of w_k·z_k over all planned updates."""
    squares = sum(r * (w * z) ** 2 for z, w, r in zip(multipliers, weights, releases, strict=True))
    return float((squares / sum(releases)) ** 0.5)

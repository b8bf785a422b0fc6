"""Secure sums as an algorithm sees them: the mean of m edges' releases is one update, nothing else is seen; pure."""

from __future__ import annotations

import bisect
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Self

import numpy as np

from cloud.algorithm import Algorithm, Update, Wrapping
from common.errors import LocalProtocolError
from common.problem import Problem
from common.quantities import Vector

_MOVES = 1000  # of x that are remembered: a gradient older than these counts as that old


@dataclass(frozen=True, slots=True)
class Held:
    """A release that waits for a set."""

    edge: int  # k
    version: int  # of the model that it was made on
    gradient: Vector


@dataclass(frozen=True, slots=True, eq=False)
class InSums(Wrapping):
    """Another algorithm that is given the means of sets alone: each the oldest waiting release of m different edges.

    T counts releases, and so do versions of x; the algorithm inside counts sets. A set is named as soon as m edges have
    a release waiting; what they released beyond it waits for the next one.
    """

    members: int = 1  # m

    waiting: tuple[Held, ...] = ()  # in the order in which they came
    moved: tuple[int, ...] = ()  # the last updates at which x moved
    sets: int = 0  # opened so far
    sealed: bool = False  # releases are masked: helpers say when a set is opened, and what its mean is
    newest: tuple[float, int, float] = (0.0, 1, 0.0)  # v, stage and ΔS of the last release

    def begin(self, problem: Problem, moment: float) -> Self:
        """The noise of a mean is that of m shares of 1/m each, over m."""
        planned = replace(problem, iterations=max(1, problem.iterations // self.members))
        return replace(self, inner=self.inner.begin(planned, moment / self.members**2))

    def apply(self, x: Vector, update: Update) -> tuple[Vector, Self]:
        held = Held(update.edge, update.version, update.gradient)
        waiting = (*self.waiting, held)
        if self.sealed:
            newest = update.moment, update.stage, update.sensitivity
            return x, replace(self, waiting=waiting, newest=newest)
        oldest: dict[int, Held] = {}
        for one in waiting:
            oldest.setdefault(one.edge, one)
        if len(oldest) < self.members:
            return x, replace(self, waiting=waiting)
        chosen = [*oldest.values()][: self.members]
        total = np.zeros(x.size, np.float64)
        for one in chosen:
            total += one.gradient
        mean = (total / self.members).astype(np.float32)
        newest = update.moment, update.stage, update.sensitivity
        return self._moved(x, mean, chosen, waiting, update.t, update.edge, newest)

    def moved_by(
        self, x: Vector, mean: Vector, releases: Sequence[tuple[int, int]], t: int
    ) -> tuple[Vector, Self]:
        """Return x moved by a set's mean at update t; `releases`: edge and version of each."""
        left, chosen = self._without(releases)
        return self._moved(x, mean, chosen, left, t, chosen[-1].edge, self.newest)

    def dropped(self, releases: Sequence[tuple[int, int]]) -> Self:
        """Return the algorithm without releases that are in no set."""
        return replace(self, waiting=self._without(releases)[0])

    def _without(self, releases: Sequence[tuple[int, int]]) -> tuple[tuple[Held, ...], list[Held]]:
        left, taken = list(self.waiting), []
        for edge, version in releases:
            at = next(n for n, one in enumerate(left) if (one.edge, one.version) == (edge, version))
            taken.append(left.pop(at))
        return tuple(left), taken

    def _moved(
        self,
        x: Vector,
        mean: Vector,
        chosen: Sequence[Held],
        waiting: tuple[Held, ...],
        at: int,
        edge: int,
        newest: tuple[float, int, float],
    ) -> tuple[Vector, Self]:
        t, (moment, stage, sensitivity) = self.sets + 1, newest
        staleness = len(self.moved) - bisect.bisect_left(self.moved, min(one.version for one in chosen))
        of_set = Update(
            mean, t, t - staleness, staleness, edge, None, moment / self.members**2, stage, sensitivity
        )
        moved, inner = self.inner.apply(x, of_set)
        left = tuple(one for one in waiting if not any(one is taken for taken in chosen))
        moves = (*self.moved, at)[-_MOVES:]
        return moved, replace(self, inner=inner, waiting=left, moved=moves, sets=t, newest=newest)


def within(
    algorithm: Algorithm, change: Callable[[InSums], tuple[Vector, InSums]]
) -> tuple[Vector, Algorithm]:
    """Return what a change of the sums within an algorithm makes of x, and the algorithm with it."""
    if isinstance(algorithm, InSums):
        return change(algorithm)
    if not isinstance(algorithm, Wrapping):
        raise LocalProtocolError("a sum for an algorithm that takes releases singly")
    x, inner = within(algorithm.inner, change)
    return x, replace(algorithm, inner=inner)


def waiting_in(algorithm: Algorithm | None, edge: int) -> int:
    """Return how many releases of edge k wait for a set."""
    while isinstance(algorithm, Wrapping) and not isinstance(algorithm, InSums):
        algorithm = algorithm.inner
    held = algorithm.waiting if isinstance(algorithm, InSums) else ()
    return sum(one.edge == edge for one in held)


def summed(algorithm: Algorithm, members: int, *, sealed: bool = False) -> Algorithm:
    """Return the algorithm as it runs on sets of m releases; itself where releases come singly."""
    return algorithm if members == 1 else InSums(algorithm, members=members, sealed=sealed)

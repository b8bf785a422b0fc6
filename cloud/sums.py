"""Secure sums as an algorithm sees them: the mean of m edges' releases is one update, nothing else is seen; pure."""

from __future__ import annotations

import bisect
from dataclasses import dataclass, replace
from typing import Self

import numpy as np

from cloud.algorithm import Algorithm, Update, Wrapping
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

    def begin(self, problem: Problem, moment: float) -> Self:
        """The noise of a mean is that of m shares of 1/m each, over m."""
        planned = replace(problem, iterations=max(1, problem.iterations // self.members))
        return replace(self, inner=self.inner.begin(planned, moment / self.members**2))

    def apply(self, x: Vector, update: Update) -> tuple[Vector, Self]:
        held = Held(update.edge, update.version, update.gradient)
        waiting = (*self.waiting, held)
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
        t = self.sets + 1
        staleness = len(self.moved) - bisect.bisect_left(self.moved, min(one.version for one in chosen))
        law, moment = None, update.moment / self.members**2
        of_set = Update(
            mean, t, t - staleness, staleness, update.edge, law, moment, update.stage, update.sensitivity
        )
        moved, inner = self.inner.apply(x, of_set)
        left = tuple(one for one in waiting if not any(one is taken for taken in chosen))
        moves = (*self.moved, update.t)[-_MOVES:]
        return moved, replace(self, inner=inner, waiting=left, moved=moves, sets=t)


def waiting_in(algorithm: Algorithm | None, edge: int) -> int:
    """Return how many releases of edge k wait for a set."""
    while isinstance(algorithm, Wrapping) and not isinstance(algorithm, InSums):
        algorithm = algorithm.inner
    held = algorithm.waiting if isinstance(algorithm, InSums) else ()
    return sum(one.edge == edge for one in held)


def summed(algorithm: Algorithm, members: int) -> Algorithm:
    """Return the algorithm as it runs on sets of m releases; itself where releases come singly."""
    return algorithm if members == 1 else InSums(algorithm, members=members)

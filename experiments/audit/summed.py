"""The distinguishing game on sums: real edges behind one set, and what who sees the sum learns of one record."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from common.accounting.releases import ReleaseKind
from common.mechanism.grid import Grid
from common.mechanism.mechanism import Mechanism
from common.mechanism.samplers.poisson import Poisson
from common.noise.gaussian import Gaussian
from edge.worker import EdgeWorker
from experiments.audit.claims import Floats, ReleaseClaim, claim_for
from experiments.audit.design import Design, silent
from experiments.audit.game import Finding, judge

BATCH = 4  # b = n_k: every record is in every batch
Members = Callable[[Sequence[EdgeWorker]], Sequence[EdgeWorker]]  # whose releases are added up


def everyone(edges: Sequence[EdgeWorker]) -> Sequence[EdgeWorker]:
    return edges


@dataclass(frozen=True, slots=True, kw_only=True)
class SumGame:
    """A canary in one of m edges' releases, of which a sum is seen; what colluding edges know is taken off it."""

    grid: Grid
    noise_multiplier: float  # z of the sum, as it is claimed
    plant: Callable[[Mechanism], Mechanism] = field(default=lambda mechanism: mechanism)
    added: Members = field(default=everyone)
    canary: Floats = field(default_factory=lambda: np.full(4, 0.5))  # in units of C
    others: Floats | None = None  # every other record of the same edge, in units of C
    rounds: int = 2000  # of each world

    @property
    def mechanism(self) -> Mechanism:
        return Mechanism(Gaussian(self.noise_multiplier), BATCH, Poisson(), grid=self.grid)

    @property
    def claim(self) -> ReleaseClaim:
        """What the accountant states of one sum; of a release that is not summed, of that."""
        return claim_for(ReleaseKind(self.mechanism.in_sums(), BATCH))

    def play(self, *, alpha: float, seed: int) -> Finding:
        """Score each sum by how far it lies along the canary; the threshold is half-way, whatever comes."""
        centre = sum(self._score(there, None, 1) for there in (False, True)) / 2
        zeroed, there = (
            np.array([self._score(world, seed, n + world * self.rounds) for n in range(1, self.rounds + 1)])
            for world in (False, True)
        )
        name = f"sums of {self.grid.members}"
        return judge(name, self.claim, zeroed, there, alpha, threshold=float(centre))

    def _score(self, there: bool, seed: int | None, n: int) -> float:
        """Return the score of round n; without a seed, without noise and with one edge alone: where it lies."""
        if seed is None:
            plain = replace(self.mechanism, law=silent(Gaussian(self.noise_multiplier)), grid=None)
            design = self._design(plain)
            return float(
                design.worker(there, 0).gradient(design.path[0], design.sensitivity, n) @ self.canary
            )
        edges = self._edges(there, seed)
        design = self._design(self.mechanism)
        x, sensitivity = design.path[0], design.sensitivity
        return float(sum(edge.gradient(x, sensitivity, n) @ self.canary for edge in self.added(edges)))

    def _edges(self, there: bool, seed: int) -> list[EdgeWorker]:
        """Return the real edges that do not collude; the first one has the canary, the others' records are 0."""
        planted = self.plant(self.mechanism)
        count = self.grid.members - self.grid.colluding
        first = self._design(planted).worker(there, seed)
        rest = [self._empty(planted).worker(False, seed) for _ in range(count - 1)]
        for index, edge in enumerate([first, *rest]):
            edge.index = index
        return [first, *rest]

    def _design(self, mechanism: Mechanism) -> Design:
        return Design(mechanism=mechanism, shard_size=BATCH, canary=self.canary, others=self.others)

    def _empty(self, mechanism: Mechanism) -> Design:
        return Design(mechanism=mechanism, shard_size=BATCH, canary=self.canary)


class Uncounted(Grid):
    """The defect of a grid whose rounding is not counted."""

    __slots__ = ()

    def deviation(self, noise_multiplier: float, bound: float, dimension: int) -> float:  # noqa: ARG002
        return Grid.deviation(self, noise_multiplier, bound, 0)


def noised(factor: float) -> Callable[[Mechanism], Mechanism]:
    """Return the defect of edges that noise by another multiplier than is claimed."""

    def plant(mechanism: Mechanism) -> Mechanism:
        assert mechanism.law is not None
        return replace(mechanism, law=Gaussian(factor * mechanism.law.parameters["noise_multiplier"]))

    return plant


def at_the_edge_of_rounding(bits: int = 8) -> dict[str, Any]:
    """Return a canary, and company, for which rounding adds nearly a step in every coordinate."""
    dimension, steps = 7200, 2.0**bits
    shape = np.full(dimension, 1 / np.sqrt(dimension))  # 3.02 steps each, and 0.49 of a step below
    return {"canary": shape, "others": np.full(dimension, 0.49 / (BATCH - 1) / steps)}

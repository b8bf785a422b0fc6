"""Two releases of a long run whose noise is alike: which two is learned first, then judged on fresh ones."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from experiments.audit.bounds import Floats
from experiments.audit.claims import Claim
from experiments.audit.design import Design
from experiments.audit.game import Finding

LONGEST_LAG = 300
_LEARNING = 700  # releases with the canary zeroed: noise alone


@dataclass(frozen=True, slots=True, kw_only=True)
class LaggedGame:
    """A canary that pulls one way and, ℓ releases later, the other; ℓ is where noise was most alike."""

    name: str
    design: Design
    rounds: int

    @property
    def claim(self) -> Claim:
        return replace(self.design, releases=2).claim

    @property
    def cost(self) -> int:
        return 2 * self.rounds + _LEARNING

    def play(self, *, alpha: float, seed: int) -> Finding:
        lag = self._most_alike(seed)
        signs = np.repeat([1.0, -1.0], lag)[:, None] * np.ones(self.design.canary.size)
        pair = replace(self.design, releases=2, steer=signs)
        aim = replace(self.design, releases=2, steer=signs[[0, lag]]).aim
        game = replace(pair.game(self.name, self.rounds), score=aim.ratio, learner=aim.learned, lag=lag)
        finding = game.play(alpha=alpha, seed=seed + 1)
        return replace(finding, name=f"{self.name} ({lag} apart)")

    def _most_alike(self, seed: int) -> int:
        worker, [x] = self.design.worker(False, seed), self.design.path
        noise = np.array(
            [worker.gradient(x, self.design.sensitivity, n + 1) for n in range(_LEARNING)], np.float64
        )
        noise -= noise.mean(axis=0)
        alike: Floats = np.array([(noise[:-lag] * noise[lag:]).mean() for lag in range(1, LONGEST_LAG + 1)])
        return int(np.argmax(np.abs(alike))) + 1

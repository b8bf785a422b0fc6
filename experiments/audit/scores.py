"""How an adversary scores a round: the likelihood ratio of the claimed law, and what the first rounds teach.

An exact coincidence is an event as any other: under a claim with a density, two releases that differ by
exactly what the canary would do have probability 0 in both worlds. `nearness` scores it, the threshold is
judged as every other, and the claim says how often it may happen.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from common.noise import NoiseLaw
from experiments.audit.bounds import Floats
from experiments.audit.canary import log_likelihood_ratio
from experiments.audit.game import Releases, Score

_WIDTHS = (1e-6, 0.01, 0.05, 0.2)  # in units of C/b; the least is above the rounding of float32
_MOST_COORDINATES = 64  # of a round, to learn from one by one
_RIDGE = 1e-12


@dataclass(frozen=True, slots=True, eq=False)
class Aim:
    """Where a release lies before noise, with the canary zeroed and there; row n−1 for release n, periodic."""

    law: NoiseLaw | None
    sensitivity: float  # ΔS
    zeroed: Floats  # period × N
    there: Floats
    rate: float = 1.0  # q

    def centres(self, shape: tuple[int, ...], first: int) -> tuple[Floats, Floats]:
        """Return both centres, of every release or, where they are all alike, of one."""
        if len(self.zeroed) == 1:
            return self.zeroed, self.there
        if shape[1] > 1:  # the releases of a round are of the period's rows, in order
            return self.zeroed[: shape[1]], self.there[: shape[1]]
        places = (first - 1 + np.arange(shape[0])) % len(self.zeroed)
        return self.zeroed[places][:, None], self.there[places][:, None]

    def ratio(self, releases: Releases, first: int) -> Floats:
        """Return the log-likelihood ratio of each round, all of whose batches have the canary or may have it."""
        ratios = log_likelihood_ratio(
            self.law, self.sensitivity, releases, *self.centres(releases.shape, first)
        )
        if self.rate < 1:
            with np.errstate(divide="ignore"):
                ratios = np.logaddexp(np.log1p(-self.rate), np.log(self.rate) + ratios)
        total: Floats = ratios.sum(axis=1)
        return total

    def nearness(self, releases: Releases, first: int, width: float) -> Floats:
        """Return how much nearer each coordinate is to where the canary would put it: high where noise is missing."""
        zeroed, there = self.centres(releases.shape, first)
        soft = width * self.sensitivity / 2
        nearer = np.log(np.abs(releases - zeroed) + soft) - np.log(np.abs(releases - there) + soft)
        total: Floats = nearer.sum(axis=(1, 2))
        return total

    def exact(self, releases: Releases, first: int) -> Floats:
        """Return the nearness at the width of rounding."""
        return self.nearness(releases, first, _WIDTHS[0])

    def learned(self, zeroed: Releases, there: Releases, first_zeroed: int, first_there: int) -> Score:
        """Return Fisher's discriminant of ratio, nearness and single coordinates, as these rounds teach it."""
        known = self._features(zeroed, first_zeroed), self._features(there, first_there)
        return discriminant(*known, self._features)

    def _features(self, releases: Releases, first: int) -> Floats:
        columns = [self.ratio(releases, first)]
        columns += [self.nearness(releases, first, width) for width in _WIDTHS]
        features = np.stack(columns, axis=1)
        alike = len(self.zeroed) == 1 or releases.shape[1] > 1
        if alike and releases[0].size <= _MOST_COORDINATES:
            features = np.hstack((features, releases.reshape(len(releases), -1)))
        return features


def discriminant(zeroed: Floats, there: Floats, features: Callable[[Releases, int], Floats]) -> Score:
    """Return Fisher's linear discriminant of two clouds of features."""
    scale = np.concatenate((zeroed, there)).std(axis=0)
    scale[scale == 0] = 1
    within = (np.cov(zeroed / scale, rowvar=False) + np.cov(there / scale, rowvar=False)) / 2
    apart = (there.mean(axis=0) - zeroed.mean(axis=0)) / scale
    weights = np.linalg.solve(within + _RIDGE * np.eye(len(scale)), apart) / scale
    weights /= np.abs(weights).max() or 1.0

    def score(releases: Releases, first: int) -> Floats:
        scores: Floats = features(releases, first) @ weights
        return scores

    return score

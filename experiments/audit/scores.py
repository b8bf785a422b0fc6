"""How an adversary scores a round: the likelihood ratio of the claimed law, and what the first rounds teach.

An exact coincidence is an event as any other: under a claim with a density, two releases that differ by
exactly what the canary would do have probability 0 in both worlds. `exact` counts such coincidences; its
errors are counted as every other score's, against the same claim.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from common.noise.law import NoiseLaw, distances
from experiments.audit.bounds import Floats
from experiments.audit.game import Releases, Score

_ROUNDING = 1e-6  # in units of C/b: above what float32 rounds
_WIDTHS = (0.005, 0.01, 0.02, 0.05)  # in units of the noise
_BINS = (-1.2, -0.7, -0.4, -0.2, 0.0, 0.2, 0.4, 0.7, 1.2)  # likewise
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
    one_of: bool = False  # the canary is in one release of the round: a shuffled epoch

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
        if self.one_of:
            highest = ratios.max(axis=1, keepdims=True)
            mixed: Floats = highest[:, 0] + np.log(np.exp(ratios - highest).mean(axis=1))
            return mixed
        total: Floats = ratios.sum(axis=1)
        return total

    def exact(self, releases: Releases, first: int) -> Floats:
        """Return how many coordinates lie exactly where the canary would put them, less those where none would."""
        return self._hits(releases, first, _ROUNDING * self.sensitivity / 2)

    def _hits(self, releases: Releases, first: int, width: float) -> Floats:
        zeroed, there = self.centres(releases.shape, first)
        hits = (np.abs(releases - there) < width).sum(axis=(1, 2), dtype=np.int64)
        misses = (np.abs(releases - zeroed) < width).sum(axis=(1, 2), dtype=np.int64)
        more: Floats = (hits - misses).astype(np.float64)
        return more

    def learned(self, zeroed: Releases, there: Releases, first_zeroed: int, first_there: int) -> Score:
        """Return Fisher's discriminant of ratio, hits and single coordinates; a fifth of the zeroed is below 0."""
        known = self._features(zeroed, first_zeroed), self._features(there, first_there)
        return discriminant(*known, self._features)

    def _features(self, releases: Releases, first: int) -> Floats:
        columns = [self.ratio(releases, first), self.exact(releases, first)]
        if self.law is not None:
            size = releases.shape[-1]
            spread = self.sensitivity * (self.law.relative_second_moment(size) / size) ** 0.5
            columns += [self._hits(releases, first, width * spread) for width in _WIDTHS]
            if self.rate < 1:  # noise in the first coordinate may tell how much was sampled
                noise = releases[:, 0, 0] - self.centres(releases.shape, first)[0][..., 0].ravel()
                places = np.searchsorted(np.multiply(_BINS, spread), noise)
                columns += [np.where(places == place, columns[0], 0) for place in range(len(_BINS) + 1)]
        features = np.stack(columns, axis=1)
        alike = len(self.zeroed) == 1 or releases.shape[1] > 1
        # where the canary is seldom there, so many weights would be learned from chance
        if alike and self.rate == 1 and releases[0].size <= _MOST_COORDINATES:
            features = np.hstack((features, releases.reshape(len(releases), -1)))
        return features


def log_likelihood_ratio(
    law: NoiseLaw | None, sensitivity: float, releases: Releases, zeroed: Floats, there: Floats
) -> Floats:
    """Return log p(ν | there) − log p(ν | zeroed) of each release: the best score, by Neyman and Pearson."""
    if law is not None:
        return law.log_ratio(sensitivity, releases, zeroed, there)
    far, near = distances(releases, zeroed, there)
    return far - near


def discriminant(zeroed: Floats, there: Floats, features: Callable[[Releases, int], Floats]) -> Score:
    """Return Fisher's linear discriminant of two clouds of features."""
    scale = np.concatenate((zeroed, there)).std(axis=0)
    scale[scale == 0] = 1
    within = (np.cov(zeroed / scale, rowvar=False) + np.cov(there / scale, rowvar=False)) / 2
    apart = (there.mean(axis=0) - zeroed.mean(axis=0)) / scale
    weights = np.linalg.solve(within + _RIDGE * np.eye(len(scale)), apart) / scale
    weights /= np.abs(weights).max() or 1.0
    # A canary in few batches can hardly be ruled out, and the claim of a sampled release knows that: evidence
    # against it stands out the most.
    middle = float(np.quantile(zeroed @ weights, 0.2))

    def score(releases: Releases, first: int) -> Floats:
        scores: Floats = features(releases, first) @ weights - middle
        return scores

    return score
